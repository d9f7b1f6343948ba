"""What an ad server elsewhere tells of its tasks, datasets, budgets and plans, as the values used here."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from adserver.budgets.comparison import Comparison
from adserver.budgets.headroom import Cost, JobLimits, Limit
from adserver.budgets.planner import Option, Plan
from adserver.client.far_answer import reads_answer, require
from adserver.records.dataset_state import DatasetState
from adserver.store.datasets import Dataset
from adserver.store.reports import ReportCounts
from adserver.store.tasks import StoredTask
from adserver.training.planning import Planned
from adserver.views.task import TASK_FIELDS
from maskedlark.canonical import decode
from maskedlark.errors import ReportReason
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.budget import (
    BudgetedDataset,
    CostedUse,
    DatasetBudget,
    Forecast,
    PlannedJob,
    Standing,
    Use,
)
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.terminal.budget_view import SIZES, USE_FIELDS


@frozen
class ListedTask:
    """A task in a list, with the fields of `adserver.views.task.task_json`."""

    task_id: str
    name: str
    origin: str
    expires_at: int
    waiting: int
    sealed: int
    dropped: int
    expired: int


@reads_answer
def listed_task_from_json(sent: Mapping[str, Any]) -> ListedTask:
    """Parse a task in a list from `GET /tasks`."""
    return ListedTask(**_same(sent, *TASK_FIELDS))


@reads_answer
def task_from_json(sent: Mapping[str, Any]) -> StoredTask:
    """Parse a task from `GET /tasks/{task}`, and verify its signatures.

    Raises:
        InvalidTask: they are not its helpers'.
    """
    bundle = decode(TaskBundle, sent["bundle"].encode())
    bundle.verify()
    return StoredTask(task_id=bundle.task.task_id, bundle=bundle, created_at=sent["created_at"])


@reads_answer
def counts_from_json(sent: Mapping[str, Any]) -> ReportCounts:
    """Parse a task's counts of reports from `GET /tasks/{task}`."""
    return ReportCounts(**_same(sent, *(one.name for one in fields(ReportCounts))))


@reads_answer
def dataset_from_json(sent: Mapping[str, Any]) -> Dataset:
    """Parse a dataset."""
    first, second = (
        Counter({ReportReason(reason): count for reason, count in one.items()}) for one in sent["dropped"]
    )
    return Dataset(
        handle=bytes.fromhex(sent["handle"]),
        task_id=bytes.fromhex(sent["task_id"]),
        state=DatasetState(sent["state"]),
        **_same(sent, "created_at", "received", "view_mismatch"),
        size=sent["admitted"],
        dataset_id=None if sent["dataset_id"] is None else bytes.fromhex(sent["dataset_id"]),
        dropped=(first, second),
    )


@reads_answer
def budget_from_json(sent: Mapping[str, Any], task: Task) -> DatasetBudget:
    """Parse a dataset's budgets, or a person's."""
    is_person = sent["dataset_id"] is None
    identifier = task.task_id if is_person else bytes.fromhex(sent["dataset_id"])
    planned = sent["planned"]
    for standing in (sent["ad_server"], sent["colluding"]):
        is_kept = task.mechanism is not Mechanism.NONE
        require(not is_kept or 0 < _number(standing["budget"]) < math.inf, "a budget is finite and above 0")
    return DatasetBudget(
        dataset=BudgetedDataset(dataset_id=identifier, task=task, size=sent["reports"], is_person=is_person),
        ad_server=_standing(sent["ad_server"]),
        colluding=_standing(sent["colluding"]),
        uses=tuple(_use(one) for one in sent["uses"]),
        forecast=None if planned is None else _forecast(planned),
    )


@reads_answer
def plan_from_json(sent: Mapping[str, Any], task: Task) -> Planned:
    """Parse a plan, and the limits within which it was found."""
    plan = Plan(
        recommended=_option(sent["recommended"]),
        alternatives=tuple(_option(one) for one in sent["alternatives"]),
        gradient_norm=sent["assumed_gradient_norm"],
    )
    room = JobLimits(task=task, dataset_size=sent["dataset_size"], epsilon=sent["epsilon_asked"])
    return Planned(plan, room, _comparison(sent.get("compared")))


def _comparison(sent: Mapping[str, Any] | None) -> Comparison | None:
    """Parse a job with either kind of noise; None if there is nothing to compare."""
    if sent is None:
        return None
    independent, correlated = sent["independent"], sent["correlated"]
    return Comparison(
        independent=None if independent is None else _option(independent),
        correlated=None if correlated is None else _option(correlated),
        refusal=sent["refusal"],
    )


def _same(sent: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the sent values under the names of the fields."""
    return {name: sent[name] for name in names}


def _number(value: float | None) -> float:
    """Parse an amount; null stands for infinity."""
    amount = math.inf if value is None else value
    require(amount >= 0, "an amount is not negative and not NaN")
    return amount


def _epsilons(sent: Mapping[str, float | None]) -> Epsilons:
    return Epsilons(ad_server=_number(sent["ad_server"]), colluding=_number(sent["colluding"]))


def _standing(sent: Mapping[str, float | None]) -> Standing:
    return Standing(budget=_number(sent["budget"]), spent=_number(sent["spent"]), held=_number(sent["held"]))


def _use(sent: Mapping[str, Any]) -> CostedUse:
    """Parse a job or a query; only the cost of its charges is sent."""
    use = Use(
        use_id=bytes.fromhex(sent["id"]),
        **_same(sent, *USE_FIELDS),
        spent=(),
        held=(),
    )
    return CostedUse(use=use, spent=_epsilons(sent["spent_alone"]), held=_epsilons(sent["held_alone"]))


def _forecast(sent: Mapping[str, Any]) -> Forecast:
    return Forecast(
        job=PlannedJob(**_same(sent, *SIZES)),
        alone=_epsilons(sent["alone"]),
        ad_server=_standing(sent["ad_server"]),
        colluding=_standing(sent["colluding"]),
    )


def _option(sent: Mapping[str, Any]) -> Option:
    return Option(
        **_same(sent, *SIZES, "noise_norm", "noise_to_signal"),
        cost=Cost(alone=_epsilons(sent["alone"]), together=_epsilons(sent["together"])),
        limit=Limit(sent["limited_by"]),
        carried=sent.get("carried"),
    )
