"""Charges that are merged cost no less, and no more than the grid that leaves few enough."""

import pytest

from maskedlark.privacy.charge import Charge
from maskedlark.privacy.composing.composition import compose_epsilon
from maskedlark.privacy.composing.merged_charges import _MAX_CLASSES, _RATIOS, merge
from maskedlark.privacy.mechanism import Mechanism
from tests import charge_builders


def sampled(noise: float) -> Charge:
    return charge_builders.gaussian(noise, rate=0.25, rounds=2)


def noises(charges: list[Charge]) -> list[float]:
    return sorted(one.noise_multiplier for one in merge(charges, 1).fewer().others())


def test_as_many_settings_as_may_differ_stay_as_they_are() -> None:
    given = [1.5**number for number in range(_MAX_CLASSES)]
    assert noises([sampled(noise) for noise in given]) == given


def test_of_one_more_only_those_fall_together_that_the_finest_grid_does_not_tell_apart() -> None:
    given = [1.5**number for number in range(_MAX_CLASSES)]
    found = noises([sampled(noise) for noise in (*given, given[3] * (1 + 1e-12))])
    assert len(found) == _MAX_CLASSES
    for after, before in zip(found, given, strict=True):
        assert before / _RATIOS[0] * (1 - 1e-9) <= after <= before


@pytest.mark.parametrize("reports", [1, 2, 7])
def test_one_report_at_a_time_in_place_of_several_costs_at_least_as_much(reports: int) -> None:
    several = Charge(
        mechanism=Mechanism.GAUSSIAN, noise_multiplier=6.0, sampling_rate=0.1, rounds=3, reports=reports
    )
    (single,) = merge([several], 1).singly().others()
    assert single.noise_multiplier == pytest.approx(6.0 / reports**0.5)
    assert (single.sampling_rate, single.rounds, single.reports) == (0.1, 3 * reports, 1)
    assert compose_epsilon([single], 1e-6) >= compose_epsilon([several], 1e-6) * (1 - 1e-4)


def test_both_laplace_noises_on_the_grid_are_never_less_than_is_computed() -> None:
    """Rounded below that, one of them counts."""
    charges = [
        Charge(mechanism=Mechanism.LAPLACE, noise_multiplier=noise, sampling_rate=1.0, rounds=1)
        for noise in [0.07001 + 0.00006 * number for number in range(_MAX_CLASSES + 1)]
    ]
    assert 0 < compose_epsilon(charges, 1e-6, noises=2) <= compose_epsilon(charges, 1e-6)
