"""The sum of a federated round's updates as work for workers (`dispatch`): a segment of shares to each.

Shares of a round are summed once, so workers keep none. They travel as the head stores them, and only those
that are seeds do: a share that is a whole vector takes the head more time to send than to add. How many
devices sent one is public, and with it how long an order is and takes.
"""

from collections.abc import Sequence

import numpy as np
from cryptography.exceptions import InvalidTag

from helper.datasets.datasets import dataset_lost
from helper.datasets.frames import SealedSegment, open_segment
from helper.datasets.segments import SegmentRows
from helper.executors.dispatch import PartsToSend
from helper.executors.executor import Adding, SummedUpdates
from helper.executors.orders import AddingUp, SegmentOrder, Totals, bits, elements
from helper.executors.summing import sum_updates
from maskedlark.errors import InvalidTask
from maskedlark.interrupt import Interrupt
from maskedlark.numbers.field import ELEMENT_BYTES, FieldVector, add


class AddingWork:
    """One sum, in parts."""

    names = None
    at_once = 2

    def __init__(self, adding: Adding, sealed: Sequence[SealedSegment], interrupt: Interrupt) -> None:
        self._adding, self._sealed, self._interrupt = adding, sealed, interrupt
        self._vector = np.zeros(adding.form.length, np.uint64)
        self._done: set[int] = set()

    @property
    def count(self) -> int:
        """See `Work`."""
        return len(self._sealed)

    def order(self, parts: Sequence[int], *, is_sent: bool) -> PartsToSend:
        """See `Work`."""
        del is_sent
        (sealed,), adding = [self._sealed[part] for part in parts], self._adding
        return PartsToSend(
            kind=AddingUp(form=adding.form, role=adding.role, task_id=adding.task_id),
            parts=[bits(sealed.is_chosen)],
            segments=(SegmentOrder.of(sealed),),
            answer_bytes=ELEMENT_BYTES * adding.form.length,
            frames=sealed.read(),
        )

    def take(self, parts: Sequence[int], answer: Sequence[bytes]) -> None:
        """See `Work`."""
        (part,), count = parts, len(answer)
        if count != 2 or Totals.decode(answer[1]).records != _count(self._sealed[part]):
            raise InvalidTask("an answer is not a sum of the shares that were sent")
        self._add(part, elements(answer[0], self._adding.form.length))

    def check(self, parts: Sequence[int]) -> None:
        """See `Work`."""
        for part in parts:
            _open(self._sealed[part])
            self._interrupt()

    def do_here(self, part: int) -> None:
        """Add up a part that no worker did."""
        self._add(part, sum_updates(self._adding, [_open(self._sealed[part])], self._interrupt).vector)

    def total(self) -> SummedUpdates:
        """Return the whole sum."""
        if len(self._done) != len(self._sealed):
            raise AssertionError("each part is added once")
        return SummedUpdates(vector=self._vector, records=sum(map(_count, self._sealed)))

    def _add(self, part: int, vector: FieldVector) -> None:
        if part in self._done:
            raise AssertionError("each part is added once")
        self._done.add(part)
        self._vector = add(self._vector, vector)


def _count(part: SealedSegment) -> int:
    return int(part.is_chosen.sum())


def _open(part: SealedSegment) -> SegmentRows:
    """Open the shares of a part here that are in the dataset.

    Raises:
        JobRefused(DATASET_LOST)
    """
    try:
        return open_segment(part.shape, part.place, part.key, part.read()).rows(part.is_chosen)
    except (InvalidTag, ValueError):
        raise dataset_lost() from None
