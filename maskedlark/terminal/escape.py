r"""What others named, for tables on a terminal.

>>> plain("[red]a\x1b[2J").plain
'[red]a\\x1b[2J'
"""

from typing import TYPE_CHECKING

from maskedlark.escape import escape

if TYPE_CHECKING:
    from rich.text import Text


def plain(value: object) -> "Text":
    """A value in one line: it is no markup, and what cannot be seen is shown as an escape."""
    from rich.text import Text

    return Text(escape(str(value)))
