"""What a stored report takes, and what becomes of it: `python -m tests.bench.stored [--reports 1000000]`.

Reports of 30 features over one PostgreSQL, and their ids in a helper's ledger on SQLite. Bytes a report, how
PostgreSQL answers what the dashboard asks (EXPLAIN), and the seconds in which all of them expire.
"""

import argparse
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil
from sqlalchemy import Engine

from adserver.collecting.report_expiry import GRACE_S, SETTLED_S, expire_reports
from adserver.peers.client import _request_of
from adserver.store.database import create_tables
from adserver.store.datasets import DatasetStore
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from helper.ledger.ledger import Ledger
from helper.ledger.records import SignedTask
from maskedlark.canonical import encode
from maskedlark.reports.task import Task
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.runtime.database import open_database
from tests.builders import NOW, World, world
from tests.postgres import running_postgres

SIZE: Final = 5_000
_SHARE_BYTES: Final = 119
"""Of a task with 30 features."""
_COUNTS: Final = (
    "SELECT state, reports FROM report_counts WHERE task_id = %s",
    "SELECT sum(reports) FROM arrived_reports WHERE task_id = %s",
)


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


def of_backends() -> dict[int, float]:
    """Processor seconds of each PostgreSQL process that runs now."""
    found = [one for one in psutil.process_iter(["name"]) if one.info["name"] == "postgres"]
    return {one.pid: sum(one.cpu_times()[:2]) for one in found}


def used_since(before: dict[int, float]) -> float:
    """Processor seconds of PostgreSQL since then; what processes used that have ended is left out."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in of_backends().items())


def bytes_of(engine: Engine) -> int:
    """What the database takes on the disk."""
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())


def stored(engine: Engine, of: World, count: int) -> dict[str, Any]:
    """Store reports, look at how they are counted, and let them expire."""
    create_tables(engine)
    task_id = TaskStore(engine).add(of.bundle, created_at=NOW)
    reports, before, began = ReportStore(engine), bytes_of(engine), time.perf_counter()
    for _ in range(count // SIZE):
        reports.add(drawn(task_id, SIZE))
    stored_s, theirs = time.perf_counter() - began, bytes_of(engine) - before
    some = min(count, 200_000)
    sealing_s, sent = read_for_sealing(engine, of.task, some)
    with engine.connect() as connection:
        plans = [
            connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {one}", (task_id,)).scalar_one()[0]
            for one in _COUNTS
        ]
    began, used = time.perf_counter(), of_backends()
    over_s = of.task.expires_at + GRACE_S
    expired = sum(
        expire_reports(TaskStore(engine), reports, DatasetStore(engine), now_s)
        for now_s in (over_s, over_s + SETTLED_S)
    )
    expiry_s, expiry_postgres_s = time.perf_counter() - began, used_since(used)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM")
    return {
        "reports": count,
        "adserver_bytes_a_report": round(theirs / count, 1),
        "stored_s": round(stored_s, 1),
        "sealing_us_a_report": round(1e6 * sealing_s / some, 1),
        "sent_bytes_a_report": round(sent / some, 1),
        "counting_ms": [round(one["Execution Time"], 2) for one in plans],
        "counting_reads": [one["Plan"].get("Relation Name") or "report counts" for one in plans],
        "expired": expired,
        "expiry_s": round(expiry_s, 2),
        "expiry_postgresql_s": round(expiry_postgres_s, 2),
        "bytes_a_report_after_expiry": round((bytes_of(engine) - before) / count, 1),
    }


def read_for_sealing(engine: Engine, task: Task, count: int) -> tuple[float, float]:
    """What it takes to seal reports, and to send each helper its shares.

    Processor seconds, PostgreSQL's among them and gRPC's left out, and the bytes of all messages.
    """
    datasets, handle = DatasetStore(engine), os.urandom(16)
    began, theirs, sent = time.process_time(), of_backends(), 0
    dataset = datasets.begin(task.task_id, handle, limit=count, created_at=NOW)
    for role in (0, 1):
        for page in ReportStore(engine).share_pages(task, handle, role):
            sent += len(_request_of(page).SerializeToString())
    used = time.process_time() - began + used_since(theirs)
    datasets.give_back(dataset)
    return used, sent


def in_the_ledger(folder: Path, of: World, count: int) -> float:
    """Bytes a report in a helper's ledger, where each id is kept for as long as the ledger."""
    path = folder / "ledger.sqlite3"
    engine = open_database(f"sqlite:///{path}")
    ledger = Ledger(engine)
    signed = SignedTask(
        encoded=encode(of.task), origin=of.task.origin, role=0, signature=of.bundle.signatures[0]
    )
    ledger.add_task(of.task.task_id, signed)
    ledger.add_dataset(bytes(32), of.task.task_id, [os.urandom(16) for _ in range(count)])
    engine.dispose()  # which takes the write-ahead log into the file
    return path.stat().st_size / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a stored report takes.")
    parser.add_argument("--reports", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="on one line")
    arguments = parser.parse_args()
    count = arguments.reports
    of = world()
    with running_postgres() as server, TemporaryDirectory() as folder:
        engine = open_database(server.new_database())
        told = stored(engine, of, count)
        engine.dispose()
        told["ledger_bytes_a_report"] = round(in_the_ledger(Path(folder), of, min(count, 200_000)), 1)
    print(json.dumps(told, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()
