"""Accuracy of masked training beside plain training: the first table of docs/explanation/benchmarks.md.

Masked without noise, masked with noise, and plain training, on WBCD and MNIST.

    make table                   all rows (about 15 minutes on 2 cores)
    make table ARGS='--only wbcd --json'

Every masked row is a run of the real processes: browsers seal, two helpers open and sum, the ad server steps.
Plain rows train the same network in the clear with the same optimizer, rounds and expected batch: with the
same clipping, and without any.
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper
from rich.console import Console

from docs.tutorial import plain
from docs.tutorial.fleet import Fleet
from tests.bench.harness import bench_parser, show
from tests.bench.job_setup import JobSetup
from tests.fleet_commands import create_model, create_task, seal, send_reports, submit

CLIP_NORM: Final = 1.0
MOMENTUM: Final = 0.9
DELTA: Final = "1e-5"
_LIMITS: Final = ("--max-collusion-epsilon", "25", "--min-batch-size-floor", "20")
_PROGRESS: Final = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(JobSetup):
    """One row of the table.

    Attributes:
        learning_rate: Of SGD with momentum on clipped gradients.
        plain_learning_rate: The same without clipping, where gradients are larger.
        epsilon: Of the row with noise, against the ad server.
        collusion_epsilon: The same, against the ad server with one helper; the tighter of both is kept.
    """

    learning_rate: float
    plain_learning_rate: float
    epsilon: float
    collusion_epsilon: float = 25.0


MNIST: Final = "mnist --limit 50000"
SETUPS: Final = (
    Setup(name="wbcd 30-50-50-1", source="wbcd --holdout-fraction 0.2", layers=(30, 50, 50, 1), rounds=60,
          batch_size=None, learning_rate=0.3, plain_learning_rate=0.3, epsilon=3.0),
    Setup(name="mnist 784-32-10", source=MNIST, layers=(784, 32, 10), rounds=192,
          batch_size=2048, learning_rate=1.0, plain_learning_rate=0.2, epsilon=3.0),
    Setup(name="mnist 784-500-10", source=MNIST, layers=(784, 500, 10), rounds=192,
          batch_size=2048, learning_rate=1.0, plain_learning_rate=0.2, epsilon=3.0),
    Setup(name="mnist 784-500-10 both under 8", source=MNIST, layers=(784, 500, 10),
          rounds=120, batch_size=8333, learning_rate=2.0, plain_learning_rate=0.2, epsilon=8.0,
          collusion_epsilon=8.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Test accuracies of one setup, and the time of the two masked trainings."""

    name: str
    reports: int
    rounds: int
    batch_size: float
    masked: float
    masked_noised: float
    epsilon: float
    collusion_epsilon: float
    plain_clipped: float
    plain: float
    masked_train_s: float
    masked_noised_train_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """One masked training, and what the plain ones need to follow it."""

    accuracy: float
    job: Any
    train_s: float
    untrained: Path
    reported: Path
    panel: Path


def measure(setup: Setup, folder: Path) -> Row:
    """All four trainings of one setup."""
    exact = train_masked(setup, folder / "exact", is_noisy=False)
    noised = train_masked(setup, folder / "noised", is_noisy=True)
    _PROGRESS.print(f"{setup.name}: in the clear")
    return Row(
        name=setup.name,
        reports=exact.job["dataset_size"],
        rounds=setup.rounds,
        batch_size=exact.job["expected_batch_size"],
        masked=exact.accuracy,
        masked_noised=noised.accuracy,
        epsilon=noised.job["epsilon_spent"],
        collusion_epsilon=noised.job["collusion_epsilon_spent"],
        plain_clipped=train_plain(setup, exact, clip_norm=CLIP_NORM, learning_rate=setup.learning_rate),
        plain=train_plain(setup, exact, clip_norm=None, learning_rate=setup.plain_learning_rate),
        masked_train_s=exact.train_s,
        masked_noised_train_s=noised.train_s,
    )


def train_masked(setup: Setup, folder: Path, *, is_noisy: bool) -> Masked:
    """From browsers to a tested model, through two helpers."""
    _PROGRESS.print(f"{setup.name}: masked, {'with' if is_noisy else 'without'} noise")
    panel, reported, untrained, trained = (
        folder / name for name in ("panel.npz", "reported.npz", "untrained.onnx", "trained.onnx")
    )
    with Fleet(folder=folder, is_no_noise=not is_noisy, helper_options=_LIMITS) as fleet:
        noise = "--mechanism gaussian" if is_noisy else "--no-noise"
        task = create_task(
            fleet,
            setup.name,
            f"--min-batch-size 100 {setup.labels} --decoys 1 {noise} --epsilon {setup.epsilon}"
            f" --collusion-epsilon {setup.collusion_epsilon} --delta {DELTA} --clip-norm {CLIP_NORM}",
        )
        send_reports(
            fleet, task, f"--source {setup.source} --seed 1 --holdout {panel} --train-out {reported}"
        )
        dataset = seal(fleet, task)["dataset_id"]
        create_model(fleet, untrained, setup.layers)
        started = time.monotonic()
        job = submit(
            fleet,
            f"--dataset {dataset} --model {untrained} {setup.training} --optimizer momentum --momentum"
            f" {MOMENTUM} --learning-rate {setup.learning_rate} --clip-norm {CLIP_NORM}"
            f" {f'--epsilon {setup.epsilon}' if is_noisy else ''} --wait",
        )
        train_s = time.monotonic() - started
        fleet.adserver("model", "export", "--job", job["job_id"], str(trained), options=False)
        evaluation = f"model evaluate {trained} --eval-set {panel} --loss {setup.loss} --json"
        tested = json.loads(fleet.run("adserver", *evaluation.split()))
    return Masked(
        accuracy=tested["accuracy"],
        job=job,
        train_s=round(train_s, 1),
        untrained=untrained,
        reported=reported,
        panel=panel,
    )


def train_plain(setup: Setup, masked: Masked, *, clip_norm: float | None, learning_rate: float) -> float:
    """The same network on the same records in the clear; its test accuracy."""
    values = [numpy_helper.to_array(one) for one in onnx.load(str(masked.untrained)).graph.initializer]
    layers = plain.network(setup.layers, values)
    seen, held = np.load(masked.reported), np.load(masked.panel)
    training = plain.Training(
        rounds=setup.rounds,
        learning_rate=learning_rate,
        momentum=MOMENTUM,
        clip_norm=clip_norm,
        batch_size=setup.batch_size,
        seed=1,
    )
    plain.train(layers, seen["features"], seen["labels"], training)
    return plain.accuracy(layers, held["features"], held["labels"])


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="rows whose name starts so")
    arguments = parser.parse_args()
    rows = []
    for setup in SETUPS:
        if setup.name.startswith(arguments.only):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(setup, Path(folder)))
    show(rows, is_json=arguments.json)


if __name__ == "__main__":
    main()
