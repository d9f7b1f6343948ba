"""The grid of one step of an epoch: its points, its cells and its tails against 40 digits."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest

from maskedlark.privacy.composing import random_allocation
from maskedlark.privacy.composing.random_allocation import LEAST_NOISE, MAX_STEPS, Ratios, epoch_ratios
from maskedlark.privacy.mechanism import Mechanism

GAUSSIAN, LAPLACE = Mechanism.GAUSSIAN, Mechanism.LAPLACE
TWO = math.log(2)
Below = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def forty_digits() -> Iterator[None]:
    with mpmath.workdps(40):
        yield


def of_gaussian(noise: float) -> tuple[Below, Below]:
    """The probabilities, without and with the record, that the logarithm of the ratio is at most this."""
    z = mpmath.mpf(noise)
    return lambda x: mpmath.ncdf(x * z + 1 / (2 * z)), lambda x: mpmath.ncdf(x * z - 1 / (2 * z))


def of_laplace(noise: float) -> tuple[Below, Below]:
    b = mpmath.mpf(noise)

    def below(y: Any) -> Any:
        return mpmath.exp(y / b) / 2 if y < 0 else 1 - mpmath.exp(-y / b) / 2

    return lambda x: below((x * b + 1) / 2), lambda x: below((x * b - 1) / 2)


def of_two_laplaces(noise: float) -> tuple[Below, Below]:
    b = mpmath.mpf(noise)

    def log_ratio(y: Any) -> Any:
        of_scales = (abs(y) - abs(y - 1)) / b
        return of_scales + mpmath.log((b + abs(y - 1)) / (b + abs(y)))

    def place(x: Any) -> Any:
        if x < 0:
            return 1 - place(-x)
        if x * b > 1 - mpmath.mpf(10) ** -12:
            return mpmath.inf  # the end of the ratio's range
        low, high = mpmath.mpf(1) / 2, mpmath.mpf(1)
        while log_ratio(high) < x:
            low, high = high, 2 * high
        for _ in range(90):
            middle = (low + high) / 2
            low, high = (middle, high) if log_ratio(middle) < x else (low, middle)
        return high

    def below(y: Any) -> Any:
        if mpmath.isinf(y):
            return mpmath.mpf(y > 0)
        return (2 + abs(y) / b) * mpmath.exp(-abs(y) / b) / 4 if y <= 0 else 1 - below(-y)

    return lambda x: below(place(x)), lambda x: below(place(x) - 1)


def check_cells(found: Ratios, laws: tuple[Below, Below], places: list[int], *, rel: float) -> None:
    without, with_record = laws
    grid, first = mpmath.mpf(found.grid), mpmath.mpf(found.first)
    for i in places:
        low, middle, high = (first + grid * (i + step) for step in (-1, 0, 1))
        at = [(without(x), with_record(x), mpmath.exp(x)) for x in (low, middle, high)]
        ups = [
            (p_high - p_low - r_low * (q_high - q_low)) / (r_high - r_low)
            for (q_low, p_low, r_low), (q_high, p_high, r_high) in pairwise(at)
        ]
        expected = ups[0] + (at[2][0] - at[1][0]) - ups[1]
        assert found.masses[i] == pytest.approx(float(expected), rel=rel, abs=1e-22), i


@pytest.mark.parametrize(
    ("mechanism", "noise", "steps", "noises", "reports"),
    [
        (GAUSSIAN, 1.0, 5, 1, 1),
        (GAUSSIAN, 0.5, 30, 1, 3),
        (GAUSSIAN, 7.0, 900, 1, 1),
        (GAUSSIAN, 50.0, 60_000, 1, 2),
        (GAUSSIAN, 0.11, 3, 1, 1),
        (LAPLACE, 0.9, 6, 1, 1),
        (LAPLACE, 3.0, 20_000, 1, 1),
        (LAPLACE, 0.2, 40, 1, 1),
        (LAPLACE, 0.9, 6, 2, 1),
        (LAPLACE, 5.0, 9_000, 2, 1),
        (LAPLACE, 0.08, 4, 2, 1),
    ],
)
def test_one_step_holds_each_cell_of_its_law(
    mechanism: Mechanism, noise: float, steps: int, noises: int, reports: int
) -> None:
    found = random_allocation._one_step(mechanism, noise, steps, noises=noises, reports=reports)
    z = mpmath.mpf(noise)
    if mechanism is GAUSSIAN:
        laws, highest = of_gaussian(noise), (reports - 0.5) / z**2 + mpmath.mpf("8.3") / z
        variance = mpmath.expm1(1 / z**2)
    else:
        laws, highest = (of_laplace if noises == 1 else of_two_laplaces)(noise), 1 / z
        variance = mpmath.expm1(1 / z) ** 2
    wanted = 2 * highest / mpmath.sqrt(mpmath.mpf("0.015") * variance / steps)
    count = int(min(max(wanted, 2_000), 12_000)) | 1
    assert len(found.masses) == count
    assert found.grid == pytest.approx(float(2 * highest / (count - 1)), rel=1e-14)
    assert found.first == pytest.approx(float(-highest), rel=1e-14)
    assert (found.mean, found.power) == (1.0, reports)
    middle, last = count // 2, count - 1
    places = [1, middle // 2, middle - 1, middle, middle + 1, middle + middle // 3, last - 1]
    check_cells(found, laws, places, rel=1e-7)
    without, with_record = laws
    if mechanism is GAUSSIAN:
        below, below_with_record, above = without(-highest), with_record(-highest), 1 - without(highest)
    elif noises == 1:
        below, below_with_record, above = 0.5, mpmath.exp(-1 / z) / 2, mpmath.exp(-1 / z) / 2
    else:
        below = below_with_record = above = 0
    kept = min(below, below_with_record * mpmath.exp(highest))
    assert found.at_zero == pytest.approx(float(below - kept), rel=1e-9, abs=1e-13 * float(below))
    assert found.masses[-1] >= float(above)
    assert found.masses[-1] == pytest.approx(float(above), rel=0.2 if noises == 1 else 1.0, abs=0.01)
    assert found.masses[0] >= float(kept) * (1 - 1e-9)
    assert math.fsum(found.masses) + found.at_zero == pytest.approx(1.0, abs=1e-12)
    mean = math.fsum(found.masses * np.exp(found.logarithms))
    assert mean == pytest.approx(1.0, abs=1e-11 if mechanism is LAPLACE or reports > 1 or noise < 1 else 1e-9)


@pytest.mark.parametrize("noise", [0.08, 0.5, 1.0, 20.0])
def test_the_tails_are_those_of_the_law(noise: float) -> None:
    z = mpmath.mpf(noise)
    found = random_allocation._tails(LAPLACE, noise, 1 / noise)
    assert found == pytest.approx(
        (0.5, float(mpmath.exp(-1 / z) / 2), float(mpmath.exp(-1 / z) / 2)), rel=1e-12
    )
    highest = 0.5 / noise**2 + 8.3 / noise
    without, with_record = of_gaussian(noise)
    exact = (without(-highest), with_record(-highest), with_record(-highest))  # it is symmetric
    found = random_allocation._tails(GAUSSIAN, noise, highest)
    assert found == pytest.approx(tuple(map(float, exact)), rel=1e-9, abs=0.0)


def test_two_noises_are_below_a_point_as_often_as_their_density_says() -> None:
    points = np.array([-900.0, -750.0, -30.0, -1.5, -0.25, 0.0])
    exact = [float((2 - x) * mpmath.exp(x) / 4) for x in map(mpmath.mpf, points.tolist())]
    found = random_allocation._below_of_two(points)
    assert found.tolist() == pytest.approx(exact, rel=1e-13, abs=1e-300)
    assert found[0] == 0.0


def ratios(
    *masses: float, first: float = 0.0, at_zero: float = 0.0, mean: float = 1.0, power: int = 1
) -> Ratios:
    return Ratios(
        grid=TWO, first=first, masses=np.array(masses), at_zero=at_zero, mean=mean, power=power, lost=2.0**-30
    )


def test_a_sampled_ratio_is_one_with_what_the_sample_leaves() -> None:
    given = ratios(0.25, 0.5, first=-TWO, at_zero=0.25)
    found = given.points(0.25)
    assert np.exp(found.logarithms).tolist() == pytest.approx([0.75 + 0.25 * 0.5, 1.0], rel=1e-14)
    assert found.masses.tolist() == [0.25, 0.5]
    assert (found.at_zero, given.points().at_zero) == (0.25, 0.25)
    assert given.points().logarithms.tolist() == [-TWO, 0.0]
    assert given.points(math.nextafter(1, 0)).logarithms.tolist() == pytest.approx([-TWO, 0.0], abs=1e-14)


def test_the_losses_of_several_reports_are_those_of_the_power() -> None:
    found = ratios(0.25, 0.5, 0.125, first=-TWO, at_zero=0.125, power=3).losses_of_several(TWO)
    # ratios 1/2, 1 and 2 to the third: 1/8, 1 and 8, each with its ratio times its mass
    assert (found.grid, found.lowest, found.at_infinity) == (TWO, -3, 2.0**-30)
    expected = {0: 0.25 / 8, 3: 0.5, 6: 1.0}
    assert found.masses.tolist() == pytest.approx(
        [expected.get(k, 0.0) for k in range(len(found.masses))], abs=1e-12
    )
    assert len(found.masses) <= 8


def test_what_is_trimmed_above_is_negligible_in_the_power_of_the_ratio_over_its_mean() -> None:
    # at 1, 2, .. 64 times 2^10; of the mean 2^10 and the power 2 the last points weigh 2^10 and 2^12
    first, unit = 10 * TWO, 1e-17
    for weight, kept in ((0.9, 6), (1.1, 7)):
        masses = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, weight * unit / 2**12]
        given = ratios(*masses, first=first, mean=2.0**10, power=2)
        trimmed = random_allocation._trim(given)
        assert len(trimmed.masses) == kept
        assert math.fsum(trimmed.masses) == math.fsum(masses)
        assert (trimmed.first, trimmed.power, trimmed.mean) == (first, 2, 2.0**10)
    for weight, kept in ((0.9, 2), (1.1, 3)):
        trimmed = random_allocation._trim(ratios(weight * unit, 0.5, 0.5, first=-TWO))
        assert len(trimmed.masses) == kept
        assert trimmed.first == pytest.approx(0.0 if kept == 2 else -TWO, abs=1e-15)
        assert trimmed.at_zero == pytest.approx(weight * unit / 2 if kept == 2 else 0.0, rel=1e-12)


def test_alone_points_are_added_where_they_are_and_those_below_are_spread_to_the_first_and_to_0() -> None:
    masses = np.zeros(4)
    # the points -2, -1, 0, 1 below and above the first one: 1/4 and 1/2 of it keep a quarter and a half there
    left = random_allocation._add_alone(masses, np.array([0.4, 0.2, 0.1, 0.05]), -2, TWO)
    assert masses.tolist() == pytest.approx([0.1 + 0.1 + 0.1, 0.05, 0.0, 0.0], rel=1e-13)
    assert left == pytest.approx(0.3 + 0.1, rel=1e-13)
    masses = np.zeros(4)
    assert random_allocation._add_alone(masses, np.array([0.4, 0.2]), 2, TWO) == 0.0
    assert masses.tolist() == [0.0, 0.0, 0.4, 0.2]


@pytest.mark.parametrize(("steps", "reports"), [(1, 1), (3, 1), (8, 3)])
def test_an_epoch_is_the_mean_of_its_steps(steps: int, reports: int) -> None:
    found = epoch_ratios(GAUSSIAN, 1.25, steps, reports=reports)
    assert (found.mean, found.power) == (1.0, reports)
    moment = math.exp(reports * (reports - 1) / 2 / 1.25**2)
    assert found.lost == pytest.approx((1e-12 + steps * 2e-16) * moment, rel=1e-13, abs=0.0)
    ratio = np.exp(found.logarithms)
    assert math.fsum(found.masses * ratio) == pytest.approx(1.0, abs=1e-9)
    variance = math.fsum(found.masses * ratio**2) - 1
    exact = math.expm1(1.25**-2) / steps
    assert exact * (1 - 1e-6) <= variance <= 1.01 * exact


def test_the_range_of_epochs_that_are_computed() -> None:
    assert (MAX_STEPS, LEAST_NOISE) == (65_536, 0.07)
    least = epoch_ratios(GAUSSIAN, LEAST_NOISE, 2)
    assert math.fsum(least.masses) + least.at_zero == pytest.approx(1.0, abs=1e-12)
    with pytest.raises(ValueError, match="must add noise"):
        epoch_ratios(Mechanism.NONE, 1.0, 2)


def test_a_repr_holds_no_masses() -> None:
    assert "masses" not in repr(ratios(0.5, 0.5))
