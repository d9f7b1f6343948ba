"""Reports whose ciphertexts are rows beside reports whose ciphertexts are objects, over one PostgreSQL.

    python -m tests.bench.report_objects [--json] [--slices 6] [--reports 200000]

Two intakes take batches as fast as they answer, one after the other in slices of two seconds: the second one
puts objects into a server that speaks S3 and runs beside them (moto, one process, no disk). Then reports are
stored, taken for a dataset and sent to both helpers both ways, in this process, with objects in a folder.
Servers, senders and PostgreSQL share this machine: processor time a report is what can be compared.
"""

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import psutil
from sqlalchemy import Engine

from adserver.store.database import create_tables
from adserver.store.report_buckets import ReportBucket
from adserver.store.report_object_writer import PutsReports
from adserver.store.reports import ReportStore
from adserver.store.schema import report_buckets
from adserver.store.tasks import TaskStore
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import encode_report
from maskedlark.runtime.database import open_database
from tests.bench.harness import bench_parser
from tests.bench.intake_site import site_without_intakes
from tests.bench.load_replicas import Tally
from tests.bench.stored import SIZE, bytes_of, drawn, read_for_sealing
from tests.builders import NOW, examples, reports, world
from tests.postgres import running_postgres
from tests.s3 import leading_to, s3_beside

URL: Final = "s3://reports/bench"
ALONE: Final = 40
_SLICE_S: Final = 2.0
_START_S: Final = 60.0


def taken_in(slices: int) -> dict[str, Any]:
    """What an intake does without and with objects, by turns."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(s3_beside())
        os.environ |= leading_to(endpoint)
        httpx.put(f"{endpoint}/reports", timeout=_START_S).raise_for_status()
        rows = site_without_intakes(stack)
        ReportBucket.of(rows.engine, URL, may_add=True)
        rows.start(stack)
        objects = replace(rows, doors=[], intakes=[])
        objects.start(stack, "--report-objects", URL)
        sites = {"rows": rows, "objects": objects}
        tallies = {name: Tally(intakes=1, is_slowed=False) for name in sites}
        grown = dict.fromkeys(sites, 0)
        for _ in range(slices):
            for name, at in sites.items():
                before = bytes_of(at.engine)
                tallies[name].load(at, _SLICE_S)
                grown[name] += bytes_of(at.engine) - before
        bucket = rows.task.time_bucket(time.time())
        examples_alone = examples(rows.task, ALONE)
        made = [replace(one, time_bucket=bucket) for one in reports(rows.ours, examples_alone)]
        rates = {name: tally.rate() for name, tally in tallies.items()}
        return {
            name: {
                "reports_per_s": rates[name].reports_per_s,
                "intake_us": rates[name].intake_us,
                "postgresql_us": rates[name].postgresql_us,
                "processors_busy": rates[name].processors_busy,
                "database_bytes_a_report": round(grown[name] / rates[name].reports, 1),
                "alone_ms": alone_ms(at.doors[0], made[number::2]),
            }
            for number, (name, at) in enumerate(sites.items())
        }


def alone_ms(door: str, made: Sequence[Report]) -> float:
    """The median time of a single report that nothing comes beside."""
    took = []
    with httpx.Client(base_url=f"http://{door}") as client:
        for report in made:
            time.sleep(0.02)
            began = time.perf_counter()
            client.post("/v1/reports", content=encode_report(report)).raise_for_status()
            took.append(time.perf_counter() - began)
    return round(1e3 * sorted(took)[len(took) // 2], 1)


def stored(count: int) -> dict[str, Any]:
    """What both ways take of the disk, and of a processor to seal."""
    told = {}
    of = world(num_features=30, max_dataset_size=10_000_000)
    with running_postgres() as server, TemporaryDirectory() as folder:
        for name in ("rows", "objects"):
            engine = open_database(server.new_database())
            create_tables(engine)
            task_id = TaskStore(engine).add(of.bundle, created_at=NOW)
            putting = _putting(engine, Path(folder) / "objects") if name == "objects" else None
            store, before = ReportStore(engine, putting), bytes_of(engine)
            used, began = psutil.Process().cpu_times(), time.perf_counter()
            for _ in range(count // SIZE):
                store.add(drawn(task_id, SIZE))
            stored_s, now = time.perf_counter() - began, psutil.Process().cpu_times()
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("CHECKPOINT")
            size = bytes_of(engine) - before
            sealing_s, sent = read_for_sealing(engine, of.task, count)
            told[name] = {
                "reports": count,
                "stored_s": round(stored_s, 1),
                "own_us": round(1e6 * (now.user + now.system - used.user - used.system) / count, 1),
                "database_bytes_a_report": round(size / count, 1),
                "object_bytes_a_report": round(_bytes_in(Path(folder) / "objects") / count, 1),
                "objects": sum(1 for one in Path(folder).rglob("*") if one.is_file()),
                "sealing_us_a_report": round(1e6 * sealing_s / count, 1),
                "sent_bytes_a_report": round(sent / count, 1),
            }
            engine.dispose()
    return told


def _putting(engine: Engine, folder: Path) -> PutsReports:
    """Into a folder, which the ad server itself refuses: nothing flushes it to the disk."""
    bucket = ReportBucket(number=1, folder="bench", url=f"file://{folder}")
    with engine.begin() as connection:
        connection.execute(report_buckets.insert().values(folder=bucket.folder, url=bucket.url))
    return PutsReports(bucket, bucket.open(), monotonic=time.monotonic)


def _bytes_in(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


def main() -> None:
    """Measure and print."""
    parser = bench_parser("Reports as rows beside reports as objects.")
    parser.add_argument("--slices", type=int, default=6)
    parser.add_argument("--reports", type=int, default=200_000)
    arguments = parser.parse_args()
    told = {"intake": taken_in(arguments.slices), "stored": stored(arguments.reports)}
    print(json.dumps(told, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()
