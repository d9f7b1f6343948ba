"""What a ledger charged, in the order of its audit log: what a helper's statements are made from."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Engine, func, select

from helper.ledger.records import ReleaseKey
from helper.ledger.rows import read_job, read_query, sharing_a_budget
from helper.ledger.schema import AUDIT_LOG, JOBS, QUERIES, ROUNDS
from maskedlark.audit_log import AuditEntry
from maskedlark.canonical import decode
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.releases.kinds import AnySpec
from maskedlark.runtime.database import reading

_PAGE: Final = 1_000
# Twelve bytes an answer, where a job may have a million.
_ANSWER: Final = np.dtype([("entry", np.int64), ("release", np.int32)])


@frozen
class ChargedRelease:
    """A job with its answered rounds, or a query.

    Attributes:
        spec: What was asked.
        answers: How many answers were charged.
        is_final: Whether no more follow.
        first: The number of its first answer's entry in the audit log.
        last: The number of its last answer's.
    """

    spec: AnySpec
    answers: int
    is_final: bool
    first: int
    last: int


@frozen
class ChargedAnswers:
    """The answers that one budget was charged for, in order.

    Attributes:
        specs: Its jobs and queries.
        entries: int64 (answers,) the number of each answer's entry in the audit log, ascending.
        releases: int32 (answers,) the place in `specs` of its job or query.
    """

    specs: tuple[AnySpec, ...]
    entries: NDArray[np.int64]
    releases: NDArray[np.int32]


class ReleaseHistory:
    """The charges of one ledger. Safe to call from many threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def of_task(self, task_id: bytes) -> list[ChargedRelease]:
        """Return everything of a task that was charged, by last answer."""
        with reading(self._engine) as connection:
            found = [*_jobs(connection, task_id), *_queries(connection, task_id)]
        return sorted(found, key=lambda one: one.last)

    def answers(self, dataset_id: bytes) -> ChargedAnswers:
        """Return every answer that the budget of a dataset was charged for."""
        with reading(self._engine) as connection:
            together = sharing_a_budget(connection, dataset_id)
            jobs = select(JOBS.c.job_id, JOBS.c.spec).where(JOBS.c.dataset_id.in_(together))
            numbers, specs = {}, list[AnySpec]()
            for job in connection.execute(jobs):
                numbers[bytes(job.job_id)] = len(specs)
                specs.append(read_job(job.spec))
            rounds = (
                select(ROUNDS.c.job_id, ROUNDS.c.entry)
                .join_from(ROUNDS, JOBS)
                .where(JOBS.c.dataset_id.in_(together))
                .execution_options(yield_per=_PAGE)
            )
            answered = np.fromiter(
                ((row.entry, numbers[bytes(row.job_id)]) for row in connection.execute(rounds)), _ANSWER
            )
            queries = select(QUERIES.c.kind, QUERIES.c.spec, QUERIES.c.entry)
            found = connection.execute(queries.where(QUERIES.c.dataset_id.in_(together))).all()
        asked = np.fromiter(((row.entry, len(specs) + place) for place, row in enumerate(found)), _ANSWER)
        specs += (read_query(row.kind, row.spec) for row in found)
        all_answers = np.sort(np.concatenate([answered, asked]), order="entry")
        return ChargedAnswers(
            specs=tuple(specs), entries=all_answers["entry"], releases=all_answers["release"]
        )

    def answers_digest(self, release: ChargedRelease, interrupt: Interrupt = never) -> bytes:
        """Return SHA-256 of the SHA-256 of each answer of a release, in order; a job may have 10^6."""
        hasher = sha256()
        for number, entry in enumerate(self._entries(release)):
            if number % _PAGE == 0:
                interrupt()
            hasher.update(bytes.fromhex(entry.subject["answer"]))
        return hasher.digest()

    def entry(self, sequence: int) -> AuditEntry:
        """Return one entry of the audit log."""
        asked = select(AUDIT_LOG.c.entry).where(AUDIT_LOG.c.sequence == sequence)
        with reading(self._engine) as connection:
            return decode(AuditEntry, bytes(connection.execute(asked).scalar_one()))

    def _entries(self, release: ChargedRelease) -> Iterator[AuditEntry]:
        if release.spec.is_query:
            yield self.entry(release.last)
            return
        asked = (
            select(AUDIT_LOG.c.entry)
            .join(ROUNDS, ROUNDS.c.entry == AUDIT_LOG.c.sequence)
            .where(*_is_of(ReleaseKey(release.spec.task_id, release.spec.release_id)))
            .where(ROUNDS.c.round_index < release.answers)
            .order_by(ROUNDS.c.round_index)
        )
        with reading(self._engine) as connection:
            for encoded in connection.execute(asked.execution_options(yield_per=_PAGE)).scalars():
                yield decode(AuditEntry, bytes(encoded))


def _is_of(job: ReleaseKey) -> tuple[ColumnElement[bool], ...]:
    return ROUNDS.c.task_id == job.task_id, ROUNDS.c.job_id == job.release_id


def _jobs(connection: Connection, task_id: bytes) -> Iterator[ChargedRelease]:
    asked = (
        select(
            JOBS.c.spec,
            JOBS.c.is_closed,
            func.count().label("answers"),
            func.min(ROUNDS.c.entry).label("first"),
            func.max(ROUNDS.c.entry).label("last"),
        )
        .join_from(JOBS, ROUNDS)
        .where(JOBS.c.task_id == task_id)
        .group_by(JOBS.c.task_id, JOBS.c.job_id, JOBS.c.spec, JOBS.c.is_closed)
    )
    for row in connection.execute(asked):
        spec = read_job(row.spec)
        yield ChargedRelease(
            spec=spec,
            answers=row.answers,
            is_final=row.is_closed or row.answers == spec.rounds,
            first=row.first,
            last=row.last,
        )


def _queries(connection: Connection, task_id: bytes) -> Iterator[ChargedRelease]:
    asked = select(QUERIES.c.kind, QUERIES.c.spec, QUERIES.c.entry).where(QUERIES.c.task_id == task_id)
    for row in connection.execute(asked):
        spec = read_query(row.kind, row.spec)
        yield ChargedRelease(spec=spec, answers=1, is_final=True, first=row.entry, last=row.entry)
