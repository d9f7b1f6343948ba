"""Many different charges: cheap to compose, and never cheaper than the truth."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.composing.composition import MAX_COMPOSED, compose_epsilon
from maskedlark.privacy.composing.merged_charges import merge
from maskedlark.privacy.composing.renyi import ORDERS, divergences_of
from tests import charge_builders
from tests.charge_builders import laplace

DELTA = 1e-5


def gaussian(noise: float, rate: float = 1.0, steps: int = 1) -> Charge:
    return charge_builders.gaussian(noise, rate=rate, epoch_steps=steps)


@pytest.mark.parametrize(
    "make", [laplace, lambda noise: laplace(noise, 0.3), lambda noise: gaussian(noise, 0.1)]
)
def test_many_different_charges_cost_no_less_than_as_many_at_the_most_noise(
    make: Callable[[float], Charge],
) -> None:
    rng = random.Random(3)
    different = [make(rng.uniform(20, 22)) for _ in range(500)]
    noisiest, quietest = [make(22)] * 500, [make(20)] * 500
    assert (
        compose_epsilon(noisiest, DELTA)
        <= compose_epsilon(different, DELTA)
        <= 1.2 * compose_epsilon(quietest, DELTA)
    )


def test_pure_epsilons_add_up_whatever_their_number() -> None:
    charges = [laplace(1000 + i) for i in range(2_000)]
    assert compose_epsilon(charges, 0.0) == pytest.approx(sum(1 / (1000 + i) for i in range(2_000)))


def test_unsampled_gaussians_are_one_gaussian_whatever_their_number() -> None:
    charges = [gaussian(100 + i) for i in range(2_000)]
    one = gaussian(sum((100 + i) ** -2 for i in range(2_000)) ** -0.5)
    assert compose_epsilon(charges, DELTA) == pytest.approx(compose_epsilon([one], DELTA))


def test_many_sampled_gaussians_never_cost_more_than_without_sampling() -> None:
    rng = random.Random(4)
    charges = [gaussian(rng.uniform(5, 50), rng.uniform(0.9, 1)) for _ in range(300)]
    assert compose_epsilon(charges, DELTA) <= compose_epsilon(
        [charge.without_sampling() for charge in charges], DELTA
    )


def test_one_charge_past_the_composed_ones_costs_more_and_not_much_more() -> None:
    charges = [gaussian(2.0 + i / 100, 0.05) for i in range(MAX_COMPOSED)]
    few, many = compose_epsilon(charges, DELTA), compose_epsilon([*charges, gaussian(3.0, 0.05)], DELTA)
    assert few < many < 1.6 * few


def test_a_job_among_many_queries_keeps_the_credit_for_its_secret_slots() -> None:
    job = charge_builders.gaussian(1.0, rounds=3, epoch_steps=30)
    queries = [laplace(1000.0 + i) for i in range(50)]
    alone = spent([job], DELTA)
    together = spent([job, *queries], DELTA)
    assert together.ad_server < 1.4 * alone.ad_server < alone.colluding / 4


def test_samples_that_may_show_are_counted_in_delta() -> None:
    hidden = gaussian(1.0, 0.01)
    shows = charge_builders.gaussian(1.0, rate=0.01, exposure=1e-9)
    assert (
        spent([hidden], DELTA).ad_server
        < spent([shows], DELTA).ad_server
        < 1.1 * spent([hidden], DELTA).ad_server
    )


def test_samples_that_show_too_often_are_not_credited() -> None:
    shows = charge_builders.gaussian(1.0, rate=0.01, rounds=1000, exposure=1e-4)
    assert spent([shows], DELTA).ad_server == spent([shows.without_sampling()], DELTA).ad_server
    assert math.isfinite(spent([shows], DELTA).ad_server)


def test_a_large_epsilon_leaves_no_room_for_samples_that_show() -> None:
    shows = charge_builders.gaussian(0.2, rate=0.9, rounds=2, exposure=5e-8)
    assert spent([shows], DELTA).ad_server == spent([shows.without_sampling()], DELTA).ad_server


@pytest.mark.parametrize("noise", [10.0, 1_000.0])
def test_the_divergences_of_a_laplace_release_cover_the_exact_ones(noise: float) -> None:
    epsilon, a = 1 / noise, ORDERS
    of_ends = (a * np.exp((a - 1) * epsilon) + (a - 1) * np.exp(-a * epsilon)) / (2 * a - 1)
    found, left_out = divergences_of(merge([laplace(noise)], 1))
    assert left_out == 0
    assert (found >= np.log(of_ends) / (a - 1)).all()
