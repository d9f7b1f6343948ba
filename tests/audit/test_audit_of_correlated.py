"""The audit of correlated noise in small, and that it sees what it must with probability .999 at any seed."""

from math import sqrt

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.mechanism import Mechanism
from tests.audit import correlated
from tests.audit.canary import DELTA

FEW = 4


@pytest.mark.slow
@pytest.mark.long
def test_a_canary_at_bad_slots_stays_under_the_claim_of_a_whole_job() -> None:
    found = correlated.examine(5, trials=FEW)
    assert found.shown[0] <= found.claimed[0] < found.claimed[1]
    assert found.shown[1] <= found.claimed[1]
    assert 0.9 * correlated.charged_shift() < found.longest <= correlated.charged_shift()
    charged = Charge(
        mechanism=Mechanism.GAUSSIAN,
        noise_multiplier=1 / correlated.charged_shift(),
        sampling_rate=1.0,
        rounds=1,
    )
    assert found.claimed[1] == pytest.approx(spent([charged], DELTA).colluding)
    assert found.one_by_one < found.claimed[1]


def is_missed_with(shift: float, claimed: float) -> float:
    """How likely a statistic of this shift over the noise proves no more than a claimed one."""
    counts = np.arange(correlated.TRIALS + 1)
    at_least = np.nan_to_num(beta.ppf(correlated.ERROR / 2, counts, correlated.TRIALS - counts + 1))
    is_missed = norm.ppf(at_least)[:, None] - norm.ppf(1 - at_least[::-1])[None, :] <= claimed
    right = norm.cdf(shift / 2)
    hits, alarms = (binom.pmf(counts, correlated.TRIALS, rate) for rate in (right, 1 - right))
    return float(hits @ is_missed @ alarms)


def test_half_of_the_noise_and_epochs_one_by_one_are_caught_with_probability_999_in_1000() -> None:
    """At .94 of the worst shift, which a sixteenth of all slots passes, and so one of a hundred job ids."""
    met = 0.94 * correlated.charged_shift()
    assert is_missed_with(2 * met, correlated.charged_shift()) <= 0.001
    assert is_missed_with(met, sqrt(correlated.EPOCHS) / correlated.NOISE) <= 0.001
