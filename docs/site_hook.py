"""What `mkdocs build` does beside building: it names files, keeps options whole and ranks pages for search.

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
_CODE: Final = re.compile(r"<code>[^<]*</code>")
_OPTION: Final = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


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


def on_page_content(html: str, **_: Any) -> str:
    """Mark the options in each code span, which `assets/site.css` keeps from breaking at their hyphens."""

    def marked(code: re.Match[str]) -> str:
        return _OPTION.sub(lambda option: f'<span class="option">{option[0]}</span>', code[0])

    return _CODE.sub(marked, html)
