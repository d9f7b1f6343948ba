"""A bound on heavy calls: one that finds no room is told at once to come again, instead of waiting in a queue without end."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Final

from maskedlark.errors import HelperUnavailable

RETRY_AFTER_S: Final = 1.0


class Admission:
    """Room for so many heavy calls at once. Keep it below the server's threads, so that light calls always find one."""

    def __init__(self, room: int, *, retry_after_s: float = RETRY_AFTER_S) -> None:
        self._room = BoundedSemaphore(room)
        self._retry_after_s = retry_after_s

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Hold room for one call.

        Raises:
            HelperUnavailable: there is none; it says when to ask again, and travels as RESOURCE_EXHAUSTED.
        """
        if not self._room.acquire(blocking=False):
            raise HelperUnavailable("as many calls are at work as there is room for; ask again", retry_after_s=self._retry_after_s)
        try:
            yield
        finally:
            self._room.release()
