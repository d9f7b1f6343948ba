"""Charges at the ends of their ranges: always a number, never negative, and never less for less privacy."""

import math
from dataclasses import replace

import pytest

from maskedlark.privacy.accounting import Charge, spent, spent_in_turn
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.sample_size import EXPOSURE
from tests import charge_builders

DELTAS = (0.0, 5e-324, 1e-160, 1e-13, 1e-5, 1 - 2.0**-53)


def gaussian(noise: float, rate: float = 1.0, rounds: int = 1, reports: int = 1) -> Charge:
    return charge_builders.gaussian(noise, rate=rate, rounds=rounds, reports=reports, is_self_sampled=True)


def laplace(noise: float, rate: float = 1.0, rounds: int = 1) -> Charge:
    return replace(gaussian(noise, rate, rounds), mechanism=Mechanism.LAPLACE)


def epochs(noise: float, steps: int, rounds: int = 1) -> Charge:
    return replace(gaussian(noise, rounds=rounds), epoch_steps=steps, exposure=steps * EXPOSURE)


EXTREMES = {
    "least noise": gaussian(5e-324),
    "most noise": gaussian(1e300, rounds=1 << 20),
    "least rate": gaussian(3.0, 5e-324, 2, reports=2),
    "rate next to none": gaussian(0.1, 1e-16),
    "rate next to one": gaussian(0.1, 1 - 2.0**-53),
    "reports next to all": gaussian(0.5, 0.9, reports=30),
    "hardly a shift, of several reports": gaussian(1e7, 2.0**-32, 2, reports=5),
    "an epoch of most steps": epochs(0.0625, 65_537, 7),
    "an epoch under the least noise": epochs(0.07, 2),
    "Laplace of the least noise": laplace(5e-324, 0.5),
    "Laplace of the least rate": laplace(0.0701, 1e-160, 7),
    "Laplace next to one": laplace(50.0, 1 - 2.0**-53, 10_000),
}
OTHERS = {
    "nothing": [],
    "Laplace whose losses are too long to compose": [laplace(9.75, rounds=10_000), laplace(1e4, 0.001)],
    "a few": [gaussian(3.0, 0.5), laplace(50.0), epochs(4.0, 3)],
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES.keys())
def test_a_charge_at_the_end_of_its_range_costs_a_number(extreme: Charge, others: list[Charge]) -> None:
    charges = [extreme, *others]
    for jobs in ([charges], [[one] for one in charges]):
        found = [spent_in_turn(jobs, delta) for delta in DELTAS]
        assert all(min(cost.ad_server, cost.colluding) >= 0 for cost in found)  # no NaN either


@pytest.mark.parametrize("delta", [1e-300, 1e-8, 0.5])
@pytest.mark.parametrize(
    ("lesser", "greater"),
    [
        (gaussian(2.0, 0.01, 100), gaussian(1.0, 0.01, 100)),
        (gaussian(1.0, 0.01, 100), gaussian(1.0, 0.02, 100)),
        (gaussian(1.0, 0.01, 100), gaussian(1.0, 0.01, 200)),
        (gaussian(3.0, 5e-324), gaussian(3.0, 2.0**-40)),
        (gaussian(1.0, 1 - 2.0**-53), gaussian(1.0)),
        (gaussian(1.0, 1 - 2.0**-20), gaussian(1.0)),
        (gaussian(0.5, 0.83, 265), gaussian(0.5, 1.0, 265)),
        (gaussian(1e300), gaussian(2.0**20)),
        (gaussian(2.0**-20), gaussian(2.0**-21)),
        (laplace(1.0, 0.1, 9), laplace(1.0, 0.1, 10)),
        (laplace(1.0, 5e-324), laplace(1.0, 1e-9)),
        (epochs(1.0, 10), epochs(1.0, 5)),
        (epochs(0.0701, 2), epochs(0.07, 2)),
    ],
)
def test_less_noise_a_higher_rate_or_more_rounds_cost_no_less(
    lesser: Charge, greater: Charge, delta: float
) -> None:
    less, more = spent([lesser], delta), spent([greater], delta)
    assert less.ad_server <= more.ad_server * (1 + 1e-9)
    assert less.colluding <= more.colluding * (1 + 1e-9)


def test_losses_that_are_too_long_to_compose_leave_the_other_bounds() -> None:
    cost = spent([laplace(9.75, rounds=10_000), laplace(1e4, 0.001)], 1e-5)
    assert 0 < cost.colluding < math.inf
