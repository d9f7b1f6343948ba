"""Whole jobs of wide models through real processes, from 2^20 to 2^26 parameters: `make bench-wide`.

    make bench-wide                         a table
    make bench-wide ARGS=--json             one JSON object
    make bench-wide ARGS="--log2 20 22"     smaller ones
    make bench-wide ARGS="--log2 22 --train '2.*'"   the last layer of three alone; the others are frozen

Three rounds of a job with noise at two helpers and an ad server, each model in a fleet of its own, so that
the peak of each process's memory is its own. Seconds are of the processor but where a name says otherwise.
"""

import shlex
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from adserver.training.model_file import parse_chosen
from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.model import weights
from maskedlark.model.limits import MOST_PARAMETERS
from maskedlark.numbers.field import ELEMENT_BYTES
from maskedlark.releases.release import TAG_BYTES
from tests.bench.harness import bench_parser, peak_mib, show
from tests.bench.job import DELTA, LIMITS
from tests.bench.job import cpu_s as cpu_s_of
from tests.bench.mnist import FOLDER
from tests.fleet_commands import create_model, create_task, seal, send_reports, submit

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
        trained: Of the job.
        sent_bytes: What a round takes to each helper.
        returned_bytes: What it brings back from each.
        helper_peak_mb: The most resident memory of a helper, from its start to the job's end.
        adserver_peak_mb: The same of the ad server.
        helper_s_per_round: Processor seconds of one helper, on average.
        adserver_s_per_round: The same of the ad server.
        wall_s_per_round: As the clock on the wall says.
    """

    parameters: int
    trained: int
    sent_bytes: int
    returned_bytes: int
    helper_peak_mb: float
    adserver_peak_mb: float
    helper_s_per_round: float
    adserver_s_per_round: float
    wall_s_per_round: float


def measure(layers: tuple[int, ...], folder: Path, train: list[str]) -> Wide:
    """One job from browsers to the trained model."""
    limits = f"{LIMITS} --max-parameters {MOST_PARAMETERS}".split()
    with Fleet(folder=folder, helper_options=tuple(limits)) as fleet:
        task = create_task(
            fleet,
            "wide",
            "--classes 10 --num-features 784 --min-batch-size 100 --mechanism gaussian --epsilon 3"
            f" --collusion-epsilon 1000000 --delta {DELTA} --clip-norm 1",
        )
        send_reports(fleet, task, f"--source mnist --mnist-dir {FOLDER} --limit {RECORDS} --seed 1")
        dataset = seal(fleet, task)["dataset_id"]
        model = create_model(fleet, folder / "model.onnx", layers)
        parsed = parse_chosen(model.read_bytes(), num_features=layers[0], train=train, freeze=())
        chosen = " ".join(f"--train {shlex.quote(name)}" for name in train)
        before, began = {one: cpu_s_of(fleet.pid(one)) for one in SERVERS}, time.monotonic()
        job = submit(
            fleet,
            f"--model {model} --loss cross_entropy --rounds {ROUNDS} --learning-rate 0.3 --clip-norm 1"
            f" --epsilon 3 --dataset {dataset} {chosen}",
        )["job_id"]
        fleet.adserver("job", "watch", job, options=False)
        wall_s = time.monotonic() - began
        used = {one: cpu_s_of(fleet.pid(one)) - before[one] for one in SERVERS}
        peaks = {one: peak_mb(fleet.pid(one)) for one in SERVERS}
    return Wide(
        parameters=sum((one + 1) * other for one, other in pairwise(layers)),
        trained=parsed.num_parameters,
        sent_bytes=weights.length_in_bytes(parsed.parameters),
        returned_bytes=TAG_BYTES + ELEMENT_BYTES * parsed.num_parameters,
        helper_peak_mb=round(max(peaks[one] for one in HELPERS)),
        adserver_peak_mb=round(peaks["adserver"]),
        helper_s_per_round=round(max(used[one] for one in HELPERS) / ROUNDS, 3),
        adserver_s_per_round=round(used["adserver"] / ROUNDS, 3),
        wall_s_per_round=round(wall_s / ROUNDS, 3),
    )


def peak_mb(pid: int) -> float:
    """The most resident memory that a process and its children have had, each at its worst moment."""
    of = psutil.Process(pid)
    return sum(peak_mib(one.pid) for one in (of, *of.children(recursive=True)))


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--log2", type=int, nargs="*", choices=LAYERS, default=(20, 22, 24, 26))
    parser.add_argument("--train", nargs="*", default=(), help="names or patterns of parameters")
    arguments = parser.parse_args()
    found = []
    for size in arguments.log2:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(LAYERS[size], Path(folder), arguments.train))
            Console(stderr=True).print(found[-1])
    show(found, is_json=arguments.json)


if __name__ == "__main__":
    main()
