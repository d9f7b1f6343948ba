"""What `mkdocs build` does beside building: links to files of the repository become their names.

Pages are also read where the repository lies, and there such a link leads to the file. A file that is not
there is a broken link, and ends the build.
"""

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError

_DOCS: Final = Path(__file__).parent
_LINK: Final = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs with each page's text."""
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
