"""How reports that came in become rows: those of all calls that wait, in one transaction.

Statements go to the driver as they are written here: SQLAlchemy's lists of values cost more than the rest.
On PostgreSQL each column is one array, which needs no staging table (`python -m tests.bench.arrivals`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from adserver.store.schema import PLACE_BYTES
from maskedlark.reports.upload import Report

ReportKey = tuple[bytes, bytes]
"""A task's id and a report's: what a report counts once under."""

NO_PLACES: Final[Mapping[ReportKey, int]] = {}

_IN_ARRAYS: Final = """
    WITH stored AS (
        INSERT INTO reports (
            task_id, report_id, time_bucket, key_id_0, ciphertext_0, key_id_1, ciphertext_1)
        SELECT * FROM unnest(
            %b::bytea[], %b::bytea[], %b::bigint[], %b::smallint[], %b::bytea[], %b::smallint[], %b::bytea[])
        ON CONFLICT (task_id, report_id) DO NOTHING
        RETURNING sequence, task_id, report_id
    ), waiting AS (
        INSERT INTO report_states (task_id, handle, sequence, state)
        SELECT task_id, '', sequence, 'received' FROM stored
    )
    SELECT task_id, report_id FROM stored
"""
_LAST: Final = "SELECT coalesce(max(sequence), 0) FROM reports"
_IN_ROWS: Final = """
    INSERT INTO reports (task_id, report_id, time_bucket, key_id_0, ciphertext_0, key_id_1, ciphertext_1)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (task_id, report_id) DO NOTHING
"""
_WAITING: Final = """
    INSERT INTO report_states (task_id, handle, sequence, state)
    SELECT task_id, x'', sequence, 'received' FROM reports WHERE sequence > ?
"""
_KNOWN: Final = "SELECT task_id, report_id FROM reports WHERE task_id = ? AND report_id = ?"
_KNOWN_OF_ARRAYS: Final = """
    SELECT task_id, report_id FROM unnest(%b::bytea[], %b::bytea[]) AS sent (task_id, report_id)
    JOIN reports USING (task_id, report_id)
"""
_STORED: Final = "SELECT task_id, report_id FROM reports WHERE sequence > ?"


def report_key(report: Report) -> ReportKey:
    """What a report counts once under."""
    return report.task_id, report.report_id


def insert_new(
    connection: Connection, arrived: Iterable[Report], places: Mapping[ReportKey, int] = NO_PLACES
) -> Sequence[ReportKey]:
    """Store the reports that are not stored yet; which they are.

    They are stored in one order everywhere: two transactions with common ids in different orders would wait
    for each other (PostgreSQL).

    Args:
        connection: In a transaction.
        arrived: Checked reports with different keys.
        places: Of those whose ciphertexts lie in object storage: where (`adserver.store.object_putting`).
    """
    rows = [_row(report, places.get(report_key(report))) for report in sorted(arrived, key=report_key)]
    if not rows:
        return []
    if connection.dialect.name == "postgresql":
        arrays = tuple(list(column) for column in zip(*rows, strict=True))
        found = connection.exec_driver_sql(_IN_ARRAYS, arrays)
        return [(bytes(task_id), bytes(report_id)) for task_id, report_id in found]
    return _insert_rows(connection, rows)


def stored_among(connection: Connection, keys: Sequence[ReportKey]) -> frozenset[ReportKey]:
    """The keys of reports that are stored already."""
    if connection.dialect.name == "postgresql":
        arrays = tuple(list(column) for column in zip(*keys, strict=True))
        found = connection.exec_driver_sql(_KNOWN_OF_ARRAYS, arrays).all()
    else:
        found = [row for key in keys for row in connection.exec_driver_sql(_KNOWN, key)]
    return frozenset((bytes(task_id), bytes(report_id)) for task_id, report_id in found)


def _insert_rows(connection: Connection, rows: list[tuple[Any, ...]]) -> Sequence[ReportKey]:
    """Into SQLite, whose transactions are one at a time: what is new has the numbers behind the last one."""
    last = connection.exec_driver_sql(_LAST).scalar_one()
    new = connection.exec_driver_sql(_IN_ROWS, rows).rowcount
    connection.exec_driver_sql(_WAITING, (last,))
    if new == len(rows):
        return [row[:2] for row in rows]
    return [(task_id, report_id) for task_id, report_id in connection.exec_driver_sql(_STORED, (last,))]


def _row(report: Report, place: int | None) -> tuple[Any, ...]:
    """A report's values, in the order of the columns above."""
    first, second = report.shares
    ciphertexts = (
        (first.ciphertext, second.ciphertext) if place is None else (place.to_bytes(PLACE_BYTES), b"")
    )
    return (
        report.task_id,
        report.report_id,
        report.time_bucket,
        first.key_id,
        ciphertexts[0],
        second.key_id,
        ciphertexts[1],
    )
