"""LINE's local-DP averaging: each device noises its update, and needs to trust no other party.

The unit is an *event*: one batch of logs, used in one update and then deleted
(`maskedlark.federated.single_use_logs`). Replacing it moves the clipped difference by up to 2 C, so the noise
is N(0, (2 C sigma)^2) with the analytic sigma of (epsilon, delta).

The paper averages six floating-point draws to hide their rounding. That is the compatibility mode. By default
the noise is an exact discrete Gaussian on the grid of the update, which has no rounding to hide.

Source: Wang et al., "Federated learning with differential privacy on LINE apps", white paper, 2022,
client-side local randomizer.
"""

import math
from collections.abc import Sequence
from enum import StrEnum, unique
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from maskedlark.canonical import canonical
from maskedlark.federated.local_training import Examples, LocalModel
from maskedlark.federated.strategy import Round, Strategy
from maskedlark.numbers.field import SignedVector
from maskedlark.privacy.accounting import GAUSSIAN_SLACK
from maskedlark.privacy.composing.analytic_gaussian import analytic_sigma
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import MIN_SCALE, tail_bound
from maskedlark.privacy.samplers import MAX_SCALE, discrete_gaussian
from maskedlark.randomness import Randomness, uniform

SIX: Final = 6


@unique
class Sampler(StrEnum):
    """Where a device's Gaussian noise comes from."""

    EXACT = "exact"
    SIX_DRAWS = "six-draws"


@canonical
class Line(Strategy):
    """Averaging of updates that are private before they leave the device.

    Helpers, if any, add no further noise.

    Attributes:
        epsilon: Of one event, against all parties.
        delta: Of one event.
        sampler: How the noise is drawn: `exact` or, as in the paper, `six-draws`.
    """

    kind: Literal["line"] = "line"
    epsilon: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0
    delta: Annotated[float, Field(ge=1e-100, lt=1.0)] = 1e-5
    sampler: Sampler = Sampler.EXACT
    noise_multiplier: Annotated[float, Field(ge=0.0, le=0.0)] = 0.0
    cover_rate: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if not MIN_SCALE <= self.noise_units <= MAX_SCALE:
            raise ValueError(f"the noise must be {MIN_SCALE} to 2^48 units of 2^-frac_bits: change frac_bits")
        return self

    @property
    def sigma(self) -> float:
        """The analytic Gaussian's sigma at sensitivity 1."""
        return analytic_sigma(self.epsilon, self.delta)

    @property
    def noise_units(self) -> int:
        """The noise scale of one update, 2 C sigma, in units, rounded up.

        The accountant's slack is added, by which a discrete Gaussian is less private than a continuous one.
        """
        # Twice the bound: replacing an event may turn an update into its opposite.
        return math.ceil(2 * self.bound.sensitivity * self.sigma / GAUSSIAN_SLACK)

    def largest_value(self, parameters: int) -> int:
        """Return a bound that an honest update exceeds with a probability of at most 2^-64."""
        return self.bound.sensitivity + tail_bound(Mechanism.GAUSSIAN, self.noise_units, parameters)

    def device_vectors(
        self, model: LocalModel, asked: Round, stack: Sequence[Examples], randomness: Sequence[Randomness]
    ) -> SignedVector:
        """Train, bound and noise: one row a device. A device without examples sends noise."""
        vectors = Strategy.device_vectors(self, model, asked, stack, randomness)
        draw = discrete_gaussian if self.sampler is Sampler.EXACT else _six_draws
        noise = [draw(self.noise_units, vectors.shape[1], source) for source in randomness]
        # After bounding: the noise is scaled to the sensitivity of the integers.
        noised: SignedVector = vectors + np.stack(noise)
        return noised


def _six_draws(sigma: int, count: int, randomness: Randomness) -> SignedVector:
    """Sample as the paper does: the sum of six floating-point Gaussians over sqrt 6, rounded to units.

    Floats leave traces in what they round to, so the epsilon is claimed of `Sampler.EXACT` only.
    """
    flat = uniform(2 * SIX * count, randomness).reshape(2, SIX, count)
    # Of 1 - u, because u may be 0 and has then no logarithm.
    normals = np.sqrt(-2.0 * np.log1p(-flat[0])) * np.cos(2.0 * math.pi * flat[1])
    rounded: SignedVector = np.rint(normals.sum(axis=0) / math.sqrt(SIX) * sigma).astype(np.int64)
    return rounded
