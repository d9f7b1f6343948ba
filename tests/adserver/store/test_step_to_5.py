"""A database of version 4 says afterwards what the admin API looks up: counts, and what jobs are of."""

from pathlib import Path

from sqlalchemy import MetaData, Table, insert, text

from adserver.records.job_state import JobState
from adserver.store.database import create_tables
from adserver.store.jobs import JobStore
from adserver.store.reports import ReportCounts, ReportStore
from adserver.store.schema import jobs, tasks
from maskedlark.canonical import encode
from maskedlark.runtime.database import open_database
from tests.adserver.job_world import plan_for, sealed
from tests.builders import NOW

SCHEMAS = Path(__file__).parents[2] / "vectors" / "schemas"
OF = sealed()
STATES = ["received"] * 5 + ["sealed"] * 3 + ["expired"]


def test_counts_and_columns_are_filled_from_what_was_there(database_url: str) -> None:
    engine = open_database(database_url)
    plan, task_id = plan_for(OF), OF.of.task.task_id
    job = {
        "job_id": plan.job.job_id,
        "plan": encode(plan),
        "submitted_at_s": float(NOW),
        "state": JobState.DONE,
        "rounds_done": 5,
        "is_closed": True,
        "lease_until_s": 0.0,
        "workers_lost": 0,
    }
    sealed_report = {"time_bucket": 0, "key_id_0": 1, "ciphertext_0": b"", "key_id_1": 1, "ciphertext_1": b""}
    rows = [
        {"task_id": task_id, "report_id": bytes([number]) * 16, "state": state, **sealed_report}
        for number, state in enumerate(STATES)
    ]
    with engine.begin() as connection:
        for statement in (SCHEMAS / f"adserver-4-{engine.dialect.name}.sql").read_text().split(";"):
            if statement.strip():
                connection.execute(text(statement))
        connection.execute(text("INSERT INTO schema_version VALUES (4)"))
        task = {"task_id": task_id, "bundle": encode(OF.of.bundle), "created_at": NOW}
        connection.execute(insert(tasks).values(task))
        old = Table("reports", MetaData(), autoload_with=connection)
        connection.execute(insert(old), rows)
        connection.execute(insert(jobs).values(job))
    create_tables(engine)
    assert ReportStore(engine).counts(task_id) == ReportCounts(waiting=5, sealed=3, dropped=0, expired=1)
    found = JobStore(engine, lambda: NOW).of_task(task_id, [plan.job.dataset_id])
    assert [one.plan for one in found] == [plan]
    engine.dispose()
