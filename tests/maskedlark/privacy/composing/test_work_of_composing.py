"""What an ad server may make a helper compute and keep: cells of loss distributions, not seconds."""

from typing import Any

import numpy as np
import pytest

from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.composing import composed_losses, composition, merged_charges
from maskedlark.privacy.composing.composition import compose_epsilon
from maskedlark.privacy.composing.loss_distribution import MAX_CELLS, LossDistribution, Losses
from maskedlark.privacy.composing.random_allocation import epoch_ratios
from maskedlark.privacy.mechanism import Mechanism

DELTA = 1e-5


def gaussian(noise: float, rate: float, rounds: int, **changes: Any) -> Charge:
    return Charge(
        mechanism=Mechanism.GAUSSIAN, noise_multiplier=noise, sampling_rate=rate, rounds=rounds, **changes
    )


LONG = {
    "a million rounds": gaussian(2.0, 0.5, 1_000_000),
    "large losses": gaussian(0.5, 0.9, 10_000),
    "epochs": gaussian(0.8, 1.0, 1_000_000, epoch_steps=20),
    "laplace": Charge(mechanism=Mechanism.LAPLACE, noise_multiplier=0.2, sampling_rate=0.5, rounds=100_000),
}


@pytest.mark.parametrize("charge", LONG.values(), ids=LONG.keys())
def test_a_composed_distribution_has_a_bounded_number_of_cells(charge: Charge) -> None:
    found = composed_losses._losses.__wrapped__(charge, 1e-3)
    assert max(len(found.remove.masses), len(found.add.masses)) <= MAX_CELLS
    assert found.get_epsilon_for_delta(DELTA) == np.inf


def test_what_is_kept_of_composed_distributions_is_at_most_64_mib() -> None:
    kept = composed_losses._losses.cache_parameters()["maxsize"]
    assert kept is not None
    assert kept * 2 * MAX_CELLS * np.dtype(np.float64).itemsize <= 64 << 20


def test_a_distribution_that_would_be_too_long_leaves_the_quick_bound() -> None:
    charge = LONG["a million rounds"]
    quick = composition._quick_epsilon(merged_charges.merge([charge], 1), DELTA)
    assert 0 < compose_epsilon([charge], DELTA) == quick < np.inf


@pytest.mark.parametrize(
    ("noise", "reports"), [(300.0, 1024), (60.0, 33), (1.0, 32)], ids=["1024", "33", "long losses"]
)
def test_many_reports_of_one_person_cost_more_than_one_and_less_than_infinity(
    noise: float, reports: int
) -> None:
    found = compose_epsilon([gaussian(noise, 0.2, 3, reports=reports)], DELTA)
    fewer = compose_epsilon([gaussian(noise, 0.2, 3, reports=1)], DELTA)
    assert fewer < found < np.inf


def test_a_sum_that_is_too_long_is_an_infinite_loss() -> None:
    long = Losses(grid=1e-3, lowest=0, masses=np.full(MAX_CELLS, 1 / MAX_CELLS), at_infinity=0.0)
    assert long.compose(long).epsilon(0.5) == np.inf
    both = LossDistribution(remove=long, add=long).self_compose(3)
    assert both.get_delta_for_epsilon(1.0) == 1.0
    ordinary = epoch_ratios(Mechanism.GAUSSIAN, 1.0, 8).points().losses(1e-3).self_compose(5)
    assert ordinary.get_epsilon_for_delta(DELTA) < 20
