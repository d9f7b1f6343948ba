"""Distributions of likelihood ratios against plain references: pairs in fractions, cells in 60 digits."""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from maskedlark.privacy.composing import likelihood_ratios
from maskedlark.privacy.composing.likelihood_ratios import (
    RatioPoints,
    between,
    normals_below,
    sample_ratios,
    spread_cells,
)

TWO = math.log(2)
ORDERS = np.array([2.0, 3.0, 10.0])


@pytest.fixture(autouse=True)
def sixty_digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


def points(*logarithms: float, masses: list[float], at_zero: float = 0.0) -> RatioPoints:
    return RatioPoints(logarithms=np.array(logarithms), masses=np.array(masses), at_zero=at_zero)


def test_a_spread_keeps_probability_and_mean_between_the_two_neighbours() -> None:
    # on 1/4, 1/2, 1, 2, 4: 3 goes halfway to 2 and 4, 3/8 halfway to 1/4 and 1/2, and 1 stays
    given = points(math.log(3 / 8), 0.0, math.log(3), masses=[0.2, 0.5, 0.1])
    lowest, masses = given.spread(TWO)
    assert lowest == -2
    assert masses.tolist() == pytest.approx([0.1, 0.1, 0.5, 0.05, 0.05], rel=1e-14)
    assert float(masses @ 2.0 ** np.arange(-2, 3)) == pytest.approx(0.2 * 3 / 8 + 0.5 + 0.3, rel=1e-14)


def test_losses_are_the_spread_ratios_and_what_is_missing_is_infinite() -> None:
    given = points(-TWO, 0.0, math.log(3), masses=[0.25, 0.25, 0.2], at_zero=0.125)
    losses = given.losses(TWO)
    assert (losses.remove.lowest, losses.add.lowest) == (-1, -2)
    assert (losses.remove.grid, losses.add.grid) == (TWO, TWO)
    assert losses.remove.masses.tolist() == pytest.approx([0.125, 0.25, 0.2, 0.4], rel=1e-13)
    assert losses.add.masses.tolist() == pytest.approx([0.1, 0.1, 0.25, 0.25], rel=1e-13)
    assert losses.remove.at_infinity == pytest.approx(1 - 0.975 + 1e-12, rel=1e-13)
    assert losses.add.at_infinity == pytest.approx(1 - 0.7 + 1e-12, rel=1e-13)


def test_losses_count_what_is_at_0_and_what_rounding_may_have_lost() -> None:
    given = RatioPoints(
        logarithms=np.array([math.log(2)]), masses=np.array([0.75]), at_zero=0.375, rounding=2.0**-20
    )
    losses = given.losses(TWO)
    # the mass with the record is 3/2, so none is missing; without it 1/4 is, of which at_zero is more
    assert losses.remove.at_infinity == pytest.approx(2.0**-20, rel=1e-9)
    assert losses.add.at_infinity == pytest.approx(0.375 + 2.0**-20, rel=1e-13)


def paired(ratios: list[Fraction], masses: list[Fraction], at_zero: Fraction) -> dict[Fraction, Fraction]:
    """The masses of high / low, of the pairs in which the largest meets the smallest.

    Over [0, 1] the quantiles of the record's ratio rise and those of its negative's fall; the negative has
    the mass of the latter over dx.
    """
    values = [(Fraction(0), at_zero), *zip(ratios, masses, strict=True)]
    ends = [Fraction(0)]
    for _, mass in values:
        ends.append(ends[-1] + mass)
    whole = ends[-1]
    cuts = sorted({*ends, *(whole - end for end in ends)})
    found: dict[Fraction, Fraction] = {}
    for low, high in pairwise(cuts):
        middle = (low + high) / 2
        rising = next(value for (value, _), end in zip(values, ends[1:], strict=True) if middle < end)
        falling = next(
            value for (value, _), end in zip(values, ends[1:], strict=True) if whole - middle < end
        )
        width = high - low
        if falling > 0:
            found[rising / falling] = found.get(rising / falling, Fraction(0)) + width * falling
    return found


CASES = [
    (
        [Fraction(1, 2), Fraction(1), Fraction(3)],
        [Fraction(3, 10), Fraction(1, 2), Fraction(1, 5)],
        Fraction(0),
    ),
    ([Fraction(1, 4), Fraction(2)], [Fraction(1, 2), Fraction(3, 8)], Fraction(1, 8)),
    ([Fraction(1, 8), Fraction(1, 3), Fraction(5, 4), Fraction(7)], [Fraction(1, 4)] * 4, Fraction(0)),
    ([Fraction(5, 4)], [Fraction(3, 5)], Fraction(2, 5)),
    ([Fraction(1, 2), Fraction(4)], [Fraction(1, 3), Fraction(1, 6)], Fraction(1, 2)),
]


@pytest.mark.parametrize(("ratios", "masses", "at_zero"), CASES)
def test_one_label_against_another_pairs_the_largest_with_the_smallest(
    ratios: list[Fraction], masses: list[Fraction], at_zero: Fraction
) -> None:
    given = points(
        *(math.log(one) for one in ratios), masses=[float(one) for one in masses], at_zero=float(at_zero)
    )
    found = given.against_negative()
    expected = paired(ratios, masses, at_zero)
    zero = float(expected.pop(Fraction(0), Fraction(0)))
    merged: dict[float, float] = {}
    for logarithm, mass in zip(found.logarithms.tolist(), found.masses.tolist(), strict=True):
        merged[round(logarithm, 9)] = merged.get(round(logarithm, 9), 0.0) + mass
    merged = {one: mass for one, mass in merged.items() if mass > 1e-13}
    exact = {round(math.log(ratio), 9): float(mass) for ratio, mass in expected.items() if mass > 0}
    assert sorted(merged) == pytest.approx(sorted(exact), abs=2e-9)
    assert [merged[key] for key in sorted(merged)] == pytest.approx(
        [exact[key] for key in sorted(exact)], rel=1e-12
    )
    assert found.at_zero == pytest.approx(zero, rel=1e-12)
    assert found.rounding == 2 * given.rounding
    assert (np.diff(found.logarithms) >= 0).all()


def plain_divergences(given: RatioPoints) -> tuple[list[float], float]:
    """Both distributions scaled up to 1, and the sums as they are defined."""
    ratios = [mpmath.exp(one) for one in given.logarithms.tolist()]
    masses = [mpmath.mpf(one) for one in given.masses.tolist()]
    whole, whole_with = sum(masses), sum(r * m for r, m in zip(ratios, masses, strict=True))
    q = [m / whole for m in masses]
    p = [r * m / whole_with for r, m in zip(ratios, masses, strict=True)]
    found = []
    for order in ORDERS.tolist():
        of_scaled = [
            mpmath.log(sum(a**order * b ** (1 - order) for a, b in zip(one, other, strict=True) if b))
            / (order - 1)
            for one, other in ((p, q), (q, p))
        ]
        found.append(float(max(of_scaled)))
    left_out = max(1 - whole, mpmath.mpf(given.at_zero)) + max(0, 1 - whole_with)
    return found, float(left_out)


@pytest.mark.parametrize(
    ("given", "slack"),
    [
        (points(-1.0, 0.5, masses=[0.4, 0.6]), 1.0),
        (points(-2.0, 0.0, 1.0, masses=[0.1, 0.4, 0.3], at_zero=0.125), 1.25),
        (points(0.0, 0.25, masses=[0.25, 0.75]), 1.0),
        (points(-3.0, -0.5, 0.125, masses=[0.25, 0.0, 0.7]), 1.1),
        (points(-1.0, 1.0, masses=[0.7, 0.2], at_zero=0.2), 1.4),
    ],
)
def test_divergences_bound_those_of_the_scaled_distributions(given: RatioPoints, slack: float) -> None:
    exact, left_out = plain_divergences(given)
    found, found_left_out = given.divergences(ORDERS)
    for bound, truth in zip(found.tolist(), exact, strict=True):
        assert truth <= bound  # each direction with the larger of both scales
    assert found_left_out == pytest.approx(left_out + 2e-12, rel=1e-12)


@pytest.mark.parametrize(("without", "with_record"), [(0.8, 0.9), (0.9, 0.8), (1.0, 1.0), (0.75, 1.125)])
def test_divergences_are_the_larger_sum_with_the_larger_scale(without: float, with_record: float) -> None:
    low, high = 0.5, 3.0
    upper = (with_record - low * without) / (high - low)
    given = points(math.log(low), math.log(high), masses=[without - upper, upper])
    found, left_out = given.divergences(ORDERS)
    for order, bound in zip(ORDERS.tolist(), found.tolist(), strict=True):
        sums = [
            sum(m * r**power for m, r in ((without - upper, low), (upper, high)))
            for power in (order, 1 - order)
        ]
        scales = [without ** (order - 1) / with_record**order, with_record ** (order - 1) / without**order]
        exact = math.log(max(sums) * max(scales)) / (order - 1)
        assert bound == pytest.approx(max(exact, 0.0) + 1e-12, rel=1e-12)
    assert left_out == pytest.approx((1 - without) + max(0.0, 1 - with_record) + 2e-12, rel=1e-9, abs=1e-15)


def test_divergences_are_never_below_0_and_take_ratios_that_no_double_holds() -> None:
    none = points(0.0, masses=[1.0]).divergences(ORDERS)[0]
    assert none.tolist() == [1e-12] * 3
    huge = points(-1.0, 800.0, masses=[1.0, 1e-320]).divergences(np.array([2.0]))[0]
    assert huge[0] > 800 + 800 + math.log(1e-320) - 1
    assert points(0.0, 900.0, masses=[1.0, 0.0]).divergences(np.array([2.0]))[0][0] == 1e-12


def test_bounded_divergences_count_the_rounding_at_both_ends() -> None:
    given = points(-1.0, 0.25, 2.0, masses=[0.5, 0.25, 0.25])
    masses = [0.5 + 1e-12, 0.25, 0.25 + 1e-12]
    found = given.bounded_divergences(ORDERS)
    for order, bound in zip(ORDERS.tolist(), found.tolist(), strict=True):
        sums = [
            mpmath.fsum(
                mpmath.mpf(m) * mpmath.exp(power * one)
                for m, one in zip(masses, (-1.0, 0.25, 2.0), strict=True)
            )
            for power in (order, 1 - order)
        ]
        assert bound == pytest.approx(float(mpmath.log(max(sums)) / (order - 1)), rel=1e-14)
    assert given.masses.tolist() == [0.5, 0.25, 0.25]
    # what rounding may have lost is all there is of a ratio that nothing has
    ends = points(-1.0, 0.0, 1.0, masses=[0.0, 1.0, 0.0]).bounded_divergences(np.array([2.0]))
    assert ends[0] == pytest.approx(1e-12 * (math.exp(2) + math.exp(-2)), rel=1e-3)
    assert points(0.0, 0.0, masses=[0.25, 0.25]).bounded_divergences(ORDERS).tolist() == [0.0] * 3


def spread_of_cells(
    logarithms: list[mpmath.mpf], without: list[mpmath.mpf], with_record: list[mpmath.mpf]
) -> list[mpmath.mpf]:
    masses = [mpmath.mpf(0)] * len(logarithms)
    for i, (q, p) in enumerate(zip(without, with_record, strict=True)):
        low, high = mpmath.exp(logarithms[i]), mpmath.exp(logarithms[i + 1])
        up = (p - low * q) / (high - low)
        masses[i] += q - up
        masses[i + 1] += up
    return masses


def test_cells_are_spread_to_their_ends_with_their_probability_and_mean() -> None:
    logarithms = np.array([-1.0, 0.0, 0.5, 0.5])
    without, with_record = np.array([0.5, 0.25, 0.125]), np.array([0.3, 0.3, 0.25])
    masses = spread_cells(logarithms, without, with_record)
    first = (0.3 - math.exp(-1) * 0.5) / (1 - math.exp(-1))
    second = (0.3 - 0.25) / (math.exp(0.5) - 1)
    # in the last cell, both of whose ends are one double, there is more of the record than that: all goes up
    # in the middle one as well up to all there is
    expected = [0.5 - first, first + 0.25 - second, second, 0.125]
    assert masses.tolist() == pytest.approx(expected, rel=1e-13)
    below = spread_cells(np.array([0.0, 1.0]), np.array([0.5]), np.array([0.4]))
    assert below.tolist() == [0.5, 0.0]
    above = spread_cells(np.array([0.0, 1.0]), np.array([0.5]), np.array([1.5]))
    assert above.tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("noise", "rate", "reports", "likely"),
    [
        (1.0, 0.01, 1, 1),
        (0.4, 0.3, 3, 3),
        (2.0, 0.001, 12, 5),
        (6.0, 0.9, 2, 2),
        (1.0, 5.5e-7, 2, 1),
        (1.0, 7.7e-7, 2, 2),
        (1.5, 2.0**-40, 1, 1),
        (0.1, 0.5, 1, 1),
    ],
)
def test_a_sample_of_reports_is_the_mixture_cell_by_cell(
    noise: float, rate: float, reports: int, likely: int
) -> None:
    found = sample_ratios(noise, rate, reports)
    z, q = mpmath.mpf(noise), mpmath.mpf(rate)
    odds = [mpmath.binomial(reports, k) * q**k * (1 - q) ** (reports - k) for k in range(reports + 1)]
    assert sum(odds[likely:]) > 2.0**-41 >= sum(odds[likely + 1 :], start=mpmath.mpf(0))
    odds = odds[: likely + 1]
    start, end = -8.3 * z, likely + 8.3 * z
    assert len(found.logarithms) == 8001
    y = [start + (end - start) * i / 8000 for i in range(8001)]

    def ratio(at: int) -> mpmath.mpf:
        return mpmath.log(
            sum(odd * mpmath.exp((k * y[at] - mpmath.mpf(k * k) / 2) / z**2) for k, odd in enumerate(odds))
        )

    def cell(at: int, shift: int = 0) -> mpmath.mpf:
        low, high = (y[at] - shift) / z, (y[at + 1] - shift) / z
        return mpmath.ncdf(-low) - mpmath.ncdf(-high) if low > 0 else mpmath.ncdf(high) - mpmath.ncdf(low)

    for i in [1, 700, 3000, 4001, 5200, 7700, 7999]:
        around = range(i - 1, i + 2)
        without = [cell(at) for at in around[:2]]
        with_record = [sum(odd * cell(at, k) for k, odd in enumerate(odds)) for at in around[:2]]
        expected = spread_of_cells([ratio(at) for at in around], without, with_record)[1]
        assert found.logarithms[i] == pytest.approx(float(ratio(i)), rel=1e-11, abs=1e-13)
        # where the ratio hardly changes, dividing by its change costs digits
        digits = 2e-15 * sum(without) / (mpmath.expm1(ratio(i) - ratio(i - 1)) + mpmath.mpf(10) ** -40)
        assert found.masses[i] == pytest.approx(
            float(expected), rel=1e-8, abs=float(min(digits, sum(without)))
        )
    last = mpmath.ncdf(-end / z)
    assert found.at_zero == pytest.approx(float(mpmath.ncdf(-8.3)), rel=1e-9, abs=0.0)
    assert found.masses[-1] >= float(last)
    assert math.fsum(found.masses) + found.at_zero == pytest.approx(1.0, abs=2e-12)
    is_narrow = float(y[1] - y[0]) <= 0.05 * noise
    assert found.rounding == (1e-14 if is_narrow else 1e-12)


def test_what_leaves_the_last_cell_upwards_counts_at_the_last_point() -> None:
    # with a wide step the last cell holds less than what lies beyond it
    noise = 10.0
    found = sample_ratios(noise, 0.5, 1)
    beyond = mpmath.ncdf(-(1 + 8.3 * noise) / mpmath.mpf(noise))
    width = (1 + 2 * 8.3 * noise) / 8000 / noise
    inside = mpmath.npdf((1 + 8.3 * noise) / noise) * width
    assert found.masses[-1] == pytest.approx(float(beyond + inside / 2), rel=0.02, abs=0.0)


@pytest.mark.parametrize("width", [0.001, 0.0499, 0.0501, 0.7])
def test_normal_cells_are_as_exact_as_their_width_says(width: float) -> None:
    """Narrow ones by nodes, whose error grows far out; the others by tails."""
    grid = np.asarray(-6 + width * np.arange(int(12 / width) + 1), dtype=np.float64)
    found = likelihood_ratios._normal_cells(grid)
    assert len(found) == len(grid) - 1
    for at in range(0, len(found), max(1, len(found) // 40)):
        low, high = mpmath.mpf(float(grid[at])), mpmath.mpf(float(grid[at + 1]))
        exact = mpmath.ncdf(high) - mpmath.ncdf(low)
        assert found[at] == pytest.approx(float(exact), rel=1e-9 if width < 0.05 else 1e-12, abs=0.0)


def test_cells_of_a_symmetric_law_are_taken_from_the_tail_that_is_precise() -> None:
    grid = np.array([-38.0, -20.0, -1.0, 0.0, 0.5, 20.0, 37.0])
    exact = [
        mpmath.ncdf(-low) - mpmath.ncdf(-high) if low >= 0 else mpmath.ncdf(high) - mpmath.ncdf(low)
        for low, high in zip(map(mpmath.mpf, grid), map(mpmath.mpf, grid[1:]), strict=False)
    ]
    found = between(grid, normals_below)
    assert found.tolist() == pytest.approx([float(one) for one in exact], rel=1e-12, abs=0.0)
    straddling = between(np.array([-0.5, 0.25]), normals_below)
    assert straddling[0] == pytest.approx(float(mpmath.ncdf(0.25) - mpmath.ncdf(-0.5)), rel=1e-14)


def test_the_logarithm_of_a_sum_leaves_no_double() -> None:
    for offset in (0.0, 5_000.0, -5_000.0):
        given: NDArray[np.float64] = np.array([0.0, 1.0, -2.0]) + offset
        exact = offset + math.log(1 + math.e + math.exp(-2))
        assert likelihood_ratios._log_of_sum(given) == pytest.approx(exact, rel=1e-14)


def test_a_repr_holds_neither_points_nor_masses() -> None:
    assert repr(points(0.0, masses=[1.0])) == f"RatioPoints(at_zero=0.0, rounding={1e-12!r})"
