"""Options of a command line, with their help first, in the panels in which `--help` shows them.

floors = panel("Floors")

def serve_command(min_decoys: Annotated[int, floors("Fewest decoy labels in a report.", min=1)] = 1): ...
"""

from collections.abc import Callable
from typing import Any, Final

import typer

Declare = Callable[..., Any]
"""Declares an option, to stand in `Annotated`: its help, its names if they are not the parameter's, and
what else `typer.Option` takes."""


def panel(title: str | None = None) -> Declare:
    """Declares options of one panel of the help; without a title, of the first."""

    def declare(about: str, *names: str, **settings: Any) -> Any:
        return typer.Option(*names, help=about, rich_help_panel=title, **settings)

    return declare


option: Final = panel()
