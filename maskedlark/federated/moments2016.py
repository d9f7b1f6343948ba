"""The moments accountant of 2016: only to print the epsilons of the papers next to ours, never to charge.

    epsilon_2016([MomentsStep(sampling_rate=0.01, noise_multiplier=1.0, rounds=1000)], delta=1e-6)

It tries the integer moments 1 to 32 and converts them as Abadi et al. did: epsilon = min over m of (sum of
log moments + ln 1/delta) / m. What is charged comes from `maskedlark.privacy.accounting`, which is smaller
and as valid.

Source: Abadi et al., "Deep Learning with Differential Privacy", 2016, theorem 2; the released accountant's
moments.
"""

import math
from collections.abc import Sequence
from typing import Final

from maskedlark.frozen import frozen

MOMENTS: Final = range(1, 33)


@frozen
class MomentsStep:
    """Rounds of the sampled Gaussian mechanism at the same settings.

    Attributes:
        sampling_rate: q, in (0, 1].
        noise_multiplier: z, the noise's sigma over the sensitivity.
        rounds: At least 1.
    """

    sampling_rate: float
    noise_multiplier: float
    rounds: int


def epsilon_2016(steps: Sequence[MomentsStep], delta: float) -> float:
    """Return the epsilon that the papers print for these rounds, under one trusted curator.

    Raises:
        ValueError: a parameter is outside its range.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), not {delta}")
    totals = [
        math.fsum(step.rounds * _log_moment(step.sampling_rate, step.noise_multiplier, m) for step in steps)
        for m in MOMENTS
    ]
    return min((total - math.log(delta)) / m for m, total in zip(MOMENTS, totals, strict=True))


def _log_moment(sampling_rate: float, noise_multiplier: float, moment: int) -> float:
    """Return the log of the privacy loss's moment generating function for one round, at an integer.

    With order a = moment + 1 it is ln(1 + sum over k >= 2 of C(a, k) (1-q)^(a-k) q^k (e^(k(k-1) / (2 z^2)) -
    1)). All terms are positive, so that a moment of 1e-15 keeps its digits.

    Raises:
        ValueError: a parameter is outside its range.
    """
    if not (0 < sampling_rate <= 1 and 0 < noise_multiplier < math.inf):
        raise ValueError("sampling_rate must be in (0, 1], and noise_multiplier positive and finite")
    order = moment + 1
    logs = []
    for k in range(2, order + 1):
        exponent = k * (k - 1) / (2 * noise_multiplier**2)
        # From 50 on, e^x - 1 and e^x are one float64; later e^x would overflow.
        log_growth = math.log(math.expm1(exponent)) if exponent < 50 else exponent
        log_rate = k * math.log(sampling_rate)
        if k < order:
            log_rate += (order - k) * math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf
        logs.append(math.log(math.comb(order, k)) + log_rate + log_growth)
    # Relative to the largest, so that no exponential overflows.
    largest = max(logs)
    log_sum = largest + math.log(math.fsum(math.exp(one - largest) for one in logs))
    # From 50 on, ln(1 + e^x) and x are one float64; later e^x would overflow.
    return math.log1p(math.exp(log_sum)) if log_sum < 50 else log_sum
