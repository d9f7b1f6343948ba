"""The proposals of the noise samplers: strips under a curve, and how one is drawn from 32 random bits.

A law of noise is a falling curve rho on the integers x >= 0: exp(-x / s) for Laplace, exp(-x^2 / (2 s^2)) for
Gaussian. Cut the axis into strips of w = 2^shift integers, with w in (s/16, s/8] (or w = 1). Strip k < 255
gets the integer weight c_k >= M rho(k w), and all further strips together c_255 >= 2^32 rho(255 w). All 256
weights add up to 2^32. A proposal is a strip, drawn with probability c_k / 2^32, and a uniform integer in it.

Weights may be larger than the curve asks for: rejection corrects that (see `samplers`). So they decide how
fast the sampler is, and nothing about the distribution that it draws from.

Source: rejection from strips: L. Devroye, "Non-Uniform Random Variate Generation", 1986, VIII.2.
Two-way tables: A. J. Walker 1977; M. D. Vose 1991.
"""

from dataclasses import field
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from enum import Enum, unique
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen

COLUMNS: Final = 256
TAIL: Final = COLUMNS - 1
"""The number of the last strip, which stands for everything from 255 w on."""
WEIGHT_BITS: Final = 32
COIN_BITS: Final = WEIGHT_BITS - 8
"""A strip is drawn by 8 bits that choose a column, and this many that choose one of the two strips in it."""
SURE_BITS: Final = 31
_DIGITS: Final = 50
_SLACK: Final = Decimal(10) ** -40  # far above the rounding of at most 1,000 operations on 50 digits


@unique
class Law(Enum):
    """The shape of a noise distribution."""

    LAPLACE = "laplace"
    GAUSSIAN = "gaussian"


@frozen
class Strips:
    """The strips of one law and scale.

    Attributes:
        law: The law.
        scale: Its scale s.
        shift: A strip is 2^shift wide.
        factor: M. A proposal in strip k < 255 is kept with probability M rho(x) / c_k.
        weights: (256,) the c_k: integers below 2^32.
        sure: (256,) a strip's proposals are kept for certain when the first 31 bits of their coin are below
            this.
        coins: (256,) a column stands for its own strip when its coin of 24 bits is below this,
        others: (256,) and else for this one.
    """

    law: Law
    scale: int
    shift: int
    factor: int
    weights: NDArray[np.uint64] = field(repr=False)
    sure: NDArray[np.uint64] = field(repr=False)
    coins: NDArray[np.uint64] = field(repr=False)
    others: NDArray[np.int64] = field(repr=False)


def exact_context(digits: int) -> Context:
    """Return decimal arithmetic with a precision and without limits on exponents."""
    return Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)


def exponent(law: Law, scale: int, x: int) -> tuple[int, int]:
    """Return (n, d) with rho(x) = exp(-n / d)."""
    match law:
        case Law.LAPLACE:
            return x, scale
        case Law.GAUSSIAN:
            return x * x, 2 * scale * scale


@lru_cache(maxsize=64)
def strips(law: Law, scale: int) -> Strips:
    """Return the strips of a law and a scale of at least 1.

    Decimal arithmetic only, so the same on every machine.
    """
    shift = max(0, scale.bit_length() - 4)
    curve = _curve(law, scale, 1 << shift)
    with localcontext(exact_context(_DIGITS)):  # the default context has 28 digits, and would lose the slack
        tail = int(curve[TAIL] * (1 + _SLACK) * 2**WEIGHT_BITS) + 1
        factor = int((2**WEIGHT_BITS - tail - COLUMNS) / (sum(curve[:TAIL]) * (1 + _SLACK)))
        weights = [int(factor * height * (1 + _SLACK)) + 1 for height in curve[:TAIL]] + [tail]
        weights[0] += 2**WEIGHT_BITS - sum(weights)  # more than nothing: factor was rounded down
        sure = [
            int(
                factor * after * (1 - _SLACK) * 2**SURE_BITS / weight
            )  # the curve's next strip lies below this one
            for after, weight in zip(curve[1:], weights[:TAIL], strict=True)
        ]
    coins, others = _columns(weights)
    return Strips(
        law=law,
        scale=scale,
        shift=shift,
        factor=factor,
        weights=_fix_point(weights),
        sure=_fix_point([*sure, 0]),
        coins=_fix_point(coins),
        others=_fix_point(others).view(np.int64),
    )


def _curve(law: Law, scale: int, width: int) -> list[Decimal]:
    """Return rho(k * width) for k in 0..255, by products.

    rho(k + 1) = rho(k) * step, and a Gaussian's step falls too.
    """
    context = exact_context(_DIGITS)
    numerator, denominator = exponent(law, scale, width)
    step = context.exp(context.divide(Decimal(-numerator), Decimal(denominator)))
    falling = context.multiply(step, step) if law is Law.GAUSSIAN else Decimal(1)
    curve = [Decimal(1)]
    for _ in range(TAIL):
        curve.append(context.multiply(curve[-1], step))
        step = context.multiply(step, falling)
    return curve


def _columns(weights: list[int]) -> tuple[list[int], list[int]]:
    """Build 256 columns of 2^24 with at most two strips each, every strip as often as its weight."""
    size = 1 << COIN_BITS
    left, coins, others = list(weights), [size] * COLUMNS, list(range(COLUMNS))
    small = [k for k in range(COLUMNS) if left[k] < size]
    large = [k for k in range(COLUMNS) if left[k] >= size]
    while small:
        column, giver = small.pop(), large[-1]
        coins[column], others[column] = left[column], giver
        # A giver keeps at least 0: it had a whole column or more, and gives less than one.
        left[giver] -= size - left[column]
        if left[giver] < size:
            small.append(large.pop())
    return coins, others


def _fix_point(values: list[int]) -> NDArray[np.uint64]:
    array = np.array(values, np.uint64)
    array.flags.writeable = False  # it is cached
    return array
