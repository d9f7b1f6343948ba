"""The error of the weights is what simulated noise leaves in them."""

from typing import Any

import numpy as np
import pytest

from adserver.budgets.headroom import JobLimits
from adserver.budgets.planner import Planner
from adserver.budgets.weights_error import weights_error
from adserver.records.optimizer_kinds import ScheduleKind
from adserver.records.submissions import PlanConstraints
from adserver.records.training_plan import Schedule
from maskedlark.privacy.correlated import DENOMINATOR, trajectory_error
from maskedlark.releases.release import deviation_of_both
from maskedlark.releases.sampling import StepNoise
from tests.builders import world

ROUNDS = 60
SCHEDULES = {kind.value: Schedule(kind=kind, step_rounds=20) for kind in ScheduleKind}
STEPS, WEIGHTS = 20, 4_000


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("carried", [0, 58])
def test_it_is_what_steps_of_noise_leave(carried: int, momentum: float, schedule: Schedule) -> None:
    draws = np.random.default_rng(1)
    weights, moving, before = np.zeros(WEIGHTS), np.zeros(WEIGHTS), np.zeros(WEIGHTS)
    squares = []
    for index in range(ROUNDS):
        now = draws.normal(size=WEIGHTS)
        moving = momentum * moving + now - carried / DENOMINATOR * before
        weights += schedule.factor(index, ROUNDS) * moving
        squares.append(np.mean(weights**2))
        before = now
    found = weights_error(carried, rounds=ROUNDS, momentum=momentum, schedule=schedule)
    assert np.sqrt(squares[-1]) == pytest.approx(found.at_end, rel=0.05)
    assert np.sqrt(np.mean(squares)) == pytest.approx(found.over_steps, rel=0.05)


@pytest.mark.parametrize("carried", [0, 40, 63])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_at_a_constant_rate_it_is_the_error_that_noise_is_correlated_for(
    carried: int, momentum: float
) -> None:
    found = weights_error(carried, rounds=ROUNDS, momentum=momentum, schedule=Schedule())
    expected = trajectory_error(carried, rounds=ROUNDS, momentum=momentum)
    assert found.over_steps == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("noise", StepNoise)
@pytest.mark.parametrize("clip_norm", [None, 0.25])
def test_a_plan_predicts_the_error_of_each_weight(noise: StepNoise, clip_norm: float | None) -> None:
    settings: dict[str, Any] = {
        "mechanism": "gaussian",
        "min_batch_size": 20,
        "epsilon": 16.0,
        "collusion_epsilon": 8.0,
    }
    task = world(**settings, clip_norm=0.5).task
    schedule = SCHEDULES["cosine"]
    room = JobLimits(task=task, dataset_size=2_000, noise=noise, schedule=schedule, clip_norm=clip_norm)
    wish = PlanConstraints(rounds=100, batch_size=100.0, noise_multiplier=None)
    found = Planner(room=room, num_parameters=300, learning_rate=0.3).plan(wish).recommended
    bound = 0.5 if clip_norm is None else clip_norm
    in_step = deviation_of_both(task.mechanism) * found.noise_multiplier * bound / 100.0
    if clip_norm is None and noise is StepNoise.INDEPENDENT:
        in_step /= bound  # an adaptive clip divides the gradient by its bound
    error = weights_error(found.carried or 0, rounds=100, momentum=0.9, schedule=schedule)
    assert found.weight_noise == pytest.approx(0.3 * in_step * error.at_end, rel=1e-6)
    assert found.noise_norm / bound == pytest.approx(found.noise_to_signal)
    assert Planner(room=room, num_parameters=300).plan(wish).recommended.weight_noise is None
