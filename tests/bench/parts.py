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

from adserver.training.inference import predict
from adserver.training.model_file import parse_chosen
from tests.bench.digits_job import CLASSES, train_digits
from tests.bench.mnist import load_test_set, load_training_set

INPUTS: Final = 784
HIDDEN: Final = 256
RANK: Final = 8
PUBLIC: Final = 1_000
REPORTS: Final = 20_000
EPOCHS: Final = 10
STEPS: Final = 20
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
            model = parse_chosen(encoded, num_features=INPUTS, train=chosen, freeze=())
            began = time.process_time()
            file, _ = train_digits(
                encoded,
                model,
                images[private],
                labels[private],
                epochs=EPOCHS,
                steps=STEPS,
                rate=rate,
                epsilon=epsilon,
                seed=seed,
            )
            seconds[name] = time.process_time() - began
            sizes[name] = model.num_parameters
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
