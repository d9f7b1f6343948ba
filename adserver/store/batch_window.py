"""How long a group of reports is held open, so that it is worth a separate object.

    gathering = Gathering(most_bytes=8 << 20, monotonic=time.monotonic, pause=time.sleep)
    gathering.hold(waiting)              # returns when what waits is to be stored

A put costs as much money as 64 KiB on a database's disk for a month, so small groups become rows. Where
reports come fast enough, a group stays open for up to a second or 8 MiB; but never while nothing comes, for
then all callers already wait in it, and would wait for each other; and never while no object is put.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

WORTH_BYTES: Final = 64 << 10
"""What makes a put worth its price, and a wait worth its time."""
LONGEST_S: Final = 1.0
QUIET_S: Final = 0.02
_RECENT_S: Final = 1.0


class BatchWindow:
    """Holds groups open. Used by one thread at a time."""

    def __init__(
        self,
        *,
        most_bytes: int,
        monotonic: Callable[[], float],
        pause: Callable[[float], object],
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """Hold groups of up to `most_bytes`, unless `is_paused`; `pause` sleeps for so many seconds."""
        self._most_bytes = most_bytes
        self._is_paused = is_paused
        self._monotonic = monotonic
        self._pause = pause
        self._gone: deque[tuple[float, int]] = deque()

    def hold(self, waiting: Callable[[], int]) -> None:
        """Return once the group is to be stored.

        That is at once while puts are paused, or if the last second brought less than what a put is worth,
        also with what waits.

        Args:
            waiting: How many bytes wait now.
        """
        began_s, size = self._monotonic(), waiting()
        if self._recent(began_s) + size >= WORTH_BYTES and not self._is_paused():
            while size < self._most_bytes and self._monotonic() - began_s < LONGEST_S:
                self._pause(QUIET_S)
                before, size = size, waiting()
                # All callers wait in here already, and would wait for each other.
                if size == before:
                    break
        self._gone.append((self._monotonic(), min(size, self._most_bytes)))

    def _recent(self, now_s: float) -> int:
        """Return how many bytes were written in the last second."""
        while self._gone and now_s - self._gone[0][0] >= _RECENT_S:
            self._gone.popleft()
        return sum(size for _, size in self._gone)
