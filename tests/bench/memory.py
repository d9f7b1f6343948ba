"""Peak memory of every process while a dataset of WBCD-sized reports is uploaded and sealed, against a bound
for each; and what rounds of ten shapes of models take, beside a helper's estimate.

make bench-memory                               100,000 reports, and the rounds: two tables
make bench-memory ARGS="--reports 1000000"      the size that is promised
make bench-memory ARGS="--rounds-only --json"   the rounds alone
"""

import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from docs.tutorial.fleet import HELPERS, Fleet
from tests.bench.harness import bench_parser, peak_mib, show
from tests.bench.round_memory import SHAPES, WITHIN, measure_apart
from tests.chaos.books import Books
from tests.fleet_commands import create_task
from tests.progress import Show, shown

LIMIT_MIB: Final = 1536.0
_LOOK_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Peak resident MiB of each kind of process, where there are several of the largest.

    Seconds of the two steps.

    Attributes:
        reports: Uploaded, admitted and sealed.
        browsers_mib: Of the command that plays all browsers, or of one of its workers.
        adserver_mib: Of the ad server.
        seal_command_mib: Of `adserver dataset seal`.
        helpers_mib: Of the two helpers' own processes.
        opening_workers_mib: Of the processes in which they open shares.
        upload_s: Of the first step.
        seal_s: Of the second.
        limit_mib: What none of them may pass.
        is_within: Whether none did.
    """

    reports: int
    browsers_mib: float
    adserver_mib: float
    seal_command_mib: float
    helpers_mib: float
    opening_workers_mib: float
    upload_s: float
    seal_s: float
    limit_mib: float
    is_within: bool


def measure(count: int, folder: Path, show: Show = lambda _done, _note: None) -> Result:
    """Upload and seal `count` synthetic reports of 30 features.

    `show` is told of two steps for each report.
    """
    with Fleet(folder=folder, is_no_noise=True) as fleet:
        task = create_task(
            fleet,
            "memory",
            "--classes 2 --default-label 0 --num-features 30 --min-batch-size 100 --no-noise --epsilon 1"
            " --clip-norm 1",
        )
        books = Books(fleet=fleet)
        uploading = fleet.start_command(
            "browser-sim", "run", "--task", f"http://{fleet.http}/v1/tasks/{task}", "--to", fleet.grpc,
            "--insecure",
            "--source", "synthetic", "--synthetic-features", "30", "--synthetic-rows", str(count), "--seed",
            "1",
        )  # fmt: skip
        started = time.monotonic()
        browsers = peak_of(uploading, lambda: show(books.num_reports(), "uploading"))
        uploaded = time.monotonic()
        sealing = fleet.start_command(
            "adserver", "dataset", "seal", "--task", task, "--json", *fleet.common()
        )
        seal_command = peak_of(sealing, lambda: show(count, "sealing"))
        sealed = time.monotonic()
        (dataset,) = fleet.adserver_json("dataset", "list", options=False)
        assert dataset["admitted"] == count
        helpers = [fleet.pid(helper) for helper in HELPERS]
        workers = [child.pid for pid in helpers for child in psutil.Process(pid).children(recursive=True)]
        peaks = {
            "browsers_mib": browsers,
            "adserver_mib": peak_mib(fleet.pid("adserver")),
            "seal_command_mib": seal_command,
            "helpers_mib": max(map(peak_mib, helpers)),
            "opening_workers_mib": max(map(peak_mib, workers), default=0.0),
        }
        return Result(
            reports=count,
            **peaks,
            upload_s=round(uploaded - started, 1),
            seal_s=round(sealed - uploaded, 1),
            limit_mib=LIMIT_MIB,
            is_within=max(peaks.values()) <= LIMIT_MIB,
        )


def peak_of(command: subprocess.Popen[bytes], on_look: Callable[[], None]) -> float:
    """Wait for a command, which must end well; the largest peak among it and its workers."""
    peak, looks = 0.0, 0
    while command.poll() is None:
        peak = max(peak, largest_mib(command.pid))
        if looks % 20 == 0:
            on_look()
        looks += 1
        time.sleep(_LOOK_EVERY_S)
    assert command.returncode == 0
    return peak


def largest_mib(pid: int) -> float:
    """The largest peak among a process and its children."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return 0.0
    return max(map(peak_mib, (pid, *(child.pid for child in children))))


def main() -> None:
    """Measure and print; the exit status says whether all kept to their bounds."""
    parser = bench_parser(__doc__)
    parser.add_argument("--reports", type=int, default=100_000)
    parser.add_argument("--rounds-only", action="store_true")
    arguments = parser.parse_args()
    sealing = None if arguments.rounds_only else _sealed(arguments.reports)
    rounds = {name: measure_apart(name) for name in SHAPES}
    is_within = all(1 / WITHIN <= one.ratio <= WITHIN for one in rounds.values())
    figures = {
        **(asdict(sealing) if sealing is not None else {}),
        "rounds": rounds,
        "estimates_within": WITHIN,
        "are_estimates_within": is_within,
    }
    show(figures, is_json=arguments.json)
    raise SystemExit(0 if is_within and (sealing is None or sealing.is_within) else 1)


def _sealed(reports: int) -> Result:
    with tempfile.TemporaryDirectory() as folder, shown("memory", 2 * reports) as tell:
        return measure(reports, Path(folder), tell)


if __name__ == "__main__":
    main()
