"""The jobs without helpers of this ad server, of both strategies, and their models.

    jobs = LocalJobs(open_local(url), clock)
    jobs.submit(job, seed=0)
    jobs.find("3f").job;  jobs.close(job_id);  jobs.reopen(job_id);  jobs.parameters(job)

A job is open until it is closed, and may be opened again; devices receive its definition. A job of LINE is
done after its last round.
"""

from collections.abc import Callable
from enum import StrEnum, unique
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine, insert, select, update

from adserver.store.database import Clock, find_id
from adserver.store.local.instances import InstanceStore
from adserver.store.local.noised_rounds import NoisedRounds
from adserver.store.local.schema import local_jobs
from maskedlark.canonical import decode, encode
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalJob, read_local_job
from maskedlark.federated.strategies.line import Line
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.runtime.database import reading


@unique
class LocalState(StrEnum):
    """Where a job is."""

    OPEN = "open"
    """It takes updates."""
    CLOSED = "closed"
    """It was closed, and may be opened again."""
    DONE = "done"
    """LINE took its last step."""


@frozen
class StoredLocalJob:
    """A job as stored.

    Attributes:
        job: The definition that devices receive.
        submitted_at: Unix seconds.
        is_open: Whether it takes updates.
        is_tested: Whether returned models go through the spam test.
    """

    job: LocalJob
    submitted_at: float
    is_open: bool
    is_tested: bool


class LocalJobs:
    """The jobs, with the stores of both strategies. Safe to share between threads."""

    def __init__(
        self, engine: Engine, clock: Clock, randomness: Callable[[], Randomness] = lambda: system_randomness
    ) -> None:
        """Use a database of `open_local`."""
        self._engine = engine
        self._clock = clock
        self._randomness = randomness
        self.instances = InstanceStore(engine)
        self.rounds = NoisedRounds(engine)

    def submit(self, job: LocalJob, *, seed: int, is_tested: bool = False) -> None:
        """Store a job and its first model.

        Args:
            job: The job.
            seed: Of the first weights; draw and discard begins at zero, spread by its law.
            is_tested: Whether draw and discard refuses spam. The test's limits are those of noise alone, so
                it suits jobs whose noise is well above a gradient: with an epsilon of 60 it would refuse all.

        Raises:
            InvalidTask: a spam test of a job that has no instances to compare with, or no noise.
            JobRefused(JOB_CHANGED): the id is taken.
        """
        settings, model = read_local_job(job)
        if is_tested and (isinstance(settings, Line) or settings.instances < 2 or settings.epsilon is None):
            raise InvalidTask(
                "the spam test is not available: it requires draw and discard with noise and at least "
                "two instances"
            )
        if isinstance(settings, Line) and isinstance(model, DenseModel):
            self.rounds.create(job.job_id, settings, model, seed=seed)
        elif isinstance(settings, DrawAndDiscard):
            first = settings.initial(np.zeros(model.size), self._randomness())
            self.instances.create(job.job_id, settings, first)
        row = {
            "job_id": job.job_id, "job": encode(job), "seed": seed, "submitted_at": self._clock(),
            "is_open": True, "is_tested": is_tested,
        }  # fmt: skip
        with self._engine.begin() as connection:
            connection.execute(insert(local_jobs).values(row))

    def all(self) -> tuple[StoredLocalJob, ...]:
        """Return every job, oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(local_jobs).order_by(local_jobs.c.submitted_at)).all()
        return tuple(_read_row(row) for row in rows)

    def open_ids(self, most: int) -> list[bytes]:
        """Return the ids of jobs that take updates, the newest first; no more than `most`."""
        c = local_jobs.c
        asked = select(c.job_id).where(c.is_open).order_by(c.submitted_at.desc()).limit(most)
        with reading(self._engine) as connection:
            return [bytes(job_id) for job_id in connection.execute(asked).scalars()]

    def get(self, job_id: bytes) -> StoredLocalJob:
        """Return a job.

        Raises:
            JobRefused(UNKNOWN_JOB): no job has this id.
        """
        with reading(self._engine) as connection:
            row = connection.execute(select(local_jobs).where(local_jobs.c.job_id == job_id)).one_or_none()
        if row is None:
            raise JobRefused(JobReason.UNKNOWN_JOB, "there is no job without helpers with this id")
        return _read_row(row)

    def find(self, prefix: str) -> StoredLocalJob:
        """Return a job by the start of its id in hex.

        Raises:
            JobRefused(UNKNOWN_JOB): no job, or more than one.
        """
        with reading(self._engine) as connection:
            found = find_id(connection, local_jobs.c.job_id, prefix, missing=JobReason.UNKNOWN_JOB)
        return self.get(found)

    def state(self, stored: StoredLocalJob) -> LocalState:
        """Return a job's state."""
        settings, _ = read_local_job(stored.job)
        if isinstance(settings, Line) and self.rounds.find_round(stored.job.job_id, settings) is None:
            return LocalState.DONE
        return LocalState.OPEN if stored.is_open else LocalState.CLOSED

    def close(self, job_id: bytes) -> None:
        """Take no more updates of a job; its model stays."""
        self._set_open(job_id, is_open=False)

    def reopen(self, job_id: bytes) -> None:
        """Take updates again of a job that was closed: it goes on with the round, or instances, it has.

        Raises:
            JobRefused(UNKNOWN_JOB): no job has this id.
            JobRefused(WRONG_STATE): it is open or done.
        """
        state = self.state(self.get(job_id))
        if state is not LocalState.CLOSED:
            raise JobRefused(JobReason.WRONG_STATE, f"the job is {state}, not closed")
        self._set_open(job_id, is_open=True)

    def accepted(self, job: LocalJob) -> int:
        """Count the accepted updates."""
        settings, _ = read_local_job(job)
        if isinstance(settings, Line):
            rounds_done = self.rounds.state(job.job_id).rounds_done
            return rounds_done * settings.devices + self.rounds.count_received(job.job_id)
        return self.instances.job(job.job_id).returns

    def parameters(self, job: LocalJob) -> NDArray[np.float64]:
        """Return the current model: LINE's weights, or the mean of the instances."""
        settings, _ = read_local_job(job)
        if isinstance(settings, DrawAndDiscard):
            return settings.mean(self.instances.instances(job.job_id))
        return self.rounds.state(job.job_id).optimizer.masters

    def _set_open(self, job_id: bytes, *, is_open: bool) -> None:
        wanted = update(local_jobs).where(local_jobs.c.job_id == job_id)
        with self._engine.begin() as connection:
            connection.execute(wanted.values(is_open=is_open))


def _read_row(row: Any) -> StoredLocalJob:
    return StoredLocalJob(
        job=decode(LocalJob, bytes(row.job)),
        submitted_at=row.submitted_at,
        is_open=row.is_open,
        is_tested=row.is_tested,
    )
