"""A bound on heavy calls.

One that finds no room is told at once to come again, instead of waiting in a queue without end.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from maskedlark.errors import HelperUnavailable

RETRY_AFTER_S: Final = 1.0


class Admission:
    """Room for so many heavy calls at once.

    Keep it below the server's threads, so that light calls always find one.
    """

    def __init__(self, room: int, *, retry_after_s: float = RETRY_AFTER_S) -> None:
        self._room = room
        self._retry_after_s = retry_after_s
        self._lock = Lock()
        self._inside: Counter[Hashable] = Counter()

    @contextmanager
    def entered(self, caller: Hashable = None) -> Iterator[None]:
        """Hold room for one call.

        Args:
            caller: Who calls; one that is known gets at most half of the room, rounded up. None is nobody in
                particular.

        Raises:
            HelperUnavailable: there is none; it says when to ask again, and travels as RESOURCE_EXHAUSTED.
        """
        most = self._room if caller is None else (self._room + 1) // 2
        with self._lock:
            if self._inside.total() >= self._room or self._inside[caller] >= most:
                raise HelperUnavailable(
                    "as many calls are at work as there is room for; ask again",
                    retry_after_s=self._retry_after_s,
                )
            self._inside[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= Counter({caller: 1})  # which forgets who has none left
