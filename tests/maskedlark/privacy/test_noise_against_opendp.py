"""Our samplers and OpenDP's draw from one distribution (tests/vectors/noise.

Counts of OpenDP's draws, and how they were made).
"""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "noise" / "opendp.json").read_text())
CASES = [(name.split()[0], int(name.split()[1])) for name in VECTORS["counts"]]


def p_value(mechanism: str, ours_at: int, theirs_at: int) -> float:
    """Chi-square of both samples' counts over bins of at least 20 draws."""
    theirs = {int(value): count for value, count in VECTORS["counts"][f"{mechanism} {theirs_at}"].items()}
    ours = noise_vector(Mechanism(mechanism), ours_at, VECTORS["draws"], seeded(ours_at, "opendp"))
    reach = max(value for value, count in theirs.items() if count >= 40)
    values = np.arange(-reach, reach + 1)
    table = np.array(
        [
            [theirs.get(int(value), 0) for value in values],
            np.bincount(ours[np.abs(ours) <= reach] + reach, minlength=len(values)),
        ]
    )
    outside = VECTORS["draws"] - table.sum(axis=1, keepdims=True)
    table = np.hstack([table, outside])
    return float(stats.chi2_contingency(table[:, table.sum(axis=0) >= 20]).pvalue)


def test_both_mechanisms_are_compared_at_several_scales() -> None:
    assert len(CASES) == 6
    assert {mechanism for mechanism, _ in CASES} == {"laplace", "gaussian"}
    assert all(sum(counts.values()) == VECTORS["draws"] for counts in VECTORS["counts"].values())


@pytest.mark.parametrize(("mechanism", "scale"), CASES)
def test_our_draws_are_distributed_as_opendps(mechanism: str, scale: int) -> None:
    assert p_value(mechanism, scale, scale) > 0.001


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_a_scale_that_is_four_percent_off_would_show(mechanism: str) -> None:
    assert p_value(mechanism, 26, 25) < 1e-6
