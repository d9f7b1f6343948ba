"""The executor of several machines: workers hold segments and sum them, the head adds.

The head alone has the pair's key, the noise, the ledger and what decides about a release. It gives each
worker sealed segments and the key of their dataset, takes partial sums, and checks that each segment was
summed once and each record counted. What no worker can do is done here: the general engine sums, old files
are read, shares are opened unless the operator lets workers do it, and everything is done as without a
cluster while there is no worker.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import BoundedSemaphore
from typing import Final, Self

import numpy as np
from cryptography.exceptions import InvalidTag
from numpy.typing import NDArray

from helper.datasets.datasets import dataset_lost
from helper.datasets.frames import SealedSegment, open_segment
from helper.datasets.records import DatasetRecords
from helper.datasets.segments import SegmentRows
from helper.executors.dispatch import Dispatcher, PartsToSend
from helper.executors.executor import Adding, Executor, Gradient, ModelFile, Scoring, SummedUpdates
from helper.executors.fleet import Fleet
from helper.executors.opening_orders import OpeningWork
from helper.executors.orders import (
    AddingUp,
    Scanning,
    SegmentOrder,
    Summing,
    Totals,
    WorkKind,
    bits,
)
from helper.executors.processes import MIN_CHUNK
from helper.executors.summing import sum_updates
from helper.gradient.engine import Interrupt, MaskedSum, OrderFree, PartialSum
from helper.gradient.scoring import Scores, scoring_bytes
from maskedlark.errors import InvalidTask
from maskedlark.interrupt import never
from maskedlark.model import weights as weights_format
from maskedlark.model.heads import classes_scored
from maskedlark.model.weights import QuantisedTensor
from maskedlark.numbers.field import ELEMENT_BYTES, FieldVector, add, from_bytes
from maskedlark.releases.round import Evaluated
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener
from maskedlark.reports.updates import SEED_ROLE

_CHUNKS_AT_A_WORKER: Final = 2
_NUMBER_BYTES: Final = 8
_EVALUATED: Final = np.uint8(1)
_COUNTS: Final = np.uint8(2)


class ClusterExecutor:
    """An `Executor` over a fleet of workers, and over this machine for the rest."""

    def __init__(self, fleet: Fleet, local: Executor, *, opens_shares: bool = False) -> None:
        """Compute at the workers of `fleet`, and by `local` what they do not.

        Args:
            fleet: The workers.
            local: This machine.
            opens_shares: Whether workers open shares, and so get the keys for it.
        """
        self._fleet, self._local, self._opens_shares = fleet, local, opens_shares
        self._dispatcher = Dispatcher(fleet)
        self._opens_here = BoundedSemaphore(local.opens_at_once())

    def opens_at_once(self) -> int:
        """See `Executor`: a worker opens one chunk while its next one is on the way."""
        workers = len(self._fleet.workers()) if self._opens_shares else 0
        return max(self._local.opens_at_once(), _CHUNKS_AT_A_WORKER * workers)

    def open(self, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """See `Executor`; by this machine, which alone has the keys, unless workers were given them."""
        is_small = len(incoming) < 2 * MIN_CHUNK
        if is_small or not self._opens_shares or not self._fleet.workers():
            return self._local.open(opener, incoming)
        work = OpeningWork.of(opener, incoming)
        for part in self._dispatcher.run(work, never):
            with self._opens_here:  # callers bring as many chunks at once as workers open
                work.opened[part] = self._local.open(opener, work.parts[part])
        return PreparedShares.join([work.opened[part] for part in range(work.count)])

    def masked_sum(
        self, gradient: Gradient, records: DatasetRecords, evaluated: Evaluated, interrupt: Interrupt
    ) -> MaskedSum:
        """See `Executor`."""
        engine = gradient.engine
        if isinstance(engine, OrderFree) and self._fleet.workers():
            work = _SummingWork(gradient, records.sealed(interrupt), evaluated)
            # If a part is left, all is summed here: the local executor takes a dataset, not parts of one.
            if not self._dispatcher.run(work, interrupt):
                return engine.whole_sum(work.partial_sums)
        return self._local.masked_sum(gradient, records, evaluated, interrupt)

    def scan(self, scoring: Scoring, records: DatasetRecords, interrupt: Interrupt) -> Scores:
        """See `Executor`."""
        if self._fleet.workers():
            segments = records.sealed(interrupt)
            # Refuses a model without an exact form here, where no worker is taken for the cause.
            scoring_bytes(scoring.model, scoring.loss)
            work = _ScanningWork(scoring, records.count, segments)
            if not self._dispatcher.run(work, interrupt):
                return work.scores()
        return self._local.scan(scoring, records, interrupt)

    def add_up(self, adding: Adding, updates: DatasetRecords, interrupt: Interrupt) -> SummedUpdates:
        """See `Executor`."""
        is_shared = adding.role == SEED_ROLE and self._fleet.workers()
        sealed = updates.sealed(interrupt) if is_shared else ()
        if len(sealed) < 2:
            return self._local.add_up(adding, updates, interrupt)
        work = _AddingWork(adding, sealed, interrupt)
        for part in self._dispatcher.run(work, interrupt):
            work.do_here(part)
        return work.total()

    def close(self) -> None:
        """See `Executor`."""
        self._fleet.close()
        self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _SegmentWork(ABC):
    """Work on segments, of which each worker keeps some: it has one order at a time."""

    at_once = 1

    def __init__(
        self,
        kind: WorkKind,
        file: ModelFile,
        weights: tuple[QuantisedTensor, ...],
        segments: Sequence[SealedSegment],
    ) -> None:
        self._kind, self._segments = kind, segments
        self._model = [file.read(), weights_format.encode(weights)]
        self.names = [one.place.name for one in segments]

    @property
    def count(self) -> int:
        """See `Work`."""
        return len(self._segments)

    def order(self, parts: Sequence[int], *, is_sent: bool) -> PartsToSend:
        """See `Work`."""
        return PartsToSend(
            kind=self._kind,
            parts=[*self._model, *(flags for part in parts for flags in self._flags(part))],
            answer_bytes=self._answer_bytes(sum(self._segments[part].place.records for part in parts)),
            segments=tuple(SegmentOrder.of(self._segments[part]) for part in parts),
            frames=b"".join(self._segments[part].read() for part in parts if is_sent),
        )

    def check(self, parts: Sequence[int]) -> None:
        """See `Work`."""
        for part in parts:
            _open(self._segments[part])

    def _flags(self, part: int) -> tuple[bytes, ...]:
        """Return what an order says of the records of a part."""
        del part
        return ()

    @abstractmethod
    def _answer_bytes(self, records: int) -> int:
        """Return the length of the parts of an answer over so many records, or more."""


class _SummingWork(_SegmentWork):
    """The masked sum of a round."""

    def __init__(
        self,
        gradient: Gradient,
        segments: Sequence[SealedSegment],
        evaluated: Evaluated,
    ) -> None:
        file = gradient.file
        kind = Summing.of(file.num_features, gradient.loss, gradient.clip, evaluated, file.trained)
        super().__init__(kind, file, gradient.weights, segments)
        self._length = sum(tensor.values.size for tensor in gradient.weights) + gradient.clip.is_counted
        told = evaluated.is_evaluated * _EVALUATED | evaluated.counts * _COUNTS
        told = np.append(told, np.uint8(0))  # of a record that is in no dataset: its rank is past all others
        self._told = [told.take(one.ranks, mode="clip") for one in segments]
        self._evaluated = [int(np.count_nonzero(one & _EVALUATED)) for one in self._told]
        if sum(self._evaluated) != int(np.count_nonzero(evaluated.is_evaluated)):
            raise AssertionError("each evaluated record is in one of the segments")
        self.partial_sums: list[PartialSum] = []

    def take(self, parts: Sequence[int], answer: Sequence[bytes]) -> None:
        """See `Work`."""
        _check_parts(answer, 2)
        totals = Totals.decode(answer[1])
        # A record that was left out or summed twice ends here, and not as two helpers whose digests differ.
        if totals.records != sum(self._evaluated[part] for part in parts):
            raise InvalidTask("a worker's partial sum is not of all records that its order names")
        vector = _elements(answer[0], self._length)
        self.partial_sums.append(PartialSum(vector=vector, hashes=totals.hashes, records=totals.records))

    def _answer_bytes(self, records: int) -> int:
        del records
        return ELEMENT_BYTES * self._length

    def _flags(self, part: int) -> tuple[bytes, ...]:
        return tuple(bits((self._told[part] & flag).astype(np.bool_)) for flag in (_EVALUATED, _COUNTS))


class _ScanningWork(_SegmentWork):
    """The scores of an evaluation."""

    def __init__(self, scoring: Scoring, records: int, segments: Sequence[SealedSegment]) -> None:
        kind = Scanning(num_features=scoring.file.num_features, loss=scoring.loss, num_bins=scoring.num_bins)
        super().__init__(kind, scoring.file, scoring.weights, segments)
        self._num_bins, self._classes = scoring.num_bins, classes_scored(scoring.model, scoring.loss)
        self._bins = np.full(records, -1, np.int64)
        self._choices = None if self._classes is None else np.empty(records, np.int64)

    def take(self, parts: Sequence[int], answer: Sequence[bytes]) -> None:
        """See `Work`."""
        _check_parts(answer, 2 * len(parts))
        found = []
        for place, part in enumerate(parts):
            count = self._segments[part].place.records
            bins = _numbers(answer[2 * place], count)
            choices = _numbers(answer[2 * place + 1], 0 if self._classes is None else count)
            if not _is_below(bins, self._num_bins) or not _is_below(choices, self._classes or 0):
                raise InvalidTask("a worker's scores are not bins and classes of this evaluation")
            found.append((self._segments[part], bins, choices))
        # Only now: an answer of which a part is refused leaves nothing behind.
        for segment, bins, choices in found:
            is_chosen = segment.is_chosen
            self._bins[segment.ranks[is_chosen]] = bins[is_chosen]
            if self._choices is not None:
                self._choices[segment.ranks[is_chosen]] = choices[is_chosen]

    def _answer_bytes(self, records: int) -> int:
        return 2 * _NUMBER_BYTES * records

    def scores(self) -> Scores:
        """Return the scores of all records, once each part was done."""
        if (self._bins < 0).any():
            raise AssertionError("each record is scored by some worker")
        return Scores(bins=self._bins, choices=self._choices)


class _AddingWork:
    """The sum of a federated round's updates, a segment of shares in each part.

    Shares of a round are summed once, so workers keep none. They travel as the head stores them, and only
    those that are seeds do: a share that is a whole vector takes the head more time to send than to add. How
    many devices sent one is public, and with it how long an order is and takes.
    """

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
        self._add(part, _elements(answer[0], self._adding.form.length))

    def check(self, parts: Sequence[int]) -> None:
        """See `Work`."""
        for part in parts:
            _open(self._sealed[part])
            self._interrupt()

    def do_here(self, part: int) -> None:
        """Add up a part that no worker did."""
        sealed = self._sealed[part]
        rows = _open(sealed).rows(sealed.is_chosen)
        self._add(part, sum_updates(self._adding, [rows], self._interrupt).vector)

    def total(self) -> SummedUpdates:
        """Return the whole sum."""
        if len(self._done) != len(self._sealed):
            raise AssertionError("each part is added once")
        return SummedUpdates(vector=self._vector, records=sum(map(_count, self._sealed)))

    def _add(self, part: int, vector: FieldVector) -> None:
        # The parts of a lost worker go to others, so one may be done twice: it counts once.
        if part in self._done:
            raise AssertionError("each part is added once")
        self._done.add(part)
        self._vector = add(self._vector, vector)


def _check_parts(answer: Sequence[bytes], count: int) -> None:
    if len(answer) != count:
        raise InvalidTask(f"a worker's answer has {len(answer)} parts, expected {count}")


def _is_below(found: NDArray[np.int64], most: int) -> bool:
    """Return whether all numbers are at least 0 and less than `most`."""
    return not ((found < 0) | (found >= most)).any()


def _count(part: SealedSegment) -> int:
    return int(part.is_chosen.sum())


def _open(segment: SealedSegment) -> SegmentRows:
    """Open a segment here.

    Raises:
        JobRefused(DATASET_LOST)
    """
    try:
        return open_segment(segment.shape, segment.place, segment.key, segment.read())
    except (InvalidTag, ValueError):
        raise dataset_lost() from None


def _elements(part: bytes, count: int) -> FieldVector:
    """Read so many field elements of a message.

    Raises:
        InvalidTask: there are more or fewer, or one is malformed.
    """
    try:
        return from_bytes(part, count)
    except ValueError as error:
        raise InvalidTask(f"a message of the cluster has no such sum: {error}") from None


def _numbers(part: bytes, count: int) -> NDArray[np.int64]:
    """Read so many numbers of a message.

    Raises:
        InvalidTask: there are more or fewer.
    """
    if len(part) != _NUMBER_BYTES * count:
        raise InvalidTask(
            f"a message of the cluster has {len(part)} bytes of numbers, expected {_NUMBER_BYTES * count}"
        )
    return np.frombuffer(part, "<i8")
