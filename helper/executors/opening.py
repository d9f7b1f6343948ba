"""The head's way with workers that open shares: whole chunks to each, and to others if it is lost.

    shared = SharedOpening(fleet, local)
    shared.open(opener, incoming)                         # what opener.open(incoming) gives

A chunk is not shared out among workers, but for what one order does not carry: an order of few shares takes
the head not much less than one of a thousand, and many workers would wait for it. Each has chunks of its own
instead, which callers bring at the same time (`opens_at_once`). What no worker opens is opened here.
"""

import time
from collections.abc import Sequence
from threading import BoundedSemaphore
from typing import Final

from helper.executors.executor import Executor
from helper.executors.fleet import Fleet, Worker
from helper.executors.heartbeats import Clock
from helper.executors.opening_orders import read_opened, write_order
from helper.executors.orders import MOST_CARRIED
from helper.executors.processes import MAX_CHUNK, MIN_CHUNK
from helper.executors.work_queue import Sent, WorkQueue
from helper.executors.worker import OPEN
from maskedlark.frozen import frozen
from maskedlark.interrupt import never
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener, join_prepared
from maskedlark.reports.task import REPORT_ID_BYTES

_WORTH_A_CALL: Final = 256
"""Fewer shares take so little time to open that more of them go at once, in whichever way."""
_CHUNKS_AT_A_WORKER: Final = 2
_NUMBERS_BYTES: Final = 3 * 8
"""Of a share in an order: its time, its key's id and two lengths."""


@frozen(eq=False)
class _Work:
    """Shares in parts, and what was found in them, by the places of the parts."""

    opener: ShareOpener
    parts: Sequence[Sequence[ShareForHelper]]
    opened: dict[int, PreparedShares]

    def send(self, part: int, worker: Worker) -> Sent:
        """See `PartWork`."""
        order = worker.session.seal(write_order(self.opener, self.parts[part]), OPEN)
        return Sent(order=order, answer=worker.open(order))

    def take(self, part: int, answer: bytes) -> None:
        """See `PartWork`."""
        self.opened[part] = read_opened(answer, self.opener, self.parts[part])


class SharedOpening:
    """Opens shares at the workers of a fleet. Safe to call from many threads."""

    def __init__(self, fleet: Fleet, local: Executor, clock: Clock = time.monotonic) -> None:
        """Open at the workers of `fleet`, and what none of them opens by `local`."""
        self._fleet, self._local, self._parts = fleet, local, WorkQueue(fleet, clock)
        self._opens_here = BoundedSemaphore(local.opens_at_once())

    def opens_at_once(self) -> int:
        """See `Executor`: a worker opens one chunk while its next one is on the way."""
        return max(self._local.opens_at_once(), _CHUNKS_AT_A_WORKER * len(self._fleet.workers()))

    def open(self, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """See `Executor.open`."""
        if not self._fleet.workers() or len(incoming) < 2 * MIN_CHUNK:
            return self._local.open(opener, incoming)
        size = _part_records(incoming)
        parts = [incoming[start : start + size] for start in range(0, len(incoming), size)]
        work = _Work(opener=opener, parts=parts, opened={})
        for place in self._parts.run(len(parts), work, never):
            with self._opens_here:  # callers bring as many chunks at once as workers open
                work.opened[place] = self._local.open(opener, parts[place])
        return join_prepared([work.opened[place] for place in range(len(parts))])


def _part_records(incoming: Sequence[ShareForHelper]) -> int:
    """Return how many shares go with one order: all that fit, in parts of about equal size."""
    a_share = REPORT_ID_BYTES + _NUMBERS_BYTES + len(incoming[0].share.ciphertext)
    carried = MOST_CARRIED // a_share
    most = min(MAX_CHUNK, carried) if carried >= _WORTH_A_CALL else MAX_CHUNK
    parts = -(-len(incoming) // most)
    return -(-len(incoming) // parts)
