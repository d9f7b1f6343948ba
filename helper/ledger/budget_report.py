"""The budgets of a helper's datasets, read from its ledger for the operator.

It only reads, so it also works while the helper serves.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, exists, or_, select
from sqlalchemy.exc import DatabaseError

from helper.ledger.ledger import LEDGER_FILE, sqlite_url
from helper.ledger.rows import sharing_a_budget
from helper.ledger.schema import DATASETS, JOBS, QUERIES, TASKS
from maskedlark.canonical import decode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.releases.budget import BudgetedDataset, BudgetUse
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import decode_query
from maskedlark.releases.update import UpdateSpec, rounds_by_job
from maskedlark.reports.task import Task
from maskedlark.runtime.database import open_database, reading
from maskedlark.runtime.ownership import check_is_folder


class BudgetReport:
    """The budgets that one ledger holds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def datasets(self, prefix: str = "") -> tuple[BudgetedDataset, ...]:
        """Return the datasets whose ids start with some hex digits, by id.

        Raises:
            JobRefused(UNKNOWN_DATASET): none does.
        """
        try:
            with reading(self._engine) as connection:
                rows = connection.execute(_every().order_by(DATASETS.c.dataset_id)).all()
        except DatabaseError as error:
            raise JobRefused(
                JobReason.UNKNOWN_DATASET,
                f"this database is not a helper's ledger: {type(error.orig).__name__}",
            ) from None
        found = [_dataset(row) for row in rows if bytes(row.dataset_id).hex().startswith(prefix.lower())]
        if prefix and not found:
            raise JobRefused(
                JobReason.UNKNOWN_DATASET, f"no dataset of this helper has an id that starts with {prefix!r}"
            )
        return tuple(found)

    def find_charged(self, most: int) -> tuple[BudgetedDataset, ...]:
        """Return up to `most` datasets that a job or query used, those of open jobs first."""
        ran = exists().where(JOBS.c.dataset_id == DATASETS.c.dataset_id)
        asked = exists().where(QUERIES.c.dataset_id == DATASETS.c.dataset_id)
        is_open = ran.where(JOBS.c.is_closed.is_(False))
        query = _every().where(or_(ran, asked)).order_by(is_open.desc(), DATASETS.c.dataset_id).limit(most)
        with reading(self._engine) as connection:
            return tuple(_dataset(row) for row in connection.execute(query))

    def uses(self, dataset: BudgetedDataset) -> tuple[BudgetUse, ...]:
        """Return the uses of a dataset's budgets: its jobs, queries, federated jobs, each by id.

        In a task of unit user, those of all datasets of the task.
        """
        with reading(self._engine) as connection:
            return (*_jobs(connection, dataset), *_queries(connection, dataset))


def open_ledger(data: Path, database: str | None) -> Engine:
    """Open the database of a helper's ledger, which must exist.

    Raises:
        InvalidSetting: there is no such folder.
        JobRefused(UNKNOWN_DATASET): nothing was ever served from this folder.
    """
    if database is None:
        check_is_folder(data)
    if database is None and not (data / LEDGER_FILE).is_file():
        raise JobRefused(
            JobReason.UNKNOWN_DATASET, f"{data} contains no ledger: no helper has served from it yet"
        )
    return open_database(database or sqlite_url(data / LEDGER_FILE))


def _every() -> Select[Any]:
    return select(DATASETS.c.dataset_id, DATASETS.c.size, TASKS.c.task).join_from(DATASETS, TASKS)


def _dataset(row: Row[Any]) -> BudgetedDataset:
    return BudgetedDataset(
        dataset_id=bytes(row.dataset_id), task=decode(Task, bytes(row.task)), size=row.size
    )


def _jobs(connection: Connection, dataset: BudgetedDataset) -> tuple[BudgetUse, ...]:
    query = select(JOBS.c.spec, JOBS.c.rounds_answered, JOBS.c.is_closed).where(
        JOBS.c.dataset_id.in_(sharing_a_budget(connection, dataset.dataset_id))
    )
    return tuple(
        BudgetUse.of_job(
            dataset.task,
            decode(JobSpec, bytes(row.spec)),
            state="closed" if row.is_closed else "open",
            rounds_answered=row.rounds_answered,
            is_open=not row.is_closed,
        )
        for row in connection.execute(query.order_by(JOBS.c.job_id))
    )


def _queries(connection: Connection, dataset: BudgetedDataset) -> tuple[BudgetUse, ...]:
    query = select(QUERIES.c.spec, QUERIES.c.kind).where(
        QUERIES.c.dataset_id.in_(sharing_a_budget(connection, dataset.dataset_id))
    )
    found = connection.execute(query.order_by(QUERIES.c.query_id))
    specs = [decode_query(row.kind, row.spec) for row in found]
    rounds = rounds_by_job(spec.round for spec in specs if isinstance(spec, UpdateSpec))
    return (
        *(BudgetUse.of_query(dataset.task, spec) for spec in specs if not isinstance(spec, UpdateSpec)),
        *(
            BudgetUse.of_update(
                dataset.task, job, what="update", state="answered", rounds_charged=highest, is_open=False
            )
            for job, highest in sorted(rounds.items(), key=lambda one: one[0].job_id)
        ),
    )
