"""Random allocation: the bound covers exact integrals, simulated epochs and the authors' own interval, in
both directions."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from maskedlark.privacy.charge import Charge
from maskedlark.privacy.composing import random_allocation
from maskedlark.privacy.composing.composition import compose_epsilon
from maskedlark.privacy.composing.random_allocation import LEAST_NOISE, MAX_STEPS, Ratios, epoch_ratios
from maskedlark.privacy.mechanism import Mechanism
from tests import charge_builders

GRID = 1e-3


def above(level: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """E[(X - level)+] of one Gaussian release's likelihood ratio X, which has the mean 1."""
    positive = np.maximum(level, 1e-300)
    high, low = -np.log(positive) * noise + 0.5 / noise, -np.log(positive) * noise - 0.5 / noise
    return np.where(level > 0, ndtr(high) - positive * ndtr(low), 1 - level)


def exact_of_two(noise: float, epsilon: float) -> tuple[float, float]:
    """Both directions' delta of an epoch of two Gaussian steps.

    One step integrated, the other in closed form.
    """
    y, step = np.linspace(-14 * noise, 1 + 14 * noise, 200_001, retstep=True)
    density = np.exp(-y * y / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi)) * step
    ratio, e = np.exp((y - 0.5) / noise**2), math.exp(epsilon)
    remove = float(density @ above(2 * e - ratio, noise)) / 2
    level = 2 / e - ratio
    add = float(density @ np.where(level > 0, above(level, noise) - 1 + level, 0.0)) * e / 2
    return remove, add


@pytest.mark.parametrize(("noise", "epsilon"), [(0.3, 1.0), (1.0, 0.5), (1.0, 2.0), (3.0, 0.1)])
def test_two_steps_cost_no_less_than_the_exact_integral_and_hardly_more(noise: float, epsilon: float) -> None:
    losses = epoch_ratios(Mechanism.GAUSSIAN, noise, 2).points().losses(GRID)
    for bound, exact in zip((losses.remove, losses.add), exact_of_two(noise, epsilon), strict=True):
        assert exact <= bound.delta(epsilon) <= 1.001 * exact + 1e-6


@pytest.mark.parametrize(
    ("between", "lengths"), [(0, (9, 9)), (3, (9, 4)), (-5, (6, 12)), (40, (7, 5)), (-300, (5, 8))]
)
@pytest.mark.parametrize("grid", [0.3, 0.004])
def test_a_sum_is_that_of_all_pairs_each_spread_to_its_two_neighbours(
    between: int, lengths: tuple[int, int], grid: float
) -> None:
    rng = np.random.default_rng(1)
    first, second = (
        Ratios(grid=grid, first=-1.0 + at * grid, masses=rng.random(length), at_zero=0.0, mean=1.0)
        for at, length in zip((0, between), lengths, strict=True)
    )
    summed = random_allocation._sum(first, second)
    places: dict[int, float] = {}
    for i, a in zip(range(lengths[0]), first.masses.tolist(), strict=True):
        for j, b in zip(range(between, between + lengths[1]), second.masses.tolist(), strict=True):
            exact = np.logaddexp(i * grid, j * grid) / grid
            below = math.floor(exact)
            up = math.expm1((exact - below) * grid) / math.expm1(grid)
            places[below] = places.get(below, 0.0) + a * b * (1 - up)
            places[below + 1] = places.get(below + 1, 0.0) + a * b * up
    start = round((summed.first + 1.0) / grid)
    expected = [places.get(start + k, 0.0) for k in range(len(summed.masses))]
    assert summed.masses.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert math.fsum(summed.masses) == pytest.approx(math.fsum(places.values()), rel=1e-13)


def test_a_sum_keeps_the_probability_and_the_mean_where_a_term_may_be_0() -> None:
    two = math.log(2)  # points at 1, 2, 4, ...
    left = Ratios(grid=two, first=0.0, masses=np.array([0.25, 0.25]), at_zero=0.5, mean=1.0)
    right = Ratios(grid=two, first=0.0, masses=np.array([0.5]), at_zero=0.5, mean=1.0)
    # 0, 1 and 2 by one term alone: 1/4, 3/8 and 1/8; 2 and 3 by both: 1/8 each. What is at 1 goes to 0 and 2,
    # what is at 3 to 2 and 4, half each.
    summed = random_allocation._sum(left, right)
    assert summed.first == pytest.approx(two)
    assert summed.masses.tolist() == pytest.approx([0.5, 0.0625], rel=1e-12)
    assert summed.at_zero == pytest.approx(0.4375, rel=1e-12)
    assert summed.masses.sum() + summed.at_zero == pytest.approx(1.0, rel=1e-12)
    assert summed.masses @ np.exp(summed.logarithms) == pytest.approx(0.75 + 0.5, rel=1e-12)


def test_trimmed_points_keep_their_probability_and_below_their_mean() -> None:
    two, unit = math.log(2), 1e-18  # points at 1/4, 1/2, 1, 2, 4, of which the outermost are negligible
    masses = np.array([4, 8, 5, 6, 2]) * unit
    trimmed = random_allocation._trim(Ratios(grid=two, first=-2 * two, masses=masses, at_zero=0.0, mean=1.0))
    assert trimmed.first == pytest.approx(-two)
    assert (trimmed.masses / unit).tolist() == pytest.approx([8 + 2, 5, 6 + 2], rel=1e-12)
    assert trimmed.at_zero / unit == pytest.approx(2, rel=1e-12)


def test_what_an_epoch_of_several_reports_loses_is_as_small_as_its_steps_and_the_moment_of_one() -> None:
    lost = epoch_ratios(Mechanism.GAUSSIAN, 0.5, 10, reports=2).lost
    assert lost == pytest.approx((1e-12 + 10 * 2e-16) * math.exp(4.0), rel=1e-12, abs=0.0)


@pytest.mark.parametrize("noise", [0.5, 1.0, 5.0])
def test_one_step_is_the_gaussian_without_sampling(noise: float) -> None:
    release = charge_builders.gaussian(noise)
    exact = compose_epsilon([release], 1e-6)
    bound = epoch_ratios(Mechanism.GAUSSIAN, noise, 1).points().losses(GRID).get_epsilon_for_delta(1e-6)
    assert 0.999 * exact - 1e-4 <= bound <= 1.001 * exact + 1e-3


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_one_step_is_the_laplace_without_sampling(noise: float) -> None:
    bound = epoch_ratios(Mechanism.LAPLACE, noise, 1).points().losses(GRID).get_epsilon_for_delta(1e-9)
    assert 0.999 / noise <= bound <= 1 / noise + GRID


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "noises"), [(Mechanism.GAUSSIAN, 1), (Mechanism.LAPLACE, 1), (Mechanism.LAPLACE, 2)]
)
@pytest.mark.parametrize(
    ("noise", "steps", "epochs", "epsilon"), [(0.5, 3, 1, 1.0), (1.0, 10, 4, 0.5), (2.0, 30, 8, 0.2)]
)
def test_simulated_epochs_lose_no_more_than_the_bound(
    mechanism: Mechanism, noises: int, noise: float, *, steps: int, epochs: int, epsilon: float
) -> None:
    rng = np.random.default_rng(7)
    draw = rng.normal if mechanism is Mechanism.GAUSSIAN else rng.laplace
    losses = np.zeros((2, 40_000))
    for _ in range(epochs):
        for is_there in (0, 1):
            y = draw(0.0, noise, (noises, 40_000, steps)).sum(axis=0)
            y[:, 0] += is_there  # every slot is alike
            step = (
                (y - 0.5) / noise**2
                if mechanism is Mechanism.GAUSSIAN
                else (np.abs(y) - np.abs(y - 1)) / noise
            )
            if noises == 2:
                step += np.log((noise + np.abs(y - 1)) / (noise + np.abs(y)))
            losses[is_there] += np.log(np.exp(step).mean(axis=1))
    bound = epoch_ratios(mechanism, noise, steps, noises=noises).points().losses(GRID).self_compose(epochs)
    for sampled, one in [(losses[1], bound.remove), (-losses[0], bound.add)]:
        gains = np.maximum(-np.expm1(epsilon - sampled), 0)
        error = 5 * gains.std() / math.sqrt(len(gains))
        assert gains.mean() - error <= one.delta(epsilon) <= gains.mean() + error + 1e-3


@pytest.mark.slow
def test_the_bound_lies_between_both_bounds_of_the_methods_authors() -> None:
    from PLD_accounting import gaussian_allocation_epsilon_configurable
    from PLD_accounting.types import AllocationSchemeConfig, BoundType, PrivacyParams

    params = PrivacyParams(sigma=1.0, num_steps=10, num_epochs=3, num_selected=1, delta=1e-5)
    config = AllocationSchemeConfig(loss_discretization=0.1, tail_truncation=1e-9)
    lower, upper = (
        gaussian_allocation_epsilon_configurable(params=params, config=config, bound_type=bound)
        for bound in (BoundType.IS_DOMINATED, BoundType.DOMINATES)
    )
    ours = (
        epoch_ratios(Mechanism.GAUSSIAN, 1.0, 10)
        .points()
        .losses(GRID)
        .self_compose(3)
        .get_epsilon_for_delta(1e-5)
    )
    assert lower <= ours <= upper


@pytest.mark.parametrize(
    "order", [2.0, 3.0, 6.0]
)  # of larger ones the tails that are left out hold much of the moment
def test_an_epochs_renyi_divergence_covers_the_exact_moment(order: float) -> None:
    noise, steps = 1.5, 4
    factorials = [math.factorial(k) for k in range(int(order) + 1)]
    one = np.polynomial.Polynomial(
        [math.exp(k * (k - 1) / (2 * noise**2)) / factorials[k] for k in range(int(order) + 1)]
    )
    moment = (one**steps).coef[int(order)] * factorials[int(order)] / steps**order
    exact = math.log(moment) / (order - 1)
    bound, left_out = epoch_ratios(Mechanism.GAUSSIAN, noise, steps).points().divergences(np.array([order]))
    assert exact * (1 - 1e-9) <= bound[0] <= 1.01 * exact
    assert left_out < 1e-10


@pytest.mark.parametrize("steps", [2, 29, 400])
def test_a_secret_slot_never_costs_more_than_a_known_one(steps: int) -> None:
    secret = charge_builders.gaussian(1.0, rounds=5, epoch_steps=steps)
    assert compose_epsilon([secret], 1e-6) < compose_epsilon([secret.without_sampling()], 1e-6)


@pytest.mark.parametrize("mechanism", [Mechanism.GAUSSIAN, Mechanism.LAPLACE])
def test_what_is_out_of_range_is_charged_as_if_the_slot_were_known(mechanism: Mechanism) -> None:
    quiet = Charge(
        mechanism=mechanism,
        noise_multiplier=LEAST_NOISE / 2,
        sampling_rate=1.0,
        rounds=1,
        epoch_steps=9,
    )
    long = Charge(
        mechanism=mechanism,
        noise_multiplier=9.0,
        sampling_rate=1.0,
        rounds=1,
        epoch_steps=MAX_STEPS + 1,
    )
    for charge in (quiet, long):
        assert compose_epsilon([charge], 1e-6) >= compose_epsilon([charge.without_sampling()], 1e-6)


@pytest.mark.parametrize(
    ("noise", "steps"), [(LEAST_NOISE / 2, 1), (math.inf, 1), (1.0, 0), (1.0, MAX_STEPS + 1)]
)
def test_settings_that_cannot_be_computed_are_refused(noise: float, steps: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        epoch_ratios(Mechanism.GAUSSIAN, noise, steps)


@pytest.mark.parametrize("steps", [2, 29, 1000])
@pytest.mark.parametrize("noise", [30.0, 1e4, 2.0**20])
def test_much_noise_takes_no_more_room_than_little(noise: float, steps: int) -> None:
    ratios = epoch_ratios(Mechanism.GAUSSIAN, noise, steps)
    assert len(ratios.masses) < 5_000
    variance = math.fsum(ratios.masses * ratios.logarithms**2)
    assert 1 / (noise**2 * steps) < variance < 1.01 / (noise**2 * steps)


@pytest.mark.parametrize("steps", [29, MAX_STEPS])
def test_no_probability_that_rounding_loses_is_forgotten(steps: int) -> None:
    losses = epoch_ratios(Mechanism.GAUSSIAN, 50.0, steps).points().losses(GRID)
    for one in (losses.remove, losses.add):
        assert math.fsum(one.masses) + one.at_infinity >= 1 - 1e-15


@pytest.mark.parametrize(
    ("mechanism", "noises", "reports"), [(Mechanism.GAUSSIAN, 2, 1), (Mechanism.LAPLACE, 1, 2)]
)
def test_noises_and_reports_are_of_the_mechanism_that_they_are_proven_for(
    mechanism: Mechanism, noises: int, reports: int
) -> None:
    with pytest.raises(ValueError, match="several noises are Laplace"):
        epoch_ratios(mechanism, 1.0, 4, noises=noises, reports=reports)
