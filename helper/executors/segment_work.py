"""Sums and scores over the segments of a dataset as work for workers (`dispatch`) that keep the segments."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from numpy.typing import NDArray

from helper.datasets.datasets import dataset_lost
from helper.datasets.frames import SealedSegment, open_segment
from helper.executors.dispatch import PartsToSend
from helper.executors.executor import Gradient, ModelFile, Scoring
from helper.executors.orders import (
    NUMBER_BYTES,
    Scanning,
    SegmentOrder,
    Summing,
    Totals,
    WorkKind,
    bits,
    elements,
    numbers,
)
from helper.gradient.engine import PartialSum
from helper.gradient.scoring import Scores
from maskedlark.errors import InvalidTask
from maskedlark.model import weights as weights_format
from maskedlark.model.heads import classes_scored
from maskedlark.model.weights import QuantisedTensor
from maskedlark.numbers.field import ELEMENT_BYTES
from maskedlark.releases.round import Evaluated

_EVALUATED: Final = np.uint8(1)
_COUNTS: Final = np.uint8(2)


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
        for segment in (self._segments[part] for part in parts):
            try:
                open_segment(segment.shape, segment.place, segment.key, segment.read())
            except (InvalidTag, ValueError):
                raise dataset_lost() from None

    def _flags(self, part: int) -> tuple[bytes, ...]:
        """Return what an order says of the records of a part."""
        del part
        return ()

    @abstractmethod
    def _answer_bytes(self, records: int) -> int:
        """Return the length of the parts of an answer over so many records, or more."""


class SummingWork(_SegmentWork):
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
        if totals.records != sum(self._evaluated[part] for part in parts):
            raise InvalidTask("a worker's partial sum is not of all records that its order names")
        vector = elements(answer[0], self._length)
        self.partial_sums.append(PartialSum(vector=vector, hashes=totals.hashes, records=totals.records))

    def _answer_bytes(self, records: int) -> int:
        del records
        return ELEMENT_BYTES * self._length

    def _flags(self, part: int) -> tuple[bytes, ...]:
        return tuple(bits((self._told[part] & flag).astype(np.bool_)) for flag in (_EVALUATED, _COUNTS))


class ScanningWork(_SegmentWork):
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
            bins = numbers(answer[2 * place], count)
            choices = numbers(answer[2 * place + 1], 0 if self._classes is None else count)
            if not _is_below(bins, self._num_bins) or not _is_below(choices, self._classes or 0):
                raise InvalidTask("a worker's scores are not bins and classes of this evaluation")
            found.append((self._segments[part], bins, choices))
        for segment, bins, choices in found:
            is_chosen = segment.is_chosen
            self._bins[segment.ranks[is_chosen]] = bins[is_chosen]
            if self._choices is not None:
                self._choices[segment.ranks[is_chosen]] = choices[is_chosen]

    def _answer_bytes(self, records: int) -> int:
        return 2 * NUMBER_BYTES * records

    def scores(self) -> Scores:
        """Return the scores of all records, once each part was done."""
        if (self._bins < 0).any():
            raise AssertionError("each record is scored by some worker")
        return Scores(bins=self._bins, choices=self._choices)


def _check_parts(answer: Sequence[bytes], count: int) -> None:
    if len(answer) != count:
        raise InvalidTask(f"a worker's answer has {len(answer)} parts, expected {count}")


def _is_below(found: NDArray[np.int64], most: int) -> bool:
    """Return whether all numbers are at least 0 and less than `most`."""
    return not ((found < 0) | (found >= most)).any()
