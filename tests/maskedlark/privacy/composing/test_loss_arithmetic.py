"""The arithmetic of losses, by hand: what is composed, cut off and counted as infinite."""

import math

import numpy as np
import pytest

from maskedlark.privacy.composing import loss_distribution
from maskedlark.privacy.composing.loss_distribution import MAX_CELLS, LossDistribution, Losses, repeat


def losses(*masses: float, lowest: int = 0, at_infinity: float = 0.0, grid: float = 0.5) -> Losses:
    return Losses(grid=grid, lowest=lowest, masses=np.array(masses), at_infinity=at_infinity)


def test_a_loss_that_is_not_computed_is_always_infinite() -> None:
    for one in (
        Losses.infinite(0.25),
        LossDistribution.infinite(0.25).remove,
        LossDistribution.infinite(0.25).add,
    ):
        assert (one.grid, one.lowest, one.masses.tolist(), one.at_infinity) == (0.25, 0, [0.0], 1.0)
        assert one.delta(9.0) == 1.0
        assert one.epsilon(math.nextafter(1, 0)) == math.inf


def test_the_longest_sum_is_composed_and_one_cell_more_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_CELLS == 1 << 18
    monkeypatch.setattr(loss_distribution, "MAX_CELLS", 4)
    for first, second, is_computed in ((2, 3, True), (3, 3, False), (4, 5, False), (5, 5, False)):
        one, other = losses(*[1 / first] * first), losses(*[1 / second] * second)
        found = one.compose(other)
        assert (len(found.masses) == first + second - 1, found.at_infinity < 1) == (is_computed, is_computed)
    # a sum that is too long before it is trimmed, and not after it
    long = losses(*[1e-30] * 3, 1.0, *[1e-30] * 1)
    assert long.compose(long).at_infinity == 1.0
    short = losses(1e-30, 1e-30, 0.5, 0.5)
    assert len(short.compose(short).masses) == 3


@pytest.mark.parametrize("size", [3, 300])
def test_what_rounding_moves_is_counted_once_by_its_formula(size: int) -> None:
    random = np.random.default_rng(size)
    one, other = (losses(*random.random(size) / size * 3 / 4, at_infinity=0.0) for _ in range(2))
    cells = 2 * size - 1
    width = 2 ** math.ceil(math.log2(cells))
    norms = math.sqrt(math.fsum(one.masses**2) * math.fsum(other.masses**2))
    wholes = math.fsum(one.masses) * math.fsum(other.masses)
    rounding = 8 * (math.sqrt(cells * math.log2(width + 1)) / 2 * norms + wholes) * 2.0**-52
    found = one.compose(other)
    assert rounding <= found.at_infinity <= 2 * rounding + 1e-15
    assert losses(1.0).compose(losses(0.5)).at_infinity == pytest.approx(
        8 * (0.25 + 0.5) * 2.0**-52, rel=1e-12
    )


def test_infinite_losses_of_either_are_those_of_the_sum() -> None:
    found = losses(0.25, 0.25, at_infinity=0.5).compose(losses(0.5, 0.25, lowest=3, at_infinity=0.125))
    assert found.at_infinity == pytest.approx(0.5 * 0.875 + 0.125 * 0.5, rel=1e-12)
    assert (found.lowest, found.grid) == (3, 0.5)
    assert found.masses.tolist() == pytest.approx([0.125, 0.1875, 0.0625], rel=1e-13)
    # the parts of the sum are more than 1 together where the masses are
    assert losses(1.0, at_infinity=0.75).compose(losses(1.0, at_infinity=0.75)).at_infinity == 1.0
    assert losses(1.0, 1e-3, at_infinity=1.0).trim(0.5).at_infinity == 1.0


@pytest.mark.parametrize(
    ("masses", "tail", "kept", "lowest", "infinite"),
    [
        ((0.125, 0.25, 0.25, 0.25, 0.125), 0.125, (0.125, 0.25, 0.25, 0.25, 0.125), 0, 0.0),
        ((0.125, 0.25, 0.25, 0.25, 0.125), 0.2, (0.375, 0.25, 0.25), 1, 0.125),
        ((0.125, 0.25, 0.25, 0.25, 0.125), 0.375, (0.375, 0.25, 0.25), 1, 0.125),
        ((0.125, 0.25, 0.25, 0.25, 0.125), 0.4, (0.625,), 2, 0.375),
        ((0.5, 0.5), 0.75, (0.5, 0.5), 0, 0.0),
        ((0.0, 0.5, 0.5), 0.25, (0.5, 0.5), 1, 0.0),
        ((0.5, 0.5, 0.0), 0.25, (0.5, 0.5), 0, 0.0),
        ((1.0,), 2.0, (1.0,), 0, 0.0),
    ],
)
def test_outer_cells_of_less_than_the_tail_are_moved_up(
    masses: tuple[float, ...], tail: float, kept: tuple[float, ...], lowest: int, infinite: float
) -> None:
    found = losses(*masses, lowest=-7, at_infinity=0.0625).trim(tail)
    assert found.masses.tolist() == list(kept)
    assert (found.lowest, found.at_infinity, found.grid) == (lowest - 7, 0.0625 + infinite, 0.5)


def test_the_usual_tail_is_a_quadrillionth() -> None:
    assert len(losses(0.9e-15, 0.5, 0.5, 0.9e-15).trim().masses) == 2
    assert len(losses(1.1e-15, 0.5, 0.5, 1.1e-15).trim().masses) == 4


def plain_delta(one: Losses, epsilon: float) -> float:
    found = one.at_infinity
    for step, mass in enumerate(one.masses.tolist()):
        found -= math.expm1(min(0.0, epsilon - one.grid * (one.lowest + step))) * mass
    return found


SOME = [
    losses(0.25, 0.125, 0.25, 0.25, lowest=-1, at_infinity=0.0625),
    losses(0.25, 0.125, 0.25, 0.25, lowest=2, at_infinity=0.0625),
    losses(0.5, 0.25, lowest=-5),
    losses(1.0, lowest=1),
    losses(0.5, 0.5, lowest=0),
    losses(0.0, 0.5, 0.0, 0.25, 0.0, lowest=1, at_infinity=0.03125),
    losses(0.5, 0.25, lowest=3_000, at_infinity=2.0**-20),
]


@pytest.mark.parametrize("number", range(len(SOME)))
def test_delta_and_epsilon_are_each_others_inverse_by_the_definition(number: int) -> None:
    one = SOME[number]
    for epsilon in (0.0, 0.1, 0.5, 0.75, 1.0, 1.49, 2.0, 7.0, 1499.9):
        assert one.delta(epsilon) == pytest.approx(plain_delta(one, epsilon), rel=1e-13)
    for delta in (0.01, 0.03125, 0.0625, 0.07, 0.2, 0.3, 0.5, 0.7, 0.99):
        found = one.epsilon(delta)
        if one.at_infinity > delta:
            assert found == math.inf
            continue
        assert found >= 0
        assert plain_delta(one, found) <= delta + 1e-12
        if found > 0 and plain_delta(one, found) > one.at_infinity:
            assert plain_delta(one, found * (1 - 1e-9)) >= delta - 1e-12
            assert plain_delta(one, found) == pytest.approx(delta, rel=1e-9)


def test_the_epsilon_at_the_probability_of_infinity_is_the_largest_loss() -> None:
    one = losses(0.25, 0.125, 0.25, lowest=1, at_infinity=0.0625)
    assert one.epsilon(0.0625) == pytest.approx(1.5, rel=1e-12)
    assert losses(0.5, 0.5, lowest=-3, at_infinity=0.125).epsilon(0.125) == 0.0


def test_the_least_loss_above_0_counts_and_0_does_not() -> None:
    one = losses(0.5, 0.5, lowest=0)  # of 0 and .5: delta is .5 (1 - e^(epsilon - .5))
    assert one.epsilon(0.125) == pytest.approx(0.5 + math.log(0.75), rel=1e-12)


def test_the_worse_direction_counts() -> None:
    low, high = losses(0.5, 0.5, lowest=1), losses(0.5, 0.5, lowest=4)
    for remove, add in ((low, high), (high, low)):
        both = LossDistribution(remove=remove, add=add)
        assert both.get_epsilon_for_delta(0.125) == high.epsilon(0.125) > low.epsilon(0.125)
        assert both.get_delta_for_epsilon(0.75) == high.delta(0.75) > low.delta(0.75)
        composed = both.compose(both)
        assert (composed.remove.lowest, composed.add.lowest) == (2 * remove.lowest, 2 * add.lowest)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7, 8, 13, 24, 1000])
def test_one_thing_is_added_as_often_as_is_said_by_doubling(count: int) -> None:
    calls = 0

    def add(left: int, right: int) -> int:
        nonlocal calls
        calls += 1
        return left + right

    assert repeat(5, count, add) == 5 * count
    assert calls <= 2 * count.bit_length()


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_is_added_less_than_once(count: int) -> None:
    with pytest.raises(ValueError, match="at least once"):
        repeat(5, count, int.__add__)


def test_a_repr_holds_no_masses() -> None:
    assert "masses" not in repr(losses(0.5, 0.5))
