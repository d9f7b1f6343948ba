r"""What others named, for tables on a terminal.

>>> plain("[red]a\x1b[2J").plain
'[red]a\\x1b[2J'
"""

from typing import TYPE_CHECKING

from maskedlark.escape import escape

if TYPE_CHECKING:
    from rich.text import Text


def plain(value: object) -> "Text":
    """Show a value in one line: without markup, invisible characters as escapes."""
    from rich.text import Text

    return Text(escape(str(value)))
