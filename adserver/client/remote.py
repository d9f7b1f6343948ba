"""An ad server on another machine, over its admin API, with the errors and the values that are used here.

with RemoteAdServer(url="https://ads.example:8443", token=token, ca=Path("ads.crt")) as server:
    server.job("3f").state
"""

import os
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

from pydantic import ValidationError
from pydantic_core import to_json

from adserver.client.ad_server import CountedTask
from adserver.client.api_session import ApiSession, reading_answer
from adserver.measuring.evaluation_result import EvaluationResult
from adserver.measuring.request import check_evaluated
from adserver.measuring.result import AggregateResult
from adserver.messages.access import CreateToken, GrantMessage, GrantsMessage, TokenMessage
from adserver.messages.audit_log import AuditPage
from adserver.messages.base import ListPage, Message, RequestBody, first_fault
from adserver.messages.budget import BudgetMessage
from adserver.messages.dataset import DatasetItem, SealDataset
from adserver.messages.evaluation import AskEvaluation, EvaluationDetail, EvaluationMessage
from adserver.messages.evidence import EvidenceList
from adserver.messages.federated import FederatedForecastMessage, LocalForecastMessage, SubmitFederatedJob
from adserver.messages.job import JobItem, LostJobMessage, RoundsPage
from adserver.messages.plan import PlanJob, PlanMessage
from adserver.messages.query import AskQuery, QueryDetail, QueryItem, ResultMessage
from adserver.messages.site import (
    CalibratedModelMessage,
    CalibrateModel,
    HelpersMessage,
    IntakeMessage,
    ModelMessage,
    RefreshedKeys,
)
from adserver.messages.submission import SubmitJob
from adserver.messages.task import CreateTask, TaskDetail, TaskEncoder, TaskItem, TaskSummary
from adserver.peers.retrying import BRIEF, Backoff, with_retries
from adserver.records.access import Scope
from adserver.records.dataset_state import DatasetState
from adserver.records.defaults import DEFAULT_BINS, QUERY_ID_BYTES
from adserver.records.exported_model import CalibratedModel, ExportedModel, InputForm, ModelWeights
from adserver.records.job_record import JobRecord
from adserver.records.round_figures import RoundFigures
from adserver.records.submissions import (
    AnySubmission,
    FederatedSubmission,
    PlanRequest,
    Submission,
)
from adserver.records.summaries import GrantSummary, HelperSummary, IntakeSummary, QuerySummary
from adserver.records.typed_ids import the_only
from adserver.store.datasets import Dataset
from adserver.store.tasks import StoredTask
from maskedlark.audit_log import AuditEntry
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.privacy.relation import Relation
from maskedlark.releases.budget import DatasetBudget, PlannedJob
from maskedlark.releases.statement import Evidence
from maskedlark.reports.task import Task
from maskedlark.terminal.budget_view import SIZES

# Items of a page that are asked for: a round is a few numbers, anything else may be kilobytes
_ITEMS: Final = 200
_ROUNDS: Final = 1_000
_BRIEF_S: Final = 30.0
_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_MessageT = TypeVar("_MessageT", bound=Message)
_ItemT = TypeVar("_ItemT", bound=Message)
_ResultT = TypeVar("_ResultT")
_BodyT = TypeVar("_BodyT", bound=RequestBody)


@frozen
class RemoteAdServer(ApiSession):
    """`AdServer` over the admin API of another one. Each request has its own connection.

    Attributes:
        backoff: How long a request is repeated that may be.
    """

    backoff: Backoff = BRIEF

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close nothing: no connection stays open."""

    # Tasks

    def create_task(self, fields: Mapping[str, Any], encoder: Encoder | None) -> StoredTask:
        """Create a task that both helpers sign, repeating the request until an answer arrives."""
        # With the salt: every repetition asks for the same task
        body = CreateTask.of(fields, encoder)
        try:
            sent = self._repeat(TaskDetail, "/tasks", body)
        except HelperUnavailable as away:
            raise HelperUnavailable(
                f"{away}; the task may have been created: check that ad server's tasks before you "
                "create another"
            ) from None
        # Verified here too: an ad server cannot show a task that its helpers did not sign
        with reading_answer():
            return sent.verify()

    def tasks(self) -> tuple[CountedTask, ...]:
        """Return all tasks, oldest first."""
        return tuple(self.task(one.task_id.hex()) for one in self._list(TaskSummary, "/tasks"))

    def task(self, task: str = "") -> CountedTask:
        """Return one task."""
        if not task:
            # Two show whether there is only one
            page = next(self.pages(ListPage[TaskSummary], "/tasks", limit=2))
            task = the_only([one.task_id for one in page.items], task, JobReason.UNKNOWN_TASK).hex()
        sent = self.get(TaskDetail, f"/tasks/{_safe_id(task, JobReason.UNKNOWN_TASK)}")
        with reading_answer():
            return CountedTask(stored=sent.verify(), counts=sent.counts())

    def encoder(self, task: str = "") -> Encoder | None:
        """Return the encoder that a task names, or None."""
        stored = self.task(task).stored
        sent = self.get(TaskEncoder, f"/tasks/{stored.task_id.hex()}/encoder")
        with reading_answer():
            return sent.verify(stored.bundle.task)

    def refresh_keys(self) -> int:
        """Put the helpers' current HPKE keys into the bundles that browsers fetch."""
        return self.post(RefreshedKeys, "/tasks/refresh-keys", is_once=True).tasks

    # Datasets

    def seal(
        self,
        task: str = "",
        *,
        max_reports: int | None = None,
        allow_small: bool = False,
        progress: Any = None,
    ) -> Dataset:
        """Seal the waiting reports of a task into a dataset at both helpers."""
        asked = {"task": task, "max_reports": max_reports, "allow_small": allow_small}
        return self.post(DatasetItem, "/datasets", _parse_body(SealDataset, asked)).value()

    def datasets(self) -> tuple[Dataset, ...]:
        """Return all datasets, oldest first."""
        return tuple(one.value() for one in self._list(DatasetItem, "/datasets"))

    def dataset(self, dataset: str = "") -> Dataset:
        """Return one dataset."""
        if dataset:
            path = f"/datasets/{_safe_id(dataset, JobReason.UNKNOWN_DATASET)}"
            return self.get(DatasetItem, path).value()
        named = {one.dataset_id: one for one in self.datasets() if one.dataset_id is not None}
        return named[the_only(list(named), dataset, JobReason.UNKNOWN_DATASET)]

    def abandon(self, dataset: str) -> Dataset:
        """Abandon a dataset that a helper refuses to commit."""
        path = f"/datasets/{_safe_id(dataset, JobReason.UNKNOWN_DATASET)}/abandon"
        return self.post(DatasetItem, path).value()

    def budgets(
        self,
        *,
        task: str = "",
        dataset: str = "",
        planned: PlannedJob | None = None,
        relation: Relation = Relation.ZERO,
    ) -> tuple[DatasetBudget, ...]:
        """Return both budgets of committed datasets, then of people."""
        if dataset:
            return (self._budget(dataset, planned, relation),)
        wanted = [
            one.dataset_id.hex()
            for one in self.datasets()
            if one.dataset_id is not None
            and one.state is DatasetState.COMMITTED
            and one.task_id.hex().startswith(task.lower())
        ]
        people = [
            one.task_id.hex()
            for one in self._list(TaskItem, "/tasks")
            if one.is_of_updates and one.task_id.hex().startswith(task.lower())
        ]
        return (
            *(self._budget(one, planned, relation) for one in wanted),
            # A planned job is one over a dataset: it says nothing of a person's budget
            *(self._budget(one, None, relation) for one in people),
        )

    def _budget(self, of: str, planned: PlannedJob | None, relation: Relation) -> DatasetBudget:
        """Return the budgets of a dataset, or of a person in the task of this id."""
        asked = {} if planned is None else pick_attributes(planned, SIZES)
        if relation is not Relation.ZERO:
            asked = {**asked, "relation": relation.value}
        path = f"/budgets/{_safe_id(of, JobReason.UNKNOWN_DATASET)}"
        sent = self.get(BudgetMessage, path, **asked)
        task = self._task(sent.task_id)
        with reading_answer():
            return sent.value(task)

    def _task(self, task_id: bytes) -> Task:
        return self.task(task_id.hex()).stored.bundle.task

    # Jobs

    def plan(self, request: Any, progress: Any = None) -> Any:
        """Find what fits the budgets next to everything that is spent or reserved."""
        match request:
            case PlanRequest():
                sent = self.post(PlanMessage, "/jobs/plan", _body_of(PlanJob, request), is_once=True)
                # The plan names its task by id; its settings come from the bundle that both helpers signed
                task = self._task(sent.task_id)
                with reading_answer():
                    return sent.value(task)
            case FederatedSubmission():
                body = _body_of(SubmitFederatedJob, request)
                kind: type[FederatedForecastMessage | LocalForecastMessage] = (
                    LocalForecastMessage if request.is_without_helpers else FederatedForecastMessage
                )
                found = self.post(kind, "/jobs/federated/plan", body, is_once=True)
                with reading_answer():
                    return found.value()

    def submit(self, submission: AnySubmission) -> JobRecord:
        """Check a job and queue it there."""
        match submission:
            case Submission():
                # Never repeated by itself: a second request is a second job, with a budget of its own
                return _job(self.post(JobItem, "/jobs", _body_of(SubmitJob, submission)))
            case FederatedSubmission():
                body = _body_of(SubmitFederatedJob, submission)
                return _job(self.post(JobItem, "/jobs/federated", body))

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, oldest first."""
        return tuple(map(_job, self._list(JobItem, "/jobs")))

    def job(self, job: str = "") -> JobRecord:
        """Return one job."""
        if job:
            return _job(self.get(JobItem, f"/jobs/{_quote_job(job)}"))
        page = next(self.pages(ListPage[JobItem], "/jobs", limit=2))
        the_only([one.job_id for one in page.items], job, JobReason.UNKNOWN_JOB)
        return _job(page.items[0])

    def history(self, job_id: bytes, *, after_rounds: int = -1) -> tuple[RoundFigures, ...]:
        """Return the figures of a job's rounds, in order."""
        pages = self.pages(
            RoundsPage,
            f"/jobs/{job_id.hex()}/rounds",
            limit=_ROUNDS,
            cursor="after_rounds",
            after=after_rounds,
        )
        return tuple(one for page in pages for one in page.items)

    def cancel(self, job_id: bytes) -> None:
        """Stop a job for good."""
        self.post(JobItem, f"/jobs/{job_id.hex()}/cancel")

    def close_lost_job(self, job_id: bytes) -> int:
        """Close a job at both helpers that the ad server no longer has."""
        found = self.post(LostJobMessage, f"/lost-jobs/{job_id.hex()}/close", is_once=True)
        return found.rounds_charged

    def resume(self, job_id: bytes) -> None:
        """Queue a refused or failed job again."""
        self.post(JobItem, f"/jobs/{job_id.hex()}/resume")

    def export(
        self,
        job_id: bytes,
        takes: InputForm = InputForm.SCALED,
        weights: ModelWeights = ModelWeights.LATEST,
    ) -> ExportedModel:
        """Return a job's model."""
        path = f"/jobs/{job_id.hex()}/model"
        return self.get(ModelMessage, path, takes=takes.value, weights=weights.value).value()

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
        if (panel is None) == (not evaluation):
            raise InvalidTask("expected exactly one of evaluation and panel")
        body = _parse_body(
            CalibrateModel,
            {
                "evaluation": evaluation,
                "panel": None if panel is None else b64encode(panel).decode(),
                "takes": takes.value,
                "weights": weights.value,
            },
        )
        path = f"/jobs/{job_id.hex()}/calibration"
        return self.post(CalibratedModelMessage, path, body, is_once=True).to_calibrated_model()

    # Measurements

    def aggregate(
        self,
        *,
        values: Sequence[str] = (),
        histograms: Sequence[str] = (),
        group_by: Sequence[str] = (),
        query_id: str = "",
        **asked: Any,
    ) -> AggregateResult:
        """Sum values over groups of a dataset's reports, repeating the request under one id."""
        lists = {"values": list(values), "histograms": list(histograms), "group_by": list(group_by)}
        # What was not asked keeps the API's default, also one that a newer server has
        given = {name: value for name, value in {**lists, **asked}.items() if value is not None}
        return self._query(ResultMessage.value, ResultMessage, "/queries", AskQuery, given, query_id=query_id)

    def evaluate(
        self,
        model: bytes | None = None,
        *,
        job: str = "",
        head: str = "",
        weights: ModelWeights = ModelWeights.LATEST,
        bins: int = DEFAULT_BINS,
        epsilon: float | None = None,
        dataset: str = "",
        query_id: str = "",
    ) -> EvaluationResult:
        """Evaluate a model on a dataset's reports, repeating the request under one id."""
        check_evaluated(model, job, head, weights)
        file = None if model is None else b64encode(model).decode()
        given = {
            "model": file,
            "job": job,
            "head": head,
            "weights": weights,
            "bins": bins,
            "epsilon": epsilon,
            "dataset": dataset,
        }
        return self._query(
            EvaluationMessage.value,
            EvaluationMessage,
            "/evaluations",
            AskEvaluation,
            given,
            query_id=query_id,
        )

    def repeat_aggregate(self, query: str) -> AggregateResult:
        """Return the stored answer to an earlier query again."""
        sent = _require_answer(self.get(QueryDetail, _query_path("queries", query)).result)
        with reading_answer():
            return sent.value()

    def repeat_evaluate(self, query: str) -> EvaluationResult:
        """Return a stored evaluation again."""
        sent = _require_answer(self.get(EvaluationDetail, _query_path("evaluations", query)).result)
        with reading_answer():
            return sent.value()

    def queries(self, *, latest: int | None = None) -> tuple[QuerySummary, ...]:
        """Return all queries and evaluations, or so many of the latest ones, oldest first."""
        paths = ("/queries", "/evaluations")
        found = [one.value() for path in paths for one in self._list(QueryItem, path, latest=latest)]
        # Two lists of the API, one of ours
        ordered = sorted(found, key=lambda one: one.asked_at)
        return tuple(ordered if latest is None else ordered[-latest:])

    # Access and state

    def statements(self, task: str = "") -> tuple[Evidence, ...]:
        """Return what both helpers say of each job and query of a task."""
        found = self.get(EvidenceList, f"/tasks/{self.task(task).stored.task_id.hex()}/statements")
        with reading_answer():
            return tuple(one.value() for one in found.items)

    def create_token(self, scope: Scope, *, name: str, days: float) -> str:
        """Create a token below the scope of the one that is used here, and return its secret."""
        body = _parse_body(CreateToken, {"scope": scope, "name": name, "days": days})
        return self.post(TokenMessage, "/tokens", body).token

    def tokens(self) -> tuple[GrantSummary, ...]:
        """Return tokens and logged-in browsers, oldest first."""
        return tuple(one.value() for one in self.get(GrantsMessage, "/tokens").items)

    def revoke_token(self, token: str) -> GrantSummary:
        """Revoke one token or session, with immediate effect."""
        # Before it becomes part of a path, where a slash would name another act
        if not token or "/" in token or token in (".", ".."):
            raise InvalidTask(
                f"the token is {token!r}, which no path of a URL holds: give the start of its id, from "
                "`adserver token list`"
            )
        path = quote(token, safe="", errors="replace")
        return self.post(GrantMessage, f"/tokens/{path}/revoke").value()

    def audit_log(
        self, *, after: int = -1, limit: int = 1_000, is_newest: bool = False
    ) -> tuple[AuditEntry, ...]:
        """Return entries of the audit log."""
        with reading_answer():
            page = self.get(AuditPage, "/audit-log", after=after, limit=limit, newest=is_newest)
            return tuple(one.value() for one in page.items)

    def intake(self) -> IntakeSummary:
        """Return the number of reports by outcome since the server started."""
        return self._brief.get(IntakeMessage, "/intake").value()

    def helpers(self) -> tuple[HelperSummary, HelperSummary]:
        """Return the state of both helpers, as the server saw them last."""
        with reading_answer():
            first, second = self._brief.get(HelpersMessage, "/helpers").helpers
            if (first.role, second.role) != (0, 1):
                raise ValueError(f"expected helpers 0 and 1, got {first.role} and {second.role}")
            return first.value(), second.value()

    @property
    def _brief(self) -> Self:
        """The same ad server for what it has at hand, which is not waited for as long as a computation."""
        return replace(self, timeout_s=min(self.timeout_s, _BRIEF_S))

    def _list(self, kind: type[_ItemT], path: str, *, latest: int | None = None) -> list[_ItemT]:
        """Return every item of a list, or so many of the latest ones, oldest first."""
        pages = self.pages(ListPage[kind], path, limit=_ITEMS)  # type: ignore[valid-type]
        # The API lists the newest first, page by page as they are read
        return [*islice((one for page in pages for one in page.items), latest)][::-1]

    def _repeat(self, kind: type[_MessageT], path: str, body: RequestBody) -> _MessageT:
        """Repeat a request, which is carried out once, until an answer arrives."""
        return with_retries(lambda: self.post(kind, path, body, is_once=True), self.backoff)

    def _query(
        self,
        read: Callable[[_MessageT], _ResultT],
        kind: type[_MessageT],
        path: str,
        body: type[RequestBody],
        given: Mapping[str, Any],
        *,
        query_id: str,
    ) -> _ResultT:
        """Repeat a query until an answer arrives, always under one id, so that it is charged once."""
        # Drawn here and not by the server, so that a lost answer can be asked for again
        named = query_id or os.urandom(QUERY_ID_BYTES).hex()
        try:
            sent = self._repeat(kind, path, _parse_body(body, {**given, "query_id": named}))
            with reading_answer():
                return read(sent)
        except HelperUnavailable as away:
            if named in str(away):  # the ad server has said so
                raise
            raise HelperUnavailable(
                f"{away}; repeat the same request with query id {named}: it is charged only once"
            ) from None
        except JobRefused as refusal:
            if refusal.reason is not JobReason.BAD_ANSWER:
                raise
            # It may have been charged, and its answer kept
            raise JobRefused(
                JobReason.BAD_ANSWER,
                f"{refusal}; the same request with query id {named} is charged only once",
            ) from None


def _body_of(kind: Any, asked: Any) -> Any:
    """Return a request in the form in which it is sent.

    Raises:
        InvalidTask: a value is of another type, or out of range.
    """
    try:
        return kind.of(asked)
    except ValidationError as error:
        raise InvalidTask(first_fault(error)) from None


def _safe_id(prefix: str, missing: JobReason) -> str:
    """Check the typed start of an id before it enters a path.

    Raises:
        JobRefused(missing): it is not hexadecimal.
    """
    if not prefix or not set(prefix) <= _DIGITS:
        raise JobRefused(
            missing, f"the id is {prefix!r}: expected hexadecimal digits, a whole id or its start"
        )
    return prefix


def _quote_job(typed: str) -> str:
    """Quote the start of a job's id or name for a path.

    Raises:
        JobRefused(UNKNOWN_JOB): it would become another path.
    """
    if "/" in typed or typed in (".", ".."):
        raise JobRefused(
            JobReason.UNKNOWN_JOB,
            f"the job is {typed!r}, which no path of a URL holds: give the start of its id, from "
            "`adserver job list`",
        )
    return quote(typed, safe="", errors="replace")


def _query_path(kind: str, query: str) -> str:
    return f"/{kind}/{_safe_id(query, JobReason.UNKNOWN_QUERY)}"


def _require_answer(result: _MessageT | None) -> _MessageT:
    if result is None:
        raise InvalidTask("that ad server has no stored answer: repeat the query on its machine, at no cost")
    return result


def _parse_body(kind: type[_BodyT], given: Mapping[str, Any]) -> _BodyT:
    """Return a request of plain values.

    Raises:
        InvalidTask: one is of another type, or out of range.
    """
    # By way of JSON, so that plain values are checked as strictly as what the server reads
    return kind.read(to_json(given))


def _job(sent: JobItem) -> JobRecord:
    with reading_answer():
        return sent.value()
