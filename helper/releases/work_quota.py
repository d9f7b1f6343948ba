"""The memory and processors that rounds, queries and evaluations share: each takes its part while it runs.

    quota = WorkQuota(floors.max_round_bytes)
    with quota.taken(host_of(task.origin), cost.num_bytes, call.check_awaited):
        ...

There is room for two of the largest rounds. One ad server holds at most half, so that its calls at the same
time take no more than one large round, and leave room for another one's. And its calls compute on half of the
cores at most, the others wait: small evaluations, many of which fit in the memory, would otherwise take all.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Condition
from typing import Final

from maskedlark.interrupt import Interrupt, never
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.runtime.keyed_lock import KeyedLock
from maskedlark.runtime.memory import give_back_memory

_LARGEST_ROUNDS: Final = 2
_WORTH_GIVING_BACK: Final = 64 << 20
_INTERRUPTED_EVERY_S: Final = 0.1


class WorkQuota:
    """Bytes and turns to compute that callers share. Safe to share between threads."""

    def __init__(self, max_round_bytes: int, *, at_once: int | None = None) -> None:
        """Share the bytes of two of the largest rounds.

        Args:
            max_round_bytes: The most that one takes.
            at_once: How many computations of one caller run at the same time; by default half of the cores.
        """
        self._room = FairQuota(
            _LARGEST_ROUNDS * max_round_bytes,
            "rounds at work take this caller's share of the memory for them (--max-round-bytes)",
        )
        self._at_once = at_once or max(1, (os.cpu_count() or 1) // 2)
        self._reading = KeyedLock()
        self._changed = Condition()
        self._computing: Counter[str] = Counter()

    @contextmanager
    def taken(self, host: str, num_bytes: int, interrupt: Interrupt = never) -> Iterator[None]:
        """Wait for a turn and take bytes for the block; after much, give the system back what was freed.

        Args:
            host: Of the origin of the task, whose ad server calls.
            num_bytes: What the work takes, by estimate.
            interrupt: Called while it waits; what it raises ends the call.

        Raises:
            HelperUnavailable: the caller's share of the memory is taken; it says when to ask again.
        """
        try:
            # The turn first: a call that waits for one takes no memory from those that compute.
            with self._turn(host, interrupt), self._room.enter(host, places=num_bytes):
                yield
        finally:
            if num_bytes >= _WORTH_GIVING_BACK:
                give_back_memory()

    def reading(self, host: str) -> AbstractContextManager[None]:
        """Wait until a caller reads no other model, then read one.

        While its engine is made, tables of windows take some 300 MiB at most: before there is an estimate.
        """
        return self._reading.hold(host.encode())

    @contextmanager
    def _turn(self, host: str, interrupt: Interrupt) -> Iterator[None]:
        """Wait until a caller computes less than it may, then compute."""
        with self._changed:
            while self._computing[host] >= self._at_once:
                interrupt()
                self._changed.wait(_INTERRUPTED_EVERY_S)
            self._computing[host] += 1
        try:
            yield
        finally:
            with self._changed:
                self._computing -= Counter({host: 1})  # which forgets a caller that computes nothing
                self._changed.notify_all()
