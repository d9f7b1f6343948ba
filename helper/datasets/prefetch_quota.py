"""How far the preparations of a helper are ahead of their answers, all together.

    quota = PrefetchQuota(executor.opens_at_once, room_bytes=4 << 30)
    if quota.take(num_bytes, owner):        # one more chunk may be begun
        ...
        quota.give_back(num_bytes, owner)   # it is answered for

Two chunks of each preparation are begun at once in any case. Workers on other machines want more, or they
wait for the head. What is begun and not answered for is in memory several times, as it came, as an order and
opened, takes room, and stands before what others send later: so the rest is bounded by number and by bytes,
for all preparations together, and one ad server that does not read its answers leaves half of it to others.
"""

from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Final

from maskedlark.runtime.prefetch import AT_ONCE

MOST_CHUNKS: Final = 30
"""Of one ad server. With the two of a preparation they are two each of sixteen workers, which fill a head."""
MOST_BYTES: Final = 16 << 20
"""Of ciphertext and of what is in it, of all: thirty chunks of 825 reports of 30 features are 7 MB."""
# Nor more than one in so many bytes of the room that all preparations have.
_OF_ROOM: Final = 64


class PrefetchQuota:
    """Chunks that are begun beyond the first two of their preparations. Safe to call from many threads.

    Guarantees: one ad server has at most half of them and of their bytes; a second one at most half of what
        the first one leaves, and so on.
    """

    def __init__(self, opens_at_once: Callable[[], int], *, room_bytes: int) -> None:
        """Let as many chunks be begun as their openers want.

        Args:
            opens_at_once: See `Executor`.
            room_bytes: How much room in memory all preparations have.
        """
        self._opens_at_once = opens_at_once
        self._most_bytes = min(MOST_BYTES, room_bytes // _OF_ROOM)
        self._lock = Lock()
        self._chunks, self._bytes = Counter[str](), Counter[str]()

    def is_open(self, owner: str) -> bool:
        """Return whether an ad server may begin a chunk now: otherwise its next one is not read."""
        with self._lock:
            return self._has_place(1, owner)

    def take(self, num_bytes: int, owner: str) -> bool:
        """Count a chunk of so many bytes if an ad server may begin it; return whether it may."""
        with self._lock:
            if not self._has_place(num_bytes, owner):
                return False
            self._chunks[owner] += 1
            self._bytes[owner] += num_bytes
            return True

    def give_back(self, num_bytes: int, owner: str) -> None:
        """Release a chunk that was answered or abandoned."""
        with self._lock:
            self._chunks -= Counter({owner: 1})  # which forgets an owner that has none
            self._bytes -= Counter({owner: num_bytes})

    def _has_place(self, num_bytes: int, owner: str) -> bool:
        wanted = min(MOST_CHUNKS, max(0, self._opens_at_once() - AT_ONCE))
        # An owner may have as many as are free: the first gets half, the next half of what is left.
        free = 2 * wanted - self._chunks.total()
        free_bytes = self._most_bytes - self._bytes.total() - num_bytes
        return self._chunks[owner] < free and self._bytes[owner] + num_bytes <= free_bytes
