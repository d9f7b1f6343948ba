"""A job as it is stored, and as a row of its table becomes one."""

from typing import Any, Final, Protocol

from adserver.records.job_state import JobState
from adserver.records.local_plan import LocalPlan
from adserver.records.plans import AnyPlan, read_plan
from adserver.records.round_figures import RoundFigures
from maskedlark.errors import JobReason, ModelReason
from maskedlark.frozen import frozen
from maskedlark.terminal.plural import plural

# What stops a job for what it is or has done: the same round would be refused again.
_LASTING: Final = frozenset(ModelReason) | {
    JobReason.TASK_EXPIRED,
    JobReason.DATASET_TOO_LARGE,
    JobReason.DATASET_EMPTY,
    JobReason.DATASET_CHANGED,
    JobReason.REPORT_ALREADY_USED,
    JobReason.JOB_CHANGED,
    JobReason.JOB_CLOSED,
    JobReason.TOO_MANY_JOBS,
    JobReason.ROUND_CHANGED,
    JobReason.ROUND_BEYOND_PLAN,
    JobReason.OVERFLOW,
    JobReason.NOISE_OUT_OF_RANGE,
    JobReason.BUDGET_EXHAUSTED,
    JobReason.SUM_OUT_OF_RANGE,
    JobReason.TOO_LARGE,
}


@frozen
class Stop:
    """Why a job stopped, or what it waits for.

    Attributes:
        reason: One word for programs: the value of a reason enum, `helper_unavailable` or `internal_error`.
        cause: For people.
    """

    reason: str
    cause: str

    @property
    def is_lasting(self) -> bool:
        """Whether the job would stop at the same again, whatever others mend: only a new job helps."""
        return self.reason in {one.value for one in _LASTING}


class _JobRow(Protocol):
    """A row of a table, of whatever read it."""

    def __getitem__(self, name: str, /) -> Any:
        """Return the value of a column."""


@frozen
class JobRecord:
    """A job as stored.

    Attributes:
        plan: What was submitted.
        submitted_at_s: Unix seconds.
        state: Where it is in its life.
        stop: Why it stopped or waits; None while all is well.
        rounds_done: Rounds whose step was taken.
        is_closed: Whether both helpers know that no more rounds will come.
        rounds_charged: How many rounds the helpers answered in all, as they said when the job was closed;
            None before.
        lease_until_s: How long it belongs to the worker that runs it.
        name: What its owner calls it; only the ad server has it.
        note: What its owner wants to remember of it; only the ad server has it.
        updates: Without helpers: how many updates were accepted; None with them.
        in_flight: Of draw and discard: how many updates return between a draw and its return, by a running
            mean.
        eval_set_digest: The SHA-256 of its evaluation set's rows, however the npz is; None without one.
    """

    plan: AnyPlan
    submitted_at_s: float
    state: JobState
    stop: Stop | None
    rounds_done: int
    is_closed: bool
    rounds_charged: int | None
    lease_until_s: float
    name: str = ""
    note: str = ""
    updates: int | None = None
    in_flight: float | None = None
    eval_set_digest: bytes | None = None

    @property
    def job_id(self) -> bytes:
        """16 bytes."""
        return self.plan.job.job_id

    @property
    def rounds(self) -> int | None:
        """The number of the job's rounds; None if it goes on until it is closed."""
        return self.plan.rounds if isinstance(self.plan, LocalPlan) else self.plan.job.rounds

    @property
    def task_name(self) -> str:
        """The name of its task; empty without helpers."""
        return "" if self.plan.task is None else self.plan.task.name

    @property
    def progress(self) -> str:
        """Its progress for people to read: `3 of 10 rounds`, or `57 updates` of a job without rounds."""
        return (
            plural(self.updates or 0, "update")
            if self.rounds is None
            else f"{self.rounds_done} of {plural(self.rounds, 'round')}"
        )

    @classmethod
    def from_row(cls, row: _JobRow) -> "JobRecord":
        """Convert a row of `jobs` to a record."""
        return cls(
            plan=read_plan(bytes(row["plan"])),
            submitted_at_s=row["submitted_at_s"],
            state=JobState(row["state"]),
            stop=Stop(reason=row["reason"], cause=row["cause"]) if row["reason"] is not None else None,
            rounds_done=row["rounds_done"],
            is_closed=bool(row["is_closed"]),  # SQLite itself has numbers only
            rounds_charged=row["rounds_charged"],
            lease_until_s=row["lease_until_s"],
            name=row["name"],
            note=row["note"],
            updates=row["updates"],
            in_flight=row["in_flight"],
            eval_set_digest=None if row["eval_set_digest"] is None else bytes(row["eval_set_digest"]),
        )


class SeenJobs(Protocol):
    """The jobs of an ad server, to look at."""

    def get(self, job_id: bytes) -> JobRecord:
        """Return one job."""

    def find(self, prefix: str) -> JobRecord:
        """Return the one job whose id starts with some hex digits."""

    def all(self) -> tuple[JobRecord, ...]:
        """Return every job, oldest first."""

    def history(self, job_id: bytes, *, after_rounds: int = -1) -> tuple[RoundFigures, ...]:
        """Return the figures of a job's rounds, in order; only those after `after_rounds`."""
