"""What a gradient engine takes and gives. A round calls `GradientEngine.masked_sum` once, and nothing else of this package.

Two engines exist: `exact` (integers throughout, the same bits on every machine) and `general` (float64 autograd for graphs
outside the exact set). `choose.engine_for` picks one for a job and says why.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from maskedlark.field import FieldVector
from maskedlark.model.weights import QuantisedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The records of one round, in canonical order (ascending report id).

    Shapes: features u8 (n, d); labels u32 (n, L); mask_shares uint64 (n, L), canonical field elements.
    """

    features: NDArray[np.uint8]
    labels: NDArray[np.uint32]
    mask_shares: FieldVector

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSum:
    """What an engine hands to the round.

    Attributes:
        vector: (num_parameters,) sum over records and labels of mask_share * clipped_gradient * 2^frac_bits, in the field.
        values_digest: 32 bytes that depend on every clipped, quantised gradient summed, and on no mask: equal at the two
            helpers if and (but for a collision) only if they summed the same values of the same records.
        sensitivity: A bound on the clip norm of every value summed, an integer in units of 2^-frac_bits: what noise is
            calibrated to.
    """

    vector: FieldVector
    values_digest: bytes
    sensitivity: int


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
