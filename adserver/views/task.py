"""Tasks and datasets for programs: the same from the commands and the admin API."""

from dataclasses import asdict, fields
from typing import Any, Final

from adserver.store.datasets import Dataset
from adserver.store.reports import ReportCounts
from adserver.store.tasks import StoredTask
from maskedlark.frozen import pick_attributes

TASK_FIELDS: Final = ("task_id", "name", "origin", "expires_at", *(one.name for one in fields(ReportCounts)))
"""What `task_json` says of a task."""


def task_json(stored: StoredTask, counts: ReportCounts) -> dict[str, Any]:
    """Return a task and how many reports it has as JSON."""
    task = stored.bundle.task
    return {
        "task_id": stored.task_id.hex(),
        **pick_attributes(task, ("name", "origin", "expires_at")),
        **asdict(counts),
    }


def dataset_json(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset and what became of its reports as JSON."""
    return {
        "dataset_id": dataset.dataset_id.hex() if dataset.dataset_id else None,
        "task_id": dataset.task_id.hex(),
        "state": dataset.state.value,
        **pick_attributes(dataset, ("created_at", "received", "view_mismatch")),
        "admitted": dataset.size,
        "dropped": [
            {reason.value: count for reason, count in sorted(dropped.items())} for dropped in dataset.dropped
        ],
    }
