"""The two tables behind every transcendental function of the exact path, and the functions built on them.

A table holds round(2^40 f(k / 256)) for k = 0..8192, computed with Python integers: no libm, the same bits
everywhere. Between two entries a function is the integer chord. From e^-t come sigmoid, tanh, softmax, ELU
and the Poisson rate by one division each; log(1 + e^-t) gives softplus.

Specification: docs/spec/numerics.md, section "Tables".
"""

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.compiled import inline

Table = NDArray[np.int64]

ONE: Final = 2**40
"""The tables' unit: an entry v stands for v / 2^40."""
CELLS: Final = 8192
"""Chords of width 1/256, up to t = 32; from there on a function is 0."""
MAX_RATE_LOG: Final = 20.0
"""A Poisson rate saturates at e^20."""

# Bits of fixed point: 8192 products in a row lose fewer than 20 of them, and an entry takes 41.
_GUARD: Final = 160
# 2^24: t is carried as rint(t * 2^24); 8 bits choose the chord's cell within 1, 16 the place on it.
_ARGUMENT: Final = 16777216.0
_ROUND: Final = (
    6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to the nearest integer, ties to even
)
_END: Final = CELLS << 16


@cache
def exponential() -> Table:
    """Return round(2^40 e^(-k/256)): powers of one number known to 160 bits."""
    unit, step = 1 << _GUARD, _power_step()
    entries, power = [], unit
    for _ in range(CELLS + 1):
        entries.append(_to_unit(power))
        power = power * step >> _GUARD
    return np.array(entries, np.int64)


@cache
def softplus_tail() -> Table:
    """Return round(2^40 log(1 + e^(-k/256))) by log(1 + x) = 2 artanh(x / (2 + x))."""
    unit, step = 1 << _GUARD, _power_step()
    entries, power = [], unit
    for _ in range(CELLS + 1):
        ratio = (power << _GUARD) // (2 * unit + power)
        square, odd, total, k = ratio * ratio >> _GUARD, ratio, 0, 1
        while odd >> (_GUARD - 80):  # smaller terms change no entry of 40 bits
            total += odd // k
            odd, k = odd * square >> _GUARD, k + 2
        entries.append(_to_unit(2 * total))
        power = power * step >> _GUARD
    return np.array(entries, np.int64)


def _power_step() -> int:
    """Return e^(-1/256) to 160 bits, from the alternating series."""
    total = term = 1 << _GUARD
    k = 0
    while term:
        k += 1
        term //= 256 * k
        total += -term if k % 2 else term
    return total


def _to_unit(value: int) -> int:
    """Round a number with 160 fraction bits to 40."""
    shift = _GUARD - 40
    return (value + (1 << (shift - 1))) >> shift


@inline
def look_up(table: Table, t: float) -> np.int64:
    """Return the chord's value at 0 <= t < 32, in units of 2^-40.

    0 for every other t, NaN among them: no t reads outside the table.
    """
    is_inside = (t >= 0.0) & (t < 32.0)
    position = np.int64(((t if is_inside else 0.0) * _ARGUMENT + _ROUND) - _ROUND)
    # A choice of numbers and no early return: a t outside takes the steps of any other.
    is_before_end = position < _END
    cell = (position if is_before_end else np.int64(0)) >> 16
    low = table[cell]
    value = np.int64(low + (((table[cell + 1] - low) * (position & 65535)) >> 16))
    return value if is_inside & is_before_end else np.int64(0)
