"""How far a long run is, on standard error: a bar with the time that is left on a terminal, elsewhere a line every 15 seconds."""

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
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=Console(stderr=True)) as bars:
        row = bars.add_task(what, total=total, note="")
        yield lambda done, note: bars.update(row, completed=min(done, total), note=note)


def _lines(what: str, total: float) -> Show:
    """A line now and then; the last one is no less than `LINE_EVERY_S` old."""
    began = shown_at = time.monotonic()

    def show(done: float, note: str) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at < LINE_EVERY_S:
            return
        shown_at = now
        left = f", about {(now - began) * (total - done) / done:.0f} s left" if 0 < done < total else ""
        sys.stderr.write(f"{what}: {min(1.0, done / total):.0%} after {now - began:.0f} s{left}; {note}\n")

    return show
