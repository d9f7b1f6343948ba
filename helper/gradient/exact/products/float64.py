"""The portable backend.

Float64 matrix products (numpy's BLAS) in which every partial sum is an integer below 2^53.

Such sums are exact in any order and with or without fused multiply-add, so BLAS's freedom changes no bit.
"""

import numpy as np

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.field import add, from_signed, multiply
from helper.gradient.exact.kernels.rows import Real
from helper.gradient.exact.products.product import (
    Accumulator,
    BlockedSum,
    Factor,
    Operand,
    ProductBytes,
    Weights,
    use_one_blas_thread,
)
from maskedlark.frozen import frozen
from maskedlark.numbers.field import FieldVector


@frozen
class _FloatWeights:
    """A weight matrix as float64."""

    matrix: Real
    buffers: Buffers

    def product(self, operand: Operand) -> Real:
        """See `Factor`."""
        # Into a kept array: a conversion would take a new one for each block.
        wide: Real = self.buffers.empty("wide", operand.shape)
        wide[...] = operand
        result: Real = self.buffers.empty("result", (len(operand), self.matrix.shape[1]))
        return np.matmul(wide, self.matrix, out=result)


class Float64Backend:
    """Products of 16-bit operands.

    15 + 13 bits and a width of 2^15 leave room below 2^53; masked sums go in limbs.
    """

    def __init__(self) -> None:
        use_one_blas_thread()

    def bytes_taken(self, width: int, *, is_bytes: bool) -> ProductBytes:
        """See `Backend`."""
        del width
        limbs = 2 if is_bytes else 3
        return ProductBytes(weight=8, entry=8, output=0, chunk_entry=8, chunk_output=8 * limbs, sum=8 * limbs)

    def factor(self, weights: Weights, buffers: Buffers | None = None) -> Factor:
        """Return a (K, N) matrix as float64."""
        buffers = buffers or Buffers()
        matrix: Real = buffers.empty("matrix", weights.shape)
        matrix[...] = weights
        return _FloatWeights(matrix=matrix, buffers=buffers)

    def accumulator(
        self, total: FieldVector, *, is_bytes: bool, records: int, buffers: Buffers | None = None
    ) -> Accumulator:
        """Return an accumulator: two 32-bit limbs for 8-bit operands, three of 22 bits for 16-bit ones.

        So 8 + 32 + 11 and 15 + 22 + 11 bits are enough.
        """
        limbs, limb_bits = (2, 32) if is_bytes else (3, 22)
        return _LimbAccumulator(total, records, buffers or Buffers(), limbs=limbs, limb_bits=limb_bits)


class _LimbAccumulator:
    """Collects a chunk's operands and limbs as float64, multiplies once."""

    __slots__ = ("_bits", "_buffers", "_limbs", "_masked", "_operand", "_records", "_total")

    def __init__(
        self, total: FieldVector, records: int, buffers: Buffers, *, limbs: int, limb_bits: int
    ) -> None:
        width, outputs = total.shape
        self._operand = buffers.empty("operand", (records, width))
        self._masked = buffers.empty("masked", (records, limbs * outputs))
        self._limbs, self._bits, self._records = limbs, limb_bits, 0
        self._total, self._buffers = BlockedSum(total, buffers), buffers

    def begin(self, records: int) -> None:
        """See `Accumulator`."""
        self._records = records

    def put(self, first: int, operand: Operand, masked: FieldVector) -> None:
        """See `Accumulator`."""
        rows = slice(first, first + len(operand))
        self._operand[rows] = operand
        _split(masked, self._limbs, self._bits, self._masked[rows])

    def flush(self) -> None:
        """See `Accumulator`."""
        operand, masked = self._operand[: self._records], self._masked[: self._records]
        for inputs, into in self._total.blocks(masked.itemsize * masked.shape[1]):
            sums: Real = self._buffers.empty("sums", (len(into), masked.shape[1]))
            np.matmul(operand[:, inputs].T, masked, out=sums)
            _recombine(sums, self._limbs, self._bits, into)


@kernel
def _split(masked: FieldVector, limbs: int, bits: int, result: Real) -> None:
    """Split field elements (R, N) into limbs of at most 32 bits (R, limbs * N), low first."""
    rows, outputs = masked.shape
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for r in range(rows):
        for limb in range(limbs):
            shift = np.uint64(bits * limb)
            for j in range(outputs):
                result[r, limb * outputs + j] = np.float64(np.uint32((masked[r, j] >> shift) & mask))


@kernel
def _recombine(raw: Real, limbs: int, bits: int, total: FieldVector) -> None:
    """Add to total (K, N) the sum over limbs of raw (K, limbs * N) * 2^(bits * limb)."""
    rows, outputs = total.shape
    unit = np.uint64(1)
    for limb in range(limbs):
        for i in range(rows):
            for j in range(outputs):
                part = multiply(from_signed(np.int64(raw[i, limb * outputs + j])), unit)
                total[i, j] = add(total[i, j], part)
        unit = unit << np.uint64(bits)
