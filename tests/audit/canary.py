"""A canary in a dataset of nobody else.

How well does the best adversary tell that it is there, against what the helpers claim?

The adversary knows everything but the canary's contribution, which is the largest that clipping leaves and
lies on one coordinate; it fixes its threshold before it looks. Against (b), it also takes the colluding
helper's noise off.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.report import Example
from tests.audit.bounds import Guesses
from tests.audit.part import Finding
from tests.audit.site import (
    CLIP_NORM,
    COLLUDING_HELPER,
    DELTA,
    HalvedNoise,
    RecordedNoise,
    Site,
    open_site,
)
from tests.builders import fitting_noise

RECORDS = 4
BIAS = -1
"""The coordinate of the canary: its features are zero, so that its whole gradient is the bias's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One audit.

    Attributes:
        mechanism: The noise.
        epsilon: What one round is calibrated to claim against (b), the ad server with one helper.
        is_halved: Whether the helpers add half of the noise that they claim.
        sampling_rate: Of each round's secret minibatch.
    """

    mechanism: Mechanism
    epsilon: float
    is_halved: bool = False
    sampling_rate: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfCanary(Finding):
    """A finding with its case.

    Attributes:
        case: What was audited.
        shown_without_family: The same, of whatever mechanism.
    """

    case: Case
    shown_without_family: float


def audit(case: Case, *, rounds: int, error: float, seed: int) -> tuple[OfCanary, OfCanary]:
    """Both adversaries' findings from `rounds` rounds with the canary and as many without.

    Each wrong with probability at most `error`.
    """
    with open_site(
        seed=seed,
        shelf=HalvedNoise if case.is_halved else RecordedNoise,
        mechanism=case.mechanism,
        norm="l1" if case.mechanism is Mechanism.LAPLACE else "l2",
        clip_norm=CLIP_NORM,
    ) as site:
        multiplier = fitting_noise(
            float("inf"),
            DELTA,
            mechanism=case.mechanism,
            sampling_rate=1.0,
            rounds=1,
            already=(),
            collusion_epsilon=case.epsilon,
        )
        claims, observed = [], []
        for others in (RECORDS, RECORDS - 1):
            fake = Example(features=np.zeros(4, np.uint8), label=None)
            canary = Example(features=np.zeros(4, np.uint8), label=0)
            dataset = site.seal([fake] * others + [canary] * (RECORDS - others))
            _, claim = site.start(
                dataset, rounds=1, noise_multiplier=multiplier, sampling_rate=case.sampling_rate
            )
            claims.append(claim)
            observed.append(_observe(site, dataset, rounds, multiplier, case.sampling_rate))
        without, with_canary = observed
        shown = [
            _guesses(with_canary[adversary], without[adversary], case.mechanism).rates(error)
            for adversary in (0, 1)
        ]
        family = [
            rates.gaussian_epsilon(DELTA) if _is_one_gaussian(case) else rates.epsilon(DELTA)
            for rates in shown
        ]
        return (
            OfCanary(
                case=case,
                adversary="ad_server",
                claimed=claims[0].epsilon_spent,
                shown=family[0],
                shown_without_family=shown[0].epsilon(DELTA),
            ),
            OfCanary(
                case=case,
                adversary="ad_server_and_helper",
                claimed=claims[0].collusion_epsilon_spent,
                shown=family[1],
                shown_without_family=shown[1].epsilon(DELTA),
            ),
        )


def _observe(
    site: Site, dataset: bytes, rounds: int, multiplier: float, rate: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The canary's coordinate in each round, in units of the sensitivity.

    As the ad server sees it, and without the colluder's noise.
    """
    noise = site.cores[COLLUDING_HELPER].jobs._noise
    assert isinstance(noise, RecordedNoise)
    noise.taken.clear()
    spec, _ = site.start(dataset, rounds=rounds, noise_multiplier=multiplier, sampling_rate=rate)
    sums = site.sums(spec)
    assert len(noise.taken) == rounds
    unit = site.task.clip.sensitivity
    return sums[:, BIAS] / unit, (sums - np.stack(noise.taken))[:, BIAS] / unit


def _guesses(with_canary: NDArray[np.float64], without: NDArray[np.float64], mechanism: Mechanism) -> Guesses:
    """Thresholds where each family tells most.

    For Laplace from the canary's value on, for Gaussian half way to it.
    """
    threshold = 1.0 - 2.0**-30 if mechanism is Mechanism.LAPLACE else 0.5
    return Guesses.above(with_canary, without, threshold)


def _is_one_gaussian(case: Case) -> bool:
    return case.mechanism is Mechanism.GAUSSIAN and case.sampling_rate == 1.0
