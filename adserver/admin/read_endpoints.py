"""The reading endpoints of the API: tasks, datasets, the intake, budgets and helpers."""

from pathlib import Path
from typing import Annotated, Final

from cryptography import x509
from fastapi import Query
from pydantic import Field

from adserver.admin.admin_context import AdminContext
from adserver.admin.guarded_route import Context, Parameters, guarded_router
from adserver.admin.helper_watch import HelperHealth
from adserver.admin.paging import PageParameters, Typed, list_page
from adserver.messages.base import ListPage
from adserver.messages.budget import BudgetMessage
from adserver.messages.dataset import DatasetItem
from adserver.messages.site import CertificateMessage, HelperMessage, HelpersMessage, IntakeMessage
from adserver.messages.task import TaskDetail, TaskEncoder, TaskItem
from adserver.records.access import Scope
from adserver.records.dataset_state import DatasetState
from adserver.store.datasets import Dataset
from adserver.store.paging import PageMarker
from adserver.store.tasks import StoredTask
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.relation import Relation
from maskedlark.releases.budget import PlannedJob
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.trust import names_in, sha256_of

reading = guarded_router(Scope.READ)
computing = guarded_router(Scope.READ, computes=True)
ROUTERS: Final = (reading, computing)
_STATUS: Final = ("version", "tasks", "datasets", "open_jobs", "rounds_answered")


class _BudgetsParameters(PageParameters):
    """The part of the list of budgets to return."""

    limit: Typed = Field(10, description="The most rows to return.", ge=1, le=50)


class _PlannedParameters(Parameters):
    """A planned job."""

    rounds: Typed | None = Field(None, description="For a planned job.", ge=1, le=1_000_000)
    batch_size: float | None = Field(None, description="For a planned job; default: the whole dataset.")
    noise_multiplier: float = Field(1.0, description="For a planned job.")
    relation: Relation = Field(
        Relation.ZERO, description="label: also the cost of telling one real label of a report from another."
    )


@reading.get("/tasks", summary="List tasks, newest first")
def list_tasks(context: Context, page: Annotated[PageParameters, Query()]) -> ListPage[TaskItem]:
    """Return a page of tasks, newest first."""
    return list_page(
        page,
        context.tasks.page,
        lambda one: PageMarker(at=one.created_at, key=one.task_id),
        lambda one: TaskItem.of(one, context.reports.counts(one.task_id)),
    )


@reading.get("/tasks/{task}", summary="One task")
def _show_task(context: Context, task: str) -> TaskDetail:
    """Return one task with its settings, and the bundle that browsers are served."""
    stored = context.tasks.find(task)
    return TaskDetail.of(stored, context.reports.counts(stored.task_id))


@reading.get("/tasks/{task}/encoder", summary="The encoder of a task")
def _show_encoder(context: Context, task: str) -> TaskEncoder:
    """Return the encoder that a task names, by which browsers make features."""
    return TaskEncoder.of(context.tasks.encoder(context.tasks.find(task).task_id))


def _place(dataset: Dataset) -> PageMarker:
    return PageMarker(at=dataset.created_at, key=dataset.handle)


@reading.get("/datasets", summary="List datasets, newest first")
def list_datasets(context: Context, page: Annotated[PageParameters, Query()]) -> ListPage[DatasetItem]:
    """Return a page of datasets, newest first."""
    return list_page(page, context.datasets.page, _place, DatasetItem.of)


@reading.get("/datasets/{dataset}", summary="One dataset")
def show_dataset(context: Context, dataset: str) -> DatasetItem:
    """Return one dataset."""
    return DatasetItem.of(context.datasets.find(dataset))


@reading.get("/intake", summary="Show the number of reports by outcome since the server started")
def show_intake(context: Context) -> IntakeMessage:
    """Return counts of reports since the server started. Reports have no times and no senders."""
    counts = context.intake()
    return IntakeMessage(
        since=context.started_at,
        accepted=counts.accepted,
        duplicates=counts.duplicates,
        rejected=dict(counts.by_reason()),
    )


@computing.get("/budgets", summary="Show both budgets of committed datasets, newest first")
def _list_budgets(context: Context, page: Annotated[_BudgetsParameters, Query()]) -> ListPage[BudgetMessage]:
    """Return a page of committed datasets with both budgets, newest first."""
    found = list_page(page, context.datasets.page, _place, lambda one: one)
    committed = [one for one in found.items if one.state is DatasetState.COMMITTED]
    return ListPage(items=[BudgetMessage.of(context.budgets.of(one)) for one in committed], next=found.next)


@computing.get(
    "/budgets/{dataset}",
    summary="Show both budgets of one dataset, or of a person in a task of updates, and the effect of "
    "a planned job",
)
def _show_budget(
    context: Context, dataset: str, planned: Annotated[_PlannedParameters, Query()]
) -> BudgetMessage:
    """Return both budgets of a dataset or person; with `rounds`, also a forecast.

    They are of telling whether a report adds anything; with `relation=label`, `labels` has the cost of
    telling one real label from another.
    """
    job = None
    if planned.rounds is not None:
        job = PlannedJob(
            rounds=planned.rounds,
            batch_size=planned.batch_size,
            noise_multiplier=planned.noise_multiplier,
            is_allocated=True,
        )
    try:
        found = context.datasets.find(dataset)
    except JobRefused as refusal:
        if refusal.reason is not JobReason.UNKNOWN_DATASET:
            raise
        stored = _task_of_people(context, dataset, refusal)
        return BudgetMessage.of(context.budgets.of_people(stored.bundle.task, planned.relation))
    return BudgetMessage.of(context.budgets.of(found, job, planned.relation))


def _task_of_people(context: AdminContext, task: str, refusal: JobRefused) -> StoredTask:
    """Return the task of updates with this id, or raise the refusal."""
    try:
        stored = context.tasks.find(task)
    except JobRefused:
        raise refusal from None
    if stored.bundle.task.updates is None:
        raise refusal
    return stored


def _helper_message(health: HelperHealth) -> HelperMessage:
    """Return a helper's last known state."""
    status = health.status
    return HelperMessage(
        **pick_attributes(
            health, ("role", "address", "is_well", "cause", "answered_at", "latency_ms", "keys")
        ),
        name=status.identity.name if status else None,
        software_digest=status.software_digest.hex() if status else None,
        **{name: getattr(status, name, None) for name in _STATUS},
        keys_not_after=status.keys.key_list.not_after if status else None,
    )


@reading.get("/helpers", summary="Show both helpers' last known state, and the certificates")
def show_helpers(context: Context) -> HelpersMessage:
    """Return both helpers, and the certificates between the parties."""
    return HelpersMessage(
        helpers=tuple(map(_helper_message, context.sights())), certificates=_read_certificates(context.tls)
    )


def _read_certificates(files: TlsFiles | None) -> tuple[CertificateMessage, ...]:
    """Return every certificate that this server shows or trusts peers by; none on plaintext loopback."""
    if files is None:
        return ()
    return tuple(
        _certificate(one, whose, path)
        for whose, path in (("this ad server", files.certificate), ("a peer", files.trusted_authorities))
        for one in _certificates_in(path)
    )


def _certificates_in(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):  # it is being replaced, or holds none
        return []


def _certificate(one: x509.Certificate, whose: str, path: Path) -> CertificateMessage:
    return CertificateMessage(
        whose=whose,
        names=tuple(sorted(names_in(one))),
        sha256=sha256_of(one),
        ends_at=one.not_valid_after_utc.timestamp(),
        file=path.name,
    )
