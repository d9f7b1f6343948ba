"""Whole jobs of wide models through real processes, from 2^20 to 2^26 parameters: `make bench-wide`.

    make bench-wide                         a table
    make bench-wide ARGS=--json             one JSON object
    make bench-wide ARGS="--log2 20 22"     smaller ones

Three rounds of a job with noise at two helpers and an ad server, each model in a fleet of its own, so that
the peak of each process's memory is its own. Seconds are of the processor but where a name says otherwise.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console
from rich.table import Table

from docs.tutorial.fleet import HELPERS, ORIGIN, Fleet
from maskedlark.model.limits import MOST_PARAMETERS
from tests.bench.job import DELTA
from tests.bench.job import cpu_s as cpu_s_of
from tests.bench.mnist import FOLDER

ROUNDS: Final = 3
RECORDS: Final = 256
LAYERS: Final = {
    18: (784, 330, 10),
    20: (784, 1320, 10),
    22: (784, 1700, 1680, 10),
    24: (784, 3720, 3720, 10),
    26: (784, 7800, 7800, 10),
}
SERVERS: Final = (*HELPERS, "adserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    """What one model took.

    Attributes:
        parameters: Of the model.
        helper_peak_mb: The most resident memory of a helper, from its start to the job's end.
        adserver_peak_mb: The same of the ad server.
        helper_s_per_round: Processor seconds of one helper, on average.
        adserver_s_per_round: The same of the ad server.
        wall_s_per_round: As the clock on the wall says.
    """

    parameters: int
    helper_peak_mb: float
    adserver_peak_mb: float
    helper_s_per_round: float
    adserver_s_per_round: float
    wall_s_per_round: float


def measure(layers: tuple[int, ...], folder: Path) -> Wide:
    """One job from browsers to the trained model."""
    limits = (
        *("--max-collusion-epsilon", "1000000", "--min-batch-size-floor", "20"),
        *("--max-parameters", str(MOST_PARAMETERS)),
    )
    with Fleet(folder=folder, helper_options=limits) as fleet:
        task = fleet.adserver(
            *("task", "create", "--name", "wide", "--origin", ORIGIN, "--classes", "10"),
            *(
                "--num-features",
                "784",
                "--min-batch-size",
                "100",
                "--mechanism",
                "gaussian",
                "--epsilon",
                "3",
            ),
            *("--collusion-epsilon", "1000000", "--delta", DELTA, "--clip-norm", "1"),
        ).strip()
        source = ("--source", "mnist", "--mnist-dir", str(FOLDER), "--limit", str(RECORDS), "--seed", "1")
        fleet.browsers("--task", f"http://{fleet.http}/v1/tasks/{task}", "--to", fleet.grpc, *source)
        dataset = fleet.adserver_json("dataset", "seal", "--task", task)["dataset_id"]
        model = folder / "model.onnx"
        widths = ",".join(map(str, layers))
        fleet.run("adserver", "model", "create", str(model), "--layers", widths, "--seed", "1")
        before, began = {one: cpu_s_of(fleet.pid(one)) for one in SERVERS}, time.monotonic()
        job = fleet.adserver_json(
            *("job", "submit", "--model", str(model), "--loss", "cross_entropy", "--rounds", str(ROUNDS)),
            *("--learning-rate", "0.3", "--epsilon", "3", "--dataset", dataset),
            options=False,
        )["job_id"]
        fleet.adserver("job", "watch", job, options=False)
        wall_s = time.monotonic() - began
        used = {one: cpu_s_of(fleet.pid(one)) - before[one] for one in SERVERS}
        peaks = {one: peak_mb(fleet.pid(one)) for one in SERVERS}
    return Wide(
        parameters=sum((one + 1) * other for one, other in pairwise(layers)),
        helper_peak_mb=round(max(peaks[one] for one in HELPERS)),
        adserver_peak_mb=round(peaks["adserver"]),
        helper_s_per_round=round(max(used[one] for one in HELPERS) / ROUNDS, 3),
        adserver_s_per_round=round(used["adserver"] / ROUNDS, 3),
        wall_s_per_round=round(wall_s / ROUNDS, 3),
    )


def peak_mb(pid: int) -> float:
    """The most resident memory that a process and its children have had, each at its worst moment."""
    peaks = 0
    for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        status = Path(f"/proc/{one.pid}/status").read_text(encoding="ascii")
        peaks += int(status.partition("VmHWM:")[2].split()[0])
    return peaks / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log2", type=int, nargs="*", choices=LAYERS, default=(20, 22, 24, 26))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = []
    for size in arguments.log2:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(LAYERS[size], Path(folder)))
            Console(stderr=True).print(found[-1])
    if arguments.json:
        print(json.dumps([asdict(one) for one in found]))
        return
    table = Table(*asdict(found[0]))
    for one in found:
        table.add_row(*map(str, asdict(one).values()))
    Console().print(table)


if __name__ == "__main__":
    main()
