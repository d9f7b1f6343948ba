"""The memory that rounds, queries and evaluations take together: each takes its estimate while it runs.

    memory = MemoryQuota(floors.max_round_bytes)
    with memory.taken(host_of(task.origin), cost.num_bytes):
        ...

There is room for two of the largest rounds. One ad server holds at most half, so that its calls at the same
time take no more than one large round, and leave room for another one's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.runtime.memory import give_back_memory

_LARGEST_ROUNDS: Final = 2
_WORTH_GIVING_BACK: Final = 64 << 20


class MemoryQuota:
    """Bytes that callers share. Safe to share between threads."""

    def __init__(self, max_round_bytes: int) -> None:
        """Share the bytes of two of the largest rounds."""
        self._room = FairQuota(
            _LARGEST_ROUNDS * max_round_bytes,
            "rounds at work take this caller's share of the memory for them (--max-round-bytes)",
        )

    @contextmanager
    def taken(self, host: str, num_bytes: int) -> Iterator[None]:
        """Take bytes for the block; after much, give the system back what was freed.

        Args:
            host: Of the origin of the task, whose ad server calls.
            num_bytes: What the work takes, by estimate.

        Raises:
            HelperUnavailable: the caller's share is taken; it says when to ask again.
        """
        try:
            with self._room.entered(host, places=num_bytes):
                yield
        finally:
            if num_bytes >= _WORTH_GIVING_BACK:
                give_back_memory()
