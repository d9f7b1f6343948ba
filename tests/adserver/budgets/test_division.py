"""A budget that jobs and evaluations share: each has what the accountant leaves it, and no more fits."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adserver.budgets.headroom import JobLimits, Limit
from adserver.budgets.planned_tests import plan_tests
from adserver.budgets.planner import Planner
from adserver.measuring.evaluator import plan_evaluation
from adserver.records.submissions import PlanConstraints
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.model.dense import dense_network
from maskedlark.privacy.accounting import spent, spent_in_turn
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from maskedlark.releases.evaluation import UNITS
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.task import Task
from tests.builders import world
from tests.measured import dataset_of

SIZE = 20_000
WISH = PlanConstraints(rounds=100, batch_size=1_000.0, noise_multiplier=None)


def task_of(**changes: Any) -> Task:
    settings = {"mechanism": "gaussian", "min_batch_size": 100, "epsilon": 3.0, "collusion_epsilon": 12.0}
    return world(**{**settings, **changes}).task


def room(task: Task, *, tests: int = 0, share: float = 0.1, **changes: Any) -> JobLimits:
    planned = plan_tests(task, count=tests, share=share) if tests else None
    return JobLimits(task=task, dataset_size=SIZE, tests=planned, **changes)


def planner(of: JobLimits) -> Planner:
    return Planner(room=of, num_parameters=500)


ROOMS = {
    "jobs": room(task_of(), jobs=10),
    "jobs and tests": room(task_of(), jobs=10, tests=50),
    "collusion binds": room(task_of(collusion_epsilon=4.0), jobs=10, tests=50),
    "asked": room(task_of(), jobs=3, tests=5, epsilon=1.0),
    "correlated": room(task_of(collusion_epsilon=4.0), jobs=3, noise=StepNoise.CORRELATED),
    "laplace": room(task_of(mechanism="laplace", norm="l1", epsilon=60.0, collusion_epsilon=240.0), jobs=2),
    "split": room(task_of(noise="split"), jobs=5, tests=5),
}


@pytest.mark.parametrize("of", ROOMS.values(), ids=ROOMS.keys())
def test_all_jobs_and_tests_fit_one_after_another_and_three_percent_less_noise_does_not(
    of: JobLimits,
) -> None:
    found = planner(of).plan(WISH).recommended

    def fits(noise: float) -> bool:
        job = of.charge(rounds=found.rounds, batch_size=found.batch_size, noise_multiplier=noise)
        each = [[one] for one in (*of.charges_of_tests, *(job,) * of.jobs)]
        cost = spent_in_turn(each, of.task.delta)
        return (
            cost.ad_server <= (of.epsilon or of.task.epsilon) and cost.colluding <= of.task.collusion_epsilon
        )

    assert fits(found.noise_multiplier)
    assert not fits(0.97 * found.noise_multiplier)
    alone, planned = found.cost.alone, found.cost.planned
    assert alone.ad_server < planned.ad_server < of.jobs * alone.ad_server + len(of.charges_of_tests)


def test_equal_parts_of_epsilon_would_need_more_noise() -> None:
    for jobs in (2, 10, 50):
        divided = planner(room(task_of(), jobs=jobs)).plan(WISH).recommended
        equal = room(task_of(epsilon=3.0 / jobs, collusion_epsilon=12.0 / jobs))
        by_hand = planner(equal).plan(WISH).recommended
        assert divided.noise_multiplier < by_hand.noise_multiplier / (1.2 if jobs == 2 else 1.5)


def test_what_is_held_already_counts_beside_all_jobs() -> None:
    of = room(task_of(), jobs=4)
    job = of.charge(rounds=100, batch_size=1_000.0, noise_multiplier=8.0)
    beside = planner(replace(of, already=(job,))).plan(WISH).recommended
    assert beside.noise_multiplier > planner(of).plan(WISH).recommended.noise_multiplier
    assert beside.cost.planned.ad_server < beside.cost.together.ad_server <= 3.0


def test_the_asked_epsilon_is_of_all_jobs_and_tests() -> None:
    of = room(task_of(), jobs=4, tests=10, epsilon=1.0)
    found = planner(of).plan(WISH).recommended
    assert found.limit is Limit.ASKED
    assert 0.97 < found.cost.planned.ad_server <= 1.0
    with pytest.raises(JobRefused, match="10 evaluations and 4 jobs of 100 rounds") as refused:
        of.check(rounds=100, batch_size=1_000.0, noise_multiplier=0.9 * found.noise_multiplier)
    assert refused.value.reason is JobReason.BUDGET_EXHAUSTED


@pytest.mark.parametrize("count", [1, 7, 200])
def test_each_evaluation_is_the_one_that_its_epsilon_gets(count: int) -> None:
    of = world(mechanism="gaussian", epsilon=3.0, collusion_epsilon=12.0)
    task, tests = of.task, plan_tests(of.task, count=count, share=0.2)
    model = dense_network([task.num_features, 1], "relu", seed=1)
    asked = plan_evaluation(
        model, task=task, dataset=dataset_of(of, SIZE), query_id=bytes(16), epsilon=tests.epsilon
    )
    assert asked.spec.noise_multiplier == tests.noise_multiplier
    assert spent(asked.spec.charges(task), task.delta).ad_server <= tests.epsilon
    assert tests.cost == spent_in_turn([asked.spec.charges(task)] * count, task.delta)
    assert 0.95 * 0.2 * 3.0 < tests.cost.ad_server < 1.02 * 0.2 * 3.0
    assert count == 1 or tests.epsilon > 0.2 * 3.0 / count
    noise = [
        noise_vector(task.mechanism, asked.spec.noise_units(task), 20_000, seeded(1, f"{role}"))
        for role in (0, 1)
    ]
    assert np.std(np.sum(noise, 0)) / UNITS == pytest.approx(tests.count_noise, rel=0.03)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"count": 0, "share": 0.1}, "tests"),
        ({"count": 10_001, "share": 0.1}, "tests"),
        ({"count": 1, "share": 0.0}, "test_share"),
        ({"count": 1, "share": 1.0}, "test_share"),
        ({"count": 1, "share": math.nan}, "test_share"),
        ({"count": 1, "share": 0.1, "epsilon": 1e-300}, "fewer tests"),
    ],
)
def test_evaluations_outside_their_range_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidTask, match=what):
        plan_tests(task_of(), **settings)


@pytest.mark.parametrize("bad", [{"jobs": 0}, {"jobs": 1_001}, {"clip_norm": 0.0}, {"clip_norm": 9.0}])
def test_a_room_outside_its_range_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match=next(iter(bad))):
        room(task_of(), **bad)
