"""The number of a task's reports in each state, kept up to date so that no query counts a million rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table, func, select

from adserver.records.report_state import ReportState
from adserver.store.database import insert_of
from adserver.store.schema import arrived_reports, report_counts

SLOTS: Final = 64
"""Rows in which arrivals of a task are counted: enough that two intakes seldom have the same one."""


def arrive(connection: Connection, new: Mapping[bytes, int], slot: int) -> None:
    """Count reports that a transaction has stored, by task, in that transaction."""
    # Sorted: transactions that add to the same rows wait for each other in one order, and not in a circle.
    rows = [{"task_id": task_id, "slot": slot, "reports": count} for task_id, count in sorted(new.items())]
    _add(connection, arrived_reports, ["task_id", "slot"], rows)


def shift(connection: Connection, task_id: bytes, changes: Mapping[ReportState, int]) -> None:
    """Add to a task's counts what a transaction has changed of its reports, in that transaction."""
    rows = [
        {"task_id": task_id, "state": state, "reports": change}
        for state, change in sorted(changes.items())
        if change
    ]
    _add(connection, report_counts, ["task_id", "state"], rows)


def count_by_state(connection: Connection, task_id: bytes) -> Mapping[ReportState, int]:
    """Count a task's reports in each state; empty states may be missing."""
    asked = select(report_counts.c.state, report_counts.c.reports).where(report_counts.c.task_id == task_id)
    found = Counter({ReportState(state): int(count) for state, count in connection.execute(asked)})
    arrived = select(func.sum(arrived_reports.c.reports)).where(arrived_reports.c.task_id == task_id)
    found[ReportState.RECEIVED] += int(connection.execute(arrived).scalar() or 0)
    return found


def count_all(connection: Connection) -> int:
    """Count the reports of all tasks in all states."""
    sums = [select(func.sum(table.c.reports)) for table in (report_counts, arrived_reports)]
    return sum(int(connection.execute(one).scalar() or 0) for one in sums)


def _add(connection: Connection, table: Table, key: Sequence[str], rows: list[dict[str, Any]]) -> None:
    """Add to the counts of some keys; those that are not there yet begin with it."""
    if not rows:
        return
    adding = insert_of(connection.dialect.name, table)
    total = table.c.reports + adding.excluded.reports
    connection.execute(adding.on_conflict_do_update(index_elements=key, set_={"reports": total}), rows)
