"""What `mkdocs build` does beside building: it names the repository's files, and orders what a search finds.

Pages are also read where the repository lies, and there a link to one of its files leads to the file. A file
that is not there is a broken link, and ends the build. Decisions come after the pages that say what to do.
"""

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError

_DOCS: Final = Path(__file__).parent
_BOOST_OF_DECISIONS: Final = 0.2
"""Decisions use the words of the how-to guides more often than these do, and came before them in a search."""
_LINK: Final = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs with each page's text."""
    if page.file.src_uri.startswith("adr/"):
        page.meta["search"] = {"boost": _BOOST_OF_DECISIONS}
    folder = (_DOCS / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(_DOCS):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[2]}, which is not there")
        path = f"`{target.relative_to(_DOCS.parent).as_posix()}`"
        return path if link[1].strip("`") == target.name else f"{link[1]} ({path})"

    return _LINK.sub(named, markdown)
