"""`make demo-federated`: a model is trained on devices' own data, which never leaves them.

Two helper processes, an ad server and a process of simulated devices run on loopback. Each device holds two
shards of MNIST. In each round it flips a coin of its own; if it is drawn it trains, clips and sends additive
shares of its update, and otherwise shares of zeros. A second job, without noise, is compared bit for bit
with a simulation.
"""

import argparse
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper
from rich.console import Console

from adserver.simulating.simulator import Simulated, simulate
from adserver.store.job_folder import JobFolder
from browser_sim.devices.device_data import mnist_in_shards
from browser_sim.download import download
from browser_sim.draws import Draws
from browser_sim.sources.mnist import default_folder, load_mnist
from docs.tutorial.fleet import ORIGIN, Fleet
from maskedlark.canonical import build
from maskedlark.encoding.idx import TEST, TRAIN
from maskedlark.errors import MaskedLarkError
from maskedlark.federated import strategies
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.strategy import ServerState
from maskedlark.randomness import seeded

WIDTHS: Final = (784, 10)
SEED: Final = 1
FRAC_BITS: Final = 24
CLIP_NORM: Final = 1.0
EPSILON: Final = 8.0
COLLUSION_EPSILON: Final = 16.0
DELTA: Final = 1e-5
HELPER_OPTIONS: Final = ("--max-epsilon", "8", "--max-collusion-epsilon", "16")

_OUT: Final = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is run.

    Attributes:
        devices: Each holds two shards.
        shard_size: Examples a shard.
        rounds: With noise.
        quiet_rounds: Without, to compare with a simulation.
        least_devices: That a round with noise waits for, and a task's k. The quiet rounds wait for all: a
            simulation has no late devices.
    """

    devices: int = 200
    shard_size: int = 150
    rounds: int = 12
    quiet_rounds: int = 3
    least_devices: int = 180

    @property
    def settings(self) -> dict[str, Any]:
        """The strategy's."""
        local = {"epochs": 1, "batch_size": 20, "learning_rate": 0.05}
        return {"devices": self.devices, "sampling_rate": 0.5, "local": local}


def run(out: Path, folder: Path | None, size: Size) -> dict[str, Any]:
    """Both jobs on one fleet, one after the other; the summary."""
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    folder = folder or images(out)
    test = load_mnist(folder).own_test
    if test is None:
        raise AssertionError("MNIST has a test set of its own")
    np.savez(out / "test.npz", features=test.features, labels=test.labels.astype(np.int64))
    (out / "strategy.json").write_text(json.dumps(size.settings))
    with Fleet(folder=out / "parties", is_no_noise=True, helper_options=HELPER_OPTIONS) as fleet:
        noisy, told, model = trained(fleet, out, folder, size, is_no_noise=False)
        accuracy = tested(model, test.features, test.labels)
        guessed = float(np.unique(test.labels, return_counts=True)[1].max() / len(test.labels))
        say(
            f"with noise: test accuracy {accuracy:.3f} (always the most frequent digit: {guessed:.3f}), "
            f"epsilon {noisy['epsilon_spent']:.2f} a person"
        )
        quiet, _, _ = trained(fleet, out, folder, size, is_no_noise=True)
    is_equal = network_state(out, quiet) == simulated_state(folder, size)
    which = "the same" if is_equal else "another"
    say(f"without noise, the network and the simulation trained {which} model")
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


def images(out: Path) -> Path:
    """A folder with images of digits: MNIST, or what is made of scikit-learn's where it cannot be fetched."""
    folder = default_folder()
    if is_there(folder):
        return folder
    folder = out / "mnist"
    try:
        say(f"MNIST is not in {default_folder()}: fetching it to {folder} (11 MB)")
        download(folder)
    except MaskedLarkError as error:
        say(
            f"it cannot be fetched ({error}): the images are scikit-learn's 1,797 digits, enlarged and "
            "shifted"
        )
        write_digits(folder)
    return folder


def is_there(folder: Path) -> bool:
    """Whether all four files of MNIST are in a folder, packed or not."""
    return all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in (*TRAIN, *TEST))


def write_digits(folder: Path, *, train: int = 60_000, test: int = 10_000) -> None:
    """Write files like MNIST's four: digits of scikit-learn, enlarged threefold and shifted in 28 x 28.

    Digits of the test file are none of those of the other.
    """
    from sklearn.datasets import load_digits  # of the dev extra

    small, labels = load_digits(return_X_y=True)
    large = np.kron(small.reshape(-1, 8, 8) * 15, np.ones((3, 3))).astype(np.uint8)
    chance = np.random.default_rng(SEED)
    split = len(large) * 5 // 6
    folder.mkdir(parents=True, exist_ok=True)
    for names, count, first, last in ((TRAIN, train, 0, split), (TEST, test, split, len(large))):
        chosen, shifts = chance.integers(first, last, count), chance.integers(0, 5, (count, 2))
        made = np.zeros((count, 28, 28), np.uint8)
        for image, digit, (down, right) in zip(made, large[chosen], shifts, strict=True):
            image[down : down + 24, right : right + 24] = digit
        for name, values in zip(names, (made, labels[chosen].astype(np.uint8)), strict=True):
            header = np.array([0x800 + values.ndim, *values.shape], ">u4")
            (folder / name).write_bytes(header.tobytes() + values.tobytes())


def trained(
    fleet: Fleet, out: Path, folder: Path | None, size: Size, *, is_no_noise: bool
) -> tuple[Any, Any, onnx.ModelProto]:
    """A task and a trained model: the job, what became of devices' answers, and the model."""
    name, rounds = ("quiet", size.quiet_rounds) if is_no_noise else ("noisy", size.rounds)
    least = size.devices if is_no_noise else size.least_devices
    privacy = ["--no-noise"] if is_no_noise else ["--mechanism", "gaussian"]
    task = fleet.adserver(
        "task", "create", "--name", f"digits at home, {name}", "--origin", ORIGIN, "--classes", "10",
        "--num-features", "784", "--updates", str(DenseModel(widths=WIDTHS).size),
        "--frac-bits", str(FRAC_BITS), "--clip-norm", str(CLIP_NORM),
        "--min-batch-size", str(size.least_devices), "--max-dataset-size", "1000",
        "--epsilon", str(EPSILON), "--collusion-epsilon", str(COLLUSION_EPSILON), "--delta", str(DELTA),
        *privacy,
    ).strip()  # fmt: skip
    say(f"both helpers signed task {task[:12]}; {size.devices} devices look for its rounds")
    noise = [] if is_no_noise else ["--epsilon", str(EPSILON)]
    submitted = fleet.adserver_json(
        "job", "submit", "--task", task, "--strategy", "dp-fedavg",
        "--settings", str(out / "strategy.json"), "--rounds", str(rounds),
        "--layers", ",".join(map(str, WIDTHS)), "--window", "30",
        "--least-devices", str(least), "--eval-set", str(out / "test.npz"), *noise, options=False,
    )  # fmt: skip
    where = [] if folder is None else ["--mnist-dir", str(folder)]
    told = live(fleet, task, size, ["--store", str(out / f"{name}.sqlite3"), "--rounds", str(rounds), *where])
    if told["rounds"] != rounds:
        raise AssertionError(f"devices saw {told['rounds']} of {rounds} rounds")
    job = fleet.adserver_json("job", "watch", submitted["job_id"], options=False)
    exported = out / f"{name}.onnx"
    fleet.adserver("model", "export", "--job", job["job_id"], str(exported), options=False)
    return job, told, onnx.load(str(exported))


def live(fleet: Fleet, task: str, size: Size, options: list[str]) -> Any:
    """The devices, in a process of their own, until they have answered every round; what they tell."""
    return json.loads(
        fleet.run(
            "browser-sim", "devices", "--site", f"http://{fleet.http}", "--task", task,
            "--devices", str(size.devices), "--shard-size", str(size.shard_size), "--seed", str(SEED),
            "--idle", "300", "--twice", "0.05", "--insecure", "--json", *options,
        )
    )  # fmt: skip


def tested(model: onnx.ModelProto, features: Any, labels: Any) -> float:
    """The accuracy of an exported softmax regression on digits that no device held."""
    weight, bias = (numpy_helper.to_array(one) for one in model.graph.initializer)
    logits = features.astype(np.float32) / np.float32(256) @ weight.T + bias
    return float(np.mean(logits.argmax(axis=1) == labels))


def network_state(out: Path, job: dict[str, Any]) -> bytes | None:
    """The last state of a job that ran over the network, without the weights that did best."""
    stored = JobFolder(out / "parties" / "adserver", bytes.fromhex(job["job_id"])).checkpoint()
    return None if stored is None else ServerState.decode(stored).encode()


def simulated_state(folder: Path | None, size: Size) -> bytes:
    """The state after the same rounds, in one process and without helpers."""
    holdings = mnist_in_shards(
        folder,
        devices=size.devices,
        shards_each=2,
        shard_size=size.shard_size,
        draws=Draws(seed=SEED),
    )
    bound = {"clip_norm": CLIP_NORM, "frac_bits": FRAC_BITS}
    settings = {**size.settings, "rounds": size.quiet_rounds, "noise_multiplier": 0.0, "bound": bound}
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


def main() -> None:
    """Run the demo and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo-federated-out"))
    parser.add_argument("--mnist-dir", type=Path, default=None)
    arguments = parser.parse_args()
    print(json.dumps(run(arguments.out, arguments.mnist_dir, Size())))


if __name__ == "__main__":
    main()
