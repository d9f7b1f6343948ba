"""`make bench-load`: one ad server process under sustained ingest over HTTP.

Reports a second and core, latency, and memory over time.

Batches come in at a fixed rate, whether or not the ones before are answered, and a batch's latency counts
from the moment it was due: a server that falls behind cannot hide it. The ad server cannot open a report, so
the load is ciphertext of the right length under fresh ids: what it does with each is the same.

Then one intake replica and two over one PostgreSQL (`tests.bench.load_replicas`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine

from adserver.store.database import create_tables, default_url
from adserver.store.tasks import TaskStore
from maskedlark.reports.task import Task
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import report_to_message
from maskedlark.runtime.database import open_database
from protos import report_pb2
from tests.bench.intake_site import drawn_shares
from tests.bench.load_replicas import spread
from tests.builders import world
from tests.progress import Show, shown

BATCH: Final = 200
FLAT_WITHIN_MIB: Final = 8.0
ALLOCATOR: Final = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
    "MALLOC_MMAP_THRESHOLD_": "262144",
}
"""As the images set it (docker/Dockerfile)."""
_BIN: Final = Path(sys.executable).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was measured.

    Attributes:
        seconds: How long.
        reports: Acknowledged, and so durable.
        reports_per_s: Of wall time.
        reports_per_core_s: Of the ad server's own processor time.
        p50_ms: From the moment a request of 200 reports was due until its answer, with its transaction.
        p99_ms: The same.
        rss_first_mib: Resident memory after a quarter of the time: everything is loaded by then.
        rss_last_mib: At the end.
        rss_growth_mib: Over the last three quarters, by the line that fits the samples best.
        is_flat: Whether that is within 8 MiB.
        failures: Requests that were not answered with 200, all accepted.
    """

    seconds: float
    reports: int
    reports_per_s: float
    reports_per_core_s: float
    p50_ms: float
    p99_ms: float
    rss_first_mib: float
    rss_last_mib: float
    rss_growth_mib: float
    is_flat: bool
    failures: int


@dataclass(kw_only=True)
class Samples:
    """What was seen, each with the second at which it was."""

    answered_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    failures: int = 0
    rss_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)


@contextmanager
def adserver(
    folder: Path, *options: str, fill: Callable[[Engine, Task], None] = lambda _engine, _task: None
) -> Iterator[tuple[psutil.Process, str, Task]]:
    """An ad server process with one task, and what `fill` puts beside it; its helpers are not needed."""
    ours = world(num_features=30, starts_at=int(time.time()) - 86_400, expires_at=int(time.time()) + 86_400)
    engine = open_database(default_url(folder))
    create_tables(engine)
    TaskStore(engine).add(ours.bundle, created_at=time.time())
    fill(engine, ours.task)
    engine.dispose()
    addresses = folder / "addresses"
    nobody = ["--helper-0", "localhost:1", "--helper-1", "localhost:1"]
    command: list[str | Path] = [
        _BIN / "adserver",
        "serve",
        "--data",
        folder,
        "--insecure",
        *nobody,
        "--addresses-file",
        addresses,
        *options,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | ALLOCATOR)
    try:
        while not addresses.exists():
            time.sleep(0.05)
        yield psutil.Process(process.pid), json.loads(addresses.read_text())["http"], ours.task
    finally:
        process.terminate()
        process.wait(30)


def body(task: Task) -> bytes:
    """A batch of reports that the ad server has not seen."""
    bucket, task_id = task.time_bucket(time.time()), task.task_id
    made = (
        Report(
            task_id=task_id, report_id=os.urandom(16), time_bucket=bucket,
            shares=drawn_shares(task),
        )
        for _ in range(BATCH)
    )  # fmt: skip
    return report_pb2.ReportBatch(reports=map(report_to_message, made)).SerializeToString()


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When batches are due. Shared by the senders, each of which takes the next one.

    Attributes:
        began_s: On the monotonic clock.
        seconds: No batch is due later than so long after it.
        every_s: Between two batches; 0 for as fast as they are answered.
    """

    began_s: float
    seconds: float
    every_s: float
    _numbers: Iterator[int] = field(default_factory=count)

    def next(self) -> float | None:
        """When the next batch is due, on the monotonic clock; None if that is too late."""
        number = next(self._numbers)
        due = self.began_s + number * self.every_s if self.every_s else time.monotonic()
        return due if due < self.began_s + self.seconds else None


def send(http: str, task: Task, schedule: Schedule, samples: Samples) -> None:
    """Send batches as they are due, until none is."""
    with httpx.Client(base_url=f"http://{http}", timeout=60) as client:
        while True:
            content = body(task)
            due = schedule.next()
            if due is None:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            began = due if schedule.every_s else time.monotonic()
            answer = client.post("/v1/reports/batch", content=content)
            now = time.monotonic()
            samples.latency_s.append(now - began)
            samples.answered_s.append(now - schedule.began_s)
            samples.failures += answer.status_code != 200 or answer.json()["accepted"] != BATCH


def measure(
    seconds: float, rate: float, senders: int, folder: Path, show: Show = lambda _done, _note: None
) -> tuple[Load, Samples]:
    """Load one ad server for so long, with `rate` reports a second; 0 for as many as it takes."""
    samples = Samples()
    with adserver(folder) as (process, http, task), ThreadPoolExecutor(senders) as pool:
        before = sum(process.cpu_times()[:2])
        schedule = Schedule(began_s=time.monotonic(), seconds=seconds, every_s=BATCH / rate if rate else 0.0)
        running = [pool.submit(send, http, task, schedule, samples) for _ in range(senders)]
        while not all(one.done() for one in running):
            time.sleep(min(1.0, seconds / 40))
            samples.rss_s.append(time.monotonic() - schedule.began_s)
            samples.rss_mib.append(process.memory_info().rss / 2**20)
            show(
                samples.rss_s[-1],
                f"{BATCH * len(samples.latency_s):,} reports, {samples.rss_mib[-1]:.0f} MiB,"
                f" {samples.failures} failures",
            )
        for one in running:
            one.result()
        used = sum(process.cpu_times()[:2]) - before
    return summary(samples, used), samples


def summary(samples: Samples, used_s: float) -> Load:
    """The figures of a run that took `used_s` of the ad server's processor time."""
    took = samples.answered_s[-1]
    reports = BATCH * (len(samples.latency_s) - samples.failures)
    p50, p99 = (float(value) for value in np.percentile(samples.latency_s, (50, 99)) * 1000)
    later = np.array(samples.rss_s) >= took / 4
    moments, rss = np.array(samples.rss_s)[later], np.array(samples.rss_mib)[later]
    growth = float(np.polyfit(moments, rss, 1)[0] * (moments[-1] - moments[0]))
    return Load(
        seconds=took, reports=reports, reports_per_s=reports / took, reports_per_core_s=reports / used_s,
        p50_ms=p50, p99_ms=p99,
        rss_first_mib=float(rss[0]), rss_last_mib=float(rss[-1]), rss_growth_mib=growth,
        is_flat=growth <= FLAT_WITHIN_MIB,
        failures=samples.failures,
    )  # fmt: skip


def plot(samples: Samples, path: Path) -> None:
    """Latency and memory over time, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(samples.answered_s, np.array(samples.latency_s) * 1000, ".", markersize=2)
    above.set(
        ylabel=f"latency of {BATCH} reports (ms)", yscale="log", title="one ad server under sustained ingest"
    )
    below.plot(samples.rss_s, samples.rss_mib)
    below.set(xlabel="seconds", ylabel="resident memory (MiB)", ylim=(0, 1.2 * max(samples.rss_mib)))
    figure.savefig(path)


def main() -> None:
    """Measure and print; the exit status says whether every request was answered and memory stayed flat."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument(
        "--rate", type=float, default=5_000.0, help="reports a second; 0 for as many as are answered"
    )
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--plot", type=Path, help="write latency and memory over time to this picture")
    parser.add_argument(
        "--replicas-seconds",
        type=float,
        default=20.0,
        help="each time, of one intake replica and of two; 0 for none",
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, shown("load", arguments.seconds) as show:
        result, samples = measure(arguments.seconds, arguments.rate, arguments.senders, Path(folder), show)
    if arguments.plot:
        plot(samples, arguments.plot)
    replicas = spread(arguments.replicas_seconds) if arguments.replicas_seconds else None
    if arguments.json:
        beside = {} if replicas is None else {"replicas": asdict(replicas)}
        print(json.dumps(asdict(result) | beside))  # the benchmark's output
    else:
        _show("one ad server under sustained ingest", asdict(result))
        if replicas is not None:
            for name, one in asdict(replicas).items():
                _show(
                    f"intake replicas over PostgreSQL: {name}", one if isinstance(one, dict) else {name: one}
                )
    raise SystemExit(0 if result.is_flat and not result.failures else 1)


def _show(title: str, figures: dict[str, float | bool]) -> None:
    table = Table("what", "value", title=title)
    for name, value in figures.items():
        table.add_row(name, str(value) if isinstance(value, bool) else f"{value:,.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
