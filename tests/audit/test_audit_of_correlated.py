"""The audit of correlated noise in small, and that it sees what it must with probability .999 at any seed."""

from math import sqrt

import pytest
from scipy.stats import norm

from maskedlark.privacy.accounting import spent
from tests import charge_builders
from tests.audit import correlated
from tests.audit.bounds import bounds_by_count, chance
from tests.audit.site import DELTA

FEW = 4


@pytest.mark.slow
@pytest.mark.long
def test_a_canary_at_bad_slots_stays_under_the_claim_of_a_whole_job() -> None:
    found = correlated.examine(5, trials=FEW)
    assert found.shown[0] <= found.claimed[0] < found.claimed[1]
    assert found.shown[1] <= found.claimed[1]
    assert 0.9 * correlated.charged_shift() < found.longest <= correlated.charged_shift()
    charged = charge_builders.gaussian(1 / correlated.charged_shift())
    assert found.claimed[1] == pytest.approx(spent([charged], DELTA).colluding)
    assert found.one_by_one < found.claimed[1]


def is_missed_with(shift: float, claimed: float) -> float:
    """How likely a statistic of this shift over the noise proves no more than a claimed one."""
    at_least, at_most = bounds_by_count(correlated.TRIALS, correlated.ERROR)
    is_missed = norm.ppf(at_least)[:, None] - norm.ppf(at_most)[None, :] <= claimed
    right = norm.cdf(shift / 2)
    return chance(is_missed, right, 1 - right)


def test_half_of_the_noise_and_epochs_one_by_one_are_caught_with_probability_999_in_1000() -> None:
    """At .94 of the worst shift, which a sixteenth of all slots passes, and so one of a hundred job ids."""
    met = 0.94 * correlated.charged_shift()
    assert is_missed_with(2 * met, correlated.charged_shift()) <= 0.001
    assert is_missed_with(met, sqrt(correlated.EPOCHS) / correlated.NOISE) <= 0.001
