"""The portable backend.

Float64 matrix products (numpy's BLAS) in which every partial sum is an integer below 2^53.

Such sums are exact in any order and with or without fused multiply-add, so BLAS's freedom changes no bit.
"""

import numpy as np

from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.field import add, from_signed, multiply
from helper.gradient.exact.kernels.rows import Real
from helper.gradient.exact.products.product import Accumulator, Operand, Weights, use_one_blas_thread
from maskedlark.frozen import frozen
from maskedlark.numbers.field import FieldVector


@frozen
class FloatWeights:
    """A weight matrix as float64."""

    matrix: Real

    def product(self, operand: Operand) -> Real:
        """See `Factor`."""
        result: Real = operand.astype(np.float64) @ self.matrix
        return result


class Float64Backend:
    """Products of 16-bit operands.

    15 + 13 bits and a width of 2^15 leave room below 2^53; masked sums go in limbs.
    """

    def __init__(self) -> None:
        use_one_blas_thread()

    def factor(self, weights: Weights) -> FloatWeights:
        """A (K, N) matrix as float64."""
        return FloatWeights(matrix=np.ascontiguousarray(weights, np.float64))

    def accumulator(self, width: int, outputs: int, *, is_bytes: bool, records: int) -> Accumulator:
        """Two 32-bit limbs beside 8-bit operands, three of 22 bits beside 16-bit ones.

        So 8 + 32 + 11 and 15 + 22 + 11 bits are enough.
        """
        return _LimbAccumulator(
            width, outputs, records, limbs=2 if is_bytes else 3, limb_bits=32 if is_bytes else 22
        )


class _LimbAccumulator:
    """Collects a chunk's operands and limbs as float64, multiplies once."""

    __slots__ = ("_bits", "_limbs", "_masked", "_operand", "_records", "_total")

    def __init__(self, width: int, outputs: int, records: int, *, limbs: int, limb_bits: int) -> None:
        self._operand = np.empty((records, width))
        self._masked = np.empty((records, limbs * outputs))
        self._limbs, self._bits, self._records = limbs, limb_bits, 0
        self._total = np.zeros((width, outputs), np.uint64)

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
        _recombine(
            self._operand[: self._records].T @ self._masked[: self._records],
            self._limbs,
            self._bits,
            self._total,
        )

    @property
    def total(self) -> FieldVector:
        """See `Accumulator`."""
        return self._total


@kernel
def _split(masked: FieldVector, limbs: int, bits: int, result: Real) -> None:
    """Field elements (R, N) as limbs of at most 32 bits (R, limbs * N), low first."""
    rows, outputs = masked.shape
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for r in range(rows):
        for limb in range(limbs):
            shift = np.uint64(bits * limb)
            for j in range(outputs):
                result[r, limb * outputs + j] = np.float64(np.uint32((masked[r, j] >> shift) & mask))


@kernel
def _recombine(raw: Real, limbs: int, bits: int, total: FieldVector) -> None:
    """total (K, N) += sum over limbs of raw (K, limbs * N) * 2^(bits * limb)."""
    rows, outputs = total.shape
    unit = np.uint64(1)
    for limb in range(limbs):
        for i in range(rows):
            for j in range(outputs):
                part = multiply(from_signed(np.int64(raw[i, limb * outputs + j])), unit)
                total[i, j] = add(total[i, j], part)
        unit = unit << np.uint64(bits)
