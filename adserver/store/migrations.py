"""How the database of an older ad server becomes one of today.

A step may add tables and columns and fill them; it never loses a report, a dataset, a job or a query.
`tests/maskedlark/runtime/test_migrations.py` runs every step on a database that the older version wrote.
"""

from typing import TYPE_CHECKING, Final

from sqlalchemy import Column, Double, LargeBinary, TableClause, column, func, insert, select, update

from adserver.store.report_split import begin_split
from adserver.store.schema import (
    access_grants,
    arrived_reports,
    datasets,
    encoders,
    helper_keys,
    job_files,
    jobs,
    queries,
    query_answers,
    report_buckets,
    report_counts,
    report_objects,
    tasks,
    update_reports,
    update_rounds,
)
from maskedlark.runtime.migrations import Migrations

if TYPE_CHECKING:
    from alembic.operations import Operations


def _to_3(operations: "Operations") -> None:
    """Federated rounds, and the sealed updates that devices sent for them."""
    for table in (update_rounds, update_reports):
        table.create(operations.get_bind())


def _to_4(operations: "Operations") -> None:
    """The encoders that tasks name."""
    encoders.create(operations.get_bind())


def _to_5(operations: "Operations") -> None:
    """What the admin API looks up without counting or reading everything, and who may ask it."""
    connection = operations.get_bind()
    for table in (report_counts, query_answers, helper_keys, access_grants):
        table.create(connection)
    reports = TableClause("reports", column("task_id"), column("state"))  # as they were then
    counted = select(reports.c.task_id, reports.c.state, func.count()).group_by(
        reports.c.task_id, reports.c.state
    )
    connection.execute(insert(report_counts).from_select(["task_id", "state", "reports"], counted))
    for name in ("task_id", "dataset_id"):
        operations.add_column("jobs", Column(name, LargeBinary(32)))
    _fill_jobs(operations)
    for table, name in (
        (tasks, "tasks_by_age"),
        (datasets, "datasets_by_age"),
        (jobs, "jobs_by_age"),
        (jobs, "jobs_by_state_and_age"),
        (jobs, "jobs_by_dataset"),
        (queries, "queries_by_age"),
        (queries, "queries_by_dataset"),
    ):
        next(one for one in table.indexes if one.name == name).create(connection)


def _to_6(operations: "Operations") -> None:
    """What a client asked under an id of its own choice; nobody could choose one before."""
    operations.add_column("queries", Column("request", LargeBinary(32)))


def _to_7(operations: "Operations") -> None:
    """Arrivals counted in slots, so that intakes do not wait for each other. What was counted stays."""
    arrived_reports.create(operations.get_bind())


def _to_8(operations: "Operations") -> None:
    """Job files as rows. Those in a data folder are taken in by `adserver.store.job_files`, not here."""
    job_files.create(operations.get_bind())


def _to_9(operations: "Operations") -> None:
    """Since when reports of a task that is long over are refused: of none yet."""
    operations.add_column("tasks", Column("refused_since", Double))


def _to_11(operations: "Operations") -> None:
    """The objects that ciphertexts of reports lie in: none yet."""
    for table in (report_buckets, report_objects):
        table.create(operations.get_bind())


def _fill_jobs(operations: "Operations") -> None:
    """Say of each job what its plan is of."""
    from adserver.records.plans import plan_columns, read_plan

    connection = operations.get_bind()
    for job_id, encoded in connection.execute(select(jobs.c.job_id, jobs.c.plan)).all():
        of_plan = plan_columns(read_plan(bytes(encoded)))
        connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(of_plan))


MIGRATIONS: Final[Migrations] = {
    2: _to_3,
    3: _to_4,
    4: _to_5,
    5: _to_6,
    6: _to_7,
    7: _to_8,
    8: _to_9,
    9: begin_split,
    10: _to_11,
}
"""Version 2 is the first that can be brought forward."""
