"""A charge holds what the accountant can compute, and nothing else."""

import math
from typing import Any

import pytest

from maskedlark.privacy.charge import Charge
from maskedlark.privacy.mechanism import Mechanism

SAMPLED: dict[str, Any] = {"sampling_rate": 0.5}
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
    ],
    ids=str,
)
def test_what_cannot_be_computed_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} .*(must|of|has)"):
        charge(**changes)
