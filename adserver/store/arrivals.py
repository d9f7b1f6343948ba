"""How reports that came in become rows: those of all calls that wait, in one transaction.

On PostgreSQL they go in one statement, each column as one array: 1,000 rows cost its driver a tenth of what
1,000 value lists cost, and need no staging table (`python -m tests.bench.arrivals`).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Connection

from adserver.store.database import insert_or_ignore
from adserver.store.schema import reports
from adserver.store.share_pages import sealed_row
from maskedlark.reports.upload import Report

ReportKey = tuple[bytes, bytes]
"""A task's id and a report's: what a report counts once under."""

_IN_ARRAYS: Final = """
    INSERT INTO reports
        (task_id, report_id, time_bucket, key_id_0, ciphertext_0, key_id_1, ciphertext_1, state)
    SELECT *, 'received' FROM unnest(
        %b::bytea[], %b::bytea[], %b::bigint[], %b::smallint[], %b::bytea[], %b::smallint[], %b::bytea[])
    ON CONFLICT (task_id, report_id) DO NOTHING
    RETURNING task_id, report_id
"""


def report_key(report: Report) -> ReportKey:
    """What a report counts once under."""
    return report.task_id, report.report_id


def insert_new(connection: Connection, arrived: Iterable[Report]) -> Sequence[ReportKey]:
    """Store the reports that are not stored yet; which they are.

    They are stored in one order everywhere: two transactions with common ids in different orders would wait
    for each other (PostgreSQL).

    Args:
        connection: In a transaction.
        arrived: Checked reports with different keys.
    """
    ordered = sorted(arrived, key=report_key)
    if connection.dialect.name == "postgresql":
        found = connection.exec_driver_sql(_IN_ARRAYS, _columns(ordered))
    else:
        rows = [{"task_id": report.task_id, **sealed_row(report)} for report in ordered]
        inserting = insert_or_ignore(connection.engine, reports, ["task_id", "report_id"])
        found = connection.execute(inserting.returning(reports.c.task_id, reports.c.report_id), rows)
    return [(bytes(task_id), bytes(report_id)) for task_id, report_id in found]


def _columns(ordered: Sequence[Report]) -> tuple[list[object], ...]:
    """The columns of `_IN_ARRAYS`."""
    shares = [report.shares for report in ordered]
    return (
        [report.task_id for report in ordered],
        [report.report_id for report in ordered],
        [report.time_bucket for report in ordered],
        [first.key_id for first, _ in shares],
        [first.ciphertext for first, _ in shares],
        [second.key_id for _, second in shares],
        [second.ciphertext for _, second in shares],
    )
