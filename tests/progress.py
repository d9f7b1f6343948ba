"""How far a long run is, on standard error.

A bar with the time that is left on a terminal, elsewhere a line every 15 seconds.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY_S: Final = 15.0

Show = Callable[[float, str], None]
"""Called with how much is done, in units of the total, and with what there is to say."""


@contextmanager
def shown(what: str, total: float) -> Iterator[Show]:
    """Progress of `what` for as long as the block lasts. Safe to call from one thread at a time."""
    if not sys.stderr.isatty():
        yield _lines(what, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        row = bars.add_task(what, total=total, note="")
        yield lambda done, note: bars.update(row, completed=min(done, total), note=note)


def _lines(what: str, total: float) -> Show:
    """A line now and then. What is done at the first call was done in no time.

    The time that is left is guessed from the calls after it.
    """
    began = shown_at = time.monotonic()
    first: tuple[float, float] | None = None

    def show(done: float, note: str) -> None:
        nonlocal shown_at, first
        now = time.monotonic()
        first = first or (now, done)
        if now - shown_at < LINE_EVERY_S:
            return
        shown_at = now
        per_unit_s = (now - first[0]) / (done - first[1]) if done > first[1] else 0.0
        left = f", about {per_unit_s * (total - done):.0f} s left" if per_unit_s and done < total else ""
        sys.stderr.write(f"{what}: {min(1.0, done / total):.0%} after {now - began:.0f} s{left}; {note}\n")

    return show
