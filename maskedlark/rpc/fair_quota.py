"""Room that several peers share, where none can take what the next one needs."""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Final

from maskedlark.errors import HelperUnavailable

RETRY_AFTER_S: Final = 1.0


class FairQuota:
    """A number of places. A peer gets one more only while it holds fewer than are free.

    Guarantees: one peer holds at most half of the places, rounded up, however many it takes at once. Taking
        them one at a time, a second one holds at most half of what the first leaves, and so on: so a place is
        free for a newcomer unless about log2(places) peers each hold all that they can get. Safe to share
        between threads.
    """

    def __init__(self, places: int, full: str = "the limit of calls in progress is reached") -> None:
        """Share so many places; `full` is the message for a peer that gets none."""
        self._places = places
        self._full = full
        self._lock = Lock()
        self._taken = 0
        self._held: Counter[Hashable] = Counter()

    @contextmanager
    def enter(self, *names: Hashable, places: int = 1) -> Iterator[None]:
        """Hold a place, or several, for the block.

        Args:
            names: Of the peer that asks. Its places count for each of them, so that calls under several
                names, or several choices of them, get no more places than calls under one. Without any, or
                with None, it is no peer in particular, and may take every place.
            places: How many at once.

        Raises:
            HelperUnavailable: this peer's quota is used up; it says when to ask again, and travels as
                RESOURCE_EXHAUSTED.
        """
        peers = Counter(dict.fromkeys((name for name in names if name is not None), places))
        with self._lock:
            free = self._places - self._taken
            of_one = min(free, -(-self._places // 2))
            if not (places <= free and all(self._held[peer] + places <= of_one for peer in peers)):
                raise HelperUnavailable(f"{self._full}; retry later", retry_after_s=RETRY_AFTER_S)
            self._taken += places
            self._held += peers
        try:
            yield
        finally:
            with self._lock:
                self._taken -= places
                self._held -= peers  # which forgets a peer that holds none any more

    def try_enter(self, stack: ExitStack, *names: Hashable, places: int = 1) -> bool:
        """Hold places until the stack is closed; return False if there are none for this peer."""
        try:
            stack.enter_context(self.enter(*names, places=places))
        except HelperUnavailable:
            return False
        return True
