"""The audit's own statistics.

Against published intervals, simulated mechanisms, and mechanisms that are worse than they claim.
"""

import math

import numpy as np
import pytest
from scipy.stats import norm

from maskedlark.privacy.accounting import compose_epsilon
from maskedlark.privacy.mechanism import Mechanism
from tests import charge_builders
from tests.audit.__main__ import ROUNDS
from tests.audit.bounds import Guesses, bounds_by_count, chance, epsilon_of_gaussian, lower
from tests.builders import fitting_noise


@pytest.mark.parametrize(
    ("successes", "trials", "published"), [(0, 20, 0.0), (20, 20, 0.8316), (10, 20, 0.2720), (1, 10, 0.0025)]
)
def test_clopper_pearson_gives_the_tables_values(successes: int, trials: int, published: float) -> None:
    """The lower ends of exact two-sided 95 % intervals, as statistics textbooks print them."""
    assert lower(successes, trials, 0.025) == pytest.approx(published, abs=1e-4)


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.9])
def test_the_bound_is_wrong_as_seldom_as_it_says(rate: float) -> None:
    drawn = np.random.default_rng(1).binomial(500, rate, 2_000)
    wrong = np.mean([lower(int(successes), 500, 0.05) > rate for successes in drawn])
    assert wrong <= 0.065


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_a_gaussian_epsilon_is_what_the_accountant_says(noise: float) -> None:
    charged = charge_builders.gaussian(noise)
    assert epsilon_of_gaussian(1 / noise, 1e-5) == pytest.approx(compose_epsilon([charged], 1e-5), rel=1e-3)


def guesses_of(noise: "np.ndarray[tuple[int], np.dtype[np.float64]]", threshold: float) -> Guesses:
    half = len(noise) // 2
    return Guesses.above(noise[:half] + 1, noise[half:], threshold)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_laplace_noise_stays_under_its_epsilon_and_half_of_it_does_not(epsilon: float) -> None:
    noise = np.random.default_rng(2).laplace(0, 1 / epsilon, 4_000)
    assert guesses_of(noise, 1.0).rates(0.001).epsilon(0.0) < epsilon
    assert guesses_of(noise / 2, 1.0).rates(0.001).epsilon(0.0) > epsilon


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_gaussian_noise_stays_under_its_epsilon_and_half_of_it_does_not(mu: float) -> None:
    noise = np.random.default_rng(3).normal(0, 1 / mu, 4_000)
    claimed = epsilon_of_gaussian(mu, 1e-5)
    assert guesses_of(noise, 0.5).rates(0.001).gaussian_epsilon(1e-5) < claimed
    assert guesses_of(noise / 2, 0.5).rates(0.001).gaussian_epsilon(1e-5) > claimed


def test_guesses_that_tell_nothing_prove_nothing() -> None:
    coin = Guesses(hits=500, with_canary=1_000, false_alarms=500, without_canary=1_000)
    assert coin.rates(0.05).epsilon(0.0) == coin.rates(0.05).gaussian_epsilon(1e-5) == 0.0
    never = Guesses(hits=0, with_canary=1_000, false_alarms=0, without_canary=1_000)
    assert never.rates(0.05).epsilon(1e-5) == 0.0


def test_perfect_guesses_prove_no_more_than_their_number_allows() -> None:
    perfect = Guesses(hits=1_000, with_canary=1_000, false_alarms=0, without_canary=1_000).rates(0.05)
    assert perfect.epsilon(0.0) == pytest.approx(math.log((1 - 0.00368) / 0.00368), rel=0.01)
    assert perfect.gaussian_epsilon(1e-5) == pytest.approx(
        epsilon_of_gaussian(-2 * float(norm.ppf(0.00368)), 1e-5), rel=0.01
    )


ERROR = 0.05 / 20


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "is_against_ad_server"),
    [
        (Mechanism.LAPLACE, 1.0, False),
        (Mechanism.LAPLACE, 3.0, False),
        (Mechanism.GAUSSIAN, 2.0, False),
        (Mechanism.GAUSSIAN, 2.0, True),
        (Mechanism.GAUSSIAN, 8.0, False),
        (Mechanism.GAUSSIAN, 8.0, True),
    ],
)
def test_halved_noise_is_caught_with_probability_999_in_1000_at_any_seed(
    mechanism: Mechanism, epsilon: float, is_against_ad_server: bool
) -> None:
    """Every pair of counts that a helper of half the noise can give, weighed by its probability."""
    if mechanism is Mechanism.LAPLACE:
        hit, false_alarm = 0.5, math.exp(-2 * epsilon) / 2
    else:
        each = fitting_noise(
            math.inf,
            1e-5,
            mechanism=mechanism,
            sampling_rate=1.0,
            rounds=1,
            already=(),
            collusion_epsilon=epsilon,
        )
        mu = 1 / (each * math.sqrt(2)) if is_against_ad_server else 1 / each
        hit = float(norm.cdf(mu))
        false_alarm = 1 - hit
    hit_at_least, alarm_at_most = bounds_by_count(ROUNDS, ERROR)
    if mechanism is Mechanism.LAPLACE:
        shown = np.log(np.maximum(hit_at_least - 1e-5, 1e-300))[:, None] - np.log(alarm_at_most)[None, :]
        is_missed = shown <= epsilon
    else:
        is_missed = norm.ppf(hit_at_least)[:, None] - norm.ppf(alarm_at_most)[None, :] <= mu
    assert chance(is_missed, hit, false_alarm) <= 0.001
