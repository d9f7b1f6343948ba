"""The executor of several machines: workers hold segments and sum them, the head adds.

The head alone has the pair's key, the noise, the ledger and what decides about a release. It gives each
worker sealed segments and the key of their dataset, takes partial sums, and checks that each segment was
summed once and each record counted. What no worker can do is done here: the general engine sums,
shares are opened unless the operator lets workers do it, and everything is done as without a cluster while
there is no worker.
"""

import os
import time
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from helper.datasets.frames import SealedSegment
from helper.datasets.records import DatasetRecords
from helper.executors.adding import SharedAdding
from helper.executors.dispatch import DispatchedWork, Dispatcher, WorkerAnswer, WorkItem
from helper.executors.executor import Adding, Executor, Gradient, ModelFile, Scoring, SummedUpdates
from helper.executors.fleet import Fleet, NoWorkers
from helper.executors.handshake import NONCE_BYTES
from helper.executors.heartbeats import Clock
from helper.executors.opening import SharedOpening
from helper.executors.orders import (
    Scanning,
    Shared,
    Summing,
    Totals,
    bits,
    elements,
    write,
)
from helper.executors.worker import SHARED
from helper.gradient.engine import Interrupt, MaskedSum, OrderFree, PartialSum
from helper.gradient.scoring import Scores, check_scored
from maskedlark.errors import InvalidTask
from maskedlark.model import weights as weights_format
from maskedlark.model.losses import Loss
from maskedlark.model.weights import QuantisedTensor
from maskedlark.releases.round import Evaluated
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener

_EVALUATED: Final = np.uint8(1)
_COUNTS: Final = np.uint8(2)


class ClusterExecutor:
    """An `Executor` over a fleet of workers, and over this machine for the rest."""

    def __init__(
        self,
        fleet: Fleet,
        local: Executor,
        clock: Clock = time.monotonic,
        *,
        opens_shares: bool = False,
    ) -> None:
        """Compute at the workers of `fleet`, and by `local` what they do not.

        Args:
            fleet: The workers.
            local: This machine.
            clock: Of the silence of workers.
            opens_shares: Whether workers open shares, and so get the keys for it.
        """
        self._fleet, self._local = fleet, local
        self._dispatcher = Dispatcher(fleet, clock)
        self._adding = SharedAdding(fleet, local, clock)
        self._opening = SharedOpening(fleet, local, clock) if opens_shares else local

    def opens_at_once(self) -> int:
        """See `Executor`."""
        return self._opening.opens_at_once()

    def open(self, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """See `Executor`; by this machine, which alone has the keys, unless workers were given them."""
        return self._opening.open(opener, incoming)

    def masked_sum(
        self, gradient: Gradient, records: DatasetRecords, evaluated: Evaluated, interrupt: Interrupt
    ) -> MaskedSum:
        """See `Executor`."""
        engine = gradient.engine
        segments = (
            records.sealed(interrupt) if isinstance(engine, OrderFree) and self._fleet.workers() else None
        )
        if segments is None or not isinstance(engine, OrderFree):
            return self._local.masked_sum(gradient, records, evaluated, interrupt)
        length = sum(tensor.values.size for tensor in gradient.weights) + gradient.clip.is_counted
        try:
            work = self._work(
                Summing.of(gradient.clip, evaluated), gradient.loss, gradient.file, gradient.weights
            )
            partial_sums = self._dispatcher.run(
                work, _pieces(segments, evaluated), lambda answer: _partial(answer, length), interrupt
            )
        except NoWorkers:
            return self._local.masked_sum(gradient, records, evaluated, interrupt)
        return engine.whole_sum(partial_sums)

    def scan(self, scoring: Scoring, records: DatasetRecords, interrupt: Interrupt) -> Scores:
        """See `Executor`."""
        segments = records.sealed(interrupt) if self._fleet.workers() else None
        if segments is None:
            return self._local.scan(scoring, records, interrupt)
        check_scored(scoring.model, scoring.loss)  # here, for no worker is at fault
        classes = scoring.model.output_width if scoring.loss is Loss.CROSS_ENTROPY else None
        try:
            work = self._work(
                Scanning(num_bins=scoring.num_bins), scoring.loss, scoring.file, scoring.weights
            )
            answers = self._dispatcher.run(
                work,
                [WorkItem(segment=one, name=one.place.name) for one in segments],
                lambda answer: _scores(answer, scoring.num_bins, classes),
                interrupt,
            )
        except NoWorkers:
            return self._local.scan(scoring, records, interrupt)
        bins = np.full(records.count, -1, np.int64)
        choices = np.empty(records.count, np.int64) if scoring.loss is Loss.CROSS_ENTROPY else None
        for piece, told in (one for scored in answers for one in scored):
            is_chosen = piece.segment.is_chosen
            ranks = piece.segment.ranks[is_chosen]
            bins[ranks] = told.bins[is_chosen]
            if choices is not None and told.choices is not None:
                choices[ranks] = told.choices[is_chosen]
        if (bins < 0).any():
            raise AssertionError("each record is scored by some worker")
        return Scores(bins=bins, choices=choices)

    def add_up(self, adding: Adding, updates: DatasetRecords, interrupt: Interrupt) -> SummedUpdates:
        """See `Executor`."""
        return self._adding.add_up(adding, updates, interrupt)

    def close(self) -> None:
        """See `Executor`."""
        self._fleet.close()
        self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(
        self, what: Summing | Scanning, loss: Loss, file: ModelFile, weights: tuple[QuantisedTensor, ...]
    ) -> DispatchedWork:
        """Seal what all orders have in common, once for all workers, under a key of its own."""
        key = os.urandom(32)
        shared = write(Shared(num_features=file.num_features), (file.read(), weights_format.encode(weights)))
        sealed = ChaCha20Poly1305(key).encrypt(bytes(NONCE_BYTES), shared, SHARED)
        return DispatchedWork(what=what, loss=loss, shared_key=key, shared=self._fleet.share(sealed))


def _pieces(segments: Sequence[SealedSegment], evaluated: Evaluated) -> list[WorkItem]:
    """Return which records of each segment a round evaluates, and which of them count."""
    told = evaluated.is_evaluated * _EVALUATED | evaluated.counts * _COUNTS
    told = np.append(told, np.uint8(0))  # of a record that is in no dataset: its rank is past all others
    pieces = []
    for segment in segments:
        found = told.take(segment.ranks, mode="clip")
        is_evaluated = (found & _EVALUATED).astype(np.bool_)
        pieces.append(
            WorkItem(
                segment=segment,
                name=segment.place.name,
                parts=(bits(is_evaluated), bits((found & _COUNTS).astype(np.bool_))),
                evaluated=int(np.count_nonzero(is_evaluated)),
            )
        )
    if sum(piece.evaluated for piece in pieces) != int(np.count_nonzero(evaluated.is_evaluated)):
        raise AssertionError("each evaluated record is in one of the segments")
    return pieces


def _partial(answer: WorkerAnswer, length: int) -> PartialSum:
    """Read the partial sum of an answer, of so many values.

    Raises:
        InvalidTask: it is of more or fewer, of other records than it should be, or no sum in the field.
    """
    encoded, encoded_totals = _parts(answer, 2)
    totals = Totals.decode(encoded_totals)
    if totals.records != sum(piece.evaluated for piece in answer.pieces):
        raise InvalidTask("a worker's partial sum is not of all records that it was told")
    return PartialSum(vector=elements(encoded, length), hashes=totals.hashes, records=totals.records)


def _scores(answer: WorkerAnswer, num_bins: int, classes: int | None) -> list[tuple[WorkItem, Scores]]:
    """Read the scores of an answer, by its segments.

    Args:
        answer: A worker's.
        num_bins: How many bins there are.
        classes: How many classes a record's first choice is one of; None if the model has none.

    Raises:
        InvalidTask: they are not of all records, or there is no such bin or class.
    """
    parts, scores = _parts(answer, 2 * len(answer.pieces)), []
    for place, piece in enumerate(answer.pieces):
        count = piece.segment.place.records
        bins = _numbers(parts[2 * place], count)
        choices = _numbers(parts[2 * place + 1], 0 if classes is None else count)
        if not _is_below(bins, num_bins) or not _is_below(choices, classes or 0):
            raise InvalidTask("a worker's scores are bins and classes that there are")
        scores.append((piece, Scores(bins=bins, choices=None if classes is None else choices)))
    return scores


def _parts(answer: WorkerAnswer, count: int) -> tuple[bytes, ...]:
    """Split an answer into so many byte strings.

    Raises:
        InvalidTask: they are more, or fewer.
    """
    if len(answer.message.parts) != count:
        raise InvalidTask("a worker's answer does not have the parts that were asked for")
    return answer.message.parts


def _numbers(part: bytes, count: int) -> NDArray[np.int64]:
    """Read so many numbers.

    Raises:
        InvalidTask: there are more, or fewer.
    """
    if len(part) != 8 * count:
        raise InvalidTask("a worker's answer is of another length than what was asked for")
    return np.frombuffer(part, "<i8")


def _is_below(numbers: NDArray[np.int64], most: int) -> bool:
    """Return whether all numbers are at least 0 and less than `most`."""
    return not ((numbers < 0) | (numbers >= most)).any()
