"""The sensitivity that the bench of correlated noise charges, against every pattern of slots and signs."""

import itertools
import math

import numpy as np
import pytest

from tests.bench.correlated_noise import (
    MOMENTUM,
    Family,
    Schedule,
    errors,
    floor,
    gram_of,
    sensitivity,
    sensitivity_of_one_slot,
)


def by_brute_force(coefficients: np.ndarray, epochs: int, steps: int) -> float:
    """The largest norm over all slots, gradients of norm one along one line."""
    gram = gram_of(coefficients)
    worst = 0.0
    for slots in itertools.product(range(steps), repeat=epochs):
        rows = [e * steps + s for e, s in enumerate(slots)]
        for signs in itertools.product((1.0, -1.0), repeat=epochs):
            v = np.array(signs)
            worst = max(worst, float(v @ gram[np.ix_(rows, rows)] @ v))
    return math.sqrt(worst)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 4), (2, 3), (3, 4), (4, 3), (5, 2), (6, 1)])
@pytest.mark.parametrize("bands", [1, 2, 3, 5, 12])
@pytest.mark.parametrize(("power", "decay"), [(0.5, 1.0), (0.9, 0.8), (1.0, 0.95)])
def test_sensitivity_is_never_below_brute_force(
    epochs: int, steps: int, bands: int, power: float, decay: float
) -> None:
    c = Family(power=power, decay=decay, bands=bands).coefficients(epochs * steps)
    bound, worst = sensitivity(gram_of(c), epochs, steps), by_brute_force(c, epochs, steps)
    assert bound >= worst * (1 - 1e-12)
    if bands <= steps + 1:
        assert bound == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_sensitivity_covers_coefficients_of_either_sign(seed: int) -> None:
    c = np.random.default_rng(seed).normal(size=12)
    assert sensitivity(gram_of(c), 4, 3) >= by_brute_force(c, 4, 3)


def test_a_gap_of_one_step_costs_more_than_a_gap_of_an_epoch() -> None:
    gram = gram_of(Family(power=0.5, decay=1.0, bands=4).coefficients(8))
    assert sensitivity(gram, 2, 4) > 1.1 * sensitivity_of_one_slot(gram, 2, 4)


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
def test_no_factorisation_falls_below_the_floor(momentum: float) -> None:
    rng, (of_independent, _) = np.random.default_rng(5), errors(np.eye(1, 12)[0], momentum)
    least = floor(Schedule(name="", epochs=3, steps=4), momentum)
    members = [Family(power=power, decay=0.97, bands=6).coefficients(12) for power in (0.1, 0.5, 0.8)]
    others = [np.concatenate(([1.0], rng.normal(scale=0.3, size=11))) for _ in range(10)]
    for c in members + others:
        ratio = by_brute_force(c, 3, 4) * errors(c, momentum)[0] / (math.sqrt(3) * of_independent)
        assert ratio >= least > 0.3
