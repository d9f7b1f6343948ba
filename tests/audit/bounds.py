"""From counts of right and wrong guesses to what no mechanism within (epsilon, delta) could have allowed.

Source: C. Clopper, E. Pearson, 1934, for the intervals; P. Kairouz, S. Oh, P. Viswanath, "The Composition
Theorem for Differential Privacy", 2015, for epsilon from the two error rates; M. Nasr et al., "Tight Auditing
of Differentially Private Machine Learning", 2023, for the bound by way of Gaussian trade-off curves, without
which no number of rounds that fits in minutes shows an epsilon at a tiny delta.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """How an adversary did who says "the canary is in" above a threshold that was fixed beforehand.

    Attributes:
        hits: How often it said so when the canary was in.
        with_canary: Of how many.
        false_alarms: How often it said so when the canary was not in.
        without_canary: Of how many.
    """

    hits: int
    with_canary: int
    false_alarms: int
    without_canary: int

    @classmethod
    def above(cls, with_canary: ArrayLike, without: ArrayLike, threshold: float = 0.0) -> Self:
        """Count statistics of rounds or jobs that reach the threshold."""
        inside, outside = np.asarray(with_canary), np.asarray(without)
        return cls(
            hits=int((inside >= threshold).sum()),
            with_canary=len(inside),
            false_alarms=int((outside >= threshold).sum()),
            without_canary=len(outside),
        )

    def rates(self, error: float) -> "Rates":
        """Bounds on both rates that are wrong together with probability at most `error`."""
        return Rates(
            hit_at_least=lower(self.hits, self.with_canary, error / 2),
            false_alarm_at_most=1
            - lower(self.without_canary - self.false_alarms, self.without_canary, error / 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the true rates are at least and at most."""

    hit_at_least: float
    false_alarm_at_most: float

    def epsilon(self, delta: float) -> float:
        """The least epsilon with which any (epsilon, delta)-private mechanism could give these rates.

        0 if all could.
        """
        excess = self.hit_at_least - delta
        return max(0.0, math.log(excess / self.false_alarm_at_most)) if excess > 0 else 0.0

    def gaussian_epsilon(self, delta: float) -> float:
        """The epsilon at `delta` of the most private Gaussian mechanism that could give these rates.

        0 if all could.
        """
        mu = float(norm.ppf(self.hit_at_least) - norm.ppf(self.false_alarm_at_most))
        return epsilon_of_gaussian(mu, delta) if mu > 0 else 0.0


def lower(successes: int, trials: int, error: float) -> float:
    """Clopper and Pearson's lower bound on a rate, wrong with probability at most `error`."""
    return float(beta.ppf(error, successes, trials - successes + 1)) if successes else 0.0


def bounds_by_count(trials: int, error: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds on a hit rate and on a false alarm rate, by how often each was seen."""
    counts = np.arange(trials + 1)
    at_least = np.nan_to_num(beta.ppf(error / 2, counts, trials - counts + 1))
    return at_least, 1 - at_least[::-1]  # by symmetry


def chance(holds: NDArray[np.bool_], hit: float, false_alarm: float) -> float:
    """How likely something is that hangs on both counts, with these true rates."""
    trials = len(holds) - 1
    hits, alarms = (binom.pmf(np.arange(trials + 1), trials, rate) for rate in (hit, false_alarm))
    return float(hits @ holds @ alarms)


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """The epsilon at `delta` of one Gaussian release whose sensitivity is mu standard deviations (Balle and
    Wang 2018).
    """

    def excess(epsilon: float) -> float:
        return (
            float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))
            - delta
        )

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, mu * mu / 2 + mu * 10 + 1))
