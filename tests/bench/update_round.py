"""One whole round of large updates through real processes, and the peak memory of each of them.

Part of `make bench-updates`. Two helpers, an ad server and a process of devices; each device uploads 8 bytes
a parameter, most of them cover.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.federated.dense import DenseModel
from tests.bench.memory import largest_mib
from tests.fleet_commands import create_task, submit

WIDTHS: Final = (784, 126, 10)
"""100,180 parameters."""
_LOOK_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMemory:
    """Peak resident MiB of each process, and how long the round took.

    Attributes:
        devices: That uploaded.
        parameters: Of the model.
        by_process: MiB by party; of a party's own workers the largest counts with it.
        seconds: From the first look for a round to the job's end.
    """

    devices: int
    parameters: int
    by_process: dict[str, float]
    seconds: float


def measure_round(folder: Path, *, devices: int, mnist_dir: Path) -> RoundMemory:
    """Run a job of one round."""
    parameters = DenseModel(widths=WIDTHS).size
    settings = folder / "strategy.json"
    settings.write_text(json.dumps({"devices": devices, "sampling_rate": 0.02}))
    with Fleet(folder=folder / "parties", is_no_noise=True) as fleet:
        task = create_task(
            fleet,
            "large updates",
            f"--classes 10 --num-features 784 --updates {parameters} --frac-bits 24 --clip-norm 1"
            f" --min-batch-size 50 --max-dataset-size {devices} --no-noise --epsilon 1",
        )
        began = time.monotonic()
        job = submit(
            fleet,
            f"--task {task} --strategy dp-fedavg --settings {settings} --rounds 1 --layers"
            f" {','.join(map(str, WIDTHS))} --window 600 --least-devices {devices}",
        )
        people = fleet.start_command(
            "browser-sim", "devices", "--site", f"http://{fleet.http}", "--task", task, "--insecure",
            "--store", str(folder / "answers.sqlite3"), "--devices", str(devices), "--shard-size", "30",
            "--mnist-dir", str(mnist_dir), "--rounds", "1", "--seed", "1", "--idle", "300",
        )  # fmt: skip
        watching = fleet.start_command(
            "adserver", "job", "watch", job["job_id"], "--data", str(fleet.data("adserver"))
        )
        pids = {"devices": people.pid, "adserver": fleet.pid("adserver")}
        pids |= {helper: fleet.pid(helper) for helper in HELPERS}
        peaks = dict.fromkeys(pids, 0.0)
        while watching.poll() is None:
            for party, pid in pids.items():
                peaks[party] = max(peaks[party], largest_mib(pid))
            time.sleep(_LOOK_EVERY_S)
        if watching.returncode != 0 or people.wait(timeout=60) != 0:
            raise AssertionError(f"the round did not end well:\n{fleet.log('adserver')[-2000:]}")
        seconds = time.monotonic() - began
    return RoundMemory(devices=devices, parameters=parameters, by_process=peaks, seconds=round(seconds, 1))


def mnist_folder() -> Path:
    """Where MNIST lies."""
    return Path(os.environ.get("MASKEDLARK_DATA", "../shared/data")) / "mnist"
