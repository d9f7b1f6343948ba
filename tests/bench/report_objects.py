"""Reports whose ciphertexts are rows beside reports whose ciphertexts are objects, over one PostgreSQL.

    python -m tests.bench.report_objects [--json] [--slices 6] [--reports 200000]

Two intakes take batches as fast as they answer, one after the other in slices of two seconds: the second one
puts objects into a server that speaks S3 and runs beside them (moto, one process, no disk). Then reports are
stored, taken for a dataset and sent to both helpers both ways, in this process, with objects in a folder.
Servers, senders and PostgreSQL share this machine: processor time a report is what can be compared.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import psutil
from sqlalchemy import Engine, make_url

from adserver.store.database import create_tables
from adserver.store.object_putting import PutsReports
from adserver.store.report_buckets import bucket_of
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import encode_report
from maskedlark.runtime.database import open_database
from tests.bench.arrivals import drawn
from tests.bench.load_replicas import Site, Tally, _postmaster, _started
from tests.bench.stored import SIZE, bytes_of, read_for_sealing
from tests.builders import NOW, examples, reports, world
from tests.postgres import running_postgres

URL: Final = "s3://reports/bench"
ALONE: Final = 40
_SLICE_S: Final = 2.0
_START_S: Final = 60.0
_MOTO: Final = """
import sys, time
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@contextmanager
def s3() -> Iterator[None]:
    """A server that speaks S3, and the environment that leads to it."""
    with subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            if process.stdout is None:
                raise AssertionError("it has a pipe")
            host, port = process.stdout.readline().split()
            os.environ |= {
                "AWS_ACCESS_KEY_ID": "id",
                "AWS_SECRET_ACCESS_KEY": "key",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": f"http://{host}:{port}",
                "AWS_ALLOW_HTTP": "true",
            }
            httpx.put(f"http://{host}:{port}/reports", timeout=_START_S).raise_for_status()
            yield
        finally:
            process.kill()


def taken_in(slices: int) -> dict[str, Any]:
    """What an intake does without and with objects, by turns."""
    now = int(time.time())
    ours = world(num_features=30, starts_at=now - 86_400, expires_at=now + 86_400)
    with ExitStack() as stack:
        stack.enter_context(s3())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="maskedlark-load-")))
        url = stack.enter_context(running_postgres()).new_database()
        engine = open_database(url)
        stack.callback(engine.dispose)
        create_tables(engine)
        TaskStore(engine).add(ours.bundle, created_at=now)
        bucket_of(engine, URL, may_add=True)
        sites, tallies = dict[str, Site](), dict[str, Tally]()
        for name, value in (("rows", ""), ("objects", URL)):
            os.environ.pop("ADSERVER_REPORT_OBJECTS", None)
            if value:
                os.environ["ADSERVER_REPORT_OBJECTS"] = value
            process, door = _started(stack, url, folder / name)
            sites[name] = Site(
                engine=engine,
                task=ours.task,
                doors=[door],
                intakes=[process],
                postmaster=_postmaster(str(make_url(url).query["host"])),
            )
            tallies[name] = Tally(intakes=1, is_slowed=False)
        grown = dict.fromkeys(sites, 0)
        for _ in range(slices):
            for name, at in sites.items():
                before = bytes_of(engine)
                tallies[name].load(at, _SLICE_S)
                grown[name] += bytes_of(engine) - before
        bucket = ours.task.time_bucket(now)
        made = [replace(one, time_bucket=bucket) for one in reports(ours, examples(ours.task, ALONE))]
        return {
            name: {
                "reports_per_s": tallies[name].rate().reports_per_s,
                "intake_us": tallies[name].rate().intake_us,
                "postgresql_us": tallies[name].rate().postgresql_us,
                "processors_busy": tallies[name].rate().processors_busy,
                "database_bytes_a_report": round(grown[name] / tallies[name].reports, 1),
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
    bucket = bucket_of(engine, f"file://{folder}", may_add=True)
    return PutsReports(bucket, bucket.opened(), monotonic=time.monotonic)


def _bytes_in(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Reports as rows beside reports as objects.")
    parser.add_argument("--slices", type=int, default=6)
    parser.add_argument("--reports", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    told = {"intake": taken_in(arguments.slices), "stored": stored(arguments.reports)}
    print(json.dumps(told, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()
