"""What a gradient engine takes and gives. A round calls `GradientEngine.masked_sum` once, and nothing else of this package.

Two engines exist: `exact` (integers throughout, the same bits on every machine) and `general` (float64 autograd for graphs
outside the exact set). `choose.engine_for` picks one for a job and says why.
"""

from typing import Protocol, TypeAlias

from maskedlark.model.weights import QuantisedTensor
from maskedlark.report import InputShares
from maskedlark.round import MaskedSum

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

    def masked_sum(self, weights: tuple[QuantisedTensor, ...], batch: Batch) -> MaskedSum:
        """The masked sum over the batch at these weights; an empty batch gives zeros."""


__all__ = ["Batch", "GradientEngine", "MaskedSum"]
