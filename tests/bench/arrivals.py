"""How reports are best stored in PostgreSQL: value lists, COPY into a staging table, or arrays.

    python -m tests.bench.arrivals [--json]

Each way stores the same number of reports in transactions of some size, leaving out those that are stored.
What counts is microseconds a report: of wall time, and of the processor time of this process (the intake's
share) and of PostgreSQL's. `arrays` is what `adserver.store.insert_reports` does.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import psutil
from sqlalchemy import Connection

from adserver.store.database import create_tables, insert_or_ignore
from adserver.store.insert_reports import insert_new
from adserver.store.schema import NO_DATASET, report_states, reports
from adserver.store.share_pages import report_row
from adserver.store.tasks import TaskStore
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.runtime.database import open_database
from tests.builders import NOW, world
from tests.postgres import running_postgres

SIZES: Final = (20, 200, 1_000, 5_000)
REPORTS: Final = 20_000
_STAGING: Final = (
    "CREATE TEMPORARY TABLE IF NOT EXISTS arriving (task_id bytea, report_id bytea, time_bucket bigint,"
    " key_id_0 smallint, ciphertext_0 bytea, key_id_1 smallint, ciphertext_1 bytea, digest bytea)"
    " ON COMMIT DELETE ROWS"
)
_TYPES: Final = ("bytea", "bytea", "int8", "int2", "bytea", "int2", "bytea", "bytea")
_SHARE_BYTES: Final = 119
"""Of a task with 30 features."""


def by_id(report: Report) -> tuple[bytes, bytes]:
    """The order in which `adserver.store.insert_reports` stores reports."""
    return report.task_id, report.report_id


Way = Callable[[Connection, Sequence[Report]], int]


def value_lists(connection: Connection, arrived: Sequence[Report]) -> int:
    """SQLAlchemy's insert of many rows, 1,000 value lists a statement."""
    rows = [{"task_id": one.task_id, **report_row(one)} for one in sorted(arrived, key=by_id)]
    inserting = insert_or_ignore(connection.engine, reports, ["digest"])
    stored = connection.execute(inserting.returning(reports.c.task_id, reports.c.sequence), rows).all()
    states = [
        {"task_id": task_id, "handle": NO_DATASET, "sequence": sequence, "state": "received"}
        for task_id, sequence in stored
    ]
    connection.execute(report_states.insert(), states)
    return len(stored)


def copied(connection: Connection, arrived: Sequence[Report]) -> int:
    """COPY into a temporary table, and from there."""
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        cursor.execute(_STAGING)
        with cursor.copy("COPY arriving FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(_TYPES)
            for one in sorted(arrived, key=by_id):
                first, second = one.shares
                copy.write_row(
                    (one.task_id, one.report_id, one.time_bucket, first.key_id, first.ciphertext,
                     second.key_id, second.ciphertext, one.digest)
                )  # fmt: skip
        cursor.execute(
            "WITH stored AS (INSERT INTO reports (task_id, report_id, time_bucket, key_id_0, ciphertext_0,"
            " key_id_1, ciphertext_1, digest) SELECT * FROM arriving"
            " ON CONFLICT (digest) DO NOTHING RETURNING task_id, digest, sequence), waiting AS"
            " (INSERT INTO report_states SELECT task_id, '', sequence, 'received' FROM stored)"
            " SELECT digest FROM stored"
        )
        return len(cursor.fetchall())


WAYS: Final[dict[str, Way]] = {
    "value_lists": value_lists,
    "copy": copied,
    "arrays": lambda connection, arrived: len(insert_new(connection, {one.digest: one for one in arrived})),
}


def drawn(task_id: bytes, count: int) -> list[Report]:
    """Reports of the right form; what is in them is random."""
    return [
        Report(
            task_id=task_id, report_id=os.urandom(16), time_bucket=NOW,
            shares=(SealedShare(key_id=1, ciphertext=os.urandom(_SHARE_BYTES)),
                    SealedShare(key_id=2, ciphertext=os.urandom(_SHARE_BYTES))),
        )
        for _ in range(count)
    ]  # fmt: skip


def of_postgres() -> float:
    """Processor seconds of all PostgreSQL processes on this machine."""
    found = [one for one in psutil.process_iter(["name"]) if one.info["name"] == "postgres"]
    return sum(sum(one.cpu_times()[:2]) for one in found)


def measured() -> dict[str, dict[int, dict[str, float]]]:
    """Microseconds a report, of each way and size."""
    told: dict[str, dict[int, dict[str, float]]] = {name: {} for name in WAYS}
    with running_postgres() as server:
        engine, of = open_database(server.new_database()), world()
        create_tables(engine)
        task_id = TaskStore(engine).add(of.bundle, created_at=NOW)
        for size in SIZES:
            for name, way in WAYS.items():
                batches = [drawn(task_id, size) for _ in range(min(REPORTS // size, 200))]
                ours, theirs, began = time.process_time(), of_postgres(), time.perf_counter()
                for batch in batches:
                    with engine.begin() as connection:
                        assert way(connection, batch) == size
                count = size * len(batches)
                told[name][size] = {
                    "wall_us": round(1e6 * (time.perf_counter() - began) / count, 1),
                    "own_us": round(1e6 * (time.process_time() - ours) / count, 1),
                    "postgresql_us": round(1e6 * (of_postgres() - theirs) / count, 1),
                }
        engine.dispose()
    return told


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How reports are best stored in PostgreSQL.")
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    told = measured()
    if as_json:
        print(json.dumps(told))
        return
    for name, sizes in told.items():
        for size, figures in sizes.items():
            print(f"{name:12} {size:6} a transaction", figures)


if __name__ == "__main__":
    main()
