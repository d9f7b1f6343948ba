"""Draw and discard: devices get one of k instances, and what they return replaces a random one.

    settings = DrawAndDiscard(instances=10, learning_rate=0.001, epsilon=math.log(16))
    instances = settings.initial(start, randomness)                      # server, once: (k, weights), int64
    returned = settings.device_steps(model, instances[drawn], batches, randomness)  # devices; one row each
    instances[place] = returned                                          # server: `drawn`, `place` ~ U(k)
    settings.mean(instances)                                             # the model that predicts

Instances are integers in units of 2^-frac_bits, and the noise is an exact discrete Laplace on that grid: the
device's epsilon has no floating-point leak. No party is trusted: an observer of what was sent and returned
sees a noised step.

The paper's epsilon is *per coordinate*. A model of p weights then has p epsilon. `unit: model` bounds the
gradient's L1 norm instead and gives its epsilon to the whole update.

Source: Pihur et al., "Differentially-Private 'Draw and Discard' Machine Learning", 2018.
"""

import math
from fractions import Fraction
from typing import Annotated, Final, Literal, Self, assert_never

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from maskedlark.canonical import canonical
from maskedlark.federated.generalised_linear import Batches, LinearModel, Reals
from maskedlark.federated.kinds import NoiseUnit
from maskedlark.numbers.field import SignedVector
from maskedlark.privacy.noise import MIN_SCALE
from maskedlark.privacy.samplers import MAX_SCALE, discrete_gaussian, discrete_laplace
from maskedlark.randomness import Randomness, below

INITIAL_EPSILON: Final = 1.0
"""Without noise, instances are spread as with this epsilon, as in the paper."""


@canonical
class DrawAndDiscard:
    """Public settings of a draw-and-discard job.

    Attributes:
        instances: k, how many the ad server keeps.
        learning_rate: gamma, of a device's step.
        gradient_clip: The bound c on each coordinate of the mean gradient (unit `feature`), or on its L1 norm
            (unit `model`).
        epsilon: Of one update, for the unit; None for no noise.
        unit: What `epsilon` protects: `feature`, one coordinate, or `model`, the whole update.
        frac_bits: Weights are integers in units of 2^-frac_bits.
    """

    kind: Literal["draw-and-discard"] = "draw-and-discard"
    instances: Annotated[int, Field(ge=1, le=100_000)]
    learning_rate: Annotated[float, Field(gt=0.0, le=1e3)]
    gradient_clip: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    epsilon: Annotated[float, Field(gt=0.0, le=1e3)] | None = None
    unit: NoiseUnit = NoiseUnit.FEATURE
    frac_bits: Annotated[int, Field(ge=8, le=40)] = 32

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not MIN_SCALE <= self.noise_scale(self.epsilon or INITIAL_EPSILON) <= MAX_SCALE:
            raise ValueError("the Laplace scale must be 2^10 to 2^48 units of 2^-frac_bits: change frac_bits")
        return self

    def noise_scale(self, epsilon: float) -> int:
        """Return the Laplace scale 2 gamma c / epsilon in units, rounded up: a step moves by 2 gamma c."""
        # Exact: a scale that a float rounded down would promise a smaller epsilon than the noise gives.
        return math.ceil(2 * self._step_units / Fraction(epsilon))

    @property
    def _step_units(self) -> int:
        """The largest step gamma c, in units, rounded up."""
        step = Fraction(self.learning_rate) * Fraction(self.gradient_clip) * 2**self.frac_bits
        units: int = math.ceil(step)
        return units

    @property
    def noise_variance(self) -> float:
        """The variance sigma^2 of one update's noise, in the units of weights.

        Without noise, that of `INITIAL_EPSILON`.
        """
        scale = math.ldexp(self.noise_scale(self.epsilon or INITIAL_EPSILON), -self.frac_bits)
        return 2.0 * scale**2

    def spread(self, in_flight: float = 0.0) -> float:
        """Return the stationary variance over instances, (k + L) / 2 sigma^2, with L updates in flight.

        The paper's theorem is the case L = 0. At 200 updates a second and a second of latency, L is 200.
        """
        return (self.instances + in_flight) / 2.0 * self.noise_variance

    def initial(self, start: Reals, randomness: Randomness) -> SignedVector:
        """Draw the first (k, weights): the start plus Gaussian noise of stationary variance k/2 sigma^2."""
        # To the nearest: unlike a step's, no bound on privacy rests on the start's rounding.
        middle = np.rint(np.ldexp(start, self.frac_bits)).astype(np.int64)
        if self.instances == 1:
            return middle[None].copy()
        sigma = max(1, round(math.ldexp(math.sqrt(self.spread()), self.frac_bits)))
        noise = discrete_gaussian(sigma, self.instances * len(middle), randomness)
        spread: SignedVector = middle + noise.reshape(self.instances, -1)
        return spread

    def device_steps(
        self, model: LinearModel, drawn: SignedVector, batches: Batches, randomness: Randomness
    ) -> SignedVector:
        """Take one noised step on each device's instance. A device calls it with one row.

        Args:
            model: Gives the gradients.
            drawn: (devices, weights): the instance that each device got.
            batches: Each device's examples.
            randomness: Of the noise.

        Guarantees: before noise, each coordinate (unit `feature`) or the L1 norm (unit `model`) of the
            integer step is at most gamma c in units, so each row has its epsilon exactly.

        Raises:
            ValueError: a gradient is not finite.
        """
        gradient = model.mean_gradient(np.ldexp(drawn.astype(np.float64), -self.frac_bits), batches)
        moved: SignedVector = drawn - self._bound_step(gradient)
        if self.epsilon is not None:
            moved += discrete_laplace(self.noise_scale(self.epsilon), moved.size, randomness).reshape(
                moved.shape
            )
        return moved

    def _bound_step(self, gradient: Reals) -> SignedVector:
        """Return the clipped gradient times gamma, in units, rounded toward zero."""
        if not np.isfinite(gradient).all():
            raise ValueError("a gradient is not finite")
        clip = self.gradient_clip
        match self.unit:
            case NoiseUnit.MODEL:
                norms = np.abs(gradient).sum(axis=1, keepdims=True)
                # One part in 2^30 less: above what the sum and the product round.
                factors = np.minimum(1.0, clip * (1 - 2.0**-30) / np.maximum(norms, clip * 2.0**-60))
                clipped = gradient * factors
            case NoiseUnit.FEATURE:
                clipped = np.clip(gradient, -clip, clip)
            case _:
                assert_never(self.unit)
        # Toward zero: rounding must not lengthen the step beyond what the noise is for.
        units: SignedVector = np.trunc(np.ldexp(clipped * self.learning_rate, self.frac_bits)).astype(
            np.int64
        )
        return units

    def mean(self, instances: SignedVector) -> Reals:
        """Return the mean of the instances, which predicts."""
        middle: Reals = np.ldexp(instances.astype(np.float64), -self.frac_bits).mean(axis=0)
        return middle

    def pick(self, count: int, randomness: Randomness) -> NDArray[np.int64]:
        """Draw uniform instance numbers: which to draw, or which to discard."""
        return below(self.instances, count, randomness).astype(np.int64)

    def model_epsilon(self, weights: int) -> float:
        """Return the epsilon of one whole update, where instance and return are seen.

        For unit `feature` it is p epsilon.
        """
        if self.epsilon is None:
            return math.inf
        match self.unit:
            case NoiseUnit.MODEL:
                return self.epsilon
            case NoiseUnit.FEATURE:
                # Each coordinate is noised for its own epsilon, and one update moves them all: they add up.
                return weights * self.epsilon


def internal_loss(epsilon: float, instances: int) -> float:
    """Return Lemma 1's *expected* loss against an observer of all instances, (k - 1) / (2 k) epsilon.

    A diagnostic. An expectation over the server's coins is no guarantee: with probability (k - 1) / k the
    loss is larger.
    """
    return (instances - 1) / (2.0 * instances) * epsilon


def late_observer_epsilon(epsilon: float, updates: int, delta: float) -> float:
    """Return Lemma 3, with a corrected constant, against an observer that looks T updates later.

    It is epsilon sqrt(ln(1 / (2 delta))) / sqrt(T). The paper divides by another sqrt 2, which its own
    derivation does not give: 4.21 epsilon / sqrt(T) at delta 1e-8, not 2.98. A
    diagnostic: it rests on the central limit theorem, and on T updates that really hit the instance.
    """
    return epsilon * math.sqrt(math.log(1.0 / (2.0 * delta))) / math.sqrt(updates)
