"""What a gradient engine takes and gives.

A round calls `GradientEngine.masked_sum` once, and nothing else of this package.

Two engines exist: `exact` (integers throughout, the same bits on every machine) and `general` (float64
autograd for graphs outside the exact set). `choose.choose_engine` picks one for a job and says why.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import field
from typing import Protocol, Self, TypeAlias, runtime_checkable

from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.model.weights import QuantisedTensor
from maskedlark.numbers.field import FieldVector
from maskedlark.privacy.clip import Clip
from maskedlark.releases.round import MaskedSum
from maskedlark.reports.input_shares import InputShares

Batch: TypeAlias = InputShares
"""The records of one round, in canonical order (ascending report id)."""


class GradientEngine(Protocol):
    """The gradient of one job's model and loss."""

    @property
    def path(self) -> str:
        """`exact` or `general`."""

    @property
    def reason(self) -> str:
        """One sentence on why this path was taken."""

    @property
    def held_bytes(self) -> int:
        """The bytes that it holds between rounds, by counts; the model comes on top."""

    def with_clip(self, clip: Clip) -> Self:
        """Return this engine at another bound, for a round of an adaptive job."""

    def masked_sum(
        self, weights: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
    ) -> MaskedSum:
        """Return the masked sum over the batch at these weights; an empty batch gives zeros.

        One element a parameter; then, where the clip is counted, one more: the sum of `count_units` for each
        value within the bound and minus that for each that was clipped.
        """

    def round_bytes(self, records: int, labels: int) -> int:
        """Return the bytes that `masked_sum` takes at once, by counts; the batch and the sum come on top.

        Args:
            records: How many records the batch has.
            labels: Candidate labels of each.
        """


@frozen
class PartialSum:
    """A masked sum over some of a round's records, wherever it was computed.

    Attributes:
        vector: (P,) in the field.
        hashes: The sum of the hashes of all values, modulo 2^64.
        records: How many records it is of.
    """

    vector: FieldVector = field(repr=False)
    hashes: int
    records: int


@runtime_checkable
class OrderFree(Protocol):
    """An engine whose sums are the same for every order of the records and every division into batches."""

    def masked_sums(
        self, weights: tuple[QuantisedTensor, ...], batches: Iterable[Batch], interrupt: Interrupt = never
    ) -> MaskedSum:
        """Return the masked sum over all batches.

        What `GradientEngine.masked_sum` gives of their records together.
        """

    def partial_sum(
        self,
        weights: tuple[QuantisedTensor, ...],
        batches: Iterable[Batch],
        interrupt: Interrupt = never,
        *,
        hashed: int | None = None,
    ) -> PartialSum:
        """Return these batches' part of a masked sum, at least one batch.

        Given `hashed`, hashes and count are of the first so many records alone. The time is the same.
        """

    def whole_sum(self, parts: Iterable[PartialSum]) -> MaskedSum:
        """Combine parts, at least one, to what `masked_sums` gives for all their records together."""


class Reclippable:
    """An engine whose clip bound stands in `_clip`, and nowhere else."""

    _clip: Clip

    def with_clip(self, clip: Clip) -> Self:
        """See `GradientEngine`."""
        other = copy(self)
        other._clip = clip
        return other


__all__ = [
    "Batch",
    "GradientEngine",
    "Interrupt",
    "MaskedSum",
    "OrderFree",
    "PartialSum",
    "Reclippable",
    "never",
]
