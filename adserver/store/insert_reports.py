"""How reports that came in become rows: those of all calls that wait, in one transaction.

Statements go to the driver as they are written here: SQLAlchemy's lists of values cost more than the rest.
On PostgreSQL each column is one array, which needs no staging table (`python -m tests.bench.arrivals`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from adserver.store.schema import PLACE_BYTES
from maskedlark.reports.upload import Report

NO_PLACES: Final[Mapping[bytes, int]] = {}

_IN_ARRAYS: Final = """
    WITH stored AS (
        INSERT INTO reports (
            digest, task_id, report_id, time_bucket, key_id_0, ciphertext_0, key_id_1, ciphertext_1)
        SELECT * FROM unnest(
            %b::bytea[], %b::bytea[], %b::bytea[], %b::bigint[],
            %b::smallint[], %b::bytea[], %b::smallint[], %b::bytea[])
        ON CONFLICT (digest) DO NOTHING
        RETURNING sequence, task_id, digest
    ), waiting AS (
        INSERT INTO report_states (task_id, handle, sequence, state)
        SELECT task_id, '', sequence, 'received' FROM stored
    )
    SELECT digest FROM stored
"""
_LAST: Final = "SELECT coalesce(max(sequence), 0) FROM reports"
_IN_ROWS: Final = """
    INSERT INTO reports (
        digest, task_id, report_id, time_bucket, key_id_0, ciphertext_0, key_id_1, ciphertext_1)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (digest) DO NOTHING
"""
_WAITING: Final = """
    INSERT INTO report_states (task_id, handle, sequence, state)
    SELECT task_id, x'', sequence, 'received' FROM reports WHERE sequence > ?
"""
_KNOWN: Final = "SELECT digest FROM reports WHERE digest = ?"
_KNOWN_OF_ARRAYS: Final = "SELECT digest FROM reports WHERE digest = ANY(%b::bytea[])"
_STORED: Final = "SELECT digest FROM reports WHERE sequence > ?"


def insert_new(
    connection: Connection, arrived: Mapping[bytes, Report], places: Mapping[bytes, int] = NO_PLACES
) -> Sequence[bytes]:
    """Store the reports that are not stored yet, and return their digests.

    They are stored in one order everywhere: two transactions with common ids in different orders would wait
    for each other (PostgreSQL).

    Args:
        connection: In a transaction.
        arrived: Checked reports by their digests.
        places: Where ciphertexts lie in object storage, for reports that are there
            (`adserver.store.report_object_writer`).
    """
    order = sorted(arrived, key=lambda key: (arrived[key].task_id, arrived[key].report_id, key))
    rows = [_row(key, arrived[key], places.get(key)) for key in order]
    if not rows:
        return []
    if connection.dialect.name == "postgresql":
        arrays = tuple(list(column) for column in zip(*rows, strict=True))
        return [bytes(key) for key in connection.exec_driver_sql(_IN_ARRAYS, arrays).scalars()]
    return _insert_rows(connection, rows)


def find_stored(connection: Connection, digests: Sequence[bytes]) -> frozenset[bytes]:
    """Return those of some digests whose reports are stored already."""
    if connection.dialect.name == "postgresql":
        found = connection.exec_driver_sql(_KNOWN_OF_ARRAYS, (list(digests),)).all()
    else:
        found = [row for key in digests for row in connection.exec_driver_sql(_KNOWN, (key,))]
    return frozenset(bytes(key) for (key,) in found)


def _insert_rows(connection: Connection, rows: list[tuple[Any, ...]]) -> Sequence[bytes]:
    """Insert into SQLite, where transactions are serial: new rows are numbered after the last."""
    last = connection.exec_driver_sql(_LAST).scalar_one()
    new = connection.exec_driver_sql(_IN_ROWS, rows).rowcount
    connection.exec_driver_sql(_WAITING, (last,))
    # Else some were stored before, and an insert of many rows does not say which.
    if new == len(rows):
        return [row[0] for row in rows]
    return list(connection.exec_driver_sql(_STORED, (last,)).scalars())


def _row(key: bytes, report: Report, place: int | None) -> tuple[Any, ...]:
    """Return a report's values, in the order of the columns above."""
    first, second = report.shares
    ciphertexts = (
        (first.ciphertext, second.ciphertext) if place is None else (place.to_bytes(PLACE_BYTES), b"")
    )
    return (
        key,
        report.task_id,
        report.report_id,
        report.time_bucket,
        first.key_id,
        ciphertexts[0],
        second.key_id,
        ciphertexts[1],
    )
