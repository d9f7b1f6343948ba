"""The memory that one preparation takes, and when its next chunk may begin.

    quota = PreparationQuota(shelf=cache, head_start=prefetch, owner="ads.example", share_length=45)
    while quota.await_turn() and (chunk := read()) and quota.begin(len(chunk), num_bytes):
        ...                                  # elsewhere: quota.finish_chunk(), once for each such chunk
    quota.left_memory(count)                 # so many records are on the disk now
    cache.put(handle, prepared, quota.hand_over())
    quota.end()                              # all that is left; waiting callers are woken

The first `AT_ONCE` chunks that wait for their answers need no head start: no preparation waits for another.
"""

from collections import deque
from threading import Condition
from typing import Final

from helper.datasets.prefetch_quota import PrefetchQuota
from helper.datasets.preparation_cache import PreparationCache
from maskedlark.errors import HelperUnavailable, JobRefused
from maskedlark.runtime.prefetch import AT_ONCE

ON_DISK: Final = 8
"""So many bytes on the disk take the room of one in memory: so preparations cannot fill the disk either."""
HELD_BYTES: Final = 194
"""Of one report until its dataset is committed.

Its id and tag twice, its place and rank, what it takes to know its id again and to bring it to the ledger.
"""


class PreparationQuota:
    """Safe to call from many threads."""

    def __init__(
        self, *, shelf: PreparationCache, head_start: PrefetchQuota, owner: str, share_length: int
    ) -> None:
        """Begin with no room taken.

        Args:
            shelf: Whose room is taken.
            head_start: Of all preparations.
            owner: One ad server.
            share_length: Of a report, opened.
        """
        self._shelf, self._head_start, self._owner = shelf, head_start, owner
        self._in_memory = 2 * share_length
        self._on_disk = -(-share_length // ON_DISK)
        self._changed = Condition()
        self._unanswered = deque[int | None]()
        """Of each chunk the bytes of its head start, if it needs one."""
        self._taken_bytes = 0
        self._is_over = False

    def await_turn(self) -> bool:
        """Wait until few chunks wait for their answers, or more may be begun; False once all is over."""
        with self._changed:
            while not self._is_over:
                if len(self._unanswered) < AT_ONCE or self._head_start.is_open(self._owner):
                    return True
                self._changed.wait()
            return False

    def begin(self, count: int, num_bytes: int) -> bool:
        """Begin a chunk, if need be once those before it are answered for; False once all is over.

        So a chunk is refused only what it would be refused if it came after their answers.

        Args:
            count: Of its reports.
            num_bytes: Of its head start, if it needs one.

        Raises:
            JobRefused(DATASET_TOO_LARGE), HelperUnavailable: see `PreparationCache.take`.
        """
        with self._changed:
            while not self._is_over:
                head_start = num_bytes if len(self._unanswered) >= AT_ONCE else None
                if head_start is None or self._head_start.take(head_start, self._owner):
                    try:
                        self._take(count * (self._in_memory + HELD_BYTES))
                    except BaseException as error:
                        self._give_back(head_start)
                        # Answers that are outstanding may free room: a chunk behind them waits.
                        if not (self._unanswered and isinstance(error, JobRefused | HelperUnavailable)):
                            raise
                    else:
                        self._unanswered.append(head_start)
                        return True
                self._changed.wait()
            return False

    def finish_chunk(self) -> None:
        """Count one chunk less; the first remaining ones need no prefetch quota any more."""
        with self._changed:
            self._give_back(self._unanswered.popleft())
            for place in range(min(AT_ONCE, len(self._unanswered))):
                self._give_back(self._unanswered[place])
                self._unanswered[place] = None
            self._changed.notify_all()

    def left_memory(self, count: int, *, dropped: int = 0) -> None:
        """Free the room in memory of records that are on the disk now, or dropped.

        Args:
            count: How many.
            dropped: How many of them are not on the disk either.
        """
        freed = count * (self._in_memory - self._on_disk) + dropped * self._on_disk
        with self._changed:
            self._shelf.give_back(freed, self._owner)
            self._taken_bytes -= freed

    def hand_over(self) -> int:
        """Return the bytes taken, and leave their release to the caller."""
        with self._changed:
            taken, self._taken_bytes = self._taken_bytes, 0
            return taken

    def end(self) -> None:
        """Give back what is left. No chunk is begun any more."""
        with self._changed:
            self._is_over = True
            self._shelf.give_back(self._taken_bytes, self._owner)
            self._taken_bytes = 0
            while self._unanswered:
                self._give_back(self._unanswered.popleft())
            self._changed.notify_all()

    def _take(self, needed: int) -> None:
        self._shelf.take(needed, held=self._taken_bytes, owner=self._owner)
        self._taken_bytes += needed

    def _give_back(self, head_start: int | None) -> None:
        if head_start is not None:
            self._head_start.give_back(head_start, self._owner)
