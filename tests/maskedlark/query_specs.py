"""Queries and discoveries of a world's task, as tests vary them."""

from typing import Any

from maskedlark.canonical import build
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.query import Measure, QuerySpec
from tests.builders import World
from tests.measured import DATASET

COUNT = Measure(value="count", scale=8)


def query(of: World, **changes: Any) -> QuerySpec:
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


def discovery(of: World, **changes: Any) -> DiscoverySpec:
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
