"""Accuracy of masked training beside plain training: the first table of docs/explanation/benchmarks.md.

Masked without noise, masked with noise, and plain training, on WBCD and MNIST.

    make table                   all rows (about 15 minutes on 2 cores)
    make table ARGS='--only wbcd --json'

Every masked row is a run of the real processes: browsers seal, two helpers open and sum, the ad server steps.
Plain rows train the same network in the clear with the same optimizer, rounds and expected batch: with the
same clipping, and without any.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper
from rich.console import Console
from rich.table import Table

from docs.tutorial import plain
from docs.tutorial.fleet import ORIGIN, Fleet

CLIP_NORM: Final = 1.0
MOMENTUM: Final = 0.9
DELTA: Final = "1e-5"
_LIMITS: Final = ("--max-collusion-epsilon", "25", "--min-batch-size-floor", "20")
_PROGRESS: Final = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One row of the table.

    Attributes:
        name: For people, and for --only.
        source: browser-sim's source and its options.
        layers: Of the dense ReLU network.
        num_classes: Of the labels; two classes train one output.
        decoys: Decoy labels in each report.
        rounds: Optimizer steps.
        batch_size: Expected records a round, or None for all.
        learning_rate: Of SGD with momentum on clipped gradients.
        plain_learning_rate: The same without clipping, where gradients are larger.
        epsilon: Of the row with noise, against the ad server.
        collusion_epsilon: The same, against the ad server with one helper; the tighter of both is kept.
    """

    name: str
    source: tuple[str, ...]
    layers: tuple[int, ...]
    num_classes: int
    decoys: int
    rounds: int
    batch_size: int | None
    learning_rate: float
    plain_learning_rate: float
    epsilon: float
    collusion_epsilon: float = 25.0

    @property
    def loss(self) -> str:
        """By the number of outputs."""
        return "binary_cross_entropy_with_logits" if self.layers[-1] == 1 else "cross_entropy"


MNIST: Final = ("mnist", "--limit", "50000")
SETUPS: Final = (
    Setup(name="wbcd 30-50-50-1", source=("wbcd", "--holdout-fraction", "0.2"), layers=(30, 50, 50, 1),
    num_classes=2, decoys=1, rounds=60,
          batch_size=None, learning_rate=0.3, plain_learning_rate=0.3, epsilon=3.0),
    Setup(name="mnist 784-32-10", source=MNIST, layers=(784, 32, 10), num_classes=10, decoys=1, rounds=192,
          batch_size=2048, learning_rate=1.0, plain_learning_rate=0.2, epsilon=3.0),
    Setup(name="mnist 784-500-10", source=MNIST, layers=(784, 500, 10), num_classes=10, decoys=1, rounds=192,
          batch_size=2048, learning_rate=1.0, plain_learning_rate=0.2, epsilon=3.0),
    Setup(name="mnist 784-500-10 both under 8", source=MNIST, layers=(784, 500, 10), num_classes=10, decoys=1,
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
        default = ["--default-label", "0"] if setup.num_classes == 2 else []
        labels = [
            "--classes",
            str(setup.num_classes),
            *default,
            "--decoys",
            str(setup.decoys),
            "--num-features",
            str(setup.layers[0]),
        ]
        privacy = ["--mechanism", "gaussian"] if is_noisy else ["--no-noise"]
        privacy += [
            "--epsilon",
            str(setup.epsilon),
            "--collusion-epsilon",
            str(setup.collusion_epsilon),
            "--delta",
            DELTA,
            "--clip-norm",
            str(CLIP_NORM),
        ]
        settings = ["--name", setup.name, "--origin", ORIGIN, "--min-batch-size", "100", *labels, *privacy]
        task = fleet.adserver("task", "create", *settings).strip()
        url = f"http://{fleet.http}/v1/tasks/{task}"
        files = ["--holdout", str(panel), "--train-out", str(reported)]
        fleet.browsers("--task", url, "--to", fleet.grpc, "--source", *setup.source, "--seed", "1", *files)
        dataset = fleet.adserver_json("dataset", "seal", "--task", task)
        fleet.run(
            "adserver",
            "model",
            "create",
            str(untrained),
            "--layers",
            ",".join(map(str, setup.layers)),
            "--seed",
            "1",
        )
        started = time.monotonic()
        job = fleet.adserver_json(
            "job",
            "submit",
            *job_options(setup, dataset["dataset_id"], untrained, is_noisy),
            "--wait",
            options=False,
        )
        train_s = time.monotonic() - started
        fleet.adserver("model", "export", "--job", job["job_id"], str(trained), options=False)
        tested = json.loads(
            fleet.run(
                "adserver",
                "model",
                "evaluate",
                str(trained),
                "--eval-set",
                str(panel),
                "--loss",
                setup.loss,
                "--json",
            )
        )
    return Masked(
        accuracy=tested["accuracy"],
        job=job,
        train_s=round(train_s, 1),
        untrained=untrained,
        reported=reported,
        panel=panel,
    )


def job_options(setup: Setup, dataset: str, model: Path, is_noisy: bool) -> list[str]:
    """The options of `adserver job submit`."""
    options = [
        "--dataset",
        dataset,
        "--model",
        str(model),
        "--loss",
        setup.loss,
        "--rounds",
        str(setup.rounds),
    ]
    options += [
        "--optimizer",
        "momentum",
        "--momentum",
        str(MOMENTUM),
        "--learning-rate",
        str(setup.learning_rate),
    ]
    options += ["--batch-size", str(setup.batch_size)] if setup.batch_size else []
    return options + (["--epsilon", str(setup.epsilon)] if is_noisy else [])


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


def table(rows: list[Row]) -> Table:
    """The rows for people."""
    shown = Table(
        "",
        "masked, no noise",
        "masked, with noise",
        "epsilon",
        "plain, same clipping",
        "plain",
        title="Test accuracy",
    )
    for row in rows:
        epsilon = f"{row.epsilon:.1f} ({row.collusion_epsilon:,.1f} colluding)"
        accuracies = [f"{value:.4f}" for value in (row.masked, row.masked_noised)]
        shown.add_row(row.name, *accuracies, epsilon, f"{row.plain_clipped:.4f}", f"{row.plain:.4f}")
    return shown


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="rows whose name starts so")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for setup in SETUPS:
        if setup.name.startswith(arguments.only):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(setup, Path(folder)))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))  # the benchmark's output
    else:
        Console().print(table(rows))


if __name__ == "__main__":
    main()
