"""A bound on heavy calls: one that finds no room is told at once to come again."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from maskedlark.errors import HelperUnavailable
from maskedlark.rpc.fair_room import FairRoom

RETRY_AFTER_S: Final = 1.0


class Admission:
    """Room for so many heavy calls at once.

    Keep it below the server's threads, so that light calls always find one.
    """

    def __init__(self, room: int, *, retry_after_s: float = RETRY_AFTER_S) -> None:
        self._room = FairRoom(room)
        self._retry_after_s = retry_after_s

    @contextmanager
    def entered(self, caller: Hashable = None) -> Iterator[None]:
        """Hold room for one call.

        Args:
            caller: The caller; each known one leaves room for the next (`FairRoom`). None is no caller in
                particular.

        Raises:
            HelperUnavailable: there is none; it says when to ask again, and travels as RESOURCE_EXHAUSTED.
        """
        with self._room.entered(caller) as is_in:
            if not is_in:
                raise HelperUnavailable(
                    "as many calls are at work as there is room for; ask again",
                    retry_after_s=self._retry_after_s,
                )
            yield
