"""Memory for what browsers are sending.

All bodies under way share one room, so that many slow ones cannot take the machine's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Of 32 of the largest batches at the intake; the admin API's largest request fills one by itself
ROOM_BYTES: Final = 256 << 20


class NoRoom(Exception):
    """The memory for bodies is full; the client may retry."""


class Held:
    """What one request holds of the room."""

    def __init__(self, room: "BodyRoom") -> None:
        self._room = room
        self.num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Hold more, for bytes that have arrived.

        Raises:
            NoRoom: there is not as much left.
        """
        if num_bytes > self._room.free_bytes:
            raise NoRoom
        self._room.free_bytes -= num_bytes
        self.num_bytes += num_bytes


class BodyRoom:
    """The room of one server. Used on its event loop only."""

    def __init__(self, num_bytes: int = ROOM_BYTES) -> None:
        self.free_bytes = num_bytes

    @contextmanager
    def hold(self) -> Iterator[Held]:
        """Hold room for one request; all of it is free again at the end of the block, however that comes."""
        held = Held(self)
        try:
            yield held
        finally:
            self.free_bytes += held.num_bytes
