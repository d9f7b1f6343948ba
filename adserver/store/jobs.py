"""The jobs of the ad server, as stored: what people and programs ask of them.

`adserver.store.leases` is the workers' half.

Every change of state goes through `change_state`, which asks `adserver.records.job_state` in one transaction.
"""

from collections.abc import Mapping
from dataclasses import astuple, fields
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Engine, RowMapping, insert, select, update

from adserver.records.federated_plan import AnyPlan, FederatedPlan
from adserver.records.job_state import JobEvent, JobState, after
from adserver.records.round_figures import RoundFigures
from adserver.records.training_plan import TrainingPlan
from adserver.store.database import Clock, find_id
from adserver.store.schema import job_rounds, jobs
from maskedlark.canonical import decode, encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.runtime.database import reading

_FIGURES: Final = tuple(field.name for field in fields(RoundFigures))


@frozen
class Stop:
    """Why a job stopped, or what it waits for.

    Attributes:
        reason: One word for programs: the value of a reason enum, `helper_unavailable` or `internal_error`.
        cause: For people.
    """

    reason: str
    cause: str


@frozen
class JobRecord:
    """A job as stored.

    Attributes:
        plan: What was submitted.
        submitted_at_s: Unix seconds.
        state: Where it is in its life.
        stop: Why it stopped or waits; None while all is well.
        rounds_done: Rounds whose step was taken.
        is_closed: Whether both helpers were told that no more rounds will come.
        rounds_charged: How many rounds the helpers answered in all, as they said when the job was closed;
            None before.
        lease_until_s: How long it belongs to the worker that runs it.
    """

    plan: AnyPlan
    submitted_at_s: float
    state: JobState
    stop: Stop | None
    rounds_done: int
    is_closed: bool
    rounds_charged: int | None
    lease_until_s: float

    @property
    def job_id(self) -> bytes:
        """16 bytes."""
        return self.plan.job.job_id


class JobStore:
    """Submit, look at, cancel and resume jobs. Any process that reaches the database may."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def submit(self, plan: AnyPlan) -> None:
        """Queue a job; its files are in its folder already."""
        row = {
            "job_id": plan.job.job_id,
            "plan": encode(plan),
            "submitted_at_s": self._clock(),
            "state": JobState.QUEUED,
            "rounds_done": 0,
            "is_closed": False,
            "lease_until_s": 0.0,
        }
        with self._engine.begin() as connection:
            connection.execute(insert(jobs).values(row))

    def get(self, job_id: bytes) -> JobRecord:
        """One job.

        Raises:
            JobRefused(UNKNOWN_JOB)
        """
        with reading(self._engine) as connection:
            return read_job(connection, job_id)

    def find(self, prefix: str) -> JobRecord:
        """The one job whose id starts with some hex digits.

        Raises:
            JobRefused(UNKNOWN_JOB): none or several do.
        """
        with reading(self._engine) as connection:
            return read_job(
                connection, find_id(connection, jobs.c.job_id, prefix, missing=JobReason.UNKNOWN_JOB)
            )

    def all(self) -> tuple[JobRecord, ...]:
        """Every job, oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(jobs).order_by(jobs.c.submitted_at_s, jobs.c.job_id)).mappings()
            return tuple(record_from_row(row) for row in rows)

    def history(self, job_id: bytes, *, after_rounds: int = -1) -> tuple[RoundFigures, ...]:
        """The figures of a job's rounds, in order, each round once; only those after `after_rounds`."""
        asked = (
            select(*(job_rounds.c[name] for name in _FIGURES))
            .where(job_rounds.c.job_id == job_id, job_rounds.c.rounds_done > after_rounds)
            .order_by(job_rounds.c.rounds_done)
        )
        with reading(self._engine) as connection:
            return tuple(RoundFigures(**row) for row in connection.execute(asked).mappings())

    def cancel(self, job_id: bytes) -> None:
        """Stop a job for good. A worker that runs it notices within a moment.

        The helpers are told by a worker, too.

        Raises:
            JobRefused(UNKNOWN_JOB, WRONG_STATE)
        """
        with self._engine.begin() as connection:
            change_state(connection, job_id, JobEvent.CANCEL, lease_owner=None, lease_until_s=0.0)

    def resume(self, job_id: bytes) -> None:
        """Queue a refused or failed job again: it goes on with the round that it stopped at.

        Raises:
            JobRefused(UNKNOWN_JOB, WRONG_STATE)
        """
        with self._engine.begin() as connection:
            change_state(connection, job_id, JobEvent.RESUME, reason=None, cause=None, workers_lost=0)


def read_job(connection: Connection, job_id: bytes, *, to_change: bool = False) -> JobRecord:
    """One job; `to_change` keeps others from changing it until the transaction ends.

    Raises:
        JobRefused(UNKNOWN_JOB)
    """
    asked = select(jobs).where(jobs.c.job_id == job_id)
    row = connection.execute(asked.with_for_update() if to_change else asked).mappings().one_or_none()
    if row is None:
        raise JobRefused(JobReason.UNKNOWN_JOB, f"there is no job {job_id.hex()}")
    return record_from_row(row)


def change_state(connection: Connection, job_id: bytes, event: JobEvent, **columns: Any) -> None:
    """Let an event happen to a job, and set other columns with it.

    Raises:
        JobRefused(UNKNOWN_JOB, WRONG_STATE)
    """
    state = after(read_job(connection, job_id, to_change=True).state, event)
    connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(state=state, **columns))


def figures_row(job_id: bytes, figures: RoundFigures) -> Mapping[str, Any]:
    """The row of `job_rounds` that holds a round's figures."""
    return {"job_id": job_id, **dict(zip(_FIGURES, astuple(figures), strict=True))}


def record_from_row(row: RowMapping) -> JobRecord:
    """A row of `jobs` as a record."""
    return JobRecord(
        plan=_plan(bytes(row["plan"])),
        submitted_at_s=row["submitted_at_s"],
        state=JobState(row["state"]),
        stop=Stop(reason=row["reason"], cause=row["cause"]) if row["reason"] is not None else None,
        rounds_done=row["rounds_done"],
        is_closed=row["is_closed"],
        rounds_charged=row["rounds_charged"],
        lease_until_s=row["lease_until_s"],
    )


@lru_cache(maxsize=256)
def _plan(encoded: bytes) -> AnyPlan:
    """A stored plan of either kind: a federated job is under a name of its own.

    Who follows a job reads its row, with the same plan, several times a second.
    """
    if b'"federated":' in encoded[:64]:
        return decode(FederatedPlan, encoded)
    return decode(TrainingPlan, encoded)
