"""The workers' half of the job store: claim a job, hold it, record its rounds, let it go.

A lease is a worker's name and a moment. While it lasts no other worker takes the job, and nothing is recorded
for a job by a worker that no longer holds it, so several workers may share one store. A worker that was
killed loses its job when the lease runs out: any other one puts it back into the queue.
"""

from typing import Any, Final

from sqlalchemy import Engine, and_, bindparam, delete, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql import Select

from adserver.records.job_record import JobRecord, Stop
from adserver.records.job_state import FINAL, LEASED, JobEvent, JobState
from adserver.records.round_figures import RoundFigures
from adserver.store.database import Clock
from adserver.store.jobs import change_state, figures_row, read_job
from adserver.store.schema import job_rounds, jobs
from maskedlark.errors import JobReason, JobRefused
from maskedlark.runtime.database import reading

MAX_WORKERS_LOST: Final = 10
"""More workers than any run of bad luck kills between two rounds."""
WORKERS_LOST: Final = "workers_lost"
"""The reason of a job that kills who runs it."""
_QUEUED: Final = (
    select(jobs.c.job_id)
    .where(jobs.c.state == JobState.QUEUED)
    .order_by(jobs.c.submitted_at_s, jobs.c.job_id)
    .limit(1)
)

# made once: each round runs them, and building one takes longer than running it
_OF_JOB: Final = jobs.c.job_id == bindparam("of_job")
_IS_HELD: Final = and_(_OF_JOB, jobs.c.lease_owner == bindparam("by"), jobs.c.state.in_(LEASED))
_HELD: Final = select(jobs.c.job_id).where(_IS_HELD)
_HELD_TO_CHANGE: Final = _HELD.with_for_update()
_RENEW: Final = update(jobs).where(_IS_HELD).values(lease_until_s=bindparam("until_s"))
_DROP_ROUND: Final = delete(job_rounds).where(
    job_rounds.c.job_id == bindparam("of_job"), job_rounds.c.rounds_done == bindparam("done")
)
_ADD_ROUND: Final = insert(job_rounds)
_COUNT_ROUND: Final = update(jobs).where(_IS_HELD).values(rounds_done=bindparam("done"), workers_lost=0)


class JobLeases:
    """What one worker does with stored jobs.

    Every method but `claim`, `release_abandoned` and those on closing needs the job's lease.

    Methods that need it raise JobRefused(CANCELLED) once the job is another's or cancelled: the worker must
    let go of it.
    """

    def __init__(self, engine: Engine, clock: Clock, *, owner: str, lease_s: float) -> None:
        """Work under a unique name, with leases of `lease_s` seconds."""
        self._engine = engine
        self._clock = clock
        self._owner = owner
        self._lease_s = lease_s

    def claim(self) -> JobRecord | None:
        """Take the oldest job that is queued; return None if the queue is empty.

        Jobs whose workers are gone are queued again first.
        """
        self.release_abandoned()
        with reading(self._engine) as connection:  # the usual answer is none, and needs no write lock
            if connection.execute(_QUEUED).first() is None:
                return None
        with self._engine.begin() as connection:
            # Another worker that takes this job at the moment has it locked: look at the next one.
            row = connection.execute(_QUEUED.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            lease = {"lease_owner": self._owner, "lease_until_s": self._clock() + self._lease_s}
            change_state(connection, bytes(row.job_id), JobEvent.START, reason=None, cause=None, **lease)
            return read_job(connection, bytes(row.job_id))

    def release_abandoned(self, *, but: bytes = b"") -> None:
        """Queue the jobs again whose workers' leases have run out.

        Busy workers do so too: no job is called running that no worker runs.

        `but` is the job that this worker runs itself.

        A job on which one worker after the other died, without a round between them, is not queued again: it
        fails, with that cause.
        """
        with reading(self._engine) as connection:
            if connection.execute(self._is_abandoned(but)).first() is None:
                return
        with self._engine.begin() as connection:
            for row in connection.execute(self._is_abandoned(but).with_for_update(skip_locked=True)).all():
                _release(connection, bytes(row.job_id), row.workers_lost + 1)

    def is_held(self, job_id: bytes) -> bool:
        """Return whether the job is still this worker's: not cancelled and not taken over."""
        with reading(self._engine) as connection:
            return connection.execute(_HELD, self._lease(job_id)).first() is not None

    def renew(self, job_id: bytes) -> bool:
        """Hold the job for another `lease_s` from now; False if it is no longer this worker's."""
        with self._engine.begin() as connection:
            changed = connection.execute(
                _RENEW, self._lease(job_id) | {"until_s": self._clock() + self._lease_s}
            )
            return changed.rowcount == 1

    def wait(self, job_id: bytes, stop: Stop) -> None:
        """Record that the job waits, and for what."""
        self._change(job_id, JobEvent.WAIT, stop)

    def go_on(self, job_id: bytes) -> None:
        """Record that what the job waited for is there."""
        self._change(job_id, JobEvent.GO_ON, None)

    def let_go(self, job_id: bytes, event: JobEvent, stop: Stop | None = None) -> None:
        """End the lease: the job is finished, refused, failed, or released for the next worker."""
        self._change(job_id, event, stop, lease_owner=None, lease_until_s=0.0)

    def record(self, job_id: bytes, figures: RoundFigures) -> None:
        """Keep a round's figures, in place of what an earlier attempt at the same round left."""
        recorded = {"of_job": job_id, "done": figures.rounds_done}
        with self._engine.begin() as connection:
            # First, because it locks the job's row: until the commit nobody takes the job from this worker.
            if connection.execute(_COUNT_ROUND, self._lease(job_id) | recorded).rowcount != 1:
                raise _lost(job_id)
            # An earlier attempt may have died between its figures and its checkpoint.
            connection.execute(_DROP_ROUND, recorded)
            connection.execute(_ADD_ROUND, figures_row(job_id, figures))

    def to_close(self) -> tuple[JobRecord, ...]:
        """Return jobs that are over, of which the helpers have not been informed yet."""
        asked = (
            select(jobs.c.job_id)
            .where(jobs.c.state.in_(FINAL), ~jobs.c.is_closed)
            .order_by(jobs.c.submitted_at_s)
        )
        with reading(self._engine) as connection:
            return tuple(
                read_job(connection, bytes(job_id)) for job_id in connection.execute(asked).scalars()
            )

    def mark_closed(self, job_id: bytes, *, rounds_charged: int) -> None:
        """Record that both helpers know the job's end and charged no more than so many rounds."""
        with self._engine.begin() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.job_id == job_id)
                .values(is_closed=True, rounds_charged=rounds_charged)
            )

    def _is_abandoned(self, but: bytes) -> Select[Any]:
        is_abandoned = and_(
            jobs.c.state.in_(LEASED), jobs.c.lease_until_s <= self._clock(), jobs.c.job_id != but
        )
        return select(jobs.c.job_id, jobs.c.workers_lost).where(is_abandoned)

    def _lease(self, job_id: bytes) -> dict[str, Any]:
        """Return the parameters of `_IS_HELD`."""
        return {"of_job": job_id, "by": self._owner}

    def _change(self, job_id: bytes, event: JobEvent, stop: Stop | None, **columns: Any) -> None:
        reason, cause = (stop.reason, stop.cause) if stop else (None, None)
        with self._engine.begin() as connection:
            self._check_held(connection, job_id)
            change_state(connection, job_id, event, reason=reason, cause=cause, **columns)

    def _check_held(self, connection: Connection, job_id: bytes) -> None:
        if connection.execute(_HELD_TO_CHANGE, self._lease(job_id)).first() is None:
            raise _lost(job_id)


def _lost(job_id: bytes) -> JobRefused:
    return JobRefused(
        JobReason.CANCELLED, f"job {job_id.hex()} was cancelled, or another worker took it over"
    )


def _release(connection: Connection, job_id: bytes, workers_lost: int) -> None:
    """Let the next worker have a job that was lost with its worker, unless it costs too many of them."""
    lease = {"lease_owner": None, "lease_until_s": 0.0}
    if workers_lost < MAX_WORKERS_LOST:
        change_state(
            connection, job_id, JobEvent.RELEASE, reason=None, cause=None, **lease, workers_lost=workers_lost
        )
        return
    stop = {
        "reason": WORKERS_LOST,
        "cause": f"{workers_lost} workers in a row died or stopped responding without completing a round",
    }
    change_state(connection, job_id, JobEvent.FAIL, **stop, **lease, workers_lost=0)
