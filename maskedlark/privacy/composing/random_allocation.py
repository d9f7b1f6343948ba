"""How much one epoch of random allocation shows.

The distribution of its likelihood ratio, never narrower than it is.

    ratios = epoch_ratios(Mechanism.GAUSSIAN, noise_multiplier=1.0, steps=29).points()
    seven_epochs = ratios.losses(1e-3).self_compose(7)
    epsilon = seven_epochs.get_epsilon_for_delta(1e-5)

In each epoch of t steps a record takes part in exactly one, whose number J is uniform and secret. Let X_j be
the likelihood ratio of step j's noise with the record against without it. The ratio of the whole epoch is R =
(X_1 + .. + X_t) / t. All of (epsilon, delta) follows from the distribution of R *without* the record: with e
= e^epsilon, delta is E[(R - e)+] in one direction and E[(1 - e R)+] in the other. Both are expectations of
convex functions of R. So each value of X_j, and of each partial sum, is replaced by its two neighbours on a
geometric grid, with weights that keep the mean: a mean-preserving spread, which raises every convex
expectation. Sums of independent spreads are spreads. What leaves the grid above is counted as a loss of
infinity, what leaves it below as a ratio of 0 and the first point, and whatever probability the rounding of
doubles loses as infinity. So the result is an upper bound in both directions, up to the rounding of sums of
positive doubles (about 1e-13).

Source: V. Feldman, M. Shenfeld, "Privacy amplification by random allocation", 2025, and "Efficient Privacy
Loss Accounting for Subsampling and Random Allocation", 2026 (the mechanism, its ratio, sums on a geometric
grid; their package is the oracle of our tests); V. Doroshenko et al., "Connect the Dots: Tighter Discrete
Approximations of Privacy Loss Distributions", 2022 (the spread of one mechanism).
"""

import math
from dataclasses import field, replace
from functools import lru_cache
from typing import Final, assert_never

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen
from maskedlark.privacy.composing.analytic_gaussian import normal_below
from maskedlark.privacy.composing.likelihood_ratios import (
    ROUNDING,
    TAIL_SIGMAS,
    RatioPoints,
    between,
    normals_below,
    spread_cells,
)
from maskedlark.privacy.composing.loss_distribution import Losses, repeat
from maskedlark.privacy.mechanism import Mechanism

MAX_STEPS: Final = 1 << 16
"""The longest epoch whose amplification is computed; a longer one is charged without any."""

LEAST_NOISE: Final = 0.07
"""Below this noise multiplier nothing is amplified.

Ratios leave the range of doubles, and the secret slot saves nothing.
"""

_POINTS: Final = (2_000, 12_000)  # on the grid of one step: at least, and at most
_SPREAD: Final = (
    0.015  # the spread of one rounding adds about a third of this, relatively, to the variance of R
)
_NEWTON_STEPS: Final = 8
_UNDERFLOW: Final = 800.0  # e^-800 is no double above 0
_TRIMMED: Final = 1e-17
_LOST_A_STEP: Final = 2e-16  # trimmed from sums and beyond a step's highest point, of R to the power


@frozen
class Ratios:
    """A distribution of likelihood ratios, without the record, on a geometric grid.

    Attributes:
        grid: The distance between the logarithms of neighbouring points.
        first: The logarithm of the smallest point.
        masses: (n,) the probabilities of the points.
        at_zero: See `RatioPoints`.
        mean: What the mean would be without what was cut off above: 1, or the number of terms of a sum.
        power: The number of one person's reports: R^power bounds the ratio of all of them.
        lost: A bound on the expectation of R^power that was cut off above, where `power` is above 1.
    """

    grid: float
    first: float
    masses: NDArray[np.float64] = field(repr=False)
    at_zero: float
    mean: float
    power: int = 1
    lost: float = ROUNDING

    @property
    def logarithms(self) -> NDArray[np.float64]:
        """(n,) the logarithms of the points."""
        return np.asarray(self.first + self.grid * np.arange(len(self.masses)), dtype=np.float64)

    def points(self, rate: float = 1.0) -> RatioPoints:
        """Return the points of 1 - rate + rate R: of a release whose sample holds the record so often.

        Its convex expectations are convex in R too, so that spreading raises them.
        """
        logarithms = self.logarithms
        if rate < 1:
            logarithms = np.asarray(np.log1p(rate * np.expm1(logarithms)), dtype=np.float64)
        return RatioPoints(logarithms=logarithms, masses=self.masses, at_zero=self.at_zero)

    def losses_of_several(self, grid: float) -> Losses:
        """Return the losses when all of a person's reports are removed: R^power in place of their ratio.

        Its masses are those of R^power, whose mean is above 1: a bound all the same, since delta is the
        expectation of a function that grows with the ratio.
        """
        powers = replace(self.points(), logarithms=self.power * self.logarithms)
        lowest, masses = powers.spread(grid)
        masses = masses * np.exp(grid * np.arange(lowest, lowest + len(masses)))
        return Losses(grid=grid, lowest=lowest, masses=masses, at_infinity=self.lost)


@lru_cache(maxsize=128)
def epoch_ratios(
    mechanism: Mechanism, noise_multiplier: float, steps: int, *, noises: int = 1, reports: int = 1
) -> Ratios:
    """Return the likelihood ratio of one epoch of random allocation, with all of its noise.

    Called by `accounting`; takes about 0.02 s at 29 steps, and 0.5 s at 65,535.

    Args:
        mechanism: Gaussian or Laplace.
        noise_multiplier: The noise scale over the sensitivity, at least `LEAST_NOISE`.
        steps: Of the epoch, from 1 to `MAX_STEPS`.
        noises: How many independent noises are summed in each step: 1, or 2 of Laplace.
        reports: The power of the ratio that `Ratios.losses_of_several` takes; above 1 of Gaussian noise only.

    Guarantees: the result dominates the mechanism in both directions; at 1 step it is the mechanism without
        sampling.

    Raises:
        ValueError: an argument is outside its range.
    """
    if not LEAST_NOISE <= noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier must be at least {LEAST_NOISE}, not {noise_multiplier}")
    if (noises > 1 and mechanism is not Mechanism.LAPLACE) or (
        reports > 1 and mechanism is not Mechanism.GAUSSIAN
    ):
        raise ValueError("several noises are Laplace noise, and several reports have Gaussian noise")
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps must be from 1 to {MAX_STEPS}, not {steps}")
    step = _one_step(mechanism, noise_multiplier, steps, noises=noises, reports=reports)
    total = repeat(step, steps, _sum)
    lost = (ROUNDING + steps * _LOST_A_STEP) * math.exp(reports * (reports - 1) / 2 / noise_multiplier**2)
    return replace(total, first=total.first - math.log(steps), mean=1.0, lost=lost)


def _one_step(
    mechanism: Mechanism, noise_multiplier: float, steps: int, *, noises: int, reports: int
) -> Ratios:
    """Return the ratio of one release, on a grid that is fine enough for a sum of so many."""
    match mechanism:
        case Mechanism.GAUSSIAN:
            # Weighed by R^reports the noise has mean `reports`: the logarithm then has mean (reports - 1/2) /
            # z^2 and deviation 1 / z.
            highest = (reports - 0.5) / noise_multiplier**2 + TAIL_SIGMAS / noise_multiplier
            # Of R: E[R^2] - 1. Of more than e^50 the grid has the fewest points in any case.
            variance = math.expm1(min(1 / noise_multiplier**2, 50.0))
        case Mechanism.LAPLACE:
            highest = 1 / noise_multiplier
            # A bound: R lies in e^-highest .. e^highest.
            variance = math.expm1(min(highest, 50.0)) ** 2
        case Mechanism.NONE:
            raise ValueError("mechanism must add noise: an epoch without noise has no finite ratio")
        case _:
            assert_never(mechanism)
    fewest, most = _POINTS
    wanted = 2 * highest / math.sqrt(_SPREAD * variance / steps)
    # An odd number, so that the ratio 1 is a point.
    points = int(min(max(wanted, fewest), most)) | 1
    grid = 2 * highest / (points - 1)
    logarithms = np.asarray(grid * (np.arange(points) - points // 2), dtype=np.float64)
    is_of_two = noises > 1
    if is_of_two:
        without, with_record = _cells_of_two(noise_multiplier, logarithms)
    else:
        without, with_record = _cells(mechanism, noise_multiplier, logarithms)
    masses = spread_cells(logarithms, without, with_record)
    # the ratio of two Laplace noises reaches the ends of its range at infinity only
    below, below_with_record, above = (
        (0.0, 0.0, 0.0) if is_of_two else _tails(mechanism, noise_multiplier, highest)
    )
    kept_below = min(below, below_with_record * math.exp(highest))
    masses[0] += kept_below
    masses[-1] += above
    at_zero = below - kept_below
    return Ratios(
        grid=grid, first=float(logarithms[0]), masses=masses, at_zero=at_zero, mean=1.0, power=reports
    )


def _cells(
    mechanism: Mechanism, noise_multiplier: float, logarithms: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the probabilities of the cells between points, without and with the record."""
    if mechanism is Mechanism.GAUSSIAN:
        middle = 0.5 / noise_multiplier
        return (
            between(logarithms * noise_multiplier + middle, normals_below),
            between(logarithms * noise_multiplier - middle, normals_below),
        )
    # the logarithm is (2 y - 1) / b for noise y between 0 and 1, and stays at its ends outside
    y = (logarithms * noise_multiplier + 1) / 2
    step = -math.expm1(-(y[1] - y[0]) / noise_multiplier) / 2
    return np.exp(-y[:-1] / noise_multiplier) * step, np.exp((y[1:] - 1) / noise_multiplier) * step


def _cells_of_two(
    noise: float, logarithms: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the same for the sum of two Laplace noises, between the ends of the ratio's range.

    Its density is (1 + |y| / b) e^(-|y| / b) / 4b, so that the logarithm of the ratio at y of 1 and more is
    1 / b + ln((b + y - 1) / (b + y)), and 1 - y has that of y with the other sign.
    """
    inner = np.abs(logarithms[1:-1])
    with np.errstate(divide="ignore"):
        far = -1 / np.expm1(inner - 1 / noise) - noise
    near = np.zeros_like(inner)  # y - 1/2, from 0 to 1/2: there the slope is almost constant
    middle = noise + 0.5
    for _ in range(_NEWTON_STEPS):
        excess = 2 * near / noise - 2 * np.arctanh(near / middle) - inner
        slope = 2 / noise - 2 * middle / (middle**2 - near**2)
        near = np.clip(near - excess / slope, 0.0, 0.5)
    y = np.where(far >= 1, far, near + 0.5)
    signed = np.where(logarithms[1:-1] < 0, 1 - y, y)
    points = np.maximum.accumulate(np.concatenate([[-math.inf], signed, [math.inf]])) / noise
    return between(points, _below_of_two), between(points - 1 / noise, _below_of_two)


def _below_of_two(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability that two Laplace noises of scale 1 sum to at most each point, none above 0."""
    finite = np.maximum(points, -_UNDERFLOW)
    return np.asarray((2 - finite) * np.exp(finite) / 4, dtype=np.float64)


def _tails(mechanism: Mechanism, noise_multiplier: float, highest: float) -> tuple[float, float, float]:
    """Return the probabilities, without and with the record, below the lowest point.

    And without it of more than the highest.
    """
    if mechanism is Mechanism.LAPLACE:
        return 0.5, math.exp(-highest) / 2, math.exp(-highest) / 2
    middle = 0.5 / noise_multiplier
    end = -highest * noise_multiplier
    below, above = normal_below(end + middle), normal_below(end - middle)
    return below, above, above


def _sum(left: Ratios, right: Ratios) -> Ratios:
    """Return the distribution of the sum of two independent ratios on grids of equal width.

    Spread onto such a grid and trimmed.

    e^a + e^b = e^max (1 + e^-|a - b|): the sum lies as many steps above the larger point as their distance
    says, between two points. For each number of steps, one convolution does all distances that lead there.
    The result has no points where no sum can be: on the fine grid of much noise most of them would be empty.
    """
    grid, a, b = left.grid, left.masses, right.masses
    between = round((right.first - left.first) / grid)
    # the least and the greatest distance of two points, in steps
    near = max(0, between - len(a) + 1, 1 - between - len(b))
    far = max(len(a) - 1 - between, between + len(b) - 1)
    distances = grid * np.arange(near, far + 1)
    steps = np.floor(np.log1p(np.exp(-distances)) / grid).astype(np.int64)
    up = np.clip(((1 + np.exp(-distances)) * np.exp(-grid * steps) - 1) / math.expm1(grid), 0.0, 1.0)
    # in steps above left.first: the sums of the two lowest points, and of the two highest
    lowest = max(0, between) + int(steps[abs(between) - near])
    highest = max(len(a), between + len(b)) - 1 + int(steps[abs(between + len(b) - len(a)) - near]) + 1
    masses = np.zeros(highest - lowest + 1)
    weight = np.full(len(distances), 2.0 if left is right else 1.0)
    if near == 0:
        weight[0] /= 2  # either of two equal points is the larger
    pairs = ((a, 0, b, between),) if left is right else ((a, 0, b, between), (b, between, a, 0))
    above = np.arange(int(steps[0]) + 1, int(steps[-1]) - 1, -1)  # a sum's steps above the larger point
    firsts, lasts = np.searchsorted(-steps, -above), np.searchsorted(-steps, 1 - above, side="right")
    for step, first, last in zip(above.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
        at = slice(first, last)  # the distances that lead there, or to one step less and then up
        chances = weight[at] * np.where(steps[at] == step, 1 - up[at], up[at])
        for larger, larger_at, smaller, smaller_at in pairs:
            start, lag = larger_at + step - lowest, smaller_at + near + first - larger_at
            _add_products(masses, larger, smaller, chances, start=start, lag=lag)
    at_zero = left.at_zero * right.at_zero
    for alone, chance, steps in ((b, left.at_zero, between), (a, right.at_zero, 0)):
        at_zero += _add_alone(masses, alone * chance, steps - lowest, grid)
    return _trim(
        Ratios(
            grid=grid,
            first=left.first + grid * lowest,
            masses=masses,
            at_zero=at_zero,
            mean=left.mean + right.mean,
            power=left.power,
        )
    )


def _add_products(
    masses: NDArray[np.float64],
    larger: NDArray[np.float64],
    smaller: NDArray[np.float64],
    chances: NDArray[np.float64],
    *,
    start: int,
    lag: int,
) -> None:
    """Add larger[i] times the sum over k of chances[k] smaller[i - lag - k] to masses[start + i], each i."""
    near = smaller[: max(0, len(larger) - lag)]
    first, last = max(0, lag), min(len(larger), lag + len(near) + len(chances) - 1)
    if first < last:  # and so both have points
        sums = np.convolve(near, chances)
        masses[start + first : start + last] += larger[first:last] * sums[first - lag : last - lag]


def _add_alone(masses: NDArray[np.float64], alone: NDArray[np.float64], start: int, grid: float) -> float:
    """Add points that one term has where the other is 0, and say what is left at a ratio of 0.

    What lies below the first point is spread to it and to 0.
    """
    below = alone[: max(0, -start)]
    kept = float((below * np.exp(grid * (start + np.arange(len(below))))).sum())
    masses[0] += kept
    rest = alone[len(below) :]
    masses[max(0, start) : max(0, start) + len(rest)] += rest
    return max(0.0, float(below.sum()) - kept)


def _trim(ratios: Ratios) -> Ratios:
    """Drop the outermost points, whose total probability is negligible.

    Spread to zero below, cut off above.
    """
    values = np.exp(ratios.power * (ratios.logarithms - math.log(ratios.mean)))
    low = int(np.searchsorted(np.cumsum(ratios.masses), _TRIMMED))
    from_above = np.cumsum((values * ratios.masses)[::-1])
    high = len(values) - int(np.searchsorted(from_above, _TRIMMED))
    kept = ratios.masses[low:high].copy()
    below = ratios.masses[:low]
    kept_below = float((below * np.exp(ratios.grid * (np.arange(low) - low))).sum())
    kept[0] += kept_below
    kept[-1] += float(ratios.masses[high:].sum())
    at_zero = ratios.at_zero + max(0.0, float(below.sum()) - kept_below)
    return replace(ratios, first=ratios.first + ratios.grid * low, masses=kept, at_zero=at_zero)
