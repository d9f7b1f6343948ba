"""What training a part is worth: digits at one epsilon by all weights, the last layer, and adapters.

python -m tests.bench.parts [--seeds N] [--epsilon E]          prints JSON

A network of 784-256-10 (203,530 weights) is trained on 1,000 public MNIST images, and then by a job on
20,000 others, by the product's own engine, samples and both helpers' noise: 10 epochs of 20 steps, momentum,
a cosine schedule, a clip of 1, the better of two learning rates for each. Adapters are of rank 8, beside the
first layer. Tested on the 10,000 test images. Seconds are of the processor, for all rounds of a job.
"""

import argparse
import json
import math
import time
from itertools import product
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.inference import predict
from adserver.training.model_file import parse_chosen
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import replace_parameters, trained_names
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR
from tests.bench.in_process import train_in_process
from tests.bench.mnist import load_test_set, load_training_set
from tests.builders import fitting_noise, job_spec, world
from tests.training_plans import training_plan

INPUTS: Final = 784
HIDDEN: Final = 256
CLASSES: Final = 10
RANK: Final = 8
PUBLIC: Final = 1_000
REPORTS: Final = 20_000
EPOCHS: Final = 10
STEPS: Final = 20
DELTA: Final = 1e-5
RATES: Final = (0.3, 1.0)
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "whole": ("base.*", "last.*"),
    "last": ("last.*",),
    "adapters": ("down.*", "up.*", "last.*"),
}


def pretrained(features: NDArray[np.uint8], labels: NDArray[np.int64], seed: int) -> bytes:
    """Train plainly on the public images, and add an adapter whose product is zero."""
    torch.manual_seed(seed)
    base, last = torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Linear(HIDDEN, CLASSES)
    network = torch.nn.Sequential(base, torch.nn.Tanh(), last)
    x, y = torch.from_numpy(features.astype(np.float32) / 256), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, weight_decay=1e-4)
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    values = {
        f"{name}.{kind}": getattr(layer, kind)
        for name, layer in (("base", base), ("last", last))
        for kind in ("weight", "bias")
    }
    values["down.weight"] = torch.randn(INPUTS, RANK) / math.sqrt(INPUTS)
    values["up.weight"] = torch.zeros(RANK, HIDDEN)
    nodes = [
        helper.make_node("Gemm", ["x", "base.weight", "base.bias"], ["full"], transB=1),
        helper.make_node("MatMul", ["x", "down.weight"], ["low"]),
        helper.make_node("MatMul", ["low", "up.weight"], ["added"]),
        helper.make_node("Add", ["full", "added"], ["hidden"]),
        helper.make_node("Tanh", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "last.weight", "last.bias"], ["z"], transB=1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "adapted",
        [value("x", TensorProto.FLOAT, ["n", INPUTS])],
        [value("z", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(one.detach().numpy(), name) for name, one in values.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    return bytes(made.SerializeToString())


def train(
    encoded: bytes,
    features: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    train: tuple[str, ...],
    rate: float,
    epsilon: float,
    seed: int,
) -> tuple[bytes, int]:
    """Train some parameters by the product's functions; return the model's file, and their number."""
    model = parse_chosen(encoded, num_features=INPUTS, train=train, freeze=())
    of = world(
        num_features=INPUTS,
        labels={"kind": "classes", "size": CLASSES},
        min_batch_size=20,
        mechanism=Mechanism.GAUSSIAN,
        clip_norm=1.0,
        delta=DELTA,
    )
    job = job_spec(
        of.task.task_id,
        job_id=seed.to_bytes(16, "big"),
        model_digest=model.digest,
        trained=trained_names(model),
        loss=Loss.CROSS_ENTROPY,
        rounds=EPOCHS * STEPS,
        sampling_numerator=SAMPLING_DENOMINATOR // STEPS,
        epoch_steps=STEPS,
        noise_multiplier=fitting_noise(
            epsilon,
            DELTA,
            mechanism=Mechanism.GAUSSIAN,
            sampling_rate=1.0,
            epoch_steps=STEPS,
            rounds=EPOCHS,
            already=(),
            collusion_epsilon=math.inf,
        ),
    )
    plan = training_plan(
        of.task,
        job,
        records=len(labels),
        optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=rate),
        schedule=Schedule(kind=ScheduleKind.COSINE),
    )
    values = train_in_process(of, plan, model, features, labels)
    return replace_parameters(encoded, model, values), model.num_parameters


def measure(seeds: int, epsilon: float) -> dict[str, Any]:
    """The mean accuracy over seeds with its spread, of each part at its best rate."""
    (images, labels), (tested, expected) = load_training_set(), load_test_set()
    accuracies: dict[tuple[str, float], list[float]] = {}
    sizes, seconds = {"panel": 0}, {"panel": 0.0}
    for seed in range(1, seeds + 1):
        order = np.random.default_rng(seed).permutation(len(images))
        public, private = order[:PUBLIC], order[PUBLIC : PUBLIC + REPORTS]
        encoded = pretrained(images[public], labels[public], seed)

        def accuracy(file: bytes) -> float:
            return float((predict(file, tested).argmax(axis=1) == expected).mean())

        accuracies.setdefault(("panel", 0.0), []).append(accuracy(encoded))
        for (name, chosen), rate in product(PARTS.items(), RATES):
            began = time.process_time()
            file, sizes[name] = train(
                encoded, images[private], labels[private], train=chosen, rate=rate, epsilon=epsilon, seed=seed
            )
            seconds[name] = time.process_time() - began
            accuracies.setdefault((name, rate), []).append(accuracy(file))
    found = {}
    for name in ("panel", *PARTS):
        rate = max(
            (rate for one, rate in accuracies if one == name), key=lambda at: np.mean(accuracies[name, at])
        )
        of = accuracies[name, rate]
        found[name] = {
            "trained": sizes[name],
            "accuracy": round(float(np.mean(of)), 4),
            "spread": round(float(np.std(of, ddof=1)), 4) if seeds > 1 else 0.0,
            "learning_rate": rate,
            "seconds": round(seconds[name], 1),
        }
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.seeds, arguments.epsilon), indent=2))


if __name__ == "__main__":
    main()
