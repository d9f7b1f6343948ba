"""An ad server of this machine: its database, its data folder and, where needed, its helpers.

    with LocalAdServer(data=Path("play/adserver"), peers=peers) as server:
        server.seal(allow_small=True)

Each operation imports what it runs, so that a light command loads little. The protocol has what each
operation guarantees.
"""

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from adserver.client.ad_server import CountedTask
from adserver.records.exported_model import CalibratedModel, ExportedModel, InputForm, ModelWeights
from adserver.records.summaries import GrantSummary, HelperSummary, IntakeSummary, QuerySummary
from maskedlark.errors import InvalidTask, JobReason, JobRefused, MaskedLarkError
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.relation import Relation

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from adserver.budgets.reservations import Budgets
    from adserver.client.local_measuring import LocalMeasuring
    from adserver.collecting.sealing import SealingProgress
    from adserver.measuring.evaluation_result import EvaluationResult
    from adserver.measuring.result import AggregateResult
    from adserver.peers.client import HelperClient
    from adserver.peers.connect import Peers
    from adserver.peers.retrying import Backoff
    from adserver.records.access import Grant, Scope
    from adserver.records.job_record import JobRecord, SeenJobs
    from adserver.records.local_plan import LocalPlan
    from adserver.records.round_figures import RoundFigures
    from adserver.records.submissions import AnySubmission
    from adserver.store.access import AccessStore
    from adserver.store.datasets import Dataset, DatasetStore
    from adserver.store.jobs import JobStore
    from adserver.store.reports import ReportCounts
    from adserver.store.tasks import StoredTask, TaskStore
    from maskedlark.audit_log import AuditEntry
    from maskedlark.encoding.encoder import Encoder
    from maskedlark.model.heads import TrainedLoss
    from maskedlark.releases.budget import DatasetBudget, PlannedJob
    from maskedlark.releases.statement import Evidence

_DAY_S: Final = 86_400.0
_MOST_NAME: Final = 100


class LocalAdServer:
    """`AdServer` over a database and two helpers. Safe to share between threads."""

    def __init__(self, *, data: Path, database: str | None = None, peers: "Peers | None" = None) -> None:
        """Name an ad server; nothing is opened before an operation needs it.

        Args:
            data: Its data folder.
            database: SQLAlchemy URL of another database than SQLite in `data`.
            peers: Its helpers; None: operations that need them are refused.
        """
        self.data: Final = data
        self._database = database
        self._peers = peers
        self._stack = ExitStack()

    @classmethod
    def over(
        cls,
        engine: "Engine",
        helpers: "tuple[HelperClient, HelperClient]",
        *,
        data: Path,
        backoff: "Backoff | None" = None,
    ) -> Self:
        """Wrap an open database and clients of helpers."""
        server = cls(data=data)
        # In place of what the cached properties would open
        server.__dict__.update(engine=engine, _helpers=helpers)
        if backoff is not None:
            server.__dict__["_backoff"] = backoff
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections to the helpers and the database."""
        self._stack.close()
        # Only one that was opened: reading the property would open it
        if "engine" in self.__dict__:
            self.engine.dispose()

    @cached_property
    def engine(self) -> "Engine":
        """The database, with its tables; folder and tables are created if they are missing."""
        from adserver.store.database import open_store

        return open_store(self.data, self._database)

    @cached_property
    def _helpers(self) -> "tuple[HelperClient, HelperClient]":
        if self._peers is None:
            raise InvalidTask("this operation needs the helpers: give both helpers' addresses")
        return self._peers.open(self._stack, self.engine)

    @cached_property
    def _backoff(self) -> "Backoff":
        from adserver.peers.retrying import BRIEF

        return BRIEF if self._peers is None else self._peers.backoff

    def create_task(self, fields: Mapping[str, Any], encoder: "Encoder | None") -> "StoredTask":
        """Create a task that both helpers check against their floors and sign."""
        from adserver.collecting.task_creation import create_task
        from adserver.peers.retrying import with_retries

        # The fields hold the salt, so that each attempt is for the same task
        bundle = with_retries(lambda: create_task(self._helpers, dict(fields)), self._backoff)
        store = self._tasks
        return store.find(store.add(bundle, created_at=time.time(), encoder=encoder).hex())

    def tasks(self) -> tuple[CountedTask, ...]:
        """Return all tasks, oldest first."""
        return tuple(map(self._with_counts, self._tasks.all()))

    def task(self, task: str = "") -> CountedTask:
        """Return one task."""
        return self._with_counts(self._tasks.find(task))

    def encoder(self, task: str = "") -> "Encoder | None":
        """Return the encoder that a task names, or None."""
        return self._tasks.encoder(self._tasks.find(task).task_id)

    def refresh_keys(self) -> int:
        """Put the helpers' current HPKE keys into the bundles that browsers fetch."""
        from adserver.collecting.key_refresh import refresh_keys

        return refresh_keys(self._tasks, self._helpers)

    def seal(
        self,
        task: str = "",
        *,
        max_reports: int | None = None,
        allow_small: bool = False,
        progress: "SealingProgress | None" = None,
    ) -> "Dataset":
        """Seal the waiting reports of a task into a dataset at both helpers."""
        from adserver.collecting.sealing import DatasetSealer

        sealer = DatasetSealer(
            engine=self.engine,
            helpers=self._helpers,
            task=self._tasks.find(task).bundle.task,
            clock=time.time,
            randomness=os.urandom,
            backoff=self._backoff,
            **({} if progress is None else {"progress": progress}),
        )
        return sealer.seal(max_reports=max_reports, is_small_allowed=allow_small)

    def datasets(self) -> "tuple[Dataset, ...]":
        """Return all datasets, oldest first."""
        return tuple(self._datasets.all())

    def dataset(self, dataset: str = "") -> "Dataset":
        """Return one dataset."""
        return self._datasets.find(dataset)

    def abandon(self, dataset: str) -> "Dataset":
        """Abandon a dataset that a helper refuses to commit."""
        from adserver.records.dataset_state import DatasetState

        found = self._datasets.find(dataset)
        # Its reports are used up at both helpers: given back, they would be dropped from every later dataset
        if found.state is DatasetState.COMMITTED:
            raise JobRefused(
                JobReason.WRONG_STATE, "both helpers have committed this dataset: it cannot be abandoned"
            )
        self._datasets.abandon(found)
        return found

    def budgets(
        self,
        *,
        task: str = "",
        dataset: str = "",
        planned: "PlannedJob | None" = None,
        relation: Relation = Relation.ZERO,
    ) -> "tuple[DatasetBudget, ...]":
        """Return both budgets of committed datasets and of people."""
        return self._budgets.of_all(task=task, dataset=dataset, planned=planned, relation=relation)

    def plan(self, request: Any, progress: Any = None) -> Any:
        """Find what fits the budgets next to everything that is spent or reserved."""
        from adserver.records.submissions import FederatedSubmission

        if isinstance(request, FederatedSubmission) and request.is_without_helpers:
            from adserver.training.local_jobs import forecast_local

            return forecast_local(request)
        if isinstance(request, FederatedSubmission):
            from adserver.training.federated.forecast import forecast

            task = self._tasks.find(request.task).bundle.task
            held = self._budgets.reservations_of_task(task)
            return forecast(request, task=task, already=held, now_s=time.time())
        from adserver.training.planning import plan_job

        return plan_job(self.engine, request, progress)

    def submit(self, submission: "AnySubmission") -> "JobRecord":
        """Check a job and queue it."""
        from adserver.training.submitting import submit_job

        return self._jobs.get(submit_job(self.engine, self.data, submission))

    def jobs(self) -> "tuple[JobRecord, ...]":
        """Return all jobs, oldest first."""
        return self._seen_jobs.all()

    def job(self, job: str = "") -> "JobRecord":
        """Return one job."""
        return self._seen_jobs.find(job)

    def history(self, job_id: bytes, *, after_rounds: int = -1) -> "tuple[RoundFigures, ...]":
        """Return the figures of a job's rounds."""
        return self._seen_jobs.history(job_id, after_rounds=after_rounds)

    def cancel(self, job_id: bytes) -> None:
        """Stop a job for good."""
        self._jobs.cancel(job_id)

    def close_lost_job(self, job_id: bytes) -> int:
        """Close a job at both helpers that this ad server no longer has."""
        from adserver.peers.retrying import with_retries
        from adserver.training.lost_job import close_lost_job

        return with_retries(lambda: close_lost_job(self.engine, self._helpers, job_id), self._backoff)

    def resume(self, job_id: bytes) -> None:
        """Queue a refused or failed job again."""
        self._jobs.resume(job_id)

    def export(
        self,
        job_id: bytes,
        takes: InputForm = InputForm.SCALED,
        weights: ModelWeights = ModelWeights.LATEST,
    ) -> ExportedModel:
        """Return a job's model, whose graph takes the input."""
        from adserver.records.local_plan import LocalPlan
        from adserver.store.job_files import JobFiles
        from adserver.training.export import export_job, with_input

        job = self._jobs.get(job_id)
        plan = job.plan
        if isinstance(plan, LocalPlan):
            return with_input(self._export_local(job, plan, weights), plan, takes, None)
        made = export_job(JobFiles(self.engine, self.data, job_id), plan, weights)
        return with_input(made, plan, takes, self._tasks.encoder(plan.task.task_id))

    def _export_local(self, job: "JobRecord", plan: "LocalPlan", weights: ModelWeights) -> ExportedModel:
        from adserver.store.local.models import LocalModels
        from adserver.training.export import export_local

        if weights is ModelWeights.BEST:
            raise InvalidTask("a job without helpers is not evaluated: export its latest weights")
        return export_local(plan, LocalModels(self.engine).parameters(plan), job.rounds_done)

    def calibrate(
        self,
        job_id: bytes,
        *,
        evaluation: str = "",
        panel: bytes | None = None,
        takes: InputForm = InputForm.SCALED,
        weights: ModelWeights = ModelWeights.LATEST,
    ) -> CalibratedModel:
        """Return a job's model with its logit scaled and shifted."""
        from adserver.records.federated_plan import FederatedPlan
        from adserver.records.local_plan import LocalPlan
        from adserver.store.job_files import JobFiles
        from adserver.training.calibration import calibrate_by_histogram, calibrate_by_panel
        from adserver.training.export import export_job, with_input
        from maskedlark.model.losses import Loss

        if (panel is None) == (not evaluation):
            raise InvalidTask("expected exactly one of evaluation and panel")
        plan = self._jobs.get(job_id).plan
        if isinstance(plan, LocalPlan):
            raise InvalidTask("a job without helpers is not calibrated: calibrate one with helpers")
        # Devices train with that loss alone
        loss = Loss.CROSS_ENTROPY if isinstance(plan, FederatedPlan) else plan.job.loss
        made = export_job(JobFiles(self.engine, self.data, job_id), plan, weights)
        if panel is None:
            # Of the weights as exported: an evaluation of others would fit the wrong logits, and is refused
            counts = self.measuring.histogram(evaluation, made.encoded)
            calibrated = calibrate_by_histogram(made, counts, loss)
        else:
            calibrated = calibrate_by_panel(made, panel, loss)
        exported = with_input(calibrated.exported, plan, takes, self._tasks.encoder(plan.task.task_id))
        return replace(calibrated, exported=exported)

    @cached_property
    def measuring(self) -> "LocalMeasuring":
        """Queries and evaluations."""
        from adserver.client.local_measuring import LocalMeasuring

        return LocalMeasuring(
            self.engine, lambda: self._helpers, self._backoff, self._export_trained, self._loss_trained
        )

    def aggregate(self, **asked: Any) -> "AggregateResult":
        """Sum values over groups of a dataset's reports."""
        return self.measuring.aggregate(**asked)

    def evaluate(self, model: bytes | None = None, **asked: Any) -> "EvaluationResult":
        """Evaluate a model on a dataset's reports."""
        return self.measuring.evaluate(model, **asked)

    def repeat_aggregate(self, query: str) -> "AggregateResult":
        """Return the answer to an earlier query again."""
        return self.measuring.repeat_aggregate(query)

    def repeat_evaluate(self, query: str) -> "EvaluationResult":
        """Return an earlier evaluation again."""
        return self.measuring.repeat_evaluate(query)

    def queries(self, *, latest: int | None = None) -> tuple[QuerySummary, ...]:
        """Return all queries and evaluations, or so many of the latest ones, oldest first."""
        from adserver.store.queries import QueryStore
        from adserver.views.asked_query import query_summary

        store = QueryStore(self.engine)
        asked = store.all() if latest is None else store.page(limit=latest)[::-1]
        return tuple(query_summary(one, self._tasks.task(one.spec.task_id)) for one in asked)

    def statements(self, task: str = "") -> "tuple[Evidence, ...]":
        """Return what both helpers say of each job and query of a task."""
        from adserver.collecting.evidence import collect_evidence
        from adserver.peers.retrying import with_retries

        bundle = self._tasks.find(task).bundle
        return with_retries(lambda: collect_evidence(self._helpers, bundle), self._backoff)

    def create_token(self, scope: "Scope", *, name: str, days: float) -> str:
        """Create a token for the admin API and return its secret."""
        from adserver.records.access import GrantKind

        return self._access.make(GrantKind.TOKEN, scope, name=name[:_MOST_NAME], lasts_s=days * _DAY_S)

    def tokens(self) -> tuple[GrantSummary, ...]:
        """Return tokens and logged-in browsers, oldest first."""
        from adserver.store.access import REVOCABLE

        return tuple(map(_summary, self._access.all(REVOCABLE)))

    def revoke_token(self, token: str) -> GrantSummary:
        """Revoke one token or session, with immediate effect."""
        from adserver.store.access import REVOCABLE

        return _summary(self._access.revoke(token, REVOCABLE))

    def audit_log(
        self, *, after: int = -1, limit: int = 1_000, is_newest: bool = False
    ) -> "tuple[AuditEntry, ...]":
        """Return entries of the audit log."""
        from adserver.store.audit_log import LOG

        return tuple(LOG.page(self.engine, after=after, most=limit, is_newest=is_newest))

    def intake(self) -> IntakeSummary:
        """Refuse: only the running server knows these counts."""
        raise InvalidTask(
            "only the running server counts its intake: ask it with its URL, or look at the tasks' counts"
        )

    def helpers(self) -> tuple[HelperSummary, HelperSummary]:
        """Ask both helpers for their state now."""
        first, second = (_look_at(role, helper) for role, helper in enumerate(self._helpers))
        return first, second

    @property
    def _tasks(self) -> "TaskStore":
        from adserver.store.tasks import TaskStore

        return TaskStore(self.engine)

    @property
    def _datasets(self) -> "DatasetStore":
        from adserver.store.datasets import DatasetStore

        return DatasetStore(self.engine)

    @property
    def _jobs(self) -> "JobStore":
        from adserver.store.jobs import JobStore

        return JobStore(self.engine, time.time)

    @property
    def _budgets(self) -> "Budgets":
        from adserver.budgets.reservations import Budgets

        return Budgets(engine=self.engine, clock=time.time)

    @property
    def _access(self) -> "AccessStore":
        from adserver.store.access import AccessStore

        return AccessStore(self.engine, time.time)

    @property
    def _seen_jobs(self) -> "SeenJobs":
        """The jobs for reading only: where it can, without the modules that take half a second to load."""
        from adserver.store.sqlite_jobs import jobs_in

        # Not for another database, nor where the engine is open already, and costs nothing more
        light = None if self._database or "engine" in self.__dict__ else jobs_in(self.data)
        return self._jobs if light is None else light

    def _with_counts(self, stored: "StoredTask") -> CountedTask:
        return CountedTask(stored=stored, counts=self._counts(stored.task_id))

    def _counts(self, task_id: bytes) -> "ReportCounts":
        from adserver.store.reports import ReportStore

        return ReportStore(self.engine).counts(task_id)

    def _loss_trained(self, job: str) -> "TrainedLoss | None":
        """Return what a job minimises; None of a job on devices."""
        found = self.job(job).plan.job
        return getattr(found, "loss", None)

    def _export_trained(self, job: str, weights: ModelWeights) -> bytes:
        """Return a job's model with its latest weights, or its best."""
        return self.export(self.job(job).job_id, weights=weights).encoded


def _summary(grant: "Grant") -> GrantSummary:
    names = ("grant_id", "kind", "scope", "name", "created_at", "expires_at")
    return GrantSummary(**pick_attributes(grant, names))


def _look_at(role: int, helper: "HelperClient") -> HelperSummary:
    # The system's time may be set back in between
    begun = time.monotonic()
    try:
        status = helper.status()
    # What it answers may be wrong, too: the other helper is shown all the same
    except MaskedLarkError as error:
        return HelperSummary(role=role, address=helper.address, is_well=False, cause=str(error))
    answered_at = time.time()
    cause = status.why_not_well(helper.address, answered_at)
    counts = ("version", "tasks", "datasets", "open_jobs", "rounds_answered")
    return HelperSummary(
        role=role,
        address=helper.address,
        is_well=not cause,
        cause=cause,
        answered_at=answered_at,
        latency_ms=1_000 * (time.monotonic() - begun),
        name=status.identity.name,
        software_digest=status.software_digest.hex(),
        keys_not_after=status.keys.key_list.not_after,
        **pick_attributes(status, counts),
    )
