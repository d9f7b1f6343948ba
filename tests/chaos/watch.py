"""Sees what stands still.

No state of a job may last longer than two leases while those who could change it are up.

What counts is the time that was watched, not what a clock says: a look that comes late, because the machine
is busy with something else, counts as one that came in time; and where more want a processor than there are,
each look counts as much less. So an overloaded machine hides a little, and accuses nobody.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

import psutil

LOOK_EVERY_S: Final = 0.5


@dataclass(slots=True, kw_only=True)
class Stillness:
    """How long one thing has stood still, in time that was watched.

    Attributes:
        limit_s: The longest that is right.
        times: How often it was longer.
    """

    limit_s: float
    times: int = 0
    _seen: Hashable = None
    _still_s: float = 0.0

    def look(self, state: Hashable, *, may_rest: bool, share: float = 1.0) -> None:
        """One look, `LOOK_EVERY_S` after the one before.

        `may_rest`: nobody who could change the state is up, or nothing is to be done. `share`: of the
        processors that those who could change it want, what they get.
        """
        self._still_s = 0.0 if may_rest or state != self._seen else self._still_s + share * LOOK_EVERY_S
        self._seen = state
        if self._still_s > self.limit_s:
            self.times += 1
            self._still_s = 0.0


def share_of_processors() -> float:
    """What each of those who want a processor gets of one, at most 1, over the last minute."""
    return min(1.0, (psutil.cpu_count() or 1) / max(1.0, psutil.getloadavg()[0]))


@contextmanager
def running(work: Callable[[], None], name: str, stop: Event) -> Iterator[None]:
    """Work in a thread while the block runs; `stop` ends it, and what it raises is raised at the end."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised where the block ends
            errors.append(error)

    thread = Thread(target=guarded, name=name)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


@contextmanager
def repeating(act: Callable[[], object], name: str, every_s: float) -> Iterator[None]:
    """Act again and again while the block runs."""
    stop = Event()

    def work() -> None:
        while not stop.wait(every_s):
            act()

    with running(work, name, stop):
        yield
