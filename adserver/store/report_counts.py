"""How many reports of a task are in each state, kept beside them: nobody counts a million rows to know it."""

from collections.abc import Mapping

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from adserver.records.report_state import ReportState
from adserver.store.schema import report_counts


def shift(connection: Connection, task_id: bytes, changes: Mapping[ReportState, int]) -> None:
    """Add to a task's counts what a transaction has changed of its reports, in that transaction."""
    rows = [
        {"task_id": task_id, "state": state, "reports": change}
        for state, change in sorted(changes.items())
        if change
    ]
    if not rows:
        return
    of_dialect = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    adding = of_dialect(report_counts)
    total = report_counts.c.reports + adding.excluded.reports
    connection.execute(
        adding.on_conflict_do_update(index_elements=["task_id", "state"], set_={"reports": total}), rows
    )


def counted(connection: Connection, task_id: bytes) -> dict[ReportState, int]:
    """How many reports of a task are in each state; states without any may be missing."""
    asked = select(report_counts.c.state, report_counts.c.reports).where(report_counts.c.task_id == task_id)
    return {ReportState(state): int(count) for state, count in connection.execute(asked)}
