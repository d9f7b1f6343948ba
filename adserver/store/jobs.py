"""The jobs of the ad server, as stored: what people and programs ask of them.

`adserver.store.leases` is the workers' half.

Every change of state goes through `change_state`, which asks `adserver.records.job_state` in one transaction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any, Final

from sqlalchemy import Connection, Engine, Select, func, insert, or_, select, update

from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobEvent, JobState
from adserver.records.local_plan import LocalPlan
from adserver.records.plans import AnyPlan, plan_columns
from adserver.records.round_figures import RoundFigures, best_evaluated
from adserver.records.typed_ids import job_search, the_job
from adserver.store.audit_log import log_act
from adserver.store.database import Clock
from adserver.store.paging import PageMarker, newest_first
from adserver.store.schema import job_rounds, jobs
from maskedlark.audit_log import AuditAct
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.runtime.database import reading

_FIGURES: Final = tuple(field.name for field in fields(RoundFigures))
_COLUMNS: Final = tuple(job_rounds.c[name] for name in _FIGURES)


@frozen
class JobStamp:
    """What changes with the use that some jobs make of a budget.

    Attributes:
        rounds: Done of all.
        uses: With a job that comes, ends, or is closed at the helpers.
    """

    rounds: int
    uses: tuple[int, ...]


class JobStore:
    """Submit, look at, cancel and resume jobs. Any process that reaches the database may."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def submit(
        self,
        plan: AnyPlan,
        *,
        name: str = "",
        note: str = "",
        eval_set_digest: bytes | None = None,
        add_files: Callable[[Connection], None] | None = None,
    ) -> None:
        """Queue a job, or open one without helpers to devices.

        Its files or its first model are there already, or `add_files` adds them in the same transaction.
        """
        is_local = isinstance(plan, LocalPlan)
        row = {
            "job_id": plan.job.job_id,
            "plan": encode(plan),
            "submitted_at_s": self._clock(),
            "state": JobState.OPEN if is_local else JobState.QUEUED,
            "rounds_done": 0,
            "is_closed": is_local,  # helpers do not know of it
            "updates": 0 if is_local else None,
            "in_flight": 0.0 if is_local else None,
            "lease_until_s": 0.0,
            "name": name,
            "note": note,
            "eval_set_digest": eval_set_digest,
            **plan_columns(plan),
        }
        with self._engine.begin() as connection:
            connection.execute(insert(jobs).values(row))
            if add_files is not None:
                add_files(connection)
            # Within the transaction: an act is in the log if and only if it has happened.
            about = {"job": plan.job.job_id, **plan_columns(plan)}
            named = {name: one.hex() for name, one in about.items() if isinstance(one, bytes)}
            log_act(connection, AuditAct.SUBMIT_JOB, **named)

    def get(self, job_id: bytes) -> JobRecord:
        """Return one job.

        Raises:
            JobRefused(UNKNOWN_JOB)
        """
        with reading(self._engine) as connection:
            return read_job(connection, job_id)

    def holds(self, job_id: bytes) -> bool:
        """Return whether there is a job of this id."""
        with reading(self._engine) as connection:
            return (
                connection.execute(select(jobs.c.job_id).where(jobs.c.job_id == job_id)).first() is not None
            )

    def find(self, prefix: str) -> JobRecord:
        """Return the one job whose id or name starts with a text; see `the_job`.

        Raises:
            JobRefused(UNKNOWN_JOB): none or several do.
        """
        low, high, name = job_search(prefix)
        # Not LIKE, which ignores case on SQLite alone
        is_named = (func.substr(jobs.c.name, 1, len(name)) == name) & (name != "")
        is_meant = or_(jobs.c.job_id.between(low, high), is_named)
        search = select(jobs.c.job_id, jobs.c.name).where(is_meant)
        search = search.order_by(jobs.c.submitted_at_s, jobs.c.job_id).limit(None if prefix else 2)
        with reading(self._engine) as connection:
            found = [(bytes(job_id), name) for job_id, name in connection.execute(search)]
            return read_job(connection, the_job(found, prefix))

    def all(self) -> tuple[JobRecord, ...]:
        """Return every job, oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(jobs).order_by(jobs.c.submitted_at_s, jobs.c.job_id)).mappings()
            return tuple(JobRecord.from_row(row) for row in rows)

    def page(
        self,
        *,
        limit: int,
        before: PageMarker | None = None,
        state: JobState | None = None,
        task_id: bytes | None = None,
    ) -> tuple[JobRecord, ...]:
        """Return up to `limit` jobs, newest first; optionally before a place, of a state, and of a task."""
        asked = newest_first(select(jobs), jobs.c.submitted_at_s, jobs.c.job_id, before=before, limit=limit)
        asked = asked if state is None else asked.where(jobs.c.state == state)
        asked = asked if task_id is None else asked.where(jobs.c.task_id == task_id)
        with reading(self._engine) as connection:
            return tuple(JobRecord.from_row(row) for row in connection.execute(asked).mappings())

    def newest_ids(self, state: JobState, *, limit: int) -> list[bytes]:
        """Return the ids of up to `limit` jobs in a state, newest first, without reading their plans."""
        asked = newest_first(
            select(jobs.c.job_id), jobs.c.submitted_at_s, jobs.c.job_id, before=None, limit=limit
        )
        with reading(self._engine) as connection:
            return list(map(bytes, connection.execute(asked.where(jobs.c.state == state)).scalars()))

    def counts(self) -> dict[JobState, int]:
        """Count the jobs in each state."""
        asked = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        with reading(self._engine) as connection:
            found = {JobState(state): int(count) for state, count in connection.execute(asked)}
        return {state: found.get(state, 0) for state in JobState}

    def stamps(self, task_ids: Sequence[bytes]) -> dict[tuple[bytes, bytes | None], JobStamp]:
        """Return, by task and dataset, a value that changes whenever a job's use of a budget changes."""
        asked = (
            select(
                jobs.c.task_id,
                jobs.c.dataset_id,
                func.sum(jobs.c.rounds_done),
                func.count(),
                # A job that was closed without a round differs from one that is not closed.
                func.sum(func.coalesce(jobs.c.rounds_charged, -1)),
                func.count().filter(jobs.c.is_closed),
            )
            .where(jobs.c.task_id.in_(task_ids))
            .group_by(jobs.c.task_id, jobs.c.dataset_id)
        )
        with reading(self._engine) as connection:
            return {
                (bytes(task), None if dataset is None else bytes(dataset)): JobStamp(
                    rounds=int(rounds), uses=tuple(map(int, uses))
                )
                for task, dataset, rounds, *uses in connection.execute(asked)
            }

    def of_task(self, task_id: bytes, dataset_ids: Sequence[bytes | None]) -> tuple[JobRecord, ...]:
        """Return a task's jobs over some of its datasets, oldest first; None means no dataset."""
        named = [one for one in dataset_ids if one is not None]
        is_of = jobs.c.dataset_id.in_(named)
        chosen = or_(is_of, jobs.c.dataset_id.is_(None)) if None in dataset_ids else is_of
        asked = select(jobs).where(jobs.c.task_id == task_id, chosen)
        with reading(self._engine) as connection:
            rows = connection.execute(asked.order_by(jobs.c.submitted_at_s, jobs.c.job_id)).mappings()
            return tuple(JobRecord.from_row(row) for row in rows)

    def has_trained(self, task_id: bytes, dataset_id: bytes) -> bool:
        """Return whether a round of any job was computed over a task's sealed dataset."""
        is_of = (jobs.c.task_id == task_id, jobs.c.dataset_id == dataset_id)
        asked = select(jobs.c.job_id).where(*is_of, jobs.c.rounds_done > 0).limit(1)
        with reading(self._engine) as connection:
            return connection.execute(asked).first() is not None

    def history(
        self, job_id: bytes, *, after_rounds: int = -1, limit: int | None = None
    ) -> tuple[RoundFigures, ...]:
        """Return the figures of a job's rounds, in order, once each; only those after `after_rounds`.

        At most `limit` of them, if it is given.
        """
        return self._figures(
            select(*_COLUMNS)
            .where(job_rounds.c.job_id == job_id, job_rounds.c.rounds_done > after_rounds)
            .limit(limit)
        )

    def figures_at(self, job_id: bytes, rounds_done: Sequence[int]) -> tuple[RoundFigures, ...]:
        """Return the figures of a job after these numbers of rounds, in order, where they exist."""
        return self._figures(
            select(*_COLUMNS).where(
                job_rounds.c.job_id == job_id, job_rounds.c.rounds_done.in_(sorted(rounds_done))
            )
        )

    def last_evaluated(self, job_id: bytes) -> RoundFigures | None:
        """Return the latest figures of a job with a loss."""
        # From the index of rounds downwards, since a job may have a million rounds and few evaluations.
        evaluated = (
            select(*_COLUMNS)
            .where(job_rounds.c.job_id == job_id, job_rounds.c.loss.is_not(None))
            .order_by(job_rounds.c.rounds_done.desc())
            .limit(1)
        )
        found = self._figures(evaluated)
        return found[0] if found else None

    def best_evaluated(self, job_id: bytes) -> RoundFigures | None:
        """Return the figures of the weights that a job keeps as its best."""
        is_evaluated = (job_rounds.c.job_id == job_id) & job_rounds.c.loss.is_not(None)
        return best_evaluated(self._figures(select(*_COLUMNS).where(is_evaluated)))

    def _figures(self, asked: Select[Any]) -> tuple[RoundFigures, ...]:
        with reading(self._engine) as connection:
            found = connection.execute(asked.order_by(job_rounds.c.rounds_done)).mappings()
            return tuple(RoundFigures(**row) for row in found)

    def cancel(self, job_id: bytes) -> None:
        """Stop a job for good, or close one without helpers to devices.

        A worker that runs it notices within a moment, and informs the helpers, too.

        Raises:
            JobRefused(UNKNOWN_JOB, WRONG_STATE)
        """
        with self._engine.begin() as connection:
            is_waiting = read_job(connection, job_id, to_change=True).state is JobState.WAITING
            # What it waited for is not why it ends
            no_cause = {"reason": None, "cause": None} if is_waiting else {}
            change_state(connection, job_id, JobEvent.CANCEL, lease_owner=None, lease_until_s=0.0, **no_cause)
            log_act(connection, AuditAct.CANCEL_JOB, job=job_id.hex())

    def resume(self, job_id: bytes) -> None:
        """Queue a refused or failed job again, or open a closed one: it goes on where it stopped.

        Raises:
            JobRefused(UNKNOWN_JOB, WRONG_STATE)
        """
        with self._engine.begin() as connection:
            # A person has looked at it, so the workers that died on it before count no more.
            change_state(connection, job_id, JobEvent.RESUME, reason=None, cause=None, workers_lost=0)
            log_act(connection, AuditAct.RESUME_JOB, job=job_id.hex())


def read_job(connection: Connection, job_id: bytes, *, to_change: bool = False) -> JobRecord:
    """Read one job; `to_change` locks it until the transaction ends.

    Raises:
        JobRefused(UNKNOWN_JOB)
    """
    asked = select(jobs).where(jobs.c.job_id == job_id)
    row = connection.execute(asked.with_for_update() if to_change else asked).mappings().one_or_none()
    if row is None:
        raise JobRefused(JobReason.UNKNOWN_JOB, f"there is no job {job_id.hex()}")
    return JobRecord.from_row(row)


def change_state(connection: Connection, job_id: bytes, event: JobEvent, **columns: Any) -> None:
    """Let an event happen to a job, and set other columns with it.

    Raises:
        JobRefused(UNKNOWN_JOB, WRONG_STATE)
    """
    state = read_job(connection, job_id, to_change=True).state.after(event)
    connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(state=state, **columns))


def figures_row(job_id: bytes, figures: RoundFigures) -> Mapping[str, Any]:
    """Return the row of `job_rounds` that holds a round's figures."""
    return {"job_id": job_id, **dict(zip(_FIGURES, astuple(figures), strict=True))}
