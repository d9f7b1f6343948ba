"""Gradients that do not factor.

A layer applied at many positions has one per-record gradient, formed in integers and rounded to a row.

Convolutions, batch normalisation and embeddings end here: their gradient of one seed is a row of reals, each
an exact integer times a power of two (or one rounded product of such); the row is quantised like any other,
its norm and its masked values follow.
"""

import numpy as np

from helper.gradient.exact.kernels.clipping import Masking
from helper.gradient.exact.kernels.masking import Hashed, hash_keys, mask_sum
from helper.gradient.exact.kernels.rows import Real, RowBlock, quantise, row_norms
from maskedlark.numbers.field import FieldVector
from maskedlark.privacy.clip import Norm


class WholeGradient:
    """The gradients of one layer, for one thread of one round."""

    __slots__ = ("_keys", "_norm", "rows", "total")

    def __init__(self, width: int, *, labels: int, number: int, norm: Norm) -> None:
        self._keys, self._norm = hash_keys(number, Hashed.VALUES, labels, width), norm
        self.total: FieldVector = np.zeros(width, np.uint64)
        self.rows: RowBlock

    def take(self, gradients: Real) -> None:
        """Set the block's gradients, (seeds * records, width)."""
        self.rows = quantise(gradients, self._norm)

    def add_norm(self, squares: Real) -> None:
        """See `Running`."""
        squares += row_norms(self.rows, self._norm).reshape(squares.shape)

    def mask(self, masking: Masking) -> None:
        """Add the block's masked values to the total."""
        mask_sum(self.rows, masking, self._keys, self.total)
