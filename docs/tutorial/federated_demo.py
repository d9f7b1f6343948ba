"""`make demo-federated`: a model is trained on devices' own data, which never leaves them.

Two helper processes, an ad server and a process of simulated devices run on loopback. Each device holds two
shards of MNIST. In each round it flips a coin of its own; if it is drawn it trains, clips and sends additive
shares of its update, and otherwise shares of zeros. The same is run once more without noise, and compared bit
for bit with a simulation.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper
from rich.console import Console

from adserver.simulating.simulator import Simulated, simulate
from adserver.store.job_folder import JobFolder
from browser_sim.devices.holdings import HoldingKind, held_by, mnist_in_shards
from browser_sim.draws import Draws
from browser_sim.sources.mnist import default_folder, load_mnist
from docs.tutorial.fleet import ORIGIN, Fleet
from maskedlark.canonical import build
from maskedlark.federated import strategies
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.strategy import ServerState
from maskedlark.randomness import seeded

DEVICES: Final = 100
SHARD_SIZE: Final = 300
WIDTHS: Final = (784, 10)
ROUNDS: Final = 12
QUIET_ROUNDS: Final = 3
SEED: Final = 1
FRAC_BITS: Final = 24
CLIP_NORM: Final = 1.0
EPSILON: Final = 32.0
COLLUSION_EPSILON: Final = 64.0
DELTA: Final = 1e-5
SETTINGS: Final[dict[str, Any]] = {
    "devices": DEVICES,
    "sampling_rate": 0.5,
    "local": {"epochs": 1, "batch_size": 20, "learning_rate": 0.05},
}

_OUT: Final = Console(stderr=True)


def run(out: Path, folder: Path | None) -> dict[str, Any]:
    """Both fleets, one after the other; the summary."""
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    test = load_mnist(folder or default_folder()).own_test
    if test is None:
        raise AssertionError("MNIST has a test set of its own")
    np.savez(out / "test.npz", features=test.features, labels=test.labels.astype(np.int64))
    noisy, told, model = trained(out / "noisy", out / "test.npz", folder, rounds=ROUNDS, is_no_noise=False)
    accuracy = tested(model, test.features, test.labels)
    say(f"trained with noise: test accuracy {accuracy:.3f}, epsilon {noisy['epsilon_spent']:.2f} a person")
    quiet, _, _ = trained(out / "quiet", out / "test.npz", folder, rounds=QUIET_ROUNDS, is_no_noise=True)
    is_equal = network_state(out / "quiet", quiet) == simulated_state(folder, QUIET_ROUNDS)
    say(
        f"without noise, the network and the simulation trained {'the same' if is_equal else 'another'} model"
    )
    return {
        "test_accuracy": accuracy,
        "epsilon": noisy["epsilon_spent"],
        "collusion_epsilon": noisy["collusion_epsilon_spent"],
        "delta": DELTA,
        "rounds": noisy["rounds_done"],
        "devices": told["devices"],
        "reports": told["outcomes"].get("answered", 0),
        "bit_equal": is_equal,
        "seconds": round(time.monotonic() - started, 1),
    }


def trained(
    out: Path, test: Path, folder: Path | None, *, rounds: int, is_no_noise: bool
) -> tuple[Any, Any, onnx.ModelProto]:
    """One fleet from nothing to a trained model: the job, what became of devices' answers, and the model."""
    out.mkdir(parents=True)
    settings = out / "strategy.json"
    settings.write_text(json.dumps(SETTINGS))
    with Fleet(folder=out / "parties", is_no_noise=is_no_noise, helper_options=HELPER_OPTIONS) as fleet:
        privacy = ["--no-noise"] if is_no_noise else ["--mechanism", "gaussian"]
        privacy += [
            "--epsilon",
            str(EPSILON),
            "--collusion-epsilon",
            str(COLLUSION_EPSILON),
            "--delta",
            str(DELTA),
        ]
        task = fleet.adserver(
            "task", "create", "--name", "digits at home", "--origin", ORIGIN, "--classes", "10",
            "--num-features", "784",
            "--updates", str(DenseModel(widths=WIDTHS).size), "--frac-bits", str(FRAC_BITS), "--clip-norm",
            str(CLIP_NORM),
            "--min-batch-size", "50", "--max-dataset-size", "1000", *privacy,
        ).strip()  # fmt: skip
        say(f"both helpers signed task {task[:12]}; {DEVICES} devices begin to look for rounds")
        devices = start_devices(fleet, out, task, folder, rounds)
        noise = [] if is_no_noise else ["--epsilon", str(EPSILON)]
        job = fleet.adserver_json(
            "job", "submit", "--task", task, "--strategy", "dp-fedavg", "--settings", str(settings),
            "--rounds", str(rounds),
            "--layers", ",".join(map(str, WIDTHS)), "--window", "30", "--least-devices", "90",
            "--eval-set", str(test),
            "--wait", *noise, options=False,
        )  # fmt: skip
        shown, _ = devices.communicate(timeout=120)
        if devices.returncode != 0:
            raise AssertionError("the devices ended with an error")
        fleet.adserver("model", "export", "--job", job["job_id"], str(out / "trained.onnx"), options=False)
    return job, json.loads(shown), onnx.load(str(out / "trained.onnx"))


def start_devices(
    fleet: Fleet, out: Path, task: str, folder: Path | None, rounds: int
) -> "subprocess.Popen[str]":
    """The devices, in a process of their own."""
    where = [] if folder is None else ["--mnist-dir", str(folder)]
    command = [
        str(Path(sys.executable).parent / "browser-sim"), "devices", "--site", f"http://{fleet.http}",
        "--task", task,
        "--store", str(out / "answers.sqlite3"), "--devices", str(DEVICES), "--shard-size", str(SHARD_SIZE),
        "--seed", str(SEED), "--idle", "60", "--rounds", str(rounds), "--twice", "0.05", "--insecure",
        "--json", *where,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 # our own program


def tested(model: onnx.ModelProto, features: Any, labels: Any) -> float:
    """The accuracy of an exported softmax regression on digits that no device held."""
    weight, bias = (numpy_helper.to_array(one) for one in model.graph.initializer)
    logits = features.astype(np.float32) / np.float32(256) @ weight.T + bias
    return float(np.mean(logits.argmax(axis=1) == labels))


def network_state(out: Path, job: dict[str, Any]) -> bytes | None:
    """The last checkpoint of a job that ran over the network."""
    return JobFolder(out / "parties" / "adserver", bytes.fromhex(job["job_id"])).checkpoint()


def simulated_state(folder: Path | None, rounds: int) -> bytes:
    """The state after the same rounds, in one process and without helpers."""
    holdings = mnist_in_shards(
        folder,
        devices=DEVICES,
        shards_each=2,
        shard_size=SHARD_SIZE,
        randomness=held_by(HoldingKind.MNIST, Draws(seed=SEED)),
    )
    bound = {"clip_norm": CLIP_NORM, "frac_bits": FRAC_BITS}
    settings = {**SETTINGS, "rounds": rounds, "noise_multiplier": 0.0, "bound": bound}
    strategy = build(strategies.strategy_class("dp-fedavg"), settings)
    model = DenseModel(widths=WIDTHS)
    simulated = Simulated(
        strategy=strategy,
        model=model,
        population=holdings.population,
        features=holdings.features,
        labels=holdings.labels,
    )
    state: ServerState | None = None
    for point in simulate(
        simulated, model.initial(seeded(0, "first weights")), seed=SEED, evaluate=lambda _: {}
    ):
        state = point.state
    if state is None:
        raise AssertionError("a simulation has a state")
    return state.encode()


def say(what: str) -> None:
    """One line of what happened."""
    _OUT.print(f"[bold green]✓[/] {what}")


HELPER_OPTIONS: Final = ("--max-epsilon", "64", "--max-collusion-epsilon", "128")


def main() -> None:
    """Run the demo and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo-federated-out"))
    parser.add_argument("--mnist-dir", type=Path, default=None)
    arguments = parser.parse_args()
    print(json.dumps(run(arguments.out, arguments.mnist_dir)))


if __name__ == "__main__":
    main()
