"""The head's way with workers that open shares: a part to each, and to another one if it is lost.

    SharedOpening(fleet, local).open(opener, incoming)    # what opener.open(incoming) gives

Each worker has two parts at a time, so that it does not wait for the next one. What no worker opens is opened
here.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final

from helper.executors.dispatch import MOST_UNDONE, Fleet, Worker, WorkerLost
from helper.executors.executor import Executor
from helper.executors.holder import OPEN
from helper.executors.joining import NONCE_BYTES, NotSealed
from helper.executors.opening_orders import read_opened, write_order
from helper.executors.processes import MAX_CHUNK, MIN_CHUNK
from helper.executors.pulses import Clock, Pulses
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener, join_prepared
from maskedlark.reports.task import REPORT_ID_BYTES

_AT_A_TIME: Final = 2
_CARRIED_BYTES: Final = 96 << 10
"""An order of less goes with its call, a longer one by way of Ray's object stores, which takes longer."""
_WORTH_A_CALL: Final = 256
"""Fewer shares take so little time to open that more of them go at once, in whichever way."""
_NUMBERS_BYTES: Final = 3 * 8
"""Of a share in an order: its time, its key's id and two lengths."""
_LOOK_EVERY_S: Final = 0.1
_LOG: Final = logging.getLogger(__name__)


@frozen(eq=False)
class _Sent:
    """A part on its way to a worker: which one, and the order's beginning, which the answer is bound to."""

    worker: Worker
    part: int
    nonce: bytes


class SharedOpening:
    """Opens shares at the workers of a fleet. Safe to call from many threads."""

    def __init__(self, fleet: Fleet, local: Executor, clock: Clock = time.monotonic) -> None:
        """Open at the workers of `fleet`, and what none of them opens by `local`."""
        self._fleet, self._local, self._pulses = fleet, local, Pulses(clock)

    def open(self, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """See `Executor.open`."""
        workers = len(self._fleet.workers())
        if not workers or len(incoming) < 2 * MIN_CHUNK:
            return self._local.open(opener, incoming)
        size = _part_records(incoming, workers)
        parts = [incoming[start : start + size] for start in range(0, len(incoming), size)]
        opened = self._opened_elsewhere(opener, parts)
        return join_prepared(
            [
                opened[place] if place in opened else self._local.open(opener, part)
                for place, part in enumerate(parts)
            ]
        )

    def _opened_elsewhere(
        self, opener: ShareOpener, parts: Sequence[Sequence[ShareForHelper]]
    ) -> dict[int, PreparedShares]:
        """What workers opened, by the places of the parts.

        All of them, unless all workers are lost, or several could not.
        """
        waiting, opened = deque(range(len(parts))), dict[int, PreparedShares]()
        flying: dict[Future[bytes], _Sent] = {}
        undone: set[bytes] = set()
        self._pulses.forget_all_but(self._fleet.workers())
        while waiting or flying:
            self._send(opener, parts, waiting, flying)
            if not flying:
                break
            landed, _ = wait(flying, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            for future in landed:
                sent = flying.pop(future)
                try:
                    answer = sent.worker.session.open(future.result(), sent.nonce)
                    opened[sent.part] = read_opened(answer, opener, parts[sent.part])
                    self._pulses.heard(sent.worker)
                except (WorkerLost, NotSealed, InvalidTask) as error:
                    self._lose(sent, waiting)
                    if isinstance(error, InvalidTask):
                        undone.add(sent.worker.name)
                    if len(undone) == MOST_UNDONE:  # the shares are the cause, or what all workers run
                        return opened
            there = self._fleet.workers()  # what another thread lost is not awaited here either
            for future, sent in list(flying.items()):
                if sent.worker.name not in there or self._pulses.is_silent(sent.worker):
                    del flying[future]
                    self._lose(sent, waiting)
        return opened

    def _lose(self, sent: _Sent, waiting: deque[int]) -> None:
        """Forget a worker, and give what it had to open to the others."""
        _LOG.warning("a worker of the cluster is lost: its shares go to others")
        self._fleet.drop(sent.worker.name)
        waiting.appendleft(sent.part)

    def _send(
        self,
        opener: ShareOpener,
        parts: Sequence[Sequence[ShareForHelper]],
        waiting: deque[int],
        flying: dict[Future[bytes], _Sent],
    ) -> None:
        """Give waiting parts to the workers that there are now and that have too few."""
        loads = Counter(sent.worker.name for sent in flying.values())
        for _ in range(_AT_A_TIME):
            for name, worker in self._fleet.workers().items():
                if waiting and loads[name] < _AT_A_TIME:
                    part = waiting.popleft()
                    order = worker.session.seal(write_order(opener, parts[part]), OPEN)
                    sent = _Sent(worker=worker, part=part, nonce=order[:NONCE_BYTES])
                    flying[worker.open(order)] = sent
                    loads[name] += 1


def _part_records(incoming: Sequence[ShareForHelper], workers: int) -> int:
    """How many shares to open at once: so many that each worker has as many parts as the others."""
    a_share = REPORT_ID_BYTES + _NUMBERS_BYTES + len(incoming[0].share.ciphertext)
    carried = _CARRIED_BYTES // a_share
    most = min(MAX_CHUNK, carried) if carried >= _WORTH_A_CALL else MAX_CHUNK
    parts = workers * -(-len(incoming) // (workers * most))
    return max(MIN_CHUNK, -(-len(incoming) // parts))
