"""Tables that are printed whole where nobody's window limits them: in files and pipes.

print_whole(table)      # in a terminal as wide as that, else as wide as its longest line
"""

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDEST: Final = 100_000


def print_whole(table: "RenderableType") -> None:
    """Print a table to standard output; only a terminal or the variable COLUMNS breaks its lines.

    A path or an id that a line break parts can be neither copied nor searched for.
    """
    from rich.console import Console

    console = Console()
    if console.is_terminal or console.is_jupyter:
        console.print(table)
        return
    # Where nobody's window limits it, rich assumes 80 columns.
    if not os.environ.get("COLUMNS"):
        console.width = max(console.width, Console(width=_WIDEST).measure(table).maximum)
    with console.capture() as captured:
        console.print(table)
    # rich pads every line to the longest one: one long value would add hundreds of blanks to each.
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
