"""A job fits a dataset's budgets to the last bit of what it costs, and not beyond."""

import math
from dataclasses import replace
from typing import Any

import pytest

from helper.ledger.records import Reservation
from helper.ledger.spending import Spending, check_fits, cost, left
from maskedlark.errors import JobReason
from maskedlark.model.losses import Loss
from maskedlark.releases.job import JobSpec
from maskedlark.reports.task import Task
from tests.builders import job_spec, world
from tests.refusals import refused

MECHANISMS: list[dict[str, Any]] = [
    {"mechanism": "gaussian", "norm": "l2"},
    {"mechanism": "laplace", "norm": "l1"},
]


def job(task: Task, number: int, noise_multiplier: float = 3.0) -> JobSpec:
    return job_spec(
        job_id=bytes([number]) * 16,
        task_id=task.task_id,
        loss=Loss.MSE,
        rounds=4,
        sampling_numerator=1 << 30,
        noise_multiplier=noise_multiplier,
    )


def reservation(task: Task, number: int) -> Reservation:
    return Reservation(spec=job(task, number), rounds=4)


@pytest.mark.parametrize("settings", MECHANISMS, ids=str)
def test_budgets_hold_what_costs_exactly_that_and_nothing_more(settings: dict[str, Any]) -> None:
    task = world(**settings, epsilon=100.0, collusion_epsilon=1000.0).task
    before, new = [reservation(task, 1)], reservation(task, 2)
    whole = cost(task, [*before, new])
    check_fits(replace(task, epsilon=whole.ad_server, collusion_epsilon=whole.colluding), before, new)
    for smaller in (
        replace(task, epsilon=math.nextafter(whole.ad_server, 0)),
        replace(task, collusion_epsilon=math.nextafter(whole.colluding, 0)),
    ):
        with refused(JobReason.BUDGET_EXHAUSTED):
            check_fits(smaller, before, new)


@pytest.mark.parametrize(
    ("settings", "carried"), [(MECHANISMS[0], None), (MECHANISMS[0], 32), (MECHANISMS[1], None)], ids=str
)
def test_jobs_that_are_charged_in_turn_cost_the_same_at_each_step(
    settings: dict[str, Any], carried: int | None
) -> None:
    task = world(**settings, epsilon=100.0, collusion_epsilon=1000.0).task
    changes: dict[str, Any] = (
        {"epoch_steps": 2, "sampling_numerator": 1 << 31, "carried": carried} if carried else {}
    )
    jobs = [replace(job(task, number, 3.0 + number), **changes) for number in range(3)]
    spending, rounds = Spending(task), [0, 0, 0]
    for number, answers in ((0, 1), (2, 2), (0, 1), (1, 1), (2, 1), (0, 2)):
        spending.add(jobs[number], answers)
        rounds[number] += answers
        held = [
            Reservation(spec=spec, rounds=charged)
            for spec, charged in zip(jobs, rounds, strict=True)
            if charged
        ]
        assert spending.cost() == cost(task, held)


@pytest.mark.parametrize(
    ("multiplier", "left_over"), [(3.0, r"of which 1\.\d+ is left"), (2.0**-21, "of which 0 is left")]
)
def test_a_refusal_says_what_is_left_and_where_all_is_spent_nothing(
    multiplier: float, left_over: str
) -> None:
    task = world(**MECHANISMS[0], epsilon=100.0, collusion_epsilon=1000.0).task
    before = [Reservation(spec=job(task, 1, multiplier), rounds=4)]
    spent = cost(task, before)
    if math.isfinite(spent.ad_server):
        task = replace(task, epsilon=spent.ad_server + 1.25)
    new = Reservation(spec=job(task, 2, 0.5), rounds=4)
    with refused(
        JobReason.BUDGET_EXHAUSTED, f"^4 rounds do not fit this dataset: epsilon would be .*{left_over}"
    ):
        check_fits(task, before, new)


def test_a_task_without_noise_has_no_budget_to_keep() -> None:
    task = world().task
    check_fits(task, [], Reservation(spec=job(task, 1, noise_multiplier=0.0), rounds=4))


@pytest.mark.parametrize("settings", MECHANISMS, ids=str)
def test_what_is_left_is_never_negative(settings: dict[str, Any]) -> None:
    task = world(**settings, epsilon=100.0, collusion_epsilon=1000.0).task
    held = [reservation(task, 1)]
    assert left(task, held) == 100.0 - cost(task, held).ad_server
    assert left(replace(task, epsilon=cost(task, held).ad_server / 2), held) == 0.0
    assert left(task, []) == 100.0
