"""Our composition of losses: as dp-accounting's, never below it but for rounding, without its imports."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from maskedlark.privacy.composing.loss_distribution import LossDistribution, Losses
from maskedlark.privacy.composing.random_allocation import epoch_ratios
from maskedlark.privacy.mechanism import Mechanism
from tests.maskedlark.privacy.composing.dp_accounting_losses import for_dp_accounting

CASES = [
    (Mechanism.GAUSSIAN, 1.2, 10, 5),
    (Mechanism.GAUSSIAN, 1.03, 29, 7),
    (Mechanism.GAUSSIAN, 9.0, 3, 60),
    (Mechanism.GAUSSIAN, 0.3, 4, 2),
    (Mechanism.GAUSSIAN, 4.0, 1, 20),
    (Mechanism.LAPLACE, 3.0, 10, 4),
]


@pytest.mark.parametrize(("mechanism", "noise", "steps", "count"), CASES)
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-7])
def test_composed_losses_are_those_of_dp_accounting(
    mechanism: Mechanism, noise: float, steps: int, count: int, delta: float
) -> None:
    ours = epoch_ratios(mechanism, noise, steps).points().losses(1e-3)
    theirs = for_dp_accounting(ours).self_compose(count).get_epsilon_for_delta(delta)
    found = ours.self_compose(count).get_epsilon_for_delta(delta)
    assert theirs * (1 - 1e-9) <= found <= theirs * (1 + 1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5, 3.0, 50.0])
def test_the_delta_at_an_epsilon_is_dp_accountings(epsilon: float) -> None:
    ours = epoch_ratios(Mechanism.GAUSSIAN, 1.0, 5).points().losses(1e-3).self_compose(3)
    theirs = for_dp_accounting(ours).get_delta_for_epsilon(epsilon)
    assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(theirs, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.01, 0.2, 0.9])
def test_the_epsilon_at_a_delta_is_the_least_with_that_delta(delta: float) -> None:
    found = epoch_ratios(Mechanism.GAUSSIAN, 1.0, 5).points().losses(1e-3).remove
    epsilon = found.epsilon(delta)
    assert found.delta(epsilon) <= delta * (1 + 1e-9)
    assert epsilon == 0 or found.delta(epsilon * (1 - 1e-6)) > delta


def test_two_losses_that_are_known_compose_by_hand() -> None:
    coin = Losses(grid=1.0, lowest=-1, masses=np.array([0.25, 0.0, 0.5]), at_infinity=0.25)
    twice = coin.compose(coin)
    assert (twice.lowest, twice.masses.tolist()) == (-2, pytest.approx([0.0625, 0, 0.25, 0, 0.25]))
    assert twice.at_infinity == pytest.approx(0.4375)
    assert twice.delta(1.0) == pytest.approx(0.4375 + 0.25 * (1 - math.exp(-1)))
    assert twice.epsilon(0.5) == pytest.approx(math.log(0.1875 / 0.25) + 2)
    assert twice.epsilon(0.4) == math.inf
    assert twice.epsilon(0.9) == 0.0


def test_what_is_cut_off_goes_to_a_larger_loss() -> None:
    masses = np.array([1e-18, 1e-17, 0.4, 0.6 - 2e-16, 1e-16, 1e-17])
    cut = Losses(grid=0.5, lowest=-3, masses=masses, at_infinity=0.0).trim()
    assert (cut.lowest, len(cut.masses)) == (-1, 2)
    assert cut.masses.sum() + cut.at_infinity >= masses.sum()
    assert cut.at_infinity == pytest.approx(1.1e-16)


def test_a_mechanism_is_composed_at_least_once() -> None:
    one = Losses(grid=1.0, lowest=0, masses=np.ones(1), at_infinity=0.0)
    with pytest.raises(ValueError, match="at least once"):
        LossDistribution(remove=one, add=one).self_compose(0)


def test_the_cost_of_a_usual_job_is_known_without_scipy() -> None:
    script = """
import json, sys
from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.mechanism import Mechanism
job = dict(mechanism=Mechanism.GAUSSIAN, noise_multiplier=1.0, sampling_rate=1.0, rounds=5)
found = spent([Charge(**job), Charge(**job, epoch_steps=10)], 1e-5)
print(json.dumps([found.ad_server, found.colluding, sorted(sys.modules)]))
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ad_server, colluding, modules = json.loads(shown.stdout)
    assert 0 < ad_server < colluding < 100
    assert not {"scipy", "dp_accounting"} & set(modules)


@pytest.mark.parametrize(("lowest", "delta"), [(1000, 1e-2), (5000, 2e-3), (2, 1e-4)])
def test_losses_that_are_all_large_have_an_epsilon_at_which_delta_is_kept(lowest: int, delta: float) -> None:
    losses = Losses(grid=1e-3, lowest=lowest, masses=np.array([0.5, 0.5]), at_infinity=0.0)
    epsilon = losses.epsilon(delta)
    assert losses.delta(epsilon) <= delta * (1 + 1e-9)
    assert losses.delta(epsilon * (1 - 1e-6)) > delta


@pytest.mark.parametrize("shape", ["flat", "spike", "comb", "falling", "two ends"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_counted_for_rounding_is_several_times_what_a_transform_moves(shape: str, seed: int) -> None:
    """Against sums of products in extended precision."""
    random, size = np.random.default_rng(seed), 700
    weights = random.random(size)
    if shape == "spike":
        weights *= np.where(np.arange(size) == 200, 1e6, 1e-6)
    elif shape == "comb":
        weights *= np.arange(size) % 50 == 0
    elif shape == "falling":
        weights *= np.exp(-0.1 * np.arange(size))
    elif shape == "two ends":
        weights *= (np.arange(size) < 2) | (np.arange(size) > size - 3)
    one = Losses(grid=1e-3, lowest=0, masses=weights / weights.sum(), at_infinity=0.0)
    composed = one.compose(one)
    exact = np.convolve(one.masses.astype(np.longdouble), one.masses.astype(np.longdouble))
    kept = exact[composed.lowest : composed.lowest + len(composed.masses)].astype(np.float64)
    inner = slice(1, None)  # the first cell also holds what was cut off below it
    assert 5 * np.abs(composed.masses - kept)[inner].sum() <= composed.at_infinity
    assert composed.masses.sum() + composed.at_infinity >= 1
