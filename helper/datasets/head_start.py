"""How far the preparations of a helper are ahead of their answers, all together.

    head_start = HeadStart(executor.opens_at_once, room_bytes=4 << 30)
    if head_start.take(num_bytes):               # one more chunk may be begun
        ...
        head_start.give_back(num_bytes)          # it is answered for

Two chunks of each preparation are begun at once in any case. Workers on other machines want more, or they
wait for the head. What is begun and not answered for is in memory several times, as it came, as an order and
opened, takes room, and stands before what others send later: so the rest is bounded by number and by bytes,
for all preparations together.
"""

from collections.abc import Callable
from threading import Lock
from typing import Final

from maskedlark.runtime.ahead import AT_ONCE

MOST_CHUNKS: Final = 30
"""With the two of a preparation as many as sixteen workers have, for which one head is busy."""
MOST_BYTES: Final = 16 << 20
"""Of ciphertext and of what is in it: thirty chunks of 825 reports of 30 features are 7 MB."""
_OF_ROOM: Final = 64
"""Nor more than one in so many bytes of the room that all preparations have."""


class HeadStart:
    """Chunks that are begun beyond the first two of their preparations. Safe to call from many threads."""

    def __init__(self, opens_at_once: Callable[[], int], *, room_bytes: int) -> None:
        """Let so many chunks be begun as those want who open them.

        Args:
            opens_at_once: See `Executor`.
            room_bytes: How much room in memory all preparations have.
        """
        self._opens_at_once = opens_at_once
        self._most_bytes = min(MOST_BYTES, room_bytes // _OF_ROOM)
        self._lock = Lock()
        self._chunks = self._bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Whether a chunk of so many bytes may be begun; then it counts."""
        most = min(MOST_CHUNKS, self._opens_at_once() - AT_ONCE)
        with self._lock:
            if self._chunks >= most or self._bytes + num_bytes > self._most_bytes:
                return False
            self._chunks += 1
            self._bytes += num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        """A chunk that counted is answered for, or given up."""
        with self._lock:
            self._chunks -= 1
            self._bytes -= num_bytes
