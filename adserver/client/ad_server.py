"""Every operation of an ad server that a command, a program, the admin API or the dashboard may ask for.

`LocalAdServer` (adserver.client.local) does them over a database and two helpers; `RemoteAdServer`
(adserver.client.remote) asks the admin API of another ad server to do them. Each face uses this protocol
alone, so that all of them offer the same; a test looks for each operation in every face.

Loading this module loads no other room: `adserver --help` and `adserver job show` depend on that.

An id is typed as the start of its hexadecimal form, a job also as the start of its name. An empty one names
the only task, dataset or job there is. Every operation may raise `HelperUnavailable`: what it depends on does
not answer, and it may be repeated.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, overload

from adserver.records.defaults import DEFAULT_BINS
from adserver.records.exported_model import CalibratedModel, ExportedModel, InputForm, ModelWeights
from maskedlark.frozen import frozen
from maskedlark.privacy.relation import Relation

# Only to name types: see above, no other room is loaded
if TYPE_CHECKING:
    from adserver.budgets.planner import OnProgress
    from adserver.collecting.sealing import SealingProgress
    from adserver.measuring.evaluation_result import EvaluationResult
    from adserver.measuring.result import AggregateResult
    from adserver.records.access import Scope
    from adserver.records.job_record import JobRecord
    from adserver.records.round_figures import RoundFigures
    from adserver.records.submissions import AnySubmission, FederatedSubmission, PlanRequest
    from adserver.records.summaries import GrantSummary, HelperSummary, IntakeSummary, QuerySummary
    from adserver.store.datasets import Dataset
    from adserver.store.reports import ReportCounts
    from adserver.store.tasks import StoredTask
    from adserver.training.federated.forecast import FederatedForecast
    from adserver.training.planning import Planned
    from maskedlark.audit_log import AuditEntry
    from maskedlark.encoding.encoder import Encoder
    from maskedlark.federated.local_forecast import LocalForecast
    from maskedlark.releases.budget import DatasetBudget, PlannedJob
    from maskedlark.releases.statement import Evidence

Domains: TypeAlias = Mapping[str, Sequence[str | int] | Mapping[str, int]]
"""The values of keys: a list of categories or codes, or {"first": code, "last": code}."""


@frozen
class CountedTask:
    """A task and how many reports it has."""

    stored: "StoredTask"
    counts: "ReportCounts"


class AdServer(Protocol):
    """An ad server, on this machine or elsewhere. Use it in a `with`, or close it."""

    def __enter__(self) -> Self:
        """Return this ad server."""

    def __exit__(self, *_: object) -> None:
        """Close it."""

    def close(self) -> None:
        """Close connections to helpers, database or admin API. Idempotent."""

    # Tasks

    def create_task(self, fields: Mapping[str, Any], encoder: "Encoder | None") -> "StoredTask":
        """Create a task that both helpers check against their floors and sign.

        Guarantees: equal fields are the same task, so the call may be repeated when an answer is lost.

        Args:
            fields: Every field of `Task` except the helpers, as `adserver.client.tasks.task_fields` returns.
            encoder: The encoder that the fields name by its digest; browsers are served it.

        Raises:
            InvalidTask: a setting is wrong, or a helper refuses it.
        """

    def tasks(self) -> "tuple[CountedTask, ...]":
        """Return all tasks, oldest first."""

    def task(self, task: str = "") -> CountedTask:
        """Return one task; raise JobRefused(UNKNOWN_TASK)."""

    def encoder(self, task: str = "") -> "Encoder | None":
        """Return the encoder that a task names, or None; raise JobRefused(UNKNOWN_TASK)."""

    def refresh_keys(self) -> int:
        """Put the helpers' current HPKE keys into the bundles that browsers fetch; return how many changed.

        A helper that does not answer keeps its old keys. A running server does this every minute.
        """

    # Datasets

    def seal(
        self,
        task: str = "",
        *,
        max_reports: int | None = None,
        allow_small: bool = False,
        progress: "SealingProgress | None" = None,
    ) -> "Dataset":
        """Seal the waiting reports of a task into a dataset at both helpers; return it once it is committed.

        A dataset that an interrupted run began to commit is finished first.

        Args:
            task: The task.
            max_reports: Take at most so many reports, oldest first.
            allow_small: Also seal fewer reports than the task's min_batch_size: every round will be noise.
            progress: Called as the helpers prepare; a remote ad server reports none.

        Raises:
            JobRefused, InvalidTask: too few reports wait, or a helper refuses.
        """

    def datasets(self) -> "tuple[Dataset, ...]":
        """Return all datasets, oldest first, in whatever state."""

    def dataset(self, dataset: str = "") -> "Dataset":
        """Return one dataset; raise JobRefused(UNKNOWN_DATASET)."""

    def abandon(self, dataset: str) -> "Dataset":
        """Abandon a dataset that a helper refuses to commit, so that its reports wait to be sealed again.

        Reports that the other helper committed are used up: it drops them from the next dataset.

        Returns:
            The dataset as it was; `received` of its reports wait again.

        Raises:
            JobRefused(UNKNOWN_DATASET): no dataset has this id.
            JobRefused(WRONG_STATE): both helpers have committed it.
        """

    def budgets(
        self,
        *,
        task: str = "",
        dataset: str = "",
        planned: "PlannedJob | None" = None,
        relation: Relation = Relation.ZERO,
    ) -> "tuple[DatasetBudget, ...]":
        """Return both budgets of committed datasets, oldest first, then of people in tasks of updates.

        Args:
            task: Return only budgets of this task; empty: of all.
            dataset: Return only the budgets of this dataset; empty: of all.
            planned: Also forecast the budgets after such a job.
            relation: LABEL: also state what the charges so far cost if one real label is to be distinguished
                from another.

        Raises:
            JobRefused(UNKNOWN_TASK, UNKNOWN_DATASET)
            InvalidTask: the planned job's numbers are out of range.
        """

    # Jobs: over a dataset's labels, on devices with helpers, on devices without helpers

    @overload
    def plan(self, request: "PlanRequest", progress: "OnProgress | None" = None) -> "Planned": ...
    @overload
    def plan(self, request: "FederatedSubmission") -> "FederatedForecast | LocalForecast": ...
    def plan(
        self,
        request: "PlanRequest | FederatedSubmission",
        progress: "OnProgress | None" = None,
    ) -> "Planned | FederatedForecast | LocalForecast":
        """Find what fits the budgets next to everything that is spent or reserved. It spends nothing.

        A job without helpers has no budget here: its forecast is what it costs a person, and its noise.

        Raises:
            InvalidModel, InvalidTask, JobRefused: what is wrong, or that nothing fits.
        """

    def submit(self, submission: "AnySubmission") -> "JobRecord":
        """Check a job, queue it for `adserver serve` (a job without helpers: open it to devices); return it.

        Raises:
            InvalidModel, InvalidTask, JobRefused: what is wrong, before anything is spent.
        """

    def jobs(self) -> "tuple[JobRecord, ...]":
        """Return all jobs of every kind, oldest first."""

    def job(self, job: str = "") -> "JobRecord":
        """Return one job; raise JobRefused(UNKNOWN_JOB)."""

    def history(self, job_id: bytes, *, after_rounds: int = -1) -> "tuple[RoundFigures, ...]":
        """Return the figures of a job's rounds after `after_rounds`, in order, once each."""

    def cancel(self, job_id: bytes) -> None:
        """Stop a job for good and release the budget of rounds that were not run.

        A job without helpers is closed to devices; it keeps its model and may be resumed.

        Raises:
            JobRefused(UNKNOWN_JOB, WRONG_STATE)
        """

    def close_lost_job(self, job_id: bytes) -> int:
        """Close a job at both helpers that this ad server no longer has, as after a backup was restored.

        The budget of its rounds that were not run is released; the others stay charged. Idempotent.

        Args:
            job_id: The whole id.

        Returns:
            How many rounds stay charged, at the helper that answered more.

        Raises:
            JobRefused(WRONG_STATE): this ad server has the job: cancel it.
            JobRefused(UNKNOWN_JOB): no helper knows it in a task of this ad server.
        """

    def resume(self, job_id: bytes) -> None:
        """Queue a refused or failed job again, at the round where it stopped; reopen one without helpers.

        Raises:
            JobRefused(UNKNOWN_JOB, WRONG_STATE)
        """

    def export(
        self,
        job_id: bytes,
        takes: InputForm = InputForm.SCALED,
        weights: ModelWeights = ModelWeights.LATEST,
    ) -> ExportedModel:
        """Return a job's model whose graph takes the input; columns need the task's encoder.

        Args:
            job_id: The job.
            takes: What the graph takes.
            weights: Those after its last round, or of the round that did best on its evaluation set.

        Raises:
            JobRefused(WRONG_STATE): no round is done yet, or of the best weights: none was evaluated.
            InvalidTask: columns are wanted, and the task names no encoder; or the best weights of a job on
                devices.
        """

    def calibrate(
        self,
        job_id: bytes,
        *,
        evaluation: str = "",
        panel: bytes | None = None,
        takes: InputForm = InputForm.SCALED,
        weights: ModelWeights = ModelWeights.LATEST,
    ) -> CalibratedModel:
        """Return a job's model with its logit scaled and shifted so that predictions add up.

        The two numbers are fitted to an earlier evaluation of the same weights, which costs nothing again, or
        to labelled records of one's own.

        Args:
            job_id: A job over a dataset, whose model predicts the probability of one label.
            evaluation: The start of the evaluation's id; or
            panel: An .npz file of features and labels.
            takes: As for `export`.
            weights: As for `export`.

        Raises:
            JobRefused: WRONG_STATE, no round is done yet; MALFORMED, the panel does not fit the model.
            InvalidTask: the evaluation was of another model, the model predicts no probability of one label,
                or it does not rank the records.
        """

    # Measurements

    def aggregate(
        self,
        *,
        values: Sequence[str] = (),
        histograms: Sequence[str] = (),
        group_by: Sequence[str] = (),
        where: Mapping[str, str | int] | None = None,
        domains: Domains | None = None,
        discover: bool = False,
        roll_up: bool = False,
        epsilon: float | None = None,
        dataset: str = "",
        query_id: str = "",
    ) -> "AggregateResult":
        """Sum values over groups of a dataset's reports, charged to its budget. See `Client.aggregate`.

        Guarantees: under one `query_id` the same request has the same answer and is charged once, also when
        it is repeated by another client.

        Raises:
            JobRefused(QUERY_CHANGED): something else was asked under the id.
            MaskedLarkError: what is wrong with the request, or why it is refused.
        """

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
    ) -> "EvaluationResult":
        """Evaluate an ONNX file, or a job's weights, on a dataset's reports, charged to its budget.

        Of a job with several heads, one `head`; a model may then be given with the job, whose table is used.

        Guarantees: as `aggregate`.

        Raises:
            InvalidTask: no model and no job is given, or both without a head; the job has no such head;
                or a model and the best weights, which a job has.
            JobRefused(WRONG_STATE): the job has no such weights yet.
            MaskedLarkError: as `aggregate`.
        """

    def repeat_aggregate(self, query: str) -> "AggregateResult":
        """Return the answer to an earlier query again; it costs nothing. Raises JobRefused(UNKNOWN_QUERY)."""

    def repeat_evaluate(self, query: str) -> "EvaluationResult":
        """Return an earlier evaluation again; it costs nothing. Raises JobRefused(UNKNOWN_QUERY)."""

    def queries(self, *, latest: int | None = None) -> "tuple[QuerySummary, ...]":
        """Return all queries and evaluations, or so many of the latest ones, oldest first."""

    def statements(self, task: str = "") -> "tuple[Evidence, ...]":
        """Return what both helpers say, and signed, of each job and query of a task that they charged.

        It charges nothing. `Evidence.encode` gives the file that anyone verifies offline.

        Raises:
            JobRefused(UNKNOWN_TASK)
            JobRefused(BAD_ANSWER): a helper's statement is not signed by it, or not of the task.
        """

    # Access and state

    def create_token(self, scope: "Scope", *, name: str, days: float) -> str:
        """Create a token for the admin API and return its secret, which is not stored.

        Over the admin API this needs a grant of scope `tokens`, and the new token is below that scope and
        ends no later than the grant: a leaked token cannot make one that outlives it.

        Raises:
            InvalidTask: the scope or the days are more than the caller's grant allows.
        """

    def tokens(self) -> "tuple[GrantSummary, ...]":
        """Return tokens and logged-in browsers that have not ended, oldest first, without their secrets.

        Over the admin API this needs a grant of scope `tokens`.
        """

    def revoke_token(self, token: str) -> "GrantSummary":
        """Revoke the one token or session of this name, or whose id starts so, at once; return it.

        Over the admin API this needs a grant of scope `tokens`.

        Raises:
            InvalidTask: none does, or several do.
        """

    def audit_log(
        self, *, after: int = -1, limit: int = 1_000, is_newest: bool = False
    ) -> "tuple[AuditEntry, ...]":
        """Return up to `limit` entries, at most 1,000, of the audit log with numbers above `after`, in order.

        With `is_newest` they are the newest of these, else the oldest. Over the admin API this needs a grant
        of scope `tokens`.

        Raises:
            InvalidTask: a row of the log was changed.
        """

    def intake(self) -> "IntakeSummary":
        """Return the number of reports by outcome since the server started.

        Raises:
            InvalidTask: this is a data folder, whose counts only the running server knows.
        """

    def helpers(self) -> "tuple[HelperSummary, HelperSummary]":
        """Return the state of both helpers, by role: what a running server saw last, or asked now."""
