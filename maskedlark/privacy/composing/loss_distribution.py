"""Privacy loss distributions on a grid, composed by Fourier transforms.

    two = LossDistribution(remove=losses, add=losses).self_compose(2)
    epsilon = two.get_epsilon_for_delta(1e-5)

Delta at an epsilon is the expectation of (1 - e^(epsilon - loss))+, with a loss of infinity counted whole. It
only grows when probability moves to a larger loss. So every loss is rounded up to the grid before it comes
here; what is cut off below is moved up to the lowest point that stays, what is cut off above to infinity; and
so is eight times the usual rounding of a transform. That last part is no worst case: the proven one is some
fifty times larger, and would leave nothing of a small delta after thousands of rounds.

Source: A. Koskela, J. Jaelkoe, A. Honkela, "Computing Tight Differential Privacy Guarantees Using FFT", 2020;
J. Schatzman, "Accuracy of the Discrete Fourier Transform and the Fast Fourier Transform", 1996 (rounding).
Google's dp-accounting is the oracle of the tests.
"""

import math
from collections.abc import Callable
from dataclasses import field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen

_T = TypeVar("_T")
MAX_CELLS: Final = 1 << 18
"""The longest distribution: a longer sum is counted as an infinite loss. It bounds time and memory."""
# What one composition may cut off, at each end.
_TAIL: Final = 1e-15
_UNIT_ROUNDING: Final = 2.0**-52


@frozen
class Losses:
    """The losses in one direction.

    Attributes:
        grid: The distance between two losses.
        lowest: The first loss, in steps of the grid.
        masses: (n,) the probabilities of the losses from the first on.
        at_infinity: The probability of an infinite loss.
    """

    grid: float
    lowest: int
    masses: NDArray[np.float64] = field(repr=False)
    at_infinity: float

    @staticmethod
    def infinite(grid: float) -> "Losses":
        """Create a loss that is always infinite: the bound on what is not computed."""
        return Losses(grid=grid, lowest=0, masses=np.zeros(1), at_infinity=1.0)

    def compose(self, other: "Losses") -> "Losses":
        """Add two independent losses on one grid; infinite if the sum is longer than `MAX_CELLS`."""
        size = len(self.masses) + len(other.masses) - 1
        if size > 2 * MAX_CELLS:
            return Losses.infinite(self.grid)
        # A transform's convolution is cyclic: as wide as the sum, so that nothing wraps onto the lowest
        # losses.
        width = 1 << (size - 1).bit_length()
        spectrum = np.fft.rfft(self.masses, width) * np.fft.rfft(other.masses, width)
        # Roundings below 0 are cut off, which only adds probability.
        summed = np.maximum(np.fft.irfft(spectrum, width)[:size], 0.0)
        # What the transforms' rounding may have moved: errors add up as independent ones do, so they grow
        # by the root of the length and of its logarithm; and each mass is rounded once more as it is stored.
        whole, whole_other = float(self.masses.sum()), float(other.masses.sum())
        norms = float(np.linalg.norm(self.masses) * np.linalg.norm(other.masses))
        usual = math.sqrt(size * math.log2(width + 1)) / 2 * norms + whole * whole_other
        rounding = 8 * usual * _UNIT_ROUNDING
        infinite = self.at_infinity * (whole_other + other.at_infinity) + other.at_infinity * whole
        summed_losses = Losses(
            grid=self.grid,
            lowest=self.lowest + other.lowest,
            masses=summed,
            at_infinity=min(1.0, infinite + rounding),
        ).trim(max(_TAIL, rounding))
        return summed_losses if len(summed_losses.masses) <= MAX_CELLS else Losses.infinite(self.grid)

    def trim(self, tail: float = _TAIL) -> "Losses":
        """Drop the outermost cells, of this total probability at each end at most, pessimistically.

        After a transform the outer cells hold its rounding: a tail below that would drop none of them.
        """
        from_below = np.cumsum(self.masses)
        from_above = np.cumsum(self.masses[::-1])
        low = int(np.searchsorted(from_below, tail))
        high = len(self.masses) - int(np.searchsorted(from_above, tail))
        if low >= high:
            return self
        kept = self.masses[low:high].copy()
        kept[0] += from_below[low - 1] if low else 0.0
        cut_above = float(from_above[len(self.masses) - high - 1]) if high < len(self.masses) else 0.0
        return Losses(
            grid=self.grid,
            lowest=self.lowest + low,
            masses=kept,
            at_infinity=min(1.0, self.at_infinity + cut_above),
        )

    def delta(self, epsilon: float) -> float:
        """Return the delta at an epsilon of at least 0."""
        losses = self.grid * (self.lowest + np.arange(len(self.masses)))
        above = losses > epsilon
        return self.at_infinity + math.fsum(-np.expm1(epsilon - losses[above]) * self.masses[above])

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon, at least 0, at which delta is no more than this; infinity if none is."""
        if self.at_infinity > delta:
            return math.inf
        first = max(0, 1 - self.lowest)  # of the losses above 0: the others count for nothing
        masses = self.masses[first:]
        losses = self.grid * (self.lowest + first + np.arange(len(masses)))
        # sums over all losses from a place on; at an epsilon below that loss, and not below the one before,
        # delta is at_infinity + mass - e^epsilon weighted
        mass = np.cumsum(masses[::-1])[::-1]
        origin = float(losses[0]) if len(losses) else 0.0  # so that no exponential leaves the doubles
        weighted = np.cumsum((masses * np.exp(origin - losses))[::-1])[::-1]
        before = losses - self.grid
        before[:1] = 0.0  # below the first loss delta has one form, from an epsilon of 0 on
        excess = self.at_infinity + mass - np.exp(before - origin) * weighted > delta
        places = np.flatnonzero(excess)
        if not len(places):
            return 0.0
        last = int(places[-1])
        found = math.log((self.at_infinity + float(mass[last]) - delta) / float(weighted[last])) + origin
        return min(max(0.0, found, float(before[last])), float(losses[last]))


@frozen
class LossDistribution:
    """The losses of a mechanism in both directions: when a record is removed, and when it is added."""

    remove: Losses
    add: Losses

    @staticmethod
    def infinite(grid: float) -> "LossDistribution":
        """Create losses that are always infinite, in both directions."""
        return LossDistribution(remove=Losses.infinite(grid), add=Losses.infinite(grid))

    def compose(self, other: "LossDistribution") -> "LossDistribution":
        """Compose both mechanisms, one after the other."""
        return LossDistribution(remove=self.remove.compose(other.remove), add=self.add.compose(other.add))

    def self_compose(self, count: int) -> "LossDistribution":
        """Compose the mechanism with itself `count` times, at least once."""
        return repeat(self, count, LossDistribution.compose)

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the epsilon at a delta, of the worse direction."""
        return max(self.remove.epsilon(delta), self.add.epsilon(delta))

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        """Return the delta at an epsilon of at least 0, of the worse direction."""
        return max(self.remove.delta(epsilon), self.add.delta(epsilon))


def repeat(one: _T, count: int, add: Callable[[_T, _T], _T]) -> _T:
    """`count` of one thing added together, at least one, by doubling."""
    if count < 1:
        raise ValueError("a mechanism is composed at least once")
    while count % 2 == 0:
        one, count = add(one, one), count // 2
    total = one
    while count := count // 2:
        one = add(one, one)
        if count % 2:
            total = add(total, one)
    return total
