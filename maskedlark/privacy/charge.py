"""What a release is charged as.

The settings that its privacy follows from, and nothing of what it released.
"""

import math
from dataclasses import replace
from typing import Final

from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism

GAUSSIAN_SLACK: Final = 1 - 2.0**-17
"""A discrete Gaussian is at least as private as a continuous one of this times its sigma.

For `MIN_SCALE` units and more.
"""

LAPLACE_SLACK: Final = 2.0**-22
"""A discrete Laplace of epsilon e is at least as private as a continuous one of e plus this.

The sum of two of them is at least as private as that of two continuous ones of e (1 + this). For `MIN_SCALE`
units and more.
"""

NOISE_MULTIPLIERS: Final = (2.0**-20, 2.0**20)
"""The range in which the bounds are numerically sound.

Less noise costs infinity, more is counted as the most.
"""


@frozen
class Charge:
    """Rounds, or epochs, of one job on one dataset, at the same settings.

    Attributes:
        mechanism: The noise of each helper.
        noise_multiplier: Each helper's noise scale over the sensitivity: Laplace b / L1, Gaussian sigma / L2;
            0 for `none`.
        sampling_rate: The probability with which each record is in a round's secret minibatch, in (0, 1]; 1
            for no sampling.
        rounds: How many releases, or with `epoch_steps` how many epochs, at least 1.
        is_common: Whether both helpers draw the noise alike, from their common key, and apply it to what both
            see in clear: it counts once, and against the ad server alone; a helper that colludes learns
            nothing new from such a release.
        delta: The probability, of each release, that its noise fails to hide a report altogether; only of
            common noise, below 1/2.
        epoch_steps: With random allocation the steps of an epoch, of which each record takes part in exactly
            one; else 1.
        exposure: The probability, of each round or epoch, that the secret sample shows all the same: it had
            under k records, or more than the padding covers. Only of secret samples.
        is_self_sampled: Whether each device flips the coin itself, so that the sample is a secret from
            everybody, helpers included.
        reports: How many reports of one person, at most, the dataset holds, where a person is protected and
            not a report.
        noises: How many independent noises of this size are summed. The accountant sets it where an adversary
            faces more than one helper's Laplace noise; two Gaussians are one larger one.
        overlap: Of a job of correlated noise, where `epoch_steps` counts slots far apart: how much of the
            squared length of a record's shift two of these slots have in common, in [0, 1). That part is a
            release without sampling, and the rest one of random allocation.
        is_of_labels: Whether an attacker is to find out which of two contributions a report makes, as with
            one real label or another, and not whether it makes one: twice the shift.
        is_of_mixed_plan: Whether its job plans releases at other settings too, of which none may be charged
            yet: together with other jobs, its releases then do not count as ones at one setting.

    Raises:
        ValueError: a value is outside its range, or not a number.
    """

    mechanism: Mechanism
    noise_multiplier: float
    sampling_rate: float
    rounds: int
    is_common: bool = False
    delta: float = 0.0
    epoch_steps: int = 1
    exposure: float = 0.0
    is_self_sampled: bool = False
    reports: int = 1
    noises: int = 1
    overlap: float = 0.0
    is_of_labels: bool = False
    is_of_mixed_plan: bool = False

    def __post_init__(self) -> None:
        noiseless = self.mechanism is Mechanism.NONE
        if not (self.noise_multiplier == 0 if noiseless else 0 < self.noise_multiplier < math.inf):
            wanted = "0 without a mechanism" if noiseless else "positive and finite"
            raise ValueError(f"noise_multiplier must be {wanted}, not {self.noise_multiplier}")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must be in (0, 1], not {self.sampling_rate}")
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise ValueError(f"rounds must be a positive integer, not {self.rounds}")
        if not 0 <= self.delta < 0.5 or (self.delta and not self.is_common):
            raise ValueError(f"delta must be in [0, 0.5), and is of common noise only, not {self.delta}")
        if not isinstance(self.epoch_steps, int) or self.epoch_steps < 1:
            raise ValueError(f"epoch_steps must be a positive integer, not {self.epoch_steps}")
        if self.epoch_steps > 1 and self.sampling_rate != 1:
            raise ValueError("an epoch of random allocation has no sampling_rate besides")
        if not 0 <= self.exposure <= 1 or (self.exposure and not self.is_sampled):
            raise ValueError(
                f"exposure must be in [0, 1], and is of secret samples only, not {self.exposure}"
            )

        if not isinstance(self.reports, int) or self.reports < 1:
            raise ValueError(f"reports must be a positive integer, not {self.reports}")
        is_correlated = self.mechanism is Mechanism.GAUSSIAN and self.epoch_steps > 1
        if not 0 <= self.overlap < 1 or (self.overlap and not is_correlated):
            raise ValueError(
                f"overlap must be in [0, 1), and is of Gaussian random allocation only, not {self.overlap}"
            )
        most = 2 if self.mechanism is Mechanism.LAPLACE else 1
        if not 1 <= self.noises <= most:
            raise ValueError(f"noises must be from 1 to {most} with {self.mechanism.name}, not {self.noises}")

    @property
    def is_sampled(self) -> bool:
        """True if the ad server cannot know in which releases a record takes part."""
        return self.sampling_rate < 1 or self.epoch_steps > 1

    def without_sampling(self) -> "Charge":
        """Return the same charge against an adversary that knows each sample.

        A release for each round or epoch, that every record takes part in.
        """
        if not self.is_sampled:
            return self
        return replace(self, sampling_rate=1.0, epoch_steps=1, exposure=0.0, overlap=0.0)

    def of_labels(self) -> "Charge":
        """Return the same release's charge for telling one contribution of a report from another."""
        return replace(self, is_of_labels=True)


def continuous(mechanism: Mechanism, noise: float, noises: int = 1) -> float:
    """Return the multiplier of a continuous mechanism that is no more private than the discrete one."""
    match mechanism:
        case Mechanism.LAPLACE if noises > 1:
            return noise / (1 + LAPLACE_SLACK)
        case Mechanism.LAPLACE:
            return 1 / (1 / noise + LAPLACE_SLACK)
        case Mechanism.GAUSSIAN:
            return noise * GAUSSIAN_SLACK
        case Mechanism.NONE:
            return 0.0
