"""Distributions of likelihood ratios, and what they cost: losses and Renyi divergences, never too small.

    one_round = sample_ratios(1.0, rate=0.01, reports=3).losses(1e-3)
    epsilon = one_round.self_compose(200).get_epsilon_for_delta(1e-5)

All of (epsilon, delta) follows from the distribution of the ratio R *without* the record: with e = e^epsilon,
delta is E[(R - e)+] in one direction and E[(1 - e R)+] in the other, both expectations of convex functions of
R. So a value of R may be replaced by its two neighbours on a grid, with weights that keep the mean: a
mean-preserving spread, which raises every convex expectation.

Source: V. Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations of Privacy Loss
Distributions", 2022 (the spread of one mechanism).
"""

import math
from collections.abc import Callable
from dataclasses import field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen
from maskedlark.privacy.composing.analytic_gaussian import normal_below
from maskedlark.privacy.composing.loss_distribution import LossDistribution, Losses

TAIL_SIGMAS: Final = (
    8.3  # a normal variable exceeds so many of its standard deviations with probability 5e-17
)
_SAMPLE_POINTS: Final = 8_001
_SAMPLE_ROUNDING: Final = 1e-14
_NARROW: Final = 0.05  # standard deviations: cells in which three nodes are exact to the last digits
_LEAST_WIDTH: Final = 1e-300  # of a cell whose ends are one double
_UNLIKELY: Final = 2.0**-41  # less than the lowest rate, and than what a filter allows to be left out
ROUNDING: Final = 1e-12  # added to the loss of infinity, for the rounding of the sums


@frozen
class RatioPoints:
    """A distribution of likelihood ratios, without the record.

    Attributes:
        logarithms: (n,) of the ratios, increasing.
        masses: (n,) their probabilities.
        at_zero: The probability of a ratio of 0: of an outcome that the record makes impossible.
        rounding: A bound on what the rounding of doubles may have moved or lost.
    """

    logarithms: NDArray[np.float64] = field(repr=False)
    masses: NDArray[np.float64] = field(repr=False)
    at_zero: float
    rounding: float = ROUNDING

    def losses(self, grid: float) -> LossDistribution:
        """Return the privacy loss distribution in both directions, on multiples of `grid`."""
        lowest, without = self.spread(grid)
        last = lowest + len(without) - 1
        with_record = without * np.exp(grid * np.arange(lowest, last + 1))
        at_infinity = max(0.0, 1 - math.fsum(with_record)) + self.rounding
        at_minus_infinity = max(self.at_zero, 1 - math.fsum(without)) + self.rounding
        return LossDistribution(
            remove=Losses(grid=grid, lowest=lowest, masses=with_record, at_infinity=at_infinity),
            add=Losses(grid=grid, lowest=-last, masses=without[::-1].copy(), at_infinity=at_minus_infinity),
        )

    def against_negative(self) -> "RatioPoints":
        """Return the ratio of a record's contribution to its negative.

        The ratios of either to none have one law, and move against each other. Of all pairs with that law
        the one in which the largest meets the smallest has the largest (epsilon, delta) and Renyi divergences
        (docs/explanation/privacy-proofs.md, "One label or another").
        """
        below = np.cumsum(np.concatenate(([self.at_zero], self.masses)))
        above = np.cumsum(self.masses[::-1])
        half = (self.at_zero + math.fsum(self.masses)) / 2
        # Probabilities from either end, so that small ones keep their digits: at each, a pair of values.
        cuts = np.unique(np.minimum(np.concatenate(([0.0], below, above)), half))
        widths, middles = np.diff(cuts), (cuts[:-1] + cuts[1:]) / 2
        last = len(self.masses) - 1
        low = np.minimum(np.searchsorted(below, middles, side="right") - 1, last)
        high = last - np.minimum(np.searchsorted(above, middles, side="right"), last)
        lows = np.where(low < 0, -math.inf, self.logarithms[np.maximum(low, 0)])
        highs = self.logarithms[high]
        is_there = lows > -math.inf
        apart = highs[is_there] - lows[is_there]
        with np.errstate(divide="ignore"):
            of_highs, of_lows = (np.exp(np.log(widths) + one)[is_there] for one in (highs, lows))
        return RatioPoints(
            logarithms=np.concatenate((-apart, apart[::-1])),
            masses=np.concatenate((of_highs, of_lows[::-1])),
            at_zero=float((widths * np.exp(highs))[~is_there].sum()),
            rounding=2 * self.rounding,
        )

    def divergences(self, orders: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Return the larger Renyi divergence of both directions, at each order.

        And the probability that the divergences leave out.

        The outcomes at a ratio of 0 or infinity are left out: with them gone, and the rest scaled up to 1,
        either distribution has changed by no more than the second number, in total variation.
        """
        without = math.fsum(self.masses)
        is_there = (
            self.masses > 0
        )  # by logarithms: a ratio may be too large for a double where its mass is not
        with_record = math.fsum(np.exp(self.logarithms[is_there] + np.log(self.masses[is_there])))
        found = _larger_divergences(self.logarithms, self.masses, orders)
        # of P / with_record and Q / without, the distributions that are scaled up
        scaled = np.maximum(
            (orders - 1) * math.log(without) - orders * math.log(with_record),
            (orders - 1) * math.log(with_record) - orders * math.log(without),
        )
        left_out = max(1 - without, self.at_zero) + max(0.0, 1 - with_record) + 2 * self.rounding
        return np.maximum(found + scaled / (orders - 1), 0.0) + ROUNDING, left_out

    def bounded_divergences(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the same of ratios that all lie between the first and the last point.

        Nothing is left out: what the rounding of the masses may have lost is counted at both ends.
        """
        masses = self.masses.copy()
        masses[[0, -1]] += ROUNDING
        return np.maximum(_larger_divergences(self.logarithms, masses, orders), 0.0)

    def spread(self, grid: float) -> tuple[int, NDArray[np.float64]]:
        """Return the first multiple of a grid, and the masses spread onto multiples from there on."""
        below = np.floor(self.logarithms / grid)
        # Weights that keep the mean of the ratio: a spread, which raises every convex expectation.
        up = np.clip(np.expm1(self.logarithms - below * grid) / math.expm1(grid), 0.0, 1.0)
        cells = (below - below[0]).astype(np.int64)
        masses = np.bincount(cells, self.masses * (1 - up), minlength=int(cells[-1]) + 2)
        masses += np.bincount(cells + 1, self.masses * up, minlength=len(masses))
        return int(below[0]), np.asarray(masses, dtype=np.float64)


def _larger_divergences(
    logarithms: NDArray[np.float64], masses: NDArray[np.float64], orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the larger Renyi divergence of both directions at each order, of masses taken as they are."""
    is_there = masses > 0
    logarithms, log_masses = logarithms[is_there], np.log(masses[is_there])
    found = [
        max(_log_of_sum(log_masses + order * logarithms), _log_of_sum(log_masses + (1 - order) * logarithms))
        / (order - 1)
        for order in orders
    ]
    return np.array(found, dtype=np.float64)


@lru_cache(maxsize=128)
def sample_ratios(noise_multiplier: float, rate: float, reports: int) -> RatioPoints:
    """Return the likelihood ratio of a Gaussian release with a Poisson sample of a person's reports.

    Each of m reports is in the sample with probability q, independently; k of them move the answer y by k.
    The ratio is the sum over k of C(m, k) q^k (1-q)^(m-k) e^((k y - k^2 / 2) / z^2): of one variable, with
    which it grows, so that the probability of each cell of y, and its part of the mean, are known.

    Args:
        noise_multiplier: The noise scale z over the sensitivity of one report.
        rate: Of the sample, q, in (0, 1).
        reports: Of one person, m.

    Guarantees: the result dominates the release in both directions.

    Source: C. Choquette-Choo, A. Ganesh, T. Steinke, A. Thakurta, "Privacy Amplification for Matrix
    Mechanisms", 2024 (the mixture).
    """
    k = np.arange(reports + 1)
    factorials = np.array([math.lgamma(n + 1) for n in range(reports + 1)])  # their logarithms
    log_odds = factorials[-1] - factorials - factorials[::-1] + k * math.log(rate)
    log_odds += (reports - k) * math.log1p(-rate)
    # Larger numbers than are likely count as an infinite loss: they would decide a divergence alone.
    above = np.cumsum(np.exp(log_odds[::-1]))[::-1]
    likely = above > _UNLIKELY
    k, log_odds = k[likely], log_odds[likely]
    # From the noise alone, around 0, to the noise around the most reports that are likely.
    y = np.linspace(-TAIL_SIGMAS * noise_multiplier, k[-1] + TAIL_SIGMAS * noise_multiplier, _SAMPLE_POINTS)
    of_counts = log_odds + (np.outer(y, k) - k * k / 2) / noise_multiplier**2
    largest = of_counts.max(axis=1)
    logarithms = largest + np.log(np.exp(of_counts - largest[:, None]).sum(axis=1))
    without = _normal_cells(y / noise_multiplier)
    with_record = np.sum(
        [
            math.exp(odds) * _normal_cells((y - shift) / noise_multiplier)
            for shift, odds in zip(k.tolist(), log_odds.tolist(), strict=True)
        ],
        axis=0,
    )
    masses = spread_cells(logarithms, without, with_record)
    # beyond the last point the ratio is larger: that it is cut off there is counted by `losses`
    masses[-1] += normal_below(-float(y[-1]) / noise_multiplier)
    at_zero = normal_below(float(y[0]) / noise_multiplier)
    rounding = _SAMPLE_ROUNDING if y[1] - y[0] <= _NARROW * noise_multiplier else ROUNDING
    return RatioPoints(logarithms=logarithms, masses=masses, at_zero=at_zero, rounding=rounding)


def spread_cells(
    logarithms: NDArray[np.float64], without: NDArray[np.float64], with_record: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return masses of points that keep the probability and the part of the mean of the cells between."""
    widths = np.maximum(np.expm1(np.diff(logarithms)), _LEAST_WIDTH)
    # The solution of up e^(l + width) + (without - up) e^l = with_record; roundings may leave 0..without.
    up = np.clip((with_record * np.exp(-logarithms[:-1]) - without) / widths, 0.0, without)
    masses = np.zeros(len(logarithms))
    masses[:-1] += without - up
    masses[1:] += up
    return masses


def _normal_cells(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return normal probabilities between neighbouring, evenly spaced points.

    Of narrow cells by three nodes of Gauss and Legendre, to a few roundings of each: differences of tails
    near 1/2 would each be off by a rounding of 1/2, and there are thousands of cells.
    """
    width = float(points[1] - points[0])
    if width > _NARROW:
        return between(points, normals_below)
    middles = (points[:-1] + points[1:]) / 2
    nodes = math.sqrt(3 / 5) * width / 2
    around = np.exp(-np.square(middles - nodes) / 2) + np.exp(-np.square(middles + nodes) / 2)
    density = (5 * around + 8 * np.exp(-np.square(middles) / 2)) / 18
    return np.asarray(density * width / math.sqrt(2 * math.pi), dtype=np.float64)


def normals_below(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability that a standard normal variable is at most each point."""
    return np.fromiter(map(normal_below, points.tolist()), np.float64, len(points))


def between(
    points: NDArray[np.float64], below: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return a symmetric law's probabilities between neighbouring points, from the tail that is precise."""
    tails = below(-np.abs(points))
    low, high = points[:-1], points[1:]
    straddles = 1 - tails[:-1] - tails[1:]
    return np.asarray(
        np.where((low < 0) & (high > 0), straddles, np.abs(tails[1:] - tails[:-1])), dtype=np.float64
    )


def _log_of_sum(logarithms: NDArray[np.float64]) -> float:
    """Return the logarithm of a sum of numbers that are given by their logarithms."""
    largest = float(logarithms.max())
    return largest + math.log(float(np.exp(logarithms - largest).sum()))
