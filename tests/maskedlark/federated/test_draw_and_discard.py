import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.federated.draw_and_discard import (
    DrawAndDiscard,
    internal_loss,
    late_observer_epsilon,
)
from maskedlark.federated.generalised_linear import Batches, Logistic, Multinomial
from maskedlark.federated.kinds import NoiseUnit
from maskedlark.randomness import seeded


def settings(**changes: Any) -> DrawAndDiscard:
    common: dict[str, Any] = {"instances": 10, "learning_rate": 0.001, "epsilon": 2.0, "frac_bits": 32}
    return DrawAndDiscard(**common | changes)


def batches(devices: int, examples: int, features: int, classes: int, seed: int = 1) -> Batches:
    numbers = np.random.default_rng(seed)
    return Batches(
        features=numbers.random((devices, examples, features)),
        labels=numbers.integers(0, classes, (devices, examples)),
    )


class Steep:
    """A model whose gradient is given: the worst that hostile examples could make it."""

    def __init__(self, gradient: np.ndarray) -> None:
        self.gradient = gradient
        self.size = gradient.shape[1]

    def mean_gradient(self, weights: np.ndarray, batches: Batches) -> np.ndarray:
        return self.gradient


@pytest.mark.parametrize("model", [Logistic(features=5), Multinomial(features=5, classes=3)])
def test_gradients_are_the_numerical_ones(model: Logistic | Multinomial) -> None:
    some = batches(2, 4, 5, 2 if isinstance(model, Logistic) else 3)
    weights = np.random.default_rng(2).standard_normal((2, model.size))

    def loss(row: int, at: np.ndarray) -> float:
        if isinstance(model, Multinomial):
            return model.loss(at, some.features[row], some.labels[row])
        scores = some.features[row] @ at
        return float(np.mean(np.log1p(np.exp(scores)) - some.labels[row] * scores))

    ours = model.mean_gradient(weights, some)
    for row in range(2):
        for place in range(model.size):
            step = np.zeros(model.size)
            step[place] = 1e-5
            slope = (loss(row, weights[row] + step) - loss(row, weights[row] - step)) / 2e-5
            assert ours[row, place] == pytest.approx(slope, abs=1e-5)


@given(
    scale=st.sampled_from([1e-6, 0.3, 1.0, 1e9]),
    clip=st.sampled_from([0.1, 1.0]),
    unit=st.sampled_from(list(NoiseUnit)),
)
def test_no_step_exceeds_its_bound_in_integers(scale: float, clip: float, unit: NoiseUnit) -> None:
    job = settings(gradient_clip=clip, unit=unit, epsilon=None)
    gradient = np.random.default_rng(3).standard_normal((6, 33)) * scale
    start = np.zeros((6, 33), np.int64)
    moved = job.device_steps(Steep(gradient), start, batches(6, 1, 33, 2), seeded(1))
    bound = math.ceil(0.001 * clip * 2**32)
    most = np.abs(moved).sum(axis=1) if unit is NoiseUnit.MODEL else np.abs(moved).max(axis=1)
    assert (most <= bound).all()


@pytest.mark.parametrize("unit", list(NoiseUnit))
def test_the_worst_pair_of_examples_is_hidden_at_epsilon(unit: NoiseUnit) -> None:
    job = settings(epsilon=1.5, unit=unit)
    assert job.epsilon is not None
    steps = [
        int(
            job.device_steps(
                Steep(np.full((1, 1), sign * 1e9)), np.zeros((1, 1), np.int64), batches(1, 1, 1, 2), seeded(1)
            )[0, 0]
        )
        for sign in (-1, 1)
    ]
    quiet = settings(epsilon=None, unit=unit)
    apart = abs(
        int(
            quiet.device_steps(
                Steep(np.full((1, 1), 1e9)), np.zeros((1, 1), np.int64), batches(1, 1, 1, 2), seeded(1)
            )[0, 0]
        )
        - int(
            quiet.device_steps(
                Steep(np.full((1, 1), -1e9)), np.zeros((1, 1), np.int64), batches(1, 1, 1, 2), seeded(1)
            )[0, 0]
        )
    )
    assert apart / job.noise_scale(job.epsilon) <= job.epsilon
    assert apart / job.noise_scale(job.epsilon) > 0.999 * job.epsilon, "and no noise is wasted"
    assert steps[0] != steps[1]


def test_noise_has_the_papers_variance() -> None:
    job = settings(epsilon=1.0)
    returned = job.device_steps(
        Steep(np.zeros((200, 500))), np.zeros((200, 500), np.int64), batches(200, 1, 500, 2), seeded(4)
    )
    assert (returned * 2.0**-32).var() == pytest.approx(8 * 0.001**2, rel=0.03)
    assert job.noise_variance == pytest.approx(8 * 0.001**2, rel=1e-6)


def test_instances_begin_at_their_stationary_spread() -> None:
    job = settings(instances=20)
    instances = job.initial(np.full(4000, 0.5), seeded(1))
    assert (instances * 2.0**-32).var(axis=0, ddof=1).mean() == pytest.approx(
        10 * job.noise_variance, rel=0.05
    )
    assert job.mean(instances).mean() == pytest.approx(0.5, abs=0.01)
    assert job.spread(in_flight=200) == pytest.approx(110 * job.noise_variance)


def test_one_instance_begins_at_the_start() -> None:
    assert (settings(instances=1).initial(np.array([0.25, -1.0]), seeded(1)) == [[2**30, -(2**32)]]).all()


def test_epsilon_of_a_model_is_p_times_a_coordinates_but_in_model_mode() -> None:
    assert settings().model_epsilon(7850) == 7850 * 2.0
    assert settings(unit=NoiseUnit.MODEL).model_epsilon(7850) == 2.0
    assert settings(epsilon=None).model_epsilon(10) == math.inf


def test_diagnostics_have_the_mended_constants() -> None:
    assert internal_loss(2.0, 20) == pytest.approx(19 / 40 * 2)
    assert late_observer_epsilon(1.0, 1, 1e-8) == pytest.approx(4.21, abs=0.005)


def test_picks_are_uniform() -> None:
    picks = settings().pick(20_000, seeded(1))
    assert np.abs(np.bincount(picks, minlength=10) - 2000).max() < 5 * 43


@pytest.mark.parametrize(
    "changes",
    [
        {"instances": 0},
        {"epsilon": 0.0},
        {"learning_rate": 0.0},
        {"frac_bits": 8},
        {"learning_rate": 1e3, "frac_bits": 40},
        {"gradient_clip": -1.0},
    ],
)
def test_a_setting_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        settings(**changes)


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        settings().device_steps(
            Steep(np.full((1, 2), np.nan)), np.zeros((1, 2), np.int64), batches(1, 1, 2, 2), seeded(1)
        )
