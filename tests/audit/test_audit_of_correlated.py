"""The audit of correlated noise in small, and that it sees what it must with probability .999 at any seed."""

from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from maskedlark.privacy.accounting import spent
from maskedlark.privacy.correlated import DENOMINATOR
from tests import charge_builders
from tests.audit import correlated
from tests.audit.bounds import bounds_by_count, chance
from tests.audit.site import DELTA

FEW = 4


@pytest.mark.slow
@pytest.mark.long
def test_a_canary_at_the_worst_slot_stays_under_the_claim_of_a_whole_job() -> None:
    found = correlated.examine(5, trials=FEW)
    assert found.shown[0] <= found.claimed[0] < found.claimed[1]
    assert found.shown[1] <= found.claimed[1]
    assert found.most == 1
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
    """At the first slot, which one of 24 job ids has with probability .999."""
    met = float(np.linalg.norm(shift_of(np.arange(correlated.EPOCHS) * correlated.STEPS))) / correlated.NOISE
    assert (1 - 1 / correlated.STEPS) ** correlated._TRIES < 0.0011
    assert met > 0.97 * correlated.charged_shift()
    assert is_missed_with(2 * met, correlated.charged_shift()) <= 0.001
    assert is_missed_with(met, sqrt(correlated.EPOCHS) / correlated.NOISE) <= 0.001


def test_slots_that_hang_on_the_transcript_are_caught_with_probability_999_in_1000() -> None:
    """With 24 tries the canary is in all rounds but .1 %: taken as all but one, the worst one."""
    rounds = np.arange(correlated.EPOCHS * correlated.STEPS)
    least = min(np.linalg.norm(shift_of(np.delete(rounds, one))) for one in rounds)
    assert is_missed_with(float(least) / correlated.NOISE, correlated.charged_shift()) <= 0.001


@pytest.mark.slow
def test_slots_that_hang_on_the_transcript_are_ground_into_many_rounds() -> None:
    assert correlated.examine(5, is_ground=True, trials=1).most > 1


def shift_of(steps: NDArray[np.intp]) -> NDArray[np.float64]:
    """What a canary in these steps does once the correlation is undone."""
    length = correlated.EPOCHS * correlated.STEPS
    undo = np.linalg.inv(np.eye(length) - correlated.CARRIED / DENOMINATOR * np.eye(length, k=-1))
    return np.asarray(undo[:, steps].sum(axis=1))
