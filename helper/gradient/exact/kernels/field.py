"""The field of `maskedlark.numbers.field` inside compiled loops: results are canonical, functions inline."""

from typing import Final

import numpy as np

from helper.gradient.exact.kernels.compiled import inline, kernel
from maskedlark.numbers.field import MODULUS, FieldVector

_P: Final = np.uint64(MODULUS)
_EPSILON: Final = np.uint64(2**32 - 1)  # 2^64 mod p
_ZERO: Final = np.uint64(0)
_32: Final = np.uint64(32)
_TOP: Final = np.uint64(2**63 - 2**31)  # from here on the high limb of a itself would be 2^31


@inline
def _canonical(a: np.uint64) -> np.uint64:
    """Return the representative below p of any 64-bit number."""
    return a - (_P if a >= _P else _ZERO)


@inline
def add(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return a + b."""
    total = a + b
    # A carry is worth 2^64 mod p, and adding that carries no second time: both numbers are below p, so that
    # what is left of their sum is below 2^64 - 2^33 + 2.
    total += _EPSILON if total < a else _ZERO
    return _canonical(total)


@inline
def from_signed(value: np.int64) -> np.uint64:
    """Return the element of an integer of magnitude below p / 2."""
    return np.uint64(value) + (_P if value < 0 else _ZERO)


@inline
def multiply(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return a * b, from four 32-bit products."""
    a_low, a_high, b_low, b_high = a & _EPSILON, a >> _32, b & _EPSILON, b >> _32
    low = a_low * b_low
    cross, other = a_low * b_high, a_high * b_low
    # Each of these sums stays below 2^64: three numbers of 32 bits, and the upper half of a product.
    middle = (low >> _32) + (cross & _EPSILON) + (other & _EPSILON)
    high = a_high * b_high + (cross >> _32) + (other >> _32) + (middle >> _32)
    return _reduce((low & _EPSILON) | (middle << _32), high)


@inline
def _reduce(low: np.uint64, high: np.uint64) -> np.uint64:
    """Reduce low + 2^64 high: 2^64 = 2^32 - 1 and 2^96 = -1."""
    top = high >> _32
    result = low - top
    # Borrows at most once: top is below 2^32, so that what a borrow leaves is at least 2^64 - 2^32 + 1.
    result -= _EPSILON if low < top else _ZERO
    middle = (high & _EPSILON) * _EPSILON
    # middle is at most (2^32 - 1)^2, so that a sum that carries is at most 2^64 - 2^33: it carries once.
    total = result + middle
    total += _EPSILON if total < middle else _ZERO
    return _canonical(total)


@inline
def shift(a: np.uint64, bits: int) -> np.uint64:
    """Return 2^bits * a for 0 < bits <= 32."""
    return _reduce(a << np.uint64(bits), a >> np.uint64(64 - bits))


@inline
def split_limbs(a: np.uint64) -> tuple[np.int32, np.int32]:
    """Return (low, high) with a = low + 2^32 high, both of 32 bits.

    The signed reading of a, or where its high limb is 2^31, of a - p.
    """
    signed = np.int64(a - (_P if a >= _TOP else _ZERO))
    # Read as signed, the low limb is 2^32 less where its top bit is set; the high limb then has one more.
    low = np.int32(signed & np.int64(0xFFFFFFFF))
    return low, np.int32((signed - np.int64(low)) >> np.int64(32))


@kernel
def add_to(total: FieldVector, more: FieldVector) -> None:
    """Add entry by entry: total += more."""
    for i in range(len(total)):
        total[i] = add(total[i], more[i])


@kernel
def add_transposed(block: FieldVector, total: FieldVector, first: int) -> None:
    """Add to total (N, K) the transpose of block (K', N), from column `first` on.

    So many rows of the total at a time as a processor has their pages at hand.
    """
    rows, outputs = block.shape
    for low in range(0, outputs, 512):
        for i in range(rows):
            for j in range(low, min(low + 512, outputs)):
                total[j, first + i] = add(total[j, first + i], block[i, j])
