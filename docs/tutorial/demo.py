"""`make demo`: train a conversion model on real data through two helpers that never see a label.

Two helper processes and an ad server run on loopback, each with its own data folder. Simulated browsers seal
the Wisconsin breast-cancer records; the ad server seals a dataset, trains an ONNX model through the helpers,
and compares with plain training.
"""

import argparse
import json
import shutil
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

LAYERS: Final = (30, 50, 50, 1)
ROUNDS: Final = 60
LEARNING_RATE: Final = 0.3
MOMENTUM: Final = 0.9
CLIP_NORM: Final = 1.0
EPSILON: Final = 3.0
COLLUSION_EPSILON: Final = 8.0
SEED: Final = 1

_OUT = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What demo-out/summary.json holds. Epsilons are None without noise."""

    test_accuracy: float
    plain_test_accuracy: float
    plain_unclipped_test_accuracy: float
    epsilon: float | None
    collusion_epsilon: float | None
    delta: float
    rounds: int
    reports: int
    dataset_size: int
    seconds: float
    curves: str
    model: str


def run(out: Path, *, is_no_noise: bool) -> Summary:
    """The whole way, from nothing to a trained and tested model."""
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    panel, reported, untrained = out / "panel.npz", out / "reported-in-clear.npz", out / "untrained.onnx"
    with Fleet(folder=out / "parties", is_no_noise=is_no_noise) as fleet:
        say("two helpers and an ad server are running, each with a folder of its own")
        privacy = ["--no-noise"] if is_no_noise else ["--mechanism", "gaussian"]
        privacy += [
            "--epsilon",
            str(EPSILON),
            "--collusion-epsilon",
            str(COLLUSION_EPSILON),
            "--clip-norm",
            str(CLIP_NORM),
        ]
        labels = [
            "--classes",
            "2",
            "--default-label",
            "0",
            "--num-features",
            str(LAYERS[0]),
            "--min-batch-size",
            "100",
        ]
        task = fleet.adserver(
            "task", "create", "--name", "conversions", "--origin", ORIGIN, *labels, *privacy
        ).strip()
        say(f"both helpers signed task {task[:12]}")

        browsers = fleet.browsers(
            "--task", f"http://{fleet.http}/v1/tasks/{task}", "--to", fleet.grpc, "--source", "wbcd",
            "--seed", str(SEED),
            "--holdout", str(panel), "--holdout-fraction", "0.2", "--train-out", str(reported),
        )  # fmt: skip
        say(
            f"browsers uploaded {browsers['accepted']} sealed reports of {browsers['conversions']}"
            " conversions"
        )

        dataset = fleet.adserver_json("dataset", "seal", "--task", task)
        say(
            f"both helpers opened their shares and agree on dataset {dataset['dataset_id'][:12]}:"
            f" {dataset['admitted']} reports"
        )

        fleet.run(
            "adserver",
            "model",
            "create",
            str(untrained),
            "--layers",
            ",".join(map(str, LAYERS)),
            "--seed",
            str(SEED),
        )
        noise = [] if is_no_noise else ["--epsilon", str(EPSILON)]
        job = fleet.adserver_json(
            "job", "submit", "--task", task, "--dataset", dataset["dataset_id"], "--model", str(untrained),
            "--loss", "binary_cross_entropy_with_logits", "--rounds", str(ROUNDS), "--optimizer", "momentum",
            "--momentum", str(MOMENTUM), "--learning-rate", str(LEARNING_RATE), "--eval-set", str(panel),
            "--clip-norm", str(CLIP_NORM), "--as-it-is", "--wait", *noise, options=False,
        )  # fmt: skip
        trained = out / "trained.onnx"
        fleet.adserver("model", "export", "--job", job["job_id"], str(trained), options=False)
        loss = "binary_cross_entropy_with_logits"
        tested = json.loads(
            fleet.run(
                "adserver",
                "model",
                "evaluate",
                str(trained),
                "--eval-set",
                str(panel),
                "--loss",
                loss,
                "--json",
            )
        )
        curves = out / "curves.png"
        fleet.adserver("job", "show", job["job_id"], "--plot", str(curves), options=False)
    say("the model is trained; now the same in the clear, to compare")
    return Summary(
        test_accuracy=tested["accuracy"],
        plain_test_accuracy=plain_accuracy(untrained, reported, panel, CLIP_NORM),
        plain_unclipped_test_accuracy=plain_accuracy(untrained, reported, panel, None),
        epsilon=None if is_no_noise else job["epsilon_spent"],
        collusion_epsilon=None if is_no_noise else job["collusion_epsilon_spent"],
        delta=1e-5,
        rounds=job["rounds"],
        reports=browsers["accepted"],
        dataset_size=dataset["admitted"],
        seconds=round(time.monotonic() - started, 1),
        curves=str(curves),
        model=str(trained),
    )


def plain_accuracy(untrained: Path, reported: Path, panel: Path, clip_norm: float | None) -> float:
    """Train the same model on the same records in the clear, full batch, and test it on the same panel."""
    values = [
        numpy_helper.to_array(one).astype(np.float32) for one in onnx.load(str(untrained)).graph.initializer
    ]
    model = plain.network(LAYERS, values)
    seen, held = np.load(reported), np.load(panel)
    training = plain.Training(
        rounds=ROUNDS, learning_rate=LEARNING_RATE, momentum=MOMENTUM, clip_norm=clip_norm
    )
    plain.train(model, seen["features"], seen["labels"], training)
    return plain.accuracy(model, held["features"], held["labels"])


def say(what: str) -> None:
    """One line of what happened."""
    _OUT.print(f"[bold green]✓[/] {what}")


def table(summary: Summary) -> Table:
    """The summary for people."""
    shown = Table("", "test accuracy", title="Trained through two helpers that never saw a label")
    privacy = (
        "no noise"
        if summary.epsilon is None
        else f"epsilon {summary.epsilon:.2f} "
        f"({summary.collusion_epsilon:.2f} against the ad server with one helper)"
    )
    shown.add_row(f"masked, {privacy}", f"{summary.test_accuracy:.4f}")
    shown.add_row("plain, the same clipping", f"{summary.plain_test_accuracy:.4f}")
    shown.add_row("plain, no clipping", f"{summary.plain_unclipped_test_accuracy:.4f}")
    return shown


def main() -> None:
    """Run the demo and write summary.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument(
        "--no-noise", action="store_true", help="a debug task without noise: equal to plain training"
    )
    arguments = parser.parse_args()
    summary: dict[str, Any] = asdict(result := run(arguments.out, is_no_noise=arguments.no_noise))
    (arguments.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    console = Console()
    console.print(table(result))
    console.print_json(data=summary)


if __name__ == "__main__":
    main()
