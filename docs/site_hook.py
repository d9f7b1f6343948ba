"""What `mkdocs build` does beside building: it names files, keeps options whole and ranks pages for search.

Pages are also read where the repository lies, and there a link to one of its files leads to the file. A file
that is not there is a broken link, and ends the build. Decisions come after the pages that say what to do.
The repository's own pages (licence, changes, how to take part) are read from where a forge looks for them.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

_DOCS: Final = Path(__file__).parent
_ROOT: Final = _DOCS.parent
_BOOSTS: Final = {"tutorial": 1.5, "how-to": 1.5, "reference": 0.6, "spec": 0.3, "project": 0.3, "adr": 0.15}
"""By folder: instructions come before definitions and decisions, which use the same words more often."""
_OF_REPOSITORY: Final = {
    "CONTRIBUTING.md": ("project/contributing.md", "contribute; contributing; development"),
    "SECURITY.md": ("project/security.md", "security contact; vulnerability; report a vulnerability"),
    "CHANGELOG.md": ("project/changelog.md", "changelog; changes; release notes"),
    "CODE_OF_CONDUCT.md": ("project/conduct.md", "code of conduct"),
    "LICENSE": ("project/licence.md", "license; licence; Apache"),
}
"""By file of the repository's root: its page, and what it is found by."""
_FOUND_BY: Final = re.compile(r"^<!-- Found by: (.*) -->\n", re.M)
_DEFINED: Final = re.compile(r"^\| `([a-z0-9]+_\w+)` \|", re.M)
_LINK: Final = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")
_CODE: Final = re.compile(r"<code>[^<]*</code>")
_OPTION: Final = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are files of the repository's root."""
    for name, (page, phrases) in _OF_REPOSITORY.items():
        text = (_ROOT / name).read_text()
        if not name.endswith(".md"):
            text = "# Licence\n\n```text\n" + text.strip("\n") + "\n```\n"
        text = re.sub(r"(?<=\]\()(?=[\w.-]+[)/#])", "../../", text).replace("(../../docs/", "(../")
        files.append(File.generated(config, page, content=f"{text}\n<!-- Found by: {phrases} -->\n"))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs with each page's text."""
    room = page.file.src_uri.partition("/")[0]
    page.meta["search"] = {"boost": _BOOSTS.get(room, 1)}
    phrases = [phrase for line in _FOUND_BY.findall(markdown) for phrase in line.split("; ")]
    page.meta["tags"] = phrases + (_DEFINED.findall(markdown) if room == "reference" else [])
    markdown = _FOUND_BY.sub("", markdown)
    folder = (_DOCS / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(_DOCS):
            return link[0]
        if target.parent == _ROOT and target.name in _OF_REPOSITORY:
            page_there = os.path.relpath(_DOCS / _OF_REPOSITORY[target.name][0], folder)
            return f"[{link[1]}]({page_there}{link[3] or ''})"
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[2]}, which is not there")
        path = f"`{target.relative_to(_ROOT).as_posix()}`"
        return path if link[1].strip("`") == target.name else f"{link[1]} ({path})"

    return _LINK.sub(named, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Mark the options in each code span, which `assets/site.css` keeps from breaking at their hyphens."""

    def marked(code: re.Match[str]) -> str:
        return _OPTION.sub(lambda option: f'<span class="option">{option[0]}</span>', code[0])

    return _CODE.sub(marked, html)
