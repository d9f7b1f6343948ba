"""Peak memory of every process while a dataset of 100,000 WBCD-sized reports is uploaded and sealed.

make bench-memory            a table
make bench-memory ARGS=--json
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from docs.tutorial.fleet import ORIGIN, Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Peak resident MiB of each party's largest process, and of the `dataset seal` command; seconds of the two steps."""

    reports: int
    helper_0_mib: float
    helper_1_mib: float
    adserver_mib: float
    seal_command_mib: float
    upload_s: float
    seal_s: float


def measure(count: int, folder: Path) -> Result:
    """Upload and seal `count` synthetic reports of 30 features."""
    with Fleet(folder=folder, is_no_noise=True) as fleet:
        labels = ["--classes", "2", "--default-label", "0", "--num-features", "30", "--min-batch-size", "100"]
        privacy = ["--no-noise", "--epsilon", "1", "--clip-norm", "1"]
        task = fleet.adserver("task", "create", "--name", "memory", "--origin", ORIGIN, *labels, *privacy).strip()
        url = f"http://{fleet.http}/v1/tasks/{task}"
        source = ["--source", "synthetic", "--synthetic-features", "30", "--synthetic-rows", str(count), "--seed", "1"]
        started = time.monotonic()
        fleet.browsers("--task", url, "--to", fleet.grpc, *source)
        uploaded = time.monotonic()
        sealing = fleet.start_command("adserver", "dataset", "seal", "--task", task, "--json", *fleet.common())
        peak = 0.0
        while sealing.poll() is None:
            peak = max(peak, peak_mib(sealing.pid))
            time.sleep(0.02)
        assert sealing.returncode == 0
        sealed = time.monotonic()
        (dataset,) = fleet.adserver_json("dataset", "list", options=False)
        assert dataset["admitted"] == count
        return Result(
            reports=count,
            helper_0_mib=largest_mib(fleet.pid("helper-0")),
            helper_1_mib=largest_mib(fleet.pid("helper-1")),
            adserver_mib=largest_mib(fleet.pid("adserver")),
            seal_command_mib=peak,
            upload_s=round(uploaded - started, 1),
            seal_s=round(sealed - uploaded, 1),
        )


def peak_mib(pid: int) -> float:
    """The high-water mark of a process's resident memory, as the kernel kept it; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def largest_mib(pid: int) -> float:
    """The largest peak among a process and its children."""
    return max(peak_mib(process.pid) for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments.reports, Path(folder))
    if arguments.json:
        print(json.dumps(asdict(result)))  # the benchmark's output
        return
    shown = Table("what", "value", title=f"{result.reports} reports of 30 features uploaded and sealed")
    for name, value in asdict(result).items():
        shown.add_row(name, f"{value:,.1f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
