"""Queries, discoveries and evaluations of a task, as tests vary them."""

from typing import Any, Protocol

from maskedlark.canonical import build
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import Measure, QuerySpec
from maskedlark.reports.task import Task
from tests.measured import DATASET

COUNT = Measure(value="count", scale=8)


class HasTask(Protocol):
    """A world or a scene."""

    @property
    def task(self) -> Task: ...


def query(of: HasTask, **changes: Any) -> QuerySpec:
    asked = {
        "query_id": b"q" * 16,
        "task_id": of.task.task_id,
        "dataset_id": DATASET,
        "measures": (COUNT,),
        "group_by": (),
        "levels": (len(changes.get("group_by", ())),),
        "noise_multiplier": 0.0,
        "threshold_noise_multiplier": 0.0,
        **changes,
    }
    return build(QuerySpec, asked)


def discovery(of: HasTask, **changes: Any) -> DiscoverySpec:
    asked = {
        "query_id": b"q" * 16,
        "task_id": of.task.task_id,
        "dataset_id": DATASET,
        "keys": ("campaign",),
        "max_codes": 10,
        "noise_multiplier": 0.0,
        "delta": 1e-7,
        **changes,
    }
    return build(DiscoverySpec, asked)


def evaluation(of: HasTask, **changes: Any) -> EvaluationSpec:
    asked = {
        "query_id": b"q" * 16,
        "task_id": of.task.task_id,
        "dataset_id": DATASET,
        "model_digest": bytes(32),
        "weights_digest": bytes(32),
        "num_bins": 10,
        "noise_multiplier": 0.0,
        **changes,
    }
    return build(EvaluationSpec, asked)
