r"""What others named, for tables on a terminal.

>>> plain("[red]a\x1b[2J").plain
'[red]a\\x1b[2J'
"""

from typing import TYPE_CHECKING
from unicodedata import category

if TYPE_CHECKING:
    from rich.text import Text


def plain(value: object) -> "Text":
    """A value in one line: it is no markup, and what cannot be seen is shown as an escape."""
    from rich.text import Text

    text = str(value)
    return Text(text if text.isprintable() else "".join(map(_shown, text)))


def _shown(character: str) -> str:
    is_seen = character.isprintable() or category(character) == "Zs"
    return character if is_seen else character.encode("unicode_escape").decode()
