"""A charge holds what the accountant can compute, and nothing else."""

import math
from typing import Any

import pytest

from maskedlark.privacy.charge import Charge, continuous
from maskedlark.privacy.mechanism import Mechanism

SAMPLED: dict[str, Any] = {"sampling_rate": 0.5}
LAPLACE: dict[str, Any] = {"mechanism": Mechanism.LAPLACE}
COMMON: dict[str, Any] = {"is_common": True}


def charge(**changes: Any) -> Charge:
    settings: dict[str, Any] = {
        "mechanism": Mechanism.GAUSSIAN,
        "noise_multiplier": 1.0,
        "sampling_rate": 1.0,
        "rounds": 1,
        **changes,
    }
    return Charge(**settings)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"noise_multiplier": 5e-324},
        {"sampling_rate": 5e-324},
        {"rounds": 1 << 40},
        {"mechanism": Mechanism.NONE, "noise_multiplier": 0.0},
        {**COMMON, "delta": math.nextafter(0.5, 0)},
        {"epoch_steps": 2},
        {"epoch_steps": 1, **SAMPLED},
        {**SAMPLED, "exposure": 1.0},
        {"epoch_steps": 2, "exposure": 0.5},
        {"reports": 2},
        {**LAPLACE, "noises": 2},
        {"epoch_steps": 2, "overlap": math.nextafter(1, 0)},
        {**LAPLACE, "epoch_steps": 2},
    ],
    ids=str,
)
def test_what_can_be_computed_is_a_charge(changes: dict[str, Any]) -> None:
    made = charge(**changes)
    assert {name: getattr(made, name) for name in changes} == changes


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.inf}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"mechanism": Mechanism.NONE}, "noise_multiplier"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": math.nextafter(1, 2)}, "sampling_rate"),
        ({"sampling_rate": math.nan}, "sampling_rate"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 1.0}, "rounds"),
        ({**COMMON, "delta": 0.5}, "delta"),
        ({**COMMON, "delta": -1e-9}, "delta"),
        ({"delta": 1e-9}, "delta"),
        ({"epoch_steps": 0}, "epoch_steps"),
        ({"epoch_steps": 2.0}, "epoch_steps"),
        ({"epoch_steps": 2, **SAMPLED}, "epoch"),
        ({"exposure": 0.5}, "exposure"),
        ({**SAMPLED, "exposure": math.nextafter(1, 2)}, "exposure"),
        ({**SAMPLED, "exposure": -0.1}, "exposure"),
        ({"reports": 0}, "reports"),
        ({"reports": 1.5}, "reports"),
        ({"overlap": 0.5}, "overlap"),
        ({**SAMPLED, "overlap": 0.5}, "overlap"),
        ({**LAPLACE, "epoch_steps": 2, "overlap": 0.5}, "overlap"),
        ({"epoch_steps": 2, "overlap": 1.0}, "overlap"),
        ({"epoch_steps": 2, "overlap": -1e-9}, "overlap"),
        ({"noises": 2}, "noises"),
        ({"noises": 0}, "noises"),
        ({**LAPLACE, "noises": 3}, "noises"),
        ({**LAPLACE, "noises": 0}, "noises"),
    ],
    ids=str,
)
def test_what_cannot_be_computed_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} .*(must|of|has)"):
        charge(**changes)


@pytest.mark.parametrize(
    ("changes", "is_sampled"),
    [
        ({}, False),
        ({"rounds": 3, "reports": 2}, False),
        ({**SAMPLED, "exposure": 0.25, "is_self_sampled": True, "reports": 3}, True),
        ({"sampling_rate": math.nextafter(1, 0)}, True),
        ({"epoch_steps": 2, "overlap": 0.5, "exposure": 0.25, "rounds": 9}, True),
        ({**LAPLACE, **SAMPLED, "noises": 2}, True),
    ],
    ids=str,
)
def test_a_known_sample_changes_what_is_of_samples_only(changes: dict[str, Any], is_sampled: bool) -> None:
    made = charge(**changes, is_of_labels=True, is_of_mixed_plan=True)
    assert made.is_sampled is is_sampled
    of_samples = {"sampling_rate", "epoch_steps", "exposure", "overlap"}
    kept = {name: value for name, value in changes.items() if name not in of_samples}
    assert made.without_sampling() == charge(**kept, is_of_labels=True, is_of_mixed_plan=True)


def test_of_labels_is_the_same_charge_otherwise() -> None:
    assert charge(**SAMPLED, reports=2).of_labels() == charge(**SAMPLED, reports=2, is_of_labels=True)


@pytest.mark.parametrize(
    ("mechanism", "noise", "noises", "wanted"),
    [
        (Mechanism.LAPLACE, 4.0, 1, 4 / (1 + 4 * 2.0**-22)),
        (Mechanism.LAPLACE, 4.0, 2, 4 / (1 + 2.0**-22)),
        (Mechanism.GAUSSIAN, 4.0, 1, 4 * (1 - 2.0**-17)),
        (Mechanism.NONE, 0.0, 1, 0.0),
    ],
)
def test_a_continuous_mechanism_has_as_much_less_noise_as_the_proof_says(
    mechanism: Mechanism, noise: float, noises: int, wanted: float
) -> None:
    assert continuous(mechanism, noise, noises) == pytest.approx(wanted, rel=1e-15, abs=0)
