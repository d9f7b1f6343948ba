"""The audit of federated rounds: what it catches, how surely, and one small run of each kind."""

import math
from dataclasses import replace

import pytest
from scipy.stats import binom, norm

from maskedlark.privacy.accounting import compose_epsilon
from tests import charge_builders
from tests.audit import federated
from tests.audit.bounds import Guesses, Rates, bounds_by_count, chance
from tests.audit.federated import BROKEN, ERROR, HONEST, Broken, Case, sampled_epsilon
from tests.audit.site import DELTA


def chances(rounds: int, hit: float, alarm: float, rate: float, mu: float) -> float:
    """How probably guesses at these rates show more than a round of `mu` at a rate allows.

    Every pair of counts is weighed by its probability.
    """
    at_least, at_most = bounds_by_count(rounds, ERROR)
    allowed = (1 - rate) * at_most + rate * norm.cdf(norm.ppf(at_most) + mu)
    return chance(at_least[:, None] > allowed[None, :], hit, alarm)


def mus(case: Case) -> tuple[float, float]:
    """What the canary's update is worth, in standard deviations, to each adversary."""
    each = 1 / case.noise_multiplier
    return each / math.sqrt(2), each


@pytest.mark.parametrize("case", BROKEN, ids=[case.broken.value for case in BROKEN])
@pytest.mark.parametrize("adversary", [0, 1])
def test_a_broken_build_is_caught_with_probability_999_in_1000_at_any_seed(
    case: Case, adversary: int
) -> None:
    mu, rounds = mus(case)[adversary], case.rounds
    times = {Broken.HALVED_NOISE: 2.0, Broken.NO_NOISE: 1e9, Broken.NO_CLIP: 4.0, Broken.NO_COVER: 1.0}
    threshold = mu * times[case.broken] / 2
    if case.broken is Broken.NO_COVER:  # only the rounds that the canary answers count
        uploads = int(binom.ppf(1e-5, rounds, case.sampling_rate))
        caught = chances(uploads, norm.cdf(threshold), norm.cdf(-threshold), case.rate, mu)
    else:
        caught = chances(rounds, norm.cdf(threshold), norm.cdf(-threshold), case.rate, mu)
    assert caught >= 0.999


@pytest.mark.parametrize("case", HONEST)
@pytest.mark.parametrize("adversary", [0, 1])
def test_an_honest_build_is_accused_as_seldom_as_the_audit_says(case: Case, adversary: int) -> None:
    mu = mus(case)[adversary]
    alarm = float(norm.cdf(-mu / 2))
    hit = (1 - case.rate) * alarm + case.rate * float(norm.cdf(mu / 2))
    uploads = round(case.rounds * (case.sampling_rate + (1 - case.sampling_rate) * case.cover))
    assert chances(uploads, hit, alarm, case.rate, mu) <= ERROR


@pytest.mark.parametrize(("mu", "rate"), [(1.0, 1.0), (2.0, 0.5), (0.7, 0.1)])
def test_the_shown_epsilon_is_that_of_the_round_whose_rates_they_are(mu: float, rate: float) -> None:
    alarm = float(norm.cdf(-mu / 2))
    hit = (1 - rate) * alarm + rate * float(norm.cdf(mu / 2))
    shown = sampled_epsilon(Rates(hit_at_least=hit, false_alarm_at_most=alarm), rate, DELTA)
    charged = charge_builders.gaussian(1 / mu, rate=rate)
    assert shown == pytest.approx(compose_epsilon([charged], DELTA), rel=1e-6)


def test_more_hits_than_a_secret_coin_gives_prove_that_it_is_none() -> None:
    rates = Rates(hit_at_least=0.9, false_alarm_at_most=0.1)
    assert sampled_epsilon(rates, 0.5, DELTA) == math.inf
    assert sampled_epsilon(rates, 1.0, DELTA) < math.inf
    nothing = Guesses(hits=50, with_canary=100, false_alarms=50, without_canary=100).rates(ERROR)
    assert sampled_epsilon(nothing, 0.5, DELTA) == 0.0


@pytest.mark.parametrize("case", [HONEST[1], HONEST[3]], ids=["cover", "no cover"])
def test_real_helpers_and_devices_stay_under_what_the_helpers_state(case: Case) -> None:
    found = federated.audit(replace(case, rounds=10), seed=3)
    assert all(one.shown <= one.claimed for one in found)
    assert found[0].claimed < found[1].claimed
    assert found[0].uploads == 20 if case.cover else found[0].uploads < 20


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("case", BROKEN[1:3], ids=["no noise", "no clip"])
def test_rounds_without_noise_or_clip_do_not_pass(case: Case) -> None:
    found = federated.audit(replace(case, rounds=80), seed=3)
    assert all(one.shown > one.claimed for one in found)


@pytest.mark.slow
@pytest.mark.long
def test_a_device_that_is_silent_where_zeros_are_promised_does_not_pass() -> None:
    found = federated.audit(replace(BROKEN[3], rounds=120), seed=3)
    assert found[1].shown > found[1].claimed
