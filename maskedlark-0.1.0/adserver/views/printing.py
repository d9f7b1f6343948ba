"""What commands print: tables and progress for people, JSON for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Timer
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; an empty one still shows its head."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")  # an id that is cut off is of no use
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console().print(table)


def moment(unix_s: float) -> str:
    """A time for people, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def short(identifier: bytes) -> str:
    """The start of an id: enough to type where one is asked for."""
    return identifier.hex()[:12]


@contextmanager
def told_if_slow(what: str, *, after_s: float = 1.0) -> Iterator[None]:
    """Says on standard error what a command does, if that has not ended after a second."""
    timer = Timer(after_s, lambda: sys.stderr.write(f"{what}\n"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def sealing_bars(*, is_shown: bool = True) -> Iterator[Callable[[int, int, int], None]]:
    """One bar for each helper: called with the role, how many more are done, and of how many."""
    with progress_bars(is_shown=is_shown) as bars:
        rows = [bars.add_task(f"helper {role}", total=None) for role in (0, 1)]

        def show(role: int, count: int, total: int) -> None:
            bars.update(rows[role], total=total, advance=count)

        yield show


@contextmanager
def progress_bars(*, is_shown: bool = True) -> Iterator[Progress]:
    """Progress bars with the time that is left.

    On standard error: standard output is for programs.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    is_seen = is_shown and (console.is_terminal or console.is_jupyter)
    with Progress(*columns, console=console, transient=True, disable=not is_seen) as progress:
        yield progress
