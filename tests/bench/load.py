"""`make bench-load`: one ad server process under sustained ingest over HTTP: reports a second and core, latency, and memory over time.

The ad server cannot open a report, so the load is ciphertext of the right length under fresh ids: what it does with each is the same.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from adserver.database import create_tables, default_url, open_database
from adserver.tasks import TaskStore
from maskedlark.rpc.wire import report_to_message
from maskedlark.sealing import HpkeSuite, sealed_length
from maskedlark.task import Task
from maskedlark.upload import Report, SealedShare
from protos import report_pb2
from tests.builders import world

BATCH: Final = 200
_BIN: Final = Path(sys.executable).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was measured.

    Attributes:
        seconds: How long.
        reports: Acknowledged, and so durable.
        reports_per_s: Of wall time.
        reports_per_core_s: Of the ad server's own processor time.
        p50_ms: Of one request of 200 reports, with its transaction.
        p99_ms: The same.
        rss_first_mib: After a tenth of the time.
        rss_last_mib: At the end.
        failures: Requests that were not answered with 200.
    """

    seconds: float
    reports: int
    reports_per_s: float
    reports_per_core_s: float
    p50_ms: float
    p99_ms: float
    rss_first_mib: float
    rss_last_mib: float
    failures: int


@contextmanager
def adserver(folder: Path) -> Iterator[tuple[psutil.Process, str, Task]]:
    """An ad server process with one task; its helpers are not needed."""
    ours = world(num_features=30, starts_at=int(time.time()) - 86_400, expires_at=int(time.time()) + 86_400)
    engine = open_database(default_url(folder))
    create_tables(engine)
    TaskStore(engine).add(ours.bundle, created_at=time.time())
    engine.dispose()
    addresses = folder / "addresses"
    command = [
        "serve",
        "--data",
        folder,
        "--insecure",
        "--helper-0",
        "localhost:1",
        "--helper-1",
        "localhost:1",
        "--addresses-file",
        addresses,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([_BIN / "adserver", *map(str, command)], stdout=log, stderr=log)
    try:
        while not addresses.exists():
            time.sleep(0.05)
        yield psutil.Process(process.pid), json.loads(addresses.read_text())["http"], ours.task
    finally:
        process.terminate()
        process.wait(30)


def body(task: Task) -> bytes:
    """A batch of reports that the ad server has not seen."""
    length = sealed_length(HpkeSuite.X25519_AES128GCM, task.share_length)
    bucket, task_id = task.time_bucket(time.time()), task.task_id
    made = (
        Report(
            task_id=task_id, report_id=os.urandom(16), time_bucket=bucket,
            shares=(SealedShare(key_id=1, ciphertext=os.urandom(length)), SealedShare(key_id=2, ciphertext=os.urandom(length))),
        )
        for _ in range(BATCH)
    )  # fmt: skip
    return report_pb2.ReportBatch(reports=map(report_to_message, made)).SerializeToString()


def send(http: str, task: Task, until: float, latencies: list[float]) -> int:
    """Send batches one after the other; how many requests failed."""
    failures = 0
    with httpx.Client(base_url=f"http://{http}", timeout=60) as client:
        while time.monotonic() < until:
            content = body(task)
            began = time.monotonic()
            answer = client.post("/v1/reports/batch", content=content)
            latencies.append(time.monotonic() - began)
            failures += answer.status_code != 200 or answer.json()["accepted"] != BATCH
    return failures


def measure(seconds: float, senders: int, folder: Path) -> Load:
    """Load one ad server for so long."""
    latencies: list[float] = []
    with adserver(folder) as (process, http, task), ThreadPoolExecutor(senders) as pool:
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        running = [pool.submit(send, http, task, began + seconds, latencies) for _ in range(senders)]
        time.sleep(seconds / 10)
        first = process.memory_info().rss
        failures = sum(one.result() for one in running)
        took, used, last = time.monotonic() - began, sum(process.cpu_times()[:2]) - before, process.memory_info().rss
    reports = BATCH * (len(latencies) - failures)
    p50, p99 = (float(value) for value in np.percentile(latencies, (50, 99)) * 1000)
    return Load(
        seconds=took, reports=reports, reports_per_s=reports / took, reports_per_core_s=reports / used, p50_ms=p50, p99_ms=p99,
        rss_first_mib=first / 2**20, rss_last_mib=last / 2**20, failures=failures,
    )  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments.seconds, arguments.senders, Path(folder))
    if arguments.json:
        print(json.dumps(asdict(result)))  # the benchmark's output
        return
    shown = Table("what", "value", title="one ad server under sustained ingest")
    for name, value in asdict(result).items():
        shown.add_row(name, f"{value:,.1f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
