"""`make bench-dashboard`: how soon pages of a large store are there, and what dashboards take of the intake.

The store has 1,000 jobs, 10,000 rounds, 50 datasets and 1,000,000 reports. The intake is loaded as fast as it
answers, in turns with and without ten dashboards that poll as browsers do; what counts is reports over the
ad server's own processor time, in which the dashboards' work is, so that a busy machine does not show.
"""

import gzip
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, Final

import httpx
import psutil
from sqlalchemy import Engine, insert

from adserver.dashboard.assets import FOLDER
from adserver.dashboard.pages import PAGES
from adserver.records.access import GrantKind, Scope
from adserver.records.dataset_state import DatasetState
from adserver.records.job_state import JobState
from adserver.records.plans import plan_columns
from adserver.store.access import AccessStore
from adserver.store.schema import datasets, job_rounds, jobs, report_counts, reports
from adserver.store.tasks import TaskStore
from maskedlark.canonical import encode
from maskedlark.reports.task import Task
from maskedlark.runtime.database import open_database
from tests.adserver.job_world import RECORDS, plan_for
from tests.adserver.painted import OF
from tests.bench.harness import bench_parser, cpu_s, show
from tests.bench.intake_site import BATCH
from tests.bench.load import Samples, Schedule, adserver, send

JOBS: Final = 1_000
LONG: Final = 5_005
"""Rounds of one job; the others have five each: 10,000 in all."""
DATASETS: Final = 50
DASHBOARDS: Final = 10
EVERY_S: Final = 2.0
CHUNK: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured.

    Attributes:
        p95_page_ms: Of every page, drawn anew each time, the first time too.
        slowest_page: The page of the largest median.
        slowest_page_ms: That median.
        intake_share_with_ten_dashboards: What is left of the one core that a full intake fills: one less the
            processor time that ten open dashboards take in a second.
        reports_for_processor_time: Beside it, at full load: reports over processor time with ten dashboards
            open, over the same without; the median of pairs of turns. On a busy machine, where the intake
            gets less than a core, it is lower.
        answered_unchanged: The share of the dashboards' looks that were answered 304.
        assets_gzip_bytes: Scripts, styles and the mark, each file compressed.
        reports: In the store at the beginning.
    """

    p95_page_ms: float
    slowest_page: str
    slowest_page_ms: float
    intake_share_with_ten_dashboards: float
    reports_for_processor_time: float
    answered_unchanged: float
    assets_gzip_bytes: int
    reports: int


def fill(engine: Engine, task: Task, count: int) -> None:
    """Jobs, rounds and datasets of one task, reports of another."""
    TaskStore(engine).add(OF.of.bundle, created_at=time.time())
    now_s, ids = time.time(), [os.urandom(32) for _ in range(DATASETS)]
    row = {
        "task_id": OF.of.task.task_id,
        "state": DatasetState.COMMITTED,
        "received": RECORDS,
        "size": RECORDS,
    }
    plan = plan_for(OF, rounds=LONG, batch_size=float(RECORDS), noise_multiplier=9_000.0)
    short = replace(plan, job=replace(plan.job, rounds=5))
    waiting = {
        "time_bucket": 0,
        "key_id_0": 1,
        "ciphertext_0": bytes(64),
        "key_id_1": 2,
        "ciphertext_1": bytes(64),
    }
    with engine.begin() as connection:
        for number, one in enumerate(ids):
            made = {**row, "handle": os.urandom(16), "dataset_id": one, "created_at": now_s + number}
            connection.execute(insert(datasets).values(made))
        for number in range(JOBS):
            of = plan if number == 0 else short
            job = replace(of.job, job_id=number.to_bytes(16), dataset_id=ids[number % DATASETS])
            connection.execute(insert(jobs).values(_job_row(replace(of, job=job), now_s + number)))
            connection.execute(insert(job_rounds), list(_rounds(job.job_id, job.rounds, now_s)))
        for start in range(0, count, CHUNK):
            these = (n.to_bytes(16) for n in range(start, min(start + CHUNK, count)))
            connection.execute(
                insert(reports),
                [{"task_id": task.task_id, "report_id": n, "digest": n, **waiting} for n in these],
            )
        counted = {"task_id": task.task_id, "state": "received", "reports": count}
        connection.execute(insert(report_counts).values(counted))


def _job_row(plan: Any, at_s: float) -> dict[str, Any]:
    return {
        "job_id": plan.job.job_id,
        "plan": encode(plan),
        "submitted_at_s": at_s,
        "state": JobState.DONE,
        "rounds_done": plan.job.rounds,
        "is_closed": True,
        "rounds_charged": plan.job.rounds,
        "lease_until_s": 0.0,
        **plan_columns(plan),
    }


def _rounds(job_id: bytes, rounds: int, now_s: float) -> Iterator[dict[str, Any]]:
    for done in range(1, rounds + 1):
        figures = {"loss": 1 / done, "accuracy": 0.5, "gradient_norm": 0.1, "noise_to_signal": 0.4}
        yield {"job_id": job_id, "rounds_done": done, "finished_at_s": now_s, "learning_rate": 0.5, **figures}


def page_times(client: httpx.Client, looks: int) -> dict[str, list[float]]:
    """Milliseconds of every look at every page; no look is answered with an earlier one's page."""
    items = {name: client.get(f"/api/v1/{name}s").json()["items"] for name in ("task", "dataset")}
    named = {
        "task": items["task"][0]["task_id"],
        "dataset": items["dataset"][0]["dataset_id"],
        "job": bytes(16).hex(),
    }
    found: dict[str, list[float]] = {}
    for look in range(looks):
        for page in PAGES:
            if "{query}" in page.path:
                continue
            begun = time.perf_counter()
            answer = client.get(page.path.format(**named), params={"look": look})
            found.setdefault(page.path, []).append(1_000 * (time.perf_counter() - begun))
            answer.raise_for_status()
    return found


def watch(origin: str, token: str, path: str, stop: Event) -> list[int]:
    """What one open dashboard does, until it is closed; the statuses that it got."""
    statuses, tag = [], ""
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=origin, headers=headers, timeout=60) as client:
        while not stop.wait(EVERY_S):
            answer = client.get(path, headers={"if-none-match": tag} if tag else {})
            tag = answer.headers.get("etag", "")
            statuses.append(answer.status_code)
    return statuses


def processor_share(process: psutil.Process, seconds: float, opened: list[tuple[str, str, str]]) -> float:
    """How much of a core the ad server takes without load, with these dashboards open."""
    stop = Event()
    with ThreadPoolExecutor(DASHBOARDS) as pool:
        for origin, token, path in opened:
            pool.submit(watch, origin, token, path, stop)
        time.sleep(EVERY_S)
        before = cpu_s(process)
        time.sleep(seconds)
        used = cpu_s(process) - before
        stop.set()
    return used / seconds


def turn(http: str, task: Task, process: psutil.Process, seconds: float) -> float:
    """Reports that the intake took for each second of the ad server's processor time, at full load."""
    samples = Samples()
    before = cpu_s(process)
    send(http, task, Schedule(began_s=time.monotonic(), seconds=seconds, every_s=0.0), samples)
    used = cpu_s(process) - before
    return BATCH * len(samples.latency_s) / used


def measure(folder: Path, *, count: int, turns: int, seconds: float, looks: int) -> Result:
    """Fill a store, serve it, look at it, and load it."""
    options = ("--dashboard-listen", "127.0.0.1:0")
    with adserver(folder, *options, fill=lambda engine, task: fill(engine, task, count)) as (
        process,
        http,
        task,
    ):
        address = folder / "dashboard.address"
        while not address.exists():
            time.sleep(0.05)
        origin, engine = (
            address.read_text().strip(),
            open_database(f"sqlite:///{folder / 'adserver.sqlite3'}"),
        )
        token = AccessStore(engine, time.time).make(GrantKind.TOKEN, Scope.READ, name="bench", lasts_s=3_600)
        engine.dispose()
        with httpx.Client(
            base_url=origin, headers={"authorization": f"Bearer {token}"}, timeout=60
        ) as client:
            times = page_times(client, looks)
        shares, statuses = list[float](), list[int]()
        open_pages = ["/", "/intake", "/jobs", f"/jobs/{bytes(16).hex()}", "/budgets"]
        taken = processor_share(process, seconds, [])
        opened = [(origin, token, open_pages[one % len(open_pages)]) for one in range(DASHBOARDS)]
        taken = processor_share(process, seconds, opened) - taken
        for number in range(turns):
            pair = {}
            for is_watched in (number % 2 == 0, number % 2 == 1):
                stop = Event()
                with ThreadPoolExecutor(DASHBOARDS) as pool:
                    watching = [
                        pool.submit(watch, origin, token, open_pages[one % len(open_pages)], stop)
                        for one in range(DASHBOARDS if is_watched else 0)
                    ]
                    pair[is_watched] = turn(http, task, process, seconds)
                    stop.set()
                    statuses += [status for one in watching for status in one.result()]
            shares.append(pair[True] / pair[False])
    every = sorted(one for page in times.values() for one in page)
    slowest = max(times, key=lambda page: statistics.median(times[page]))
    return Result(
        p95_page_ms=round(every[int(0.95 * len(every))], 1),
        slowest_page=slowest,
        slowest_page_ms=round(statistics.median(times[slowest]), 1),
        intake_share_with_ten_dashboards=round(1 - taken, 4),
        reports_for_processor_time=round(statistics.median(shares), 4),
        answered_unchanged=round(statuses.count(304) / max(1, len(statuses)), 3),
        assets_gzip_bytes=sum(
            len(gzip.compress(path.read_bytes(), mtime=0))
            for path in FOLDER.iterdir()
            if path.suffix in (".js", ".css", ".svg")
        ),
        reports=count,
    )


def main() -> None:
    """Run it and print what was found."""
    parser = bench_parser(__doc__)
    parser.add_argument("--reports", type=int, default=1_000_000, help="in the store at the beginning")
    parser.add_argument("--turns", type=int, default=6, help="pairs of turns at full load")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one turn")
    parser.add_argument("--looks", type=int, default=20, help="at each page")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(
            Path(folder) / "adserver",
            count=asked.reports,
            turns=asked.turns,
            seconds=asked.seconds,
            looks=asked.looks,
        )
    show(result, is_json=asked.json)


if __name__ == "__main__":
    main()
