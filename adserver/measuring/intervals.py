"""How far noise reaches, and intervals of ratios of two noisy numbers.

All work on arrays of any shape, one interval for each number.
"""

import math
from functools import cache
from statistics import NormalDist
from typing import Final, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism

Numbers: TypeAlias = NDArray[np.float64]

CONFIDENCE: Final = 0.99
CLEAR: Final = 4.2
"""A denominator of fewer standard errors than this is no denominator: the ratio gets no interval."""
NEAR: Final = 2.0
"""An interval is wider by `NEAR` over the squared standard errors of its denominator.

Among answers whose denominator just passes `CLEAR` are those that noise made pass.
"""
# Fitted: the power that covers with 99 % for sums of one, two and more Laplace noises, equal or not.
_TOWARDS_ONE: Final = 0.8


@frozen
class Interval:
    """Values with their intervals.

    Attributes:
        value: Of the ratio; NaN where the denominator is not positive.
        standard_error: Of the value.
        low: Where the interval begins; NaN without an interval.
        high: Where it ends; NaN without an interval.
    """

    value: Numbers
    standard_error: Numbers
    low: Numbers
    high: Numbers


@frozen
class Ratio:
    """A numerator A over a denominator D, and the variance of A - r D for every r: v0 - 2 r v1 + r^2 v2.

    Attributes:
        above: A.
        below: D.
        v0: As above.
        v1: As above.
        v2: As above.
        deviation_below: The standard deviation of D.
    """

    above: Numbers
    below: Numbers
    v0: Numbers
    v1: Numbers
    v2: Numbers
    deviation_below: Numbers

    def variance_at(self, ratio: Numbers) -> Numbers:
        """Return the variance of A - r D for a ratio r; at least 0."""
        return np.maximum(self.v0 - 2 * ratio * self.v1 + ratio**2 * self.v2, 0.0)

    @property
    def value(self) -> Numbers:
        """A over D; NaN where D is not positive."""
        return divide(self.above, self.below)

    def interval(self, reach: Numbers | float) -> Interval:
        """Return every r whose A - r D is within a number of its standard deviations of 0.

        Source: E. C. Fieller, "Some Problems in Interval Estimation", 1954. Where D is not clearly positive
        there is no interval.
        """
        clear = divide(self.below, self.deviation_below)
        # Without noise in D there is no doubt of it, and 0 / 0 must not say so.
        clear = np.where((self.deviation_below == 0) & (self.below > 0), np.inf, clear)
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = (reach * (1 + NEAR / clear**2)) ** 2
            # (A - r D)^2 <= reached (v0 - 2 r v1 + r^2 v2) is a quadratic in r; its roots are the ends.
            first = self.below**2 - reached * self.v2
            second = self.above * self.below - reached * self.v1
            third = self.above**2 - reached * self.v0
            root = np.sqrt(np.maximum(second**2 - first * third, 0.0))
            # Otherwise the solution is unbounded, or everything outside an interval.
            is_known = (clear >= CLEAR) & (first > 0)
            value = self.value
            return Interval(
                value=value,
                standard_error=divide(np.sqrt(self.variance_at(value)), self.below),
                low=np.where(is_known, (second - root) / first, np.nan),
                high=np.where(is_known, (second + root) / first, np.nan),
            )


def divide(above: Numbers, below: Numbers) -> Numbers:
    """Divide; NaN where the denominator is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / below, np.nan)


@cache
def half_width(mechanism: Mechanism, confidence: float = CONFIDENCE) -> float:
    """Return half of an interval's width, in standard errors of one cell's noise, the sum of both helpers'.

    For Laplace, P(|x| > t b) = (1 + t / 2) e^(-t) of the sum of two of scale b, whose standard deviation is 2
    b; a weighted sum of more of them is closer to a Gaussian and its interval is no wider.
    """
    match mechanism:
        case Mechanism.NONE:
            return 0.0
        case Mechanism.GAUSSIAN:
            return NormalDist().inv_cdf((1 + confidence) / 2)
        case Mechanism.LAPLACE:
            return _half_width_of_two_laplace(confidence)
        case _:
            assert_never(mechanism)


def chance_above(mechanism: Mechanism, clear: Numbers) -> Numbers:
    """Return the probability that one cell's noise is so many of its standard errors above zero, or more."""
    match mechanism:
        case Mechanism.NONE:
            return np.asarray(np.where(clear > 0, 0.0, 1.0))
        case Mechanism.GAUSSIAN:
            return np.array([NormalDist().cdf(-one) for one in clear.tolist()])
        case Mechanism.LAPLACE:
            # As in `half_width`, in the scale of one of both.
            two_sided = (1 + np.abs(clear)) * np.exp(-2 * np.abs(clear))
            return np.asarray(np.where(clear > 0, two_sided / 2, 1 - two_sided / 2))
        case _:
            assert_never(mechanism)


def clear_of_zero(chances: Numbers, share: float) -> NDArray[np.bool_]:
    """Return which of many numbers are not zero, given how likely noise alone makes each.

    Guarantees: of those returned at most such a share is zero, on average. (Among thousands of numbers that
        are zero, a fixed share of all would be returned by one threshold for each.)

    Source: Y. Benjamini and Y. Hochberg, "Controlling the False Discovery Rate", 1995.
    """
    ordered = np.sort(chances)
    bounds = share * np.arange(1, len(ordered) + 1) / len(ordered)
    within = np.flatnonzero(ordered <= bounds)
    least = ordered[within[-1]] if len(within) else -1.0
    return np.asarray(chances <= least)


def reach(mechanism: Mechanism, concentration: Numbers, confidence: float) -> Numbers:
    """Return half of an interval's width, in standard errors, of a weighted sum of independent noise.

    Args:
        mechanism: Of the noise.
        concentration: The sum of the fourth powers of the noises' standard deviations over the squared
            variance of all that is uncertain: 1 of a single noise, 1/n of n equal ones. Laplace noise
            is between a single one's law and a Gaussian, nearly in proportion to it.
        confidence: The share of answers whose interval covers.
    """
    normal = half_width(Mechanism.GAUSSIAN, confidence)
    match mechanism:
        case Mechanism.NONE | Mechanism.GAUSSIAN:
            return np.full_like(concentration, normal)
        case Mechanism.LAPLACE:
            single = half_width(mechanism, confidence)
            return normal + (single - normal) * np.clip(concentration, 0.0, 1.0) ** _TOWARDS_ONE
        case _:
            assert_never(mechanism)


def _half_width_of_two_laplace(confidence: float) -> float:
    # The tail falls steadily and has no inverse in closed form; at 100 it is below any confidence in use.
    low, high = 0.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if (1 + middle / 2) * math.exp(-middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high / 2  # found in units of the scale b; the standard deviation of the sum is 2 b
