"""`make bench-start`: how soon everything answers, from a first start to the second round.

A helper is started from a copy of this tree with the loops that `make setup` has compiled
(`helper_ready_cold_s`), and once more with none (`helper_ready_uncompiled_s`). Then one small job runs, and
commands are timed on what it left. Wall seconds, so the machine should be idle; beside them the processor
seconds of the commands.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adserver.quickstart.ports import free_ports
from adserver.store.database import default_url
from adserver.store.jobs import JobStore
from docs.tutorial.fleet import Fleet
from maskedlark.rpc.transport import make_channel
from maskedlark.runtime.database import open_database
from tests.bench.harness import bench_parser, show
from tests.docs.reading import clone_into, with_environment
from tests.fleet_commands import create_model, create_task, seal, send_reports, submit

SERVING: Final = health_pb2.HealthCheckResponse.SERVING
ROUNDS: Final = 20
REPEATS: Final = 5
BARS: Final = {
    "helper_ready_cold_s": 10.0,
    "first_round_over_later": 3.0,
    "cli_help_s": 0.5,
    "job_show_s": 1.0,
    "job_plan_s": 5.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A helper's start: seconds until it answers health at all and until it serves, and what that took."""

    answered_s: float
    ready_s: float
    processor_s: float


def started(clone: Path, folder: Path, environment: dict[str, str]) -> Start:
    """Start a helper, and end it when it serves."""
    program = str(clone / ".venv" / "bin" / "lark-helper")
    environment = {"HOME": str(folder), "PATH": os.defpath, **environment}
    data, listen = str(folder / "helper"), f"127.0.0.1:{free_ports(1)[0]}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    subprocess.run([program, "keygen", "--data", data, "--name", "bench"], check=True, **quiet)  # type: ignore[call-overload]
    began, answered = time.monotonic(), 0.0
    command = [program, "serve", "--data", data, "--listen", listen, "--insecure"]
    with subprocess.Popen(command, **quiet) as process, make_channel(listen, None) as channel:  # type: ignore[call-overload]
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            while True:
                try:
                    told = stub.Check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True).status
                except grpc.RpcError:  # it does not listen yet
                    continue
                answered = answered or time.monotonic() - began
                if told == SERVING:
                    ready, used = time.monotonic() - began, psutil.Process(process.pid).cpu_times()
                    return Start(
                        answered_s=answered, ready_s=ready, processor_s=float(used.user + used.system)
                    )
                time.sleep(0.02)
        finally:
            process.terminate()
            shutil.rmtree(data)


def timed(command: list[str]) -> tuple[float, float]:
    """The least wall and processor seconds of a command that is run a few times."""

    def once() -> tuple[float, float]:
        used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic() - began, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime

    runs = [once() for _ in range(REPEATS)]
    return min(wall for wall, _ in runs), min(processor for _, processor in runs)


def job(folder: Path, tell: Callable[[str], None]) -> dict[str, float]:
    """Train the demo's model for a few rounds, and time the commands that look at it and plan the next."""
    untrained, panel = folder / "untrained.onnx", folder / "panel.npz"
    bin_folder = Path(sys.executable).parent
    with Fleet(folder=folder) as fleet:
        task = create_task(
            fleet,
            "bench",
            "--classes 2 --default-label 0 --num-features 30 --min-batch-size 100 --clip-norm 1 --epsilon 4"
            " --collusion-epsilon 16",
        )
        send_reports(fleet, task, f"--source wbcd --seed 1 --holdout {panel}")
        seal(fleet, task)
        create_model(fleet, untrained, (30, 50, 50, 1))
        tell("a job runs")
        made = submit(
            fleet,
            f"--model {untrained} --rounds {ROUNDS} --loss binary_cross_entropy_with_logits --epsilon 2"
            f" --learning-rate 0.3 --eval-set {panel} --wait",
        )
        data = fleet.data("adserver")
    history = JobStore(open_database(default_url(data)), time.time).history(bytes.fromhex(made["job_id"]))
    finished = [one.finished_at_s for one in history]
    rounds = [after - before for before, after in pairwise(finished)]
    tell("commands are timed")
    adserver = str(bin_folder / "adserver")
    helps, shows, plans = (
        timed([adserver, *arguments])
        for arguments in (
            ("--help",),
            ("job", "show", "--data", str(data)),
            ("job", "plan", "--data", str(data), "--model", str(untrained)),
        )
    )
    return {
        "first_round_over_later": rounds[0] / statistics.median(rounds[1:]),
        "cli_help_s": helps[0],
        "cli_help_processor_s": helps[1],
        "job_show_s": shows[0],
        "job_show_processor_s": shows[1],
        "job_plan_s": plans[0],
        "job_plan_processor_s": plans[1],
    }


def measured(folder: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Every figure."""
    tell("a helper starts, with and without compiled loops")
    subprocess.run([sys.executable, "-c", "from helper.serving.warmup import warm_up; warm_up()"], check=True)
    clone = with_environment(clone_into(folder))
    cold = started(clone, folder, {})
    uncompiled = started(clone, folder, {"NUMBA_CACHE_DIR": str(folder / "no loops")})
    return {
        "helper_first_answer_s": cold.answered_s,
        "helper_ready_cold_s": cold.ready_s,
        "helper_ready_cold_processor_s": cold.processor_s,
        "helper_ready_uncompiled_s": uncompiled.ready_s,
        "helper_ready_uncompiled_processor_s": uncompiled.processor_s,
        **job(folder / "fleet", tell),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Print the figures, those with a bar beside it."""
    parser = bench_parser(__doc__)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="maskedlark-start-") as folder:
        figures = measured(Path(folder), lambda what: print(what, file=sys.stderr))
    show({name: round(figure, 3) for name, figure in figures.items()}, is_json=arguments.json)
    if not arguments.json:
        print(f"bars: {BARS}")


if __name__ == "__main__":
    main()
