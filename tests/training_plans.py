"""What an ad server would train, for tests: steps of SGD over a dataset."""

from typing import Any

from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from maskedlark.releases.job import JobSpec
from maskedlark.reports.task import Task


def training_plan(
    task: Task, job: JobSpec, *, records: int, learning_rate: float = 0.1, **changes: Any
) -> TrainingPlan:
    """A plan that is seldom evaluated."""
    given: dict[str, Any] = {
        "optimizer": Optimizer(kind=OptimizerKind.SGD, learning_rate=learning_rate),
        "schedule": Schedule(),
        "eval_every": 1_000,
        **changes,
    }
    return TrainingPlan(task=task, job=job, dataset_size=records, **given)
