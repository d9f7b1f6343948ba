"""From float64 gradients to integers that respect the clip bound exactly.

The rounding that both helpers must agree on.

Two machines' float64 gradients differ by some 10^-15 of their size. They are first rounded to a grid that is
2^20 times finer than the clip bound and some 2^30 times coarser than that noise, so that both land on one
grid point but for about one coordinate in 10^9; the digest of the round finds those. Everything after the
grid is integer arithmetic or single IEEE operations on integers, and so the same everywhere.
"""

from math import frexp
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.numbers.field import SignedVector
from maskedlark.privacy.clip import Clip, Norm

MAX_PARAMETERS: Final = 1 << 23
"""The longest rows that this module clips: the bounds on their rounding are counted for so many."""
MAX_SENSITIVITY: Final = 1 << 40
"""The largest clip bound, in units of 2^-frac_bits, that this module takes."""
_GRID_BITS: Final = 20
_LIMB_BITS: Final = 20
_PLAIN_SQUARES: Final = 1 << 30
_BLOCK_NUMBERS: Final = 1 << 17  # what a processor's cache holds
# Covers the rounding of one square root, one division and two products.
_SHRINK_SLACK: Final = 1.0 - 2.0**-50


def clip_to_integers(gradients: NDArray[np.float64], clip: Clip) -> SignedVector:
    """Clip each row to the bound, round it to the grid, and truncate it to units of 2^-frac_bits.

    Shapes: gradients (rows, parameters), at most `MAX_PARAMETERS` of them; the result the same, int64.

    Guarantees: the norm of every row of the result is at most `clip.sensitivity`, as integers.

    Edge cases: a row that holds NaN or infinity, or whose norm overflows float64, becomes zero. A row within
    the bound is not scaled.
    """
    values = np.empty(gradients.shape, np.int64)
    rows = max(1, _BLOCK_NUMBERS // max(1, gradients.shape[1]))
    for start in range(0, len(gradients), rows):
        block = slice(start, start + rows)
        values[block] = _shrink(_on_grid(gradients[block], clip), clip)
    return values


def with_count(values: SignedVector, gradients: NDArray[np.float64], clip: Clip) -> SignedVector:
    """Append to rows of integers whether each gradient was within the bound.

    One that is not finite counts as clipped.

    Shapes: values and gradients (rows, parameters); the result (rows, parameters + 1).
    """
    with np.errstate(all="ignore"):
        is_within = _norms(gradients, clip) <= clip.bound
    return np.column_stack([values, np.where(is_within, clip.count_units, -clip.count_units)])


def _norms(gradients: NDArray[np.float64], clip: Clip) -> NDArray[np.float64]:
    match clip.norm:
        case Norm.L1:
            return np.asarray(np.abs(gradients).sum(1))
        case Norm.L2:
            return np.asarray(np.sqrt(np.einsum("ij,ij->i", gradients, gradients)))


def _on_grid(gradients: NDArray[np.float64], clip: Clip) -> SignedVector:
    """Clip, round to the grid, and truncate; a row's norm can exceed the bound by rounding."""
    grid_exponent = frexp(clip.bound)[1] - 1 - _GRID_BITS
    with np.errstate(all="ignore"):  # rows that are not finite are zeroed
        norms = _norms(gradients, clip)
        factors = np.minimum(1.0, clip.bound / norms)
        factors[norms == 0.0] = 1.0
        scaled = gradients * np.ldexp(factors, -grid_exponent)[:, None]
    scaled[~np.isfinite(norms)] = 0.0
    np.rint(scaled, out=scaled)
    scaled *= 2.0 ** (grid_exponent + clip.frac_bits)
    np.trunc(scaled, out=scaled)
    values: SignedVector = scaled.astype(np.int64)
    return values


def _shrink(values: SignedVector, clip: Clip) -> SignedVector:
    """Scale down, toward zero, the rows that rounding to the grid has pushed past the bound.

    Repeated until an exact check finds none.
    """
    limit = clip.sensitivity if clip.norm is Norm.L1 else clip.sensitivity**2
    # As often as records need it: on this path time may show what they hold, and samples are public.
    while True:
        sizes = _sizes(values, clip)
        too_long = [row for row, size in enumerate(sizes) if size > limit]
        if not too_long:
            return values
        ratios = np.array([limit / sizes[row] for row in too_long])
        factors = (ratios if clip.norm is Norm.L1 else np.sqrt(ratios)) * _SHRINK_SLACK
        values[too_long] = np.trunc(values[too_long].astype(np.float64) * factors[:, None]).astype(np.int64)


def _sizes(values: SignedVector, clip: Clip) -> list[int]:
    """Return the exact L1 norm of each row, or the exact square of its L2 norm.

    A row's norm exceeds the bound by no more than half a grid step a coordinate, a 2^-9 of it in L2: 64 bits
    hold the square of a bound of up to 2^30, and the sums of products of 20-bit limbs of larger ones.
    """
    if clip.norm is Norm.L1:
        return [int(size) for size in np.abs(values).sum(1)]
    if clip.sensitivity <= _PLAIN_SQUARES:
        return [int(size) for size in np.einsum("ij,ij->i", values, values)]
    low = np.abs(values) & ((1 << _LIMB_BITS) - 1)
    high = np.abs(values) >> _LIMB_BITS
    parts = [
        np.einsum("ij,ij->i", left, right).tolist() for left, right in ((high, high), (high, low), (low, low))
    ]
    return [
        (h << 2 * _LIMB_BITS) + (m << (_LIMB_BITS + 1)) + low_part
        for h, m, low_part in zip(*parts, strict=True)
    ]
