"""The sum of a federated round's updates as work for workers (`dispatch`): some of the shares to each.

Shares of a round are summed once, so workers keep none. They travel as they lie on the head's disk, and only
those that are seeds do: a share that is a whole vector takes the head more time to send than to add. How many
devices sent one is public, and with it how long an order is and takes.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag

from helper.datasets.datasets import dataset_lost
from helper.datasets.update_vault import SealedUpdates, StoredUpdate, open_updates
from helper.executors.dispatch import PartsToSend
from helper.executors.executor import Adding, SummedUpdates
from helper.executors.orders import AddingUp, Totals, elements
from helper.executors.summing import sum_updates
from maskedlark.errors import InvalidTask
from maskedlark.interrupt import Interrupt
from maskedlark.numbers.field import FieldVector, add

MOST_COORDINATES: Final = 1 << 24
"""So many coordinates are summed by one order at most: a tenth of a second of work."""
MOST_SHARES: Final = 1 << 13
"""So many shares are summed by one order at most, however short they are."""


def most_shares(adding: Adding) -> int:
    """Return the number of shares of an order."""
    return max(1, min(MOST_SHARES, MOST_COORDINATES // adding.form.length))


class AddingWork:
    """One sum, in parts."""

    names = None
    at_once = 2

    def __init__(self, adding: Adding, sealed: Sequence[SealedUpdates], interrupt: Interrupt) -> None:
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
        kind = AddingUp(
            form=adding.form,
            role=adding.role,
            task_id=adding.task_id,
            header=sealed.header,
            key=sealed.key,
        )
        return PartsToSend(kind=kind, parts=[np.array(sealed.rows, "<u8").tobytes()], frames=sealed.read())

    def take(self, parts: Sequence[int], answer: Sequence[bytes]) -> None:
        """See `Work`."""
        (part,), count = parts, len(answer)
        if count != 2 or Totals.decode(answer[1]).records != len(self._sealed[part].rows):
            raise InvalidTask("an answer is not a sum of the shares that were sent")
        self._add(part, elements(answer[0], self._adding.form.length))

    def check(self, parts: Sequence[int]) -> None:
        """See `Work`."""
        for part in parts:
            for _ in _read(self._sealed[part]):
                self._interrupt()

    def do_here(self, part: int) -> None:
        """Add up a part that no worker did."""
        self._add(part, sum_updates(self._adding, _read(self._sealed[part]), self._interrupt).vector)

    def summed(self) -> SummedUpdates:
        """Return the whole sum."""
        if len(self._done) != len(self._sealed):
            raise AssertionError("each part is added once")
        return SummedUpdates(vector=self._vector, records=sum(len(one.rows) for one in self._sealed))

    def _add(self, part: int, vector: FieldVector) -> None:
        if part in self._done:
            raise AssertionError("each part is added once")
        self._done.add(part)
        self._vector = add(self._vector, vector)


def _read(part: SealedUpdates) -> Iterator[StoredUpdate]:
    """Read the shares of a part again.

    Raises:
        JobRefused(DATASET_LOST)
    """
    try:
        yield from open_updates(part.header, part.rows, part.key, part.read())
    except (InvalidTag, ValueError):
        raise dataset_lost() from None
