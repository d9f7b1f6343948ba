"""Costs against answers that others published, or that a theorem gives in closed form.

Each is at most theirs, and not by accident.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from maskedlark.privacy.accounting import Charge, compose_epsilon, spent
from tests.charge_builders import gaussian, laplace

# TensorFlow Privacy's MNIST tutorial: 60,000 images, batches of 256, delta 1e-5: noise, epochs, epsilon by
# their Renyi accountant.
MNIST_TUTORIAL = [(1.3, 15, 1.19), (1.1, 60, 3.01), (0.7, 45, 7.10)]


@pytest.mark.parametrize(("noise", "epochs", "published"), MNIST_TUTORIAL)
def test_the_mnist_tutorials_epsilons_are_bettered_by_their_looseness_only(
    noise: float, epochs: int, published: float
) -> None:
    ours = compose_epsilon([gaussian(noise, 256 / 60_000, epochs * 60_000 // 256)], 1e-5)
    assert 0.7 * published < ours <= published


def test_the_moments_accountants_example_is_bettered() -> None:
    """Abadi et al. 2016, section 3.2.

    Q = 0.01, sigma = 4, T = 10,000, delta = 1e-5 give 1.26 by moments, 9.34 by strong composition.
    """
    ours = compose_epsilon([gaussian(4.0, 0.01, 10_000)], 1e-5)
    assert 0.7 * 1.26 < ours <= 1.26


def test_composition_of_gaussians_is_exact() -> None:
    """Dong, Roth, Su 2022: n releases at noise sigma are one at sigma / sqrt(n).

    So 4 at 2, 100 at 10 and 1 at 1 cost the same.
    """
    one = compose_epsilon([gaussian(1.0)], 1e-5)
    assert one == pytest.approx(4.3777, abs=2e-3)  # Balle and Wang 2018, by their closed form
    assert compose_epsilon([gaussian(2.0, rounds=4)], 1e-5) == pytest.approx(one, rel=1e-9)
    assert compose_epsilon([gaussian(10.0, rounds=100)], 1e-5) == pytest.approx(one, rel=1e-9)
    assert compose_epsilon([gaussian(2.0, rounds=2), gaussian(math.sqrt(2))], 1e-5) == pytest.approx(
        one, rel=1e-9
    )


@pytest.mark.parametrize(("epsilon", "rounds"), [(0.1, 20), (0.1, 100), (0.5, 10), (1.0, 5)])
def test_laplace_costs_at_most_optimal_composition_of_any_pure_releases(epsilon: float, rounds: int) -> None:
    """Kairouz, Oh, Viswanath 2015, theorem 3.3.

    No composition of arbitrary pure releases costs more; Laplace ones cost less.
    """
    delta = 1e-5
    theirs = optimal_composition(epsilon, rounds, delta)
    ours = compose_epsilon([laplace(1 / epsilon, rounds=rounds)], delta)
    assert 0.5 * theirs < ours <= theirs


@pytest.mark.parametrize(("epsilon", "rounds"), [(0.01, 10_000), (0.1, 1_000), (0.1, 100)])
def test_laplace_costs_less_than_by_advanced_composition(epsilon: float, rounds: int) -> None:
    """Dwork, Rothblum, Vadhan 2010, theorem III.3."""
    delta = 1e-6
    theirs = math.sqrt(2 * rounds * math.log(1 / delta)) * epsilon + rounds * epsilon * math.expm1(epsilon)
    assert compose_epsilon([laplace(1 / epsilon, rounds=rounds)], delta) < theirs


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5])
def test_a_sampled_laplace_release_costs_what_amplification_says(rate: float) -> None:
    """Balle, Barthe, Gaboardi 2018, theorem 8, which is tight for Poisson sampling."""
    assert compose_epsilon([laplace(0.5, rate)], 0.0) == pytest.approx(
        math.log1p(rate * math.expm1(2.0)), rel=1e-9
    )


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 5.0])
def test_a_sampled_gaussian_release_costs_what_amplification_says(noise_multiplier: float) -> None:
    """The same theorem: (epsilon, delta) without sampling is (ln(1 + q (e^epsilon - 1)), q delta) with it."""
    rate, delta = 0.1, 1e-6
    bare = compose_epsilon([gaussian(noise_multiplier)], delta)
    amplified = compose_epsilon([gaussian(noise_multiplier, rate)], rate * delta)
    assert amplified == pytest.approx(math.log1p(rate * math.expm1(bare)), rel=0.02, abs=2e-3)


@pytest.mark.parametrize("one", [gaussian(1.1, 0.01, 100), laplace(5.0, 0.1, 50), gaussian(3.0)])
def test_the_cost_falls_with_delta_and_grows_slower_than_the_rounds(one: Charge) -> None:
    costs = [compose_epsilon([one], delta) for delta in (1e-12, 1e-9, 1e-6, 1e-3, 0.5, 1 - 1e-9)]
    assert all(later <= earlier for earlier, later in pairwise(costs))
    assert compose_epsilon([one] * 4, 1e-6) < 4 * compose_epsilon([one], 1e-6)


@pytest.mark.parametrize("rate", [math.nextafter(0, 1), 2.0**-32, 1 - 2.0**-32, math.nextafter(1, 0)])
@pytest.mark.parametrize("one", [gaussian, laplace])
def test_rates_at_the_edges_of_the_range_cost_no_more_than_no_sampling(
    one: Callable[..., Charge], rate: float
) -> None:
    cost = spent([one(1.0, rate)], 1e-6)
    assert 0 <= cost.ad_server <= 1.001 * spent([one(1.0)], 1e-6).ad_server
    assert cost.colluding == spent([one(1.0)], 1e-6).colluding


@pytest.mark.parametrize("noise_multiplier", [math.nextafter(0, 1), 1e-300, 2.0**-21])
def test_noise_below_the_sound_range_costs_infinity_and_not_an_error(noise_multiplier: float) -> None:
    assert compose_epsilon([gaussian(noise_multiplier)], 1e-6) == math.inf
    assert compose_epsilon([laplace(noise_multiplier)], 1e-6) == math.inf


@pytest.mark.parametrize("delta", [math.nextafter(0, 1), math.nextafter(1, 0)])
def test_deltas_at_the_edges_of_the_range_cost_a_number(delta: float) -> None:
    assert 0 <= compose_epsilon([laplace(1.0)], delta) <= 1
    assert compose_epsilon([gaussian(1.0)], delta) >= 0


def optimal_composition(epsilon: float, rounds: int, delta: float) -> float:
    """The least (k - 2i) epsilon whose delta_i, from the theorem's binomial sum, is at most delta."""
    for i in range(rounds // 2, -1, -1):
        total = math.fsum(
            math.comb(rounds, j)
            * (math.exp((rounds - j) * epsilon) - math.exp((rounds - 2 * i + j) * epsilon))
            for j in range(i)
        )
        if total / (1 + math.exp(epsilon)) ** rounds <= delta:
            return (rounds - 2 * i) * epsilon
    raise AssertionError("at i = 0 the sum is empty")
