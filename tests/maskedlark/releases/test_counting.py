"""Counts that are compared with k: how far one report moves them, and by how much noise could pass for k."""

from fractions import Fraction
from typing import Any

import pytest

from maskedlark.errors import JobReason
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import beyond_bits
from maskedlark.releases.counting import COUNT_UNITS, count_charge
from tests.maskedlark.query_specs import discovery
from tests.measured import SHOP, measuring_world
from tests.refusals import refused

KEYS = ("campaign", "place", "language")
OF = {
    Mechanism.GAUSSIAN: measuring_world(mechanism="gaussian", norm="l2"),
    Mechanism.LAPLACE: measuring_world(mechanism="laplace", norm="l1"),
    Mechanism.NONE: measuring_world(),
}


def strict(mechanism: Mechanism, delta: float | None) -> Any:
    norm = "l1" if mechanism is Mechanism.LAPLACE else "l2"
    return measuring_world({**SHOP, "small_cell_delta": delta}, mechanism=mechanism.value, norm=norm)


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_a_report_is_in_one_count_of_each_list(keys: int) -> None:
    spec = discovery(OF[Mechanism.NONE], keys=KEYS[:keys])
    assert spec.count_sensitivity(Mechanism.LAPLACE) == COUNT_UNITS * keys
    for mechanism in (Mechanism.GAUSSIAN, Mechanism.NONE):
        found = spec.count_sensitivity(mechanism)
        assert (found - 1) ** 2 < keys * COUNT_UNITS**2 <= found**2


@pytest.mark.parametrize("delta", [2.0**-20, 1e-7, 0.3, 2.0**-60])
@pytest.mark.parametrize("keys", [1, 2, 3])
@pytest.mark.parametrize("mechanism", [Mechanism.GAUSSIAN, Mechanism.LAPLACE])
def test_a_code_of_one_report_is_shown_with_a_probability_within_delta(
    mechanism: Mechanism, keys: int, delta: float
) -> None:
    """Of so many bits: the fewest whose 2^-bits is below delta over the keys, each of which may show one."""
    of = OF[mechanism]
    spec = discovery(of, keys=KEYS[:keys], noise_multiplier=2.0, delta=delta)
    scale = spec.count_noise_units(of.task)
    assert scale >= 2 * spec.count_sensitivity(mechanism)
    bits = next(bits for bits in range(100) if Fraction(1, 2**bits) < Fraction(delta) / keys)
    assert spec.margin(mechanism, scale) == beyond_bits(mechanism, scale, bits)
    assert spec.cell_margin(of.task) == 0


@pytest.mark.parametrize("delta", [2.0**-20, 1e-7, 0.3])
@pytest.mark.parametrize("mechanism", [Mechanism.GAUSSIAN, Mechanism.LAPLACE])
def test_a_strict_task_asks_for_more_than_noise_makes_of_a_cell_below_k(
    mechanism: Mechanism, delta: float
) -> None:
    of = strict(mechanism, delta)
    spec = discovery(of, noise_multiplier=2.0)
    bits = next(bits for bits in range(100) if Fraction(1, 2**bits) < Fraction(delta))
    margin = spec.cell_margin(of.task)
    assert margin == beyond_bits(mechanism, spec.count_noise_units(of.task), bits) > 0


def test_common_noise_is_charged_once_with_its_delta_and_a_persons_reports() -> None:
    of = measuring_world(mechanism="gaussian", norm="l2", unit="user", reports_per_user=3)
    found = count_charge(of.task, 2.5, rounds=4, delta=1e-8)
    assert (found.noise_multiplier, found.rounds, found.delta, found.reports) == (2.5, 4, 1e-8, 3)
    assert found.is_common
    assert not found.is_sampled
    assert count_charge(OF[Mechanism.NONE].task, 2.5).noise_multiplier == 0.0


def test_noise_on_counts_that_no_sampler_draws_is_refused() -> None:
    of = OF[Mechanism.LAPLACE]
    for multiplier in (0.0, 1e-4):
        with refused(JobReason.NOISE_OUT_OF_RANGE, "noise on counts"):
            discovery(of, noise_multiplier=multiplier).count_noise_units(of.task)
