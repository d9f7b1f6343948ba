"""What `mkdocs build` does beside building: it names files, keeps options whole and ranks pages for search.

Pages are also read where the repository lies, and there a link to one of its files leads to the file. A file
that is not there is a broken link, and ends the build. Decisions come after the pages that say what to do.
"""

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError

_DOCS: Final = Path(__file__).parent
_BOOSTS: Final = {"tutorial": 1.5, "how-to": 1.5, "reference": 0.6, "spec": 0.3, "adr": 0.15}
"""By folder: instructions come before definitions and decisions, which use the same words more often."""
_LINK: Final = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")
_CODE: Final = re.compile(r"<code>[^<]*</code>")
_OPTION: Final = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs with each page's text."""
    page.meta["search"] = {"boost": _BOOSTS.get(page.file.src_uri.partition("/")[0], 1)}
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
