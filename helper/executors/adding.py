"""The head's way with workers that add the updates of a federated round up: a part of the shares to each.

    SharedAdding(fleet, local).add_up(adding, updates, interrupt)    # what local.add_up gives

Shares of a round are summed once, so workers keep none. They travel as the head stores them, a segment in an
order, and only those that are seeds do: a share that is a whole vector takes the head more time to send than
to add. How many devices sent one is public, and with it how long an order is and takes.
"""

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from cryptography.exceptions import InvalidTag

from helper.datasets.datasets import dataset_lost
from helper.datasets.frames import SealedSegment, open_segment
from helper.datasets.records import DatasetRecords
from helper.datasets.segments import SegmentRows
from helper.executors.adding_orders import ADD, read_added, write_order
from helper.executors.executor import Adding, Executor, SummedUpdates
from helper.executors.fleet import Fleet, Worker
from helper.executors.heartbeats import Clock
from helper.executors.orders import Failed, read
from helper.executors.summing import sum_updates
from helper.executors.work_queue import Sent, WorkQueue
from helper.executors.worker import STOP
from maskedlark.errors import InvalidTask
from maskedlark.interrupt import Interrupt
from maskedlark.numbers.field import add
from maskedlark.reports.updates import SEED_ROLE


class SharedAdding:
    """Adds updates up at the workers of a fleet. Safe to call from many threads."""

    def __init__(self, fleet: Fleet, local: Executor, clock: Clock = time.monotonic) -> None:
        """Add up at the workers of `fleet`, and by `local` what is not worth the way."""
        self._fleet, self._local, self._parts = fleet, local, WorkQueue(fleet, clock)

    def add_up(self, adding: Adding, updates: DatasetRecords, interrupt: Interrupt) -> SummedUpdates:
        """See `Executor.add_up`."""
        is_shared = adding.role == SEED_ROLE and self._fleet.workers()
        sealed = updates.sealed(interrupt) if is_shared else ()
        if len(sealed) < 2:
            return self._local.add_up(adding, updates, interrupt)
        work = _Work(adding, sealed, interrupt)
        for place in self._parts.run(len(sealed), work, interrupt):
            work.do_here(place)
        return work.summed()


class _Work:
    """One sum, in parts."""

    def __init__(self, adding: Adding, sealed: Sequence[SealedSegment], interrupt: Interrupt) -> None:
        self._adding, self._sealed, self._interrupt = adding, sealed, interrupt
        self._vector = np.zeros(adding.form.length, np.uint64)
        self._done: set[int] = set()

    def send(self, part: int, worker: Worker) -> Sent:
        """See `PartWork`."""
        sealed = self._sealed[part]
        order = write_order(self._adding, sealed)
        written = worker.session.seal(order.encoded, ADD)
        stop = worker.session.seal(order.order_id, STOP)
        return Sent(
            order=written,
            answer=worker.add_up(written, sealed.read()),
            stop=partial(worker.stop, stop),
        )

    def take(self, part: int, answer: bytes) -> None:
        """See `PartWork`.

        Raises:
            JobRefused(DATASET_LOST): the shares do not open here either; they may have been damaged on their
                way.
        """
        try:
            summed = read_added(answer, self._adding, int(self._sealed[part].is_chosen.sum()))
        except InvalidTask:
            if read(Failed, answer).head.reason == "damaged":
                _open(self._sealed[part])
            raise
        self._add(part, summed)

    def do_here(self, part: int) -> None:
        """Add up a part that no worker did."""
        self._add(part, sum_updates(self._adding, [_open(self._sealed[part])], self._interrupt))

    def summed(self) -> SummedUpdates:
        """Return the whole sum."""
        if len(self._done) != len(self._sealed):
            raise AssertionError("each part is added once")
        records = sum(int(one.is_chosen.sum()) for one in self._sealed)
        return SummedUpdates(vector=self._vector, records=records)

    def _add(self, part: int, summed: SummedUpdates) -> None:
        if part in self._done:
            raise AssertionError("each part is added once")
        self._done.add(part)
        self._vector = add(self._vector, summed.vector)


def _open(part: SealedSegment) -> SegmentRows:
    """Open the shares of a part here that are in the dataset.

    Raises:
        JobRefused(DATASET_LOST)
    """
    try:
        return open_segment(part.shape, part.place, part.key, part.read()).rows(part.is_chosen)
    except (InvalidTag, ValueError):
        raise dataset_lost() from None
