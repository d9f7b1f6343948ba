"""What it costs to tell one contribution of a report from another: exact cases, and simulations."""

import math
from dataclasses import replace

import numpy as np
import pytest

from maskedlark.privacy.accounting import Charge, spent, spent_in_turn
from maskedlark.privacy.composing.analytic_gaussian import gaussian_epsilon
from maskedlark.privacy.composing.likelihood_ratios import sample_ratios
from maskedlark.privacy.composing.random_allocation import epoch_ratios
from maskedlark.privacy.mechanism import Mechanism
from tests.charge_builders import gaussian, laplace

DELTA = 1e-5
DRAWS = 40_000


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0, 50.0])
def test_one_step_is_a_gaussian_of_twice_the_shift(noise: float) -> None:
    found = epoch_ratios(Mechanism.GAUSSIAN, noise, 1).points().against_negative().losses(1e-3)
    exact = gaussian_epsilon(noise / 2, DELTA)
    assert exact <= found.get_epsilon_for_delta(DELTA) <= exact * 1.001 + 1e-3


@pytest.mark.parametrize("charge", [gaussian(2.0, rounds=7), laplace(2.0, rounds=3)])
def test_known_samples_cost_what_half_of_the_noise_does(charge: Charge) -> None:
    half = replace(charge, noise_multiplier=charge.noise_multiplier / 2)
    assert spent([charge.of_labels()], DELTA) == spent([half], DELTA)


@pytest.mark.parametrize(
    "charge",
    [
        gaussian(0.8, rounds=3, epoch_steps=9),
        gaussian(1.0, rate=0.05, rounds=40),
        gaussian(1.0, epoch_steps=3, overlap=0.8),
        gaussian(1.5, rounds=2, epoch_steps=9, reports=2),
        gaussian(2.0, rate=0.05, rounds=20, reports=3),
        gaussian(1.0, rate=0.05, rounds=40, is_self_sampled=True),
        gaussian(0.05, rounds=3, epoch_steps=9),
        laplace(2.0, rate=0.1, rounds=20),
    ],
)
def test_labels_cost_more_than_zeroing_and_no_more_than_with_known_samples(charge: Charge) -> None:
    zero, label = spent([charge], DELTA), spent([charge.of_labels()], DELTA)
    known = spent([charge.without_sampling().of_labels()], DELTA)
    assert zero.ad_server < label.ad_server <= known.ad_server * (1 + 1e-9)
    assert zero.colluding < label.colluding <= known.colluding * (1 + 1e-9)
    turn = spent_in_turn([[charge.of_labels()], [gaussian(30.0).of_labels()]], DELTA)
    assert label.colluding <= turn.colluding
    assert math.isfinite(turn.ad_server)


@pytest.mark.parametrize(("noise", "steps", "epochs"), [(0.6, 2, 1), (0.8, 9, 3), (1.5, 30, 2), (4.0, 5, 8)])
def test_no_simulated_epoch_tells_labels_better_than_is_charged(
    noise: float, steps: int, epochs: int
) -> None:
    """At five standard errors; the simulation has both mixtures, and their common slot."""
    rng = np.random.default_rng(7)
    losses = np.zeros(DRAWS)
    for _ in range(epochs):
        y = rng.normal(0.0, noise, (DRAWS, steps))
        y[:, 0] += 1.0
        losses += np.log(np.exp(y / noise**2).mean(axis=1)) - np.log(np.exp(-y / noise**2).mean(axis=1))
    charged = (
        epoch_ratios(Mechanism.GAUSSIAN, noise, steps)
        .points()
        .against_negative()
        .losses(1e-3)
        .self_compose(epochs)
    )
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0):
        gains = np.maximum(-np.expm1(epsilon - losses), 0)
        least = gains.mean() - 5 * gains.std() / math.sqrt(DRAWS)
        assert least <= min(charged.remove.delta(epsilon), charged.add.delta(epsilon))


def test_an_opposed_ratio_is_a_ratio_of_two_laws_that_mirror_each_other() -> None:
    for points in (sample_ratios(1.0, 0.1, 1), epoch_ratios(Mechanism.GAUSSIAN, 1.0, 7).points()):
        found = points.against_negative()
        with_record = found.masses * np.exp(found.logarithms)
        assert math.fsum(found.masses) == pytest.approx(1, abs=1e-11)
        assert math.fsum(with_record) == pytest.approx(1, abs=1e-11)
        assert (np.diff(found.logarithms) >= 0).all()
        assert np.allclose(found.logarithms, -found.logarithms[::-1])
        assert np.allclose(found.masses, with_record[::-1], rtol=1e-9)
