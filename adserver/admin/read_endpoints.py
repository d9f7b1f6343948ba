"""What the API shows: tasks, datasets, the intake, budgets and helpers."""

from dataclasses import asdict
from typing import Any, Final

from adserver.admin.certificates import certificates_json
from adserver.admin.helper_watch import HelperHealth
from adserver.admin.operation import ApiRequest, QueryParameter, get
from adserver.admin.paging import DEFAULT_ROWS, MOST_ROWS, page_json
from adserver.admin.schemas import OBJECT, alike, page_of, record
from adserver.records.dataset_state import DatasetState
from adserver.store.datasets import Dataset
from adserver.store.paging import PageMarker
from adserver.store.tasks import StoredTask
from adserver.views.task import dataset_json, task_json
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import pick_attributes
from maskedlark.releases.budget import PlannedJob
from maskedlark.terminal.budget_view import budget_json

LIMIT: Final = QueryParameter(
    name="limit",
    about="The most rows to return.",
    kind="integer",
    default=DEFAULT_ROWS,
    low=1,
    high=MOST_ROWS,
)
AFTER: Final = QueryParameter(name="after", about="`next` of the previous page.", default="")
_TASK: Final = {
    **alike("string", "task_id", "name", "origin", "mechanism", "unit"),
    **alike("number", "created_at", "epsilon", "collusion_epsilon"),
    **alike("integer", "expires_at", "min_batch_size", "waiting", "sealed", "dropped", "expired"),
    "is_of_updates": "boolean",
}
TASK_SHOWN: Final = record(**_TASK, bundle="string")
DATASET: Final = {
    "dataset_id": "string?",
    **alike("string", "handle", "task_id", "state"),
    "created_at": "number",
    **alike("integer", "received", "admitted", "view_mismatch"),
    "dropped": "object*",
}
_STANDING: Final = alike("number?", "budget", "spent", "reserved", "held", "left")
BUDGET: Final = record(
    dataset_id="string?",
    **alike("string", "unit", "task_id", "task", "mechanism"),
    reports="integer",
    delta="number",
    ad_server=record(**_STANDING),
    colluding=record(**_STANDING),
    uses="object*",
    planned="object?",
)
_HELPER: Final = record(
    role="integer",
    **alike("string", "address", "cause"),
    is_well="boolean?",
    **alike("number?", "answered_at", "latency_ms"),
    **alike("string?", "name", "version"),
    keys={"type": "array", "items": record(key_id="integer", suite="string", first_seen_at="number")},
    keys_not_after="integer?",
)
_CERTIFICATE: Final = record(
    whose="string", names="string*", fingerprint="string", ends_at="number", file="string"
)


def task_item(asked: ApiRequest, stored: StoredTask) -> dict[str, Any]:
    """Return a task as an item of a list."""
    task = stored.bundle.task
    return {
        **task_json(stored, asked.site.reports.counts(stored.task_id)),
        "created_at": stored.created_at,
        **pick_attributes(task, ("min_batch_size", "epsilon", "collusion_epsilon")),
        "mechanism": task.mechanism.value,
        "unit": task.unit.value,
        "is_of_updates": task.updates is not None,
    }


def list_tasks(asked: ApiRequest) -> dict[str, Any]:
    """Return a page of tasks, newest first."""
    return page_json(
        asked,
        asked.site.tasks.page,
        lambda one: PageMarker(at=one.created_at, key=one.task_id),
        lambda one: task_item(asked, one),
    )


def show_task(asked: ApiRequest) -> dict[str, Any]:
    """Return one task with its settings, and the bundle that browsers are served."""
    return task_shown(asked, asked.site.tasks.find(asked["task"]))


def task_shown(asked: ApiRequest, stored: StoredTask) -> dict[str, Any]:
    """Return a task with its bundle."""
    return {**task_item(asked, stored), "bundle": encode(stored.bundle).decode()}


def dataset_item(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset as an item of a list."""
    return {**dataset_json(dataset), "handle": dataset.handle.hex()}


def _place(dataset: Dataset) -> PageMarker:
    return PageMarker(at=dataset.created_at, key=dataset.handle)


def list_datasets(asked: ApiRequest) -> dict[str, Any]:
    """Return a page of datasets, newest first."""
    return page_json(asked, asked.site.datasets.page, _place, dataset_item)


def show_dataset(asked: ApiRequest) -> dict[str, Any]:
    """Return one dataset."""
    return dataset_item(asked.site.datasets.find(asked["dataset"]))


def show_intake(asked: ApiRequest) -> dict[str, Any]:
    """Return counts of reports since the server started. Reports have neither times nor senders."""
    counts = asked.site.intake()
    return {
        "since": asked.site.started_at,
        "accepted": counts.accepted,
        "duplicates": counts.duplicates,
        "rejected": counts.by_reason(),
    }


def list_budgets(asked: ApiRequest) -> dict[str, Any]:
    """Return a page of committed datasets with both budgets, newest first."""
    page = page_json(asked, asked.site.datasets.page, _place, lambda one: one)
    committed = [one for one in page["items"] if one.state is DatasetState.COMMITTED]
    return {**page, "items": [budget_json(asked.site.budgets.of(one)) for one in committed]}


def show_budget(asked: ApiRequest) -> dict[str, Any]:
    """Return both budgets of a dataset or person; with `rounds`, also a forecast."""
    planned = None
    if asked["rounds"] is not None:
        planned = PlannedJob(
            rounds=asked["rounds"],
            batch_size=asked["batch_size"],
            noise_multiplier=asked["noise_multiplier"],
            is_allocated=True,
        )
    try:
        dataset = asked.site.datasets.find(asked["dataset"])
    except JobRefused as refusal:
        if refusal.reason is not JobReason.UNKNOWN_DATASET:
            raise
        task = _task_of_people(asked, refusal)
        return budget_json(asked.site.budgets.of_people(task.bundle.task))
    return budget_json(asked.site.budgets.of(dataset, planned))


def _task_of_people(asked: ApiRequest, refusal: JobRefused) -> StoredTask:
    """Return the task of updates with this id, or raise the refusal."""
    try:
        stored = asked.site.tasks.find(asked["dataset"])
    except JobRefused:
        raise refusal from None
    if stored.bundle.task.updates is None:
        raise refusal
    return stored


_STATUS: Final = ("version", "tasks", "datasets", "open_jobs", "rounds_answered")


def helper_json(sight: HelperHealth) -> dict[str, Any]:
    """Return a helper's last known state as JSON."""
    status = sight.status
    return {
        **pick_attributes(sight, ("role", "address", "is_well", "cause", "answered_at", "latency_ms")),
        "name": status.identity.name if status else None,
        "numerics_digest": status.numerics_digest.hex() if status else None,
        **{name: getattr(status, name, None) for name in _STATUS},
        "keys": [asdict(key) for key in sight.keys],
        "keys_not_after": status.keys.key_list.not_after if status else None,
    }


def show_helpers(asked: ApiRequest) -> dict[str, Any]:
    """Return both helpers, and the certificates between the parties."""
    return {
        "helpers": [helper_json(sight) for sight in asked.site.sights()],
        "certificates": certificates_json(asked.site.tls),
    }


LOOKS: Final = (
    get("/tasks", "List tasks, newest first", list_tasks, page_of(record(**_TASK)), LIMIT, AFTER),
    get("/tasks/{task}", "One task", show_task, TASK_SHOWN),
    get("/datasets", "List datasets, newest first", list_datasets, page_of(record(**DATASET)), LIMIT, AFTER),
    get("/datasets/{dataset}", "One dataset", show_dataset, record(**DATASET)),
    get(
        "/intake",
        "Show the number of reports by outcome since the server started",
        show_intake,
        record(since="number", accepted="integer", duplicates="integer", rejected=OBJECT),
    ),
    get(
        "/budgets",
        "Show both budgets of committed datasets, newest first",
        list_budgets,
        page_of(BUDGET),
        QueryParameter(
            name="limit", about="The most rows to return.", kind="integer", default=10, low=1, high=50
        ),
        AFTER,
    ),
    get(
        "/budgets/{dataset}",
        "Show both budgets of one dataset, or of a person in a task of updates, and the effect of "
        "a planned job",
        show_budget,
        BUDGET,
        QueryParameter(name="rounds", about="For a planned job.", kind="integer", low=1, high=1_000_000),
        QueryParameter(
            name="batch_size", about="For a planned job; default: the whole dataset.", kind="number"
        ),
        QueryParameter(name="noise_multiplier", about="For a planned job.", kind="number", default=1.0),
    ),
    get(
        "/helpers",
        "Show both helpers' last known state, and the certificates",
        show_helpers,
        record(
            helpers={"type": "array", "items": _HELPER},
            certificates={"type": "array", "items": _CERTIFICATE},
        ),
    ),
)
"""The operations that only look, but for jobs and queries."""
