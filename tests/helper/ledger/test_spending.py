"""A job fits a dataset's budgets to the last bit of what it costs, and not beyond."""

import math
from dataclasses import replace
from typing import Any

import pytest

from helper.ledger.records import Reservation
from helper.ledger.spending import check_fits, cost, left
from maskedlark.errors import JobReason
from maskedlark.model.losses import Loss
from maskedlark.releases.job import JobSpec
from maskedlark.reports.task import Task
from tests.builders import world
from tests.refusals import refused

MECHANISMS: list[dict[str, Any]] = [
    {"mechanism": "gaussian", "norm": "l2"},
    {"mechanism": "laplace", "norm": "l1"},
]


def job(task: Task, number: int, noise_multiplier: float = 3.0) -> JobSpec:
    return JobSpec(
        job_id=bytes([number]) * 16,
        task_id=task.task_id,
        dataset_id=bytes(32),
        model_digest=bytes(32),
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
