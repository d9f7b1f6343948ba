"""Processor time of whole jobs, of every party and in every phase, beside plain training of the same steps:
`make bench-job`.

    make bench-job                                a table
    make bench-job ARGS=--json                    one JSON object
    make bench-job ARGS="--profile /tmp/job"      where the servers spend it, for speedscope.app

Each job runs through real processes on this machine, with noise: browsers seal and upload, both helpers open,
    all rounds are trained. A phase's time is what the kernel charged the processes for, their children
    included; other work on the machine does not enter it. Modules are compiled before, as in an installed
    package.
"""

import compileall
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import psutil
import torch
from onnx import numpy_helper
from rich.console import Console

from docs.tutorial import plain
from docs.tutorial.fleet import Fleet
from tests.bench.harness import bench_parser
from tests.bench.job_setup import JobSetup
from tests.bench.job_spent import COMMANDS, SERVERS, Spent, figures, tables
from tests.bench.mnist import FOLDER
from tests.bench.processor import processor
from tests.fleet_commands import create_model, create_task, seal, send_reports, submit

DELTA: Final = "1e-5"
LIMITS: Final = "--max-collusion-epsilon 1000000 --min-batch-size-floor 20"
_PROGRESS: Final = Console(stderr=True)


SETUPS: Final = (
    JobSetup(
        name="wbcd", source="wbcd --holdout-fraction 0.2", layers=(30, 50, 50, 1), rounds=120, batch_size=None
    ),
    JobSetup(
        name="mnist",
        source=f"mnist --mnist-dir {FOLDER} --limit 20000",
        layers=(784, 32, 10),
        rounds=50,
        batch_size=2048,
    ),
)


class Meter:
    """Reads how much processor time the parties have used."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.phases: dict[str, dict[str, float]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge a phase with what is used in this block."""
        before = self._used()
        yield
        after = self._used()
        self.phases[name] = {party: round(after[party] - before[party], 3) for party in after}

    def start_phase(self) -> None:
        """Charge what the servers used since they were started."""
        used = self._used()
        self.phases["start"] = {party: round(used[party], 3) for party in SERVERS}

    def _used(self) -> dict[str, float]:
        children = resource.getrusage(
            resource.RUSAGE_CHILDREN
        )  # of commands that have ended: the servers run on
        used = {party: cpu_s(self._fleet.pid(party)) for party in SERVERS}
        return {**used, COMMANDS: children.ru_utime + children.ru_stime}


def cpu_s(pid: int) -> float:
    """What a process and its children have used, those that have ended included."""
    process = psutil.Process(pid)
    seconds = 0.0
    for one in (process, *process.children(recursive=True)):
        times = one.cpu_times()
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


@contextmanager
def sampled(fleet: Fleet, folder: Path | None) -> Iterator[None]:
    """Write where the servers spend their time in this block, by py-spy, a file each for speedscope.app."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--nonblocking", "--rate", "200", "--format", "speedscope"]
    recorders = [
        subprocess.Popen(
            [
                str(Path(sys.executable).parent / "py-spy"),
                "record",
                *options,
                "--pid",
                str(fleet.pid(party)),
                "--output",
                str(folder / party),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for party in SERVERS
    ]
    try:
        yield
    finally:
        for recorder in recorders:
            recorder.send_signal(signal.SIGINT)
            recorder.wait()


def measure(setup: JobSetup, folder: Path, profiles: Path | None) -> Spent:
    """One job from browsers to the trained model."""
    panel, reported, untrained = (folder / name for name in ("panel.npz", "reported.npz", "untrained.onnx"))
    subprocess.run(
        [sys.executable, "-c", "from helper.serving.warmup import warm_up; warm_up()"], check=True
    )  # compiles, the first time
    _PROGRESS.print(f"{setup.name}: servers start")
    with (
        Fleet(folder=folder, helper_options=tuple(LIMITS.split())) as fleet,
        sampled(fleet, profiles and profiles / setup.name),
    ):
        meter = Meter(fleet)
        meter.start_phase()
        privacy = "--mechanism gaussian --epsilon 3 --collusion-epsilon 1000000 --clip-norm 1"
        options = f"{setup.labels} --min-batch-size 100 --delta {DELTA} {privacy}"
        task = create_task(fleet, setup.name, options)
        source = f"--source {setup.source} --seed 1 --holdout {panel} --train-out {reported}"
        with meter.phase("upload"):
            uploaded = send_reports(fleet, task, source)
        with meter.phase("prepare"):
            dataset = seal(fleet, task)["dataset_id"]
        create_model(fleet, untrained, setup.layers)
        options = f"--model {untrained} --optimizer momentum --learning-rate 0.3 --clip-norm 1 --epsilon 3"
        with meter.phase("submit"):
            job = submit(fleet, f"{options} --dataset {dataset} {setup.training}")["job_id"]
        with meter.phase("train"):
            fleet.adserver("job", "watch", job, options=False)
    plain_s = plain_cpu_s(setup, untrained, reported)
    return Spent(reports=uploaded["accepted"], rounds=setup.rounds, plain_s=plain_s, phases=meter.phases)


def plain_cpu_s(setup: JobSetup, untrained: Path, reported: Path) -> float:
    """What plain training of as many steps on as many records takes on one thread: the best of three."""
    values = [numpy_helper.to_array(one) for one in onnx.load(str(untrained)).graph.initializer]
    seen = np.load(reported)
    torch.set_num_threads(1)
    taken = []
    for _ in range(3):
        network = plain.network(setup.layers, values)
        training = plain.Training(
            rounds=setup.rounds, learning_rate=0.1, momentum=0.9, clip_norm=None, batch_size=setup.batch_size
        )
        started = time.process_time()
        plain.train(network, seen["features"], seen["labels"], training)
        taken.append(time.process_time() - started)
    return min(taken)


def _compile() -> None:
    """Write the bytecode that pip writes of a package that it installs; a checkout may be without it."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for package in ("adserver", "browser_sim", "helper", "maskedlark", "protos"):
        compileall.compile_dir(package, quiet=2)


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="jobs whose name starts so")
    parser.add_argument(
        "--profile",
        type=Path,
        help="a folder for the servers' profiles (their own time includes py-spy's pauses)",
    )
    arguments = parser.parse_args()
    _compile()
    spent = {}
    for setup in SETUPS:
        if setup.name.startswith(arguments.only):
            with tempfile.TemporaryDirectory() as folder:
                spent[setup.name] = measure(setup, Path(folder), arguments.profile)
    found = figures(spent)
    machine = {"processor": processor(), "cores": os.cpu_count()}
    ran = {**found, **machine, "jobs": {name: asdict(one) for name, one in spent.items()}}
    if arguments.json:
        print(json.dumps(ran))
        return
    out = Console()
    for table in tables(spent):
        out.print(table)
    for name, value in {**found, **machine}.items():
        out.print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
