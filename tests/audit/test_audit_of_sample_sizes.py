"""The audit's attacks by the size of a sample: what they catch, and how surely."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm, poisson

from maskedlark.privacy.accounting import spent
from maskedlark.privacy.sample_size import hides
from tests import charge_builders
from tests.audit import sample_size
from tests.audit.bounds import bounds_by_count, chance
from tests.audit.sample_size import DELTA, ERROR, NOISE, RECORDS, ROUNDS, STEPS, TRIALS, K

RATE = 1 / STEPS
BEFORE = {
    "poisson": charge_builders.gaussian(NOISE, rate=RATE, rounds=ROUNDS),
    "allocation": charge_builders.gaussian(NOISE, rounds=ROUNDS // STEPS, epoch_steps=STEPS),
}


def rate_of_guesses(sign: int) -> float:
    """How often the attack says "in", by the number of rounds that the k rule resolves.

    Of `n` rounds the log likelihood ratio is normal around +-n / 4z^2, with twice that as its variance.
    """
    resolved = RATE * float(binom.pmf(K - 1, RECORDS - 1, RATE))
    counts = np.arange(1, 30)
    mean = counts / (4 * NOISE**2)
    above = norm.sf((sample_size._THRESHOLD - sign * mean) / np.sqrt(2 * mean))
    return float(poisson.pmf(counts, resolved * ROUNDS) @ above)


@pytest.mark.parametrize("name", ["poisson", "allocation"])
def test_amplification_of_emptied_samples_is_caught_with_probability_999_in_1000(name: str) -> None:
    claimed = spent([BEFORE[name]], DELTA).ad_server
    at_least, at_most = bounds_by_count(TRIALS, ERROR)
    shown = np.log(np.maximum(at_least - DELTA, 1e-300))[:, None] - np.log(at_most)[None, :]
    assert chance(shown <= claimed, rate_of_guesses(1), rate_of_guesses(-1)) <= 0.001


@pytest.mark.slow
def test_small_samples_are_under_todays_claim_and_over_that_of_before() -> None:
    """Through the real slots and `aggregate`: what was claimed before is broken at any seed."""
    part = sample_size.examine("allocation", STEPS, 918273)
    assert part.claims == dict.fromkeys(part.claims, True)
    figures = part.figures["allocation_sizes"]
    assert figures["k_rule_claimed_before"] == pytest.approx(
        spent([BEFORE["allocation"]], DELTA).ad_server, rel=0.01
    )
    assert figures["k_rule_claimed_before"] < figures["k_rule_shown"] < figures["k_rule_claimed"]
    assert not hides(dataset_size=RECORDS, rate=RATE, k=K)
    assert math.isfinite(figures["k_rule_claimed"])


def test_samples_whose_secrecy_is_counted_show_nothing_by_their_size() -> None:
    figures = sample_size.examine("allocation", STEPS, 5, trials=200).figures["allocation_sizes"]
    by_k, by_work, rounds = figures["secret_resolved"]
    assert (by_k, by_work) == (0, 0)
    assert rounds == 10 * ROUNDS
