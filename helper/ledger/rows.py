"""The rows of a ledger as records, and which of them share a budget.

Every function is part of a transaction.
"""

from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Select, select

from helper.ledger.records import ReleaseKey, Reservation, StoredJob
from helper.ledger.round_state import Progress
from helper.ledger.schema import DATASETS, JOBS, QUERIES, TASKS
from helper.ledger.statements import JOB
from maskedlark.canonical import decode
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import AnyQuery, decode_query

_KEPT_QUERIES: Final = 1 << 14
# What the bytes of a canonical task hold if, and only if, its unit is a person. Within a string the quotes
# would be escaped.
_PER_USER: Final = b'"unit":"user"'


def job_of(connection: Connection, key: ReleaseKey, query: Select[Any] = JOB) -> StoredJob | None:
    """Return a task's job; read by `JOB_TO_CHANGE` if this transaction is to change it."""
    row = connection.execute(query, job_in(key)).one_or_none()
    if row is None:
        return None
    spec = read_job(row.spec)
    return StoredJob(
        spec=spec,
        progress=Progress(rounds=spec.rounds, rounds_answered=row.rounds_answered, is_closed=row.is_closed),
    )


def job_in(key: ReleaseKey) -> dict[str, bytes]:
    """Return what names a job in a statement."""
    return {"of_task": key.task_id, "of_job": key.release_id}


@lru_cache(maxsize=1_024)
def read_job(encoded: bytes) -> JobSpec:
    """Decode a stored job's spec, cached as each call for a round needs it several times."""
    return decode(JobSpec, encoded)


def reservations_of(connection: Connection, dataset_id: bytes) -> tuple[Reservation, ...]:
    """Return what jobs and queries take of a dataset's budget, jobs first, each by id."""
    together = sharing_a_budget(connection, dataset_id)
    takes_some = JOBS.c.dataset_id.in_(together) & (
        JOBS.c.is_closed.is_(False) | (JOBS.c.rounds_answered > 0)
    )
    query = (
        select(JOBS.c.spec, JOBS.c.rounds_answered, JOBS.c.is_closed)
        .where(takes_some)
        .order_by(JOBS.c.job_id)
    )
    specs = ((read_job(row.spec), row) for row in connection.execute(query))
    # A closed job is charged for the rounds that it ran, an open one for all that it may still ask for.
    jobs = [
        Reservation(spec=spec, rounds=row.rounds_answered if row.is_closed else spec.rounds)
        for spec, row in specs
    ]
    answered = select(QUERIES.c.kind, QUERIES.c.spec).where(QUERIES.c.dataset_id.in_(together))
    found = connection.execute(answered.order_by(QUERIES.c.query_id))
    return (*jobs, *(Reservation(spec=read_query(row.kind, row.spec), rounds=1) for row in found))


@lru_cache(maxsize=_KEPT_QUERIES)
def read_query(kind: str, encoded: bytes) -> AnyQuery:
    """Decode a stored query, cached: for thousands, decoding takes as long as composing them."""
    return decode_query(kind, encoded)


def sharing_a_budget(connection: Connection, dataset_id: bytes) -> Any:
    """Select the ids of the datasets that share a budget with one.

    Itself, or all of its task where a person is protected.
    """
    task_id = select(DATASETS.c.task_id).where(DATASETS.c.dataset_id == dataset_id).scalar_subquery()
    if _is_of_user(connection, dataset_id):
        return select(DATASETS.c.dataset_id).where(DATASETS.c.task_id == task_id)
    return [dataset_id]


def _is_of_user(connection: Connection, dataset_id: bytes) -> bool:
    """Return whether the budget of a dataset is that of its task."""
    of_task = DATASETS.join(TASKS, DATASETS.c.task_id == TASKS.c.task_id)
    encoded = connection.execute(
        select(TASKS.c.task).select_from(of_task).where(DATASETS.c.dataset_id == dataset_id)
    ).scalar()
    return encoded is not None and _PER_USER in bytes(encoded)


def lock_budget(connection: Connection, dataset_id: bytes) -> None:
    """Lock a budget until the transaction ends: nothing else of it is opened, closed or charged."""
    # SQLite has no locks of rows, and needs none: its transactions that write begin one after the other.
    if _is_of_user(connection, dataset_id):
        task_id = select(DATASETS.c.task_id).where(DATASETS.c.dataset_id == dataset_id).scalar_subquery()
        # The task's row first: one order for all, so that two transactions never wait for each other.
        connection.execute(select(TASKS.c.role).where(TASKS.c.task_id == task_id).with_for_update())
    connection.execute(select(DATASETS.c.size).where(DATASETS.c.dataset_id == dataset_id).with_for_update())
