"""Rows of reals as 16-bit integers with one power of two a row: the only rounding between two linear layers.

A row is one record's values at one place of the graph (or its deltas for one seed). Row r stands for q[r] *
2^-exponent[r].

Specification: docs/spec/numerics.md, section "Rows".
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.compiled import inline, kernel
from maskedlark.frozen import frozen
from maskedlark.privacy.clip import Norm

Real = NDArray[np.float64]
"""Values of the graph, (records, size); or deltas, (seeds, records, size)."""
Bytes = NDArray[np.uint8]
"""The features: byte b stands for b / 256."""
Value = NDArray[Any]
"""A value of the graph: Real, or Bytes."""

BYTE_EXPONENT: Final = 8
MIN_ROW_EXPONENT: Final = -48  # a value of 2^63 or more saturates
MAX_ROW_EXPONENT: Final = 78  # a value below 2^-79 is zero
# A sum with this has no bits for a fraction, so that the addition itself rounds to the nearest integer, ties
# to even; with 1.5 and not 1, a negative number does not halve the unit.
_ROUND: Final = 6755399441055744.0  # 1.5 * 2^52
_MAGNITUDE: Final = 0x7FFFFFFFFFFFFFFF
_INFINITY: Final = 0x7FF0000000000000  # from here on, bits of infinities and NaNs

POWER: Final = np.ldexp(1.0, np.arange(-1022, 1024))
"""POWER[k + 1022] = 2^k."""


@inline
def power(k: int) -> float:
    """Return 2^k for -1022 <= k <= 1023."""
    return POWER[k + 1022]  # type: ignore[no-any-return]  # compiled: a float64


def power_of(k: NDArray[np.int64]) -> Real:
    """Return 2^k for each -1022 <= k <= 1023."""
    result: Real = POWER[k + 1022]
    return result


@frozen
class RowBlock:
    """Quantised rows.

    Attributes:
        q: int16, or uint8 for the features themselves, (rows, width).
        exponent: int64 (rows,).
        norm: int64 (rows,): each row's exact sum of squares (L2) or of magnitudes (L1) of q.
    """

    q: NDArray[Any]
    exponent: NDArray[np.int64]
    norm: NDArray[np.int64]


def quantise(values: Real, norm: Norm, buffers: Buffers | None = None) -> RowBlock:
    """Round reals (rows, width) to rows. A row that holds an infinity or a NaN becomes zeros.

    Given buffers, the rows lie in them until the next call.
    """
    rows, buffers = len(values), buffers or Buffers()
    q = buffers.empty("q", values.shape, np.int16)
    exponent = buffers.empty("exponent", (rows,), np.int64)
    total = buffers.empty("norm", (rows,), np.int64)
    _quantise(values, values.view(np.int64), norm is Norm.L2, q, exponent, total)
    return RowBlock(q=q, exponent=exponent, norm=total)


def from_bytes(features: Bytes, norm: Norm) -> RowBlock:
    """Return byte features (rows, width) as they are."""
    total = np.empty(len(features), np.int64)
    _byte_norms(features, norm is Norm.L2, total)
    return RowBlock(q=features, exponent=np.full(len(features), BYTE_EXPONENT, np.int64), norm=total)


def to_real(value: Value) -> Real:
    """Convert any value of the graph to reals."""
    return value * 2.0**-BYTE_EXPONENT if value.dtype == np.uint8 else value


def row_norms(rows: RowBlock, norm: Norm) -> NDArray[np.float64]:
    """Return each row's squared L2 norm, or L1 norm, in units of the real numbers.

    One exact integer times a power of two.
    """
    found = np.empty(len(rows.norm))
    _row_norms(rows.norm, rows.exponent, 2 if norm is Norm.L2 else 1, found)
    return found


@inline
def _row_exponent(top: np.int64) -> int:
    """Return the exponent that brings a row's largest magnitude, given as its bits, to 15 bits."""
    return min(max(int(15 + 1022 - (top >> 52)), MIN_ROW_EXPONENT), MAX_ROW_EXPONENT)


@kernel
def _quantise(
    values: Real,
    bits: NDArray[np.int64],
    squares: bool,
    q: NDArray[np.int16],
    exponent: NDArray[np.int64],
    norm: NDArray[np.int64],
) -> None:
    """`quantise`; bits is values' memory: magnitudes compare as integers do, which vectorises.

    A row of zeros, and one that is not finite, takes the same steps as any other.
    """
    rows, width = values.shape
    for r in range(rows):
        top = np.int64(0)
        for j in range(width):
            top = max(top, bits[r, j] & _MAGNITUDE)
        is_finite = top < _INFINITY
        e, most = _row_exponent(top), 32767.0 if is_finite else 0.0
        scale, total = power(e), np.int64(0)
        # Scaled, the largest magnitude is below 2^15, but may round to it: one more than 16 bits hold.
        for j in range(width):
            scaled = values[r, j] * scale
            scaled = scaled if scaled > -most else -most  # a NaN too: it is above nothing
            scaled = scaled if scaled < most else most
            value = np.int32((scaled + _ROUND) - _ROUND)
            q[r, j] = value
            # Below 2^30: the product needs no more than the 32 bits of its factors, which vectorise best.
            total += np.int64(value * value) if squares else np.int64(abs(value))
        exponent[r] = e if (top > 0) & is_finite else 0
        norm[r] = total


@kernel
def _row_norms(norm: NDArray[np.int64], exponent: NDArray[np.int64], times: int, found: Real) -> None:
    """Fill in norm * 2^(-times * exponent)."""
    for r in range(len(norm)):
        found[r] = norm[r] * power(-times * exponent[r])


@kernel
def _byte_norms(features: Bytes, squares: bool, norm: NDArray[np.int64]) -> None:
    """Fill in each row's sum of squares or of values."""
    for r in range(features.shape[0]):
        total = np.int64(0)
        for j in range(features.shape[1]):
            value = np.int32(features[r, j])
            total += np.int64(value * value if squares else value)
        norm[r] = total
