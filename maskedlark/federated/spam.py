"""Draw and discard's spam test: whether a returned model is plausible, given the instances.

    test = SpamTest.calibrate(settings, weights=387, in_flight=0.0, randomness=seeded(1))
    test.is_spam(returned, instances)

The paper tests each weight by itself at t = 4. With 387 weights and k = 20 it rejects 25 % of honest updates:
so many tests reject by chance, and the standard deviation of 20 instances is itself uncertain. Here two
statistics are pooled over all weights:

- *spread*: the mean squared distance to the instances' mean, over the theoretical variance (k + L)/2 sigma^2;
- *step*: the mean squared distance to the nearest instance, over sigma^2: an honest update lies one noise
  away from the instance that was drawn, while the instances lie some k noises apart. It detects small drifts
  that the spread hides.

The limits are quantiles of honest statistics in a run of the law itself, with L updates in flight.

That the nearest instance is so clear also limits the value of hiding the pre-image: with hundreds of weights,
an observer of the instances knows which one was drawn.

Source: Pihur et al. 2018, section III-D4; the pooled statistics are ours.
"""

from collections import deque
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import JobReason, JobRefused
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector
from maskedlark.randomness import Randomness

HONEST_REFUSED: Final = 0.005
"""The share of honest updates that the limits are made to refuse, about."""

_CALIBRATION: Final = 20_000
# Weights of the calibrating run, at most: with more, only the draws' own spread is left
_DIMENSIONS: Final = 512


class _Statistics(NamedTuple):
    """The test's figures for one returned model, or for many (arrays)."""

    spread: NDArray[np.float64]
    step: NDArray[np.float64]


@frozen
class SpamTest:
    """Limits on the pooled statistics.

    Attributes:
        instance_variance: (k + L)/2 sigma^2, in squared units of the grid.
        noise_variance: sigma^2, in the same.
        low_spread: Below it an update is refused: the instances' mean itself has no spread.
        high_spread: Above it an update is refused.
        high_step: Above it an update is refused.
    """

    instance_variance: float
    noise_variance: float
    low_spread: float
    high_spread: float
    high_step: float

    def statistics(self, returned: SignedVector, instances: SignedVector) -> _Statistics:
        """Spread and step of one returned model."""
        held = instances.astype(np.float64)
        spread = np.mean((returned - held.mean(axis=0)) ** 2) / self.instance_variance
        step = np.mean((returned - held) ** 2, axis=1).min() / self.noise_variance
        return _Statistics(spread=np.asarray(spread), step=np.asarray(step))

    def score(self, returned: SignedVector, instances: SignedVector) -> float:
        """Return how far the worse statistic is from its limit; above 1 is spam."""
        found = self.statistics(returned, instances)
        # A floor, for a returned model that is the mean itself.
        low = self.low_spread / max(float(found.spread), 1e-300)
        return max(low, float(found.spread) / self.high_spread, float(found.step) / self.high_step)

    def is_spam(self, returned: SignedVector, instances: SignedVector) -> bool:
        """Return whether a statistic is outside its limits."""
        return self.score(returned, instances) > 1.0

    @classmethod
    def calibrate(
        cls, settings: DrawAndDiscard, *, weights: int, in_flight: float, randomness: Randomness
    ) -> "SpamTest":
        """Calibrate a job's limits: quantiles of honest statistics in a run without gradients.

        Args:
            settings: The job's.
            weights: How many the model has.
            in_flight: L, as measured live: how many updates return between a draw and its return.
            randomness: Of the run.

        Raises:
            JobRefused(WRONG_STATE): one instance has no spread to compare with.
        """
        if settings.instances < 2:
            raise JobRefused(
                JobReason.WRONG_STATE, "a spam test needs at least two instances to compare with"
            )
        found = _honest_statistics(settings.instances, weights, round(in_flight), randomness)
        # Half of the honest refusals by the spread, a quarter at each end, and half by the step.
        share = HONEST_REFUSED / 4
        grid = 4.0**settings.frac_bits
        return cls(
            instance_variance=settings.spread(in_flight) * grid,
            noise_variance=settings.noise_variance * grid,
            low_spread=float(np.quantile(found.spread, share)),
            high_spread=float(np.quantile(found.spread, 1 - share)),
            high_step=float(np.quantile(found.step, 1 - 2 * share)),
        )


def _honest_statistics(
    instances: int, weights: int, in_flight: int, randomness: Randomness, *, updates: int = _CALIBRATION
) -> _Statistics:
    """Simulate the statistics of honest updates: noise of variance 1, no gradients."""
    # numpy's generator will do: this noise hides nobody, it only sets the ad server's limits.
    numbers = np.random.default_rng(np.frombuffer(randomness(16), "<u4").tolist())
    variance = (instances + in_flight) / 2.0
    dimensions = min(weights, _DIMENSIONS)
    held = numbers.standard_normal((instances, dimensions), np.float32) * np.float32(np.sqrt(variance))
    # Updates that are under way from the start, drawn from instances as they were then.
    waiting = deque(held[source].copy() for source in numbers.integers(0, instances, in_flight))
    drawn, replaced = numbers.integers(0, instances, (2, updates))
    spread, step = np.empty(updates), np.empty(updates)
    for update in range(updates):
        # A copy: the instance may be replaced while its update is under way.
        waiting.append(held[drawn[update]].copy())
        # Laplace noise of scale b has variance 2 b^2: 1 here.
        returned = waiting.popleft() + numbers.laplace(0.0, np.sqrt(0.5), dimensions).astype(np.float32)
        spread[update] = np.mean((returned - held.mean(axis=0)) ** 2) / variance
        step[update] = np.mean((returned - held) ** 2, axis=1).min()
        held[replaced[update]] = returned
    # The first updates still show the Gaussian start, and not the law's own spread.
    settled = min(updates // 2, 20 * (instances + in_flight))
    return _Statistics(spread=spread[settled:], step=step[settled:])
