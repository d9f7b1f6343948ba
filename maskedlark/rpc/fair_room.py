"""Room that several peers share, where none can take what the next one needs."""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from threading import Lock


class FairRoom:
    """A number of places. A peer gets one more only while it holds fewer than are free.

    Guarantees: one peer holds at most half of the places, rounded up; a second one at most half of what the
        first leaves, and so on. So a place is free for a newcomer unless about log2(places) peers each hold
        all that they can get. Safe to share between threads.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._lock = Lock()
        self._held: Counter[Hashable] = Counter()

    @contextmanager
    def entered(self, peer: Hashable) -> Iterator[bool]:
        """Hold a place for the block, if there is one for this peer.

        Args:
            peer: Who asks. None is no peer in particular, and may take every place.

        Yields:
            Whether a place is held.
        """
        is_in = self._enter(peer)
        try:
            yield is_in
        finally:
            if is_in:
                self._leave(peer)

    def _enter(self, peer: Hashable) -> bool:
        with self._lock:
            free = self._places - self._held.total()
            is_in = free > 0 and (peer is None or self._held[peer] < free)
            if is_in:
                self._held[peer] += 1
            return is_in

    def _leave(self, peer: Hashable) -> None:
        with self._lock:
            self._held -= Counter({peer: 1})  # which forgets a peer that holds none any more
