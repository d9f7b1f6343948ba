"""What the exact path's roundings cost in accuracy.

MNIST 784-500-10 to the end, beside float32 training with the same clip.

`python -m tests.bench.utility [--epochs 10] [--seeds 3] [--json]`. Same initial weights, same batches, same
clip, noise off. The masked side sends 14-bit weights each round and keeps float32 masters, as the ad server
does; with noise off both helpers' sum is the sum at the true labels, bit for bit
(tests/helper/gradient/exact), so one helper that is given the truth as its mask computes it.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from helper.gradient.engine import Batch
from helper.gradient.exact.engine import ExactEngine
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import QuantisedTensor, quantise
from maskedlark.numbers.field import to_signed
from maskedlark.numbers.fixed_point import decode_signed
from maskedlark.privacy.clip import Clip, Norm
from tests.bench import mnist, peers
from tests.bench.harness import bench_parser, show

WIDTHS = (784, 500, 10)
BATCH, RATE, CLIP = 512, 4.0, Clip(norm=Norm.L2, bound=1.0, frac_bits=32)
Parameters = list[NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Test accuracies of one seed."""

    seed: int
    exact: float
    float32_rounded_weights: float
    plain: float


class ExactStep:
    """The clipped gradient sum by the exact engine, of weights rounded for the round."""

    def __init__(self, seed: int) -> None:
        self.model = parse(peers.export(peers.dense(WIDTHS, seed), WIDTHS[0]), num_features=WIDTHS[0])
        self.engine = ExactEngine(self.model, Loss.CROSS_ENTROPY, CLIP)

    def __call__(
        self, parameters: Parameters, features: NDArray[np.uint8], labels: NDArray[np.int64]
    ) -> Parameters:
        return self.at([quantise(value) for value in parameters], features, labels)

    def at(
        self, weights: list[QuantisedTensor], features: NDArray[np.uint8], labels: NDArray[np.int64]
    ) -> Parameters:
        batch = Batch(
            features=features,
            labels=labels[:, None].astype(np.uint32),
            mask_shares=np.ones((len(labels), 1), np.uint64),
        )
        flat = decode_signed(to_signed(self.engine.masked_sum(tuple(weights), batch).vector), CLIP.frac_bits)
        ends = np.cumsum([parameter.size for parameter in self.model.parameters])[:-1]
        parts = zip(np.split(flat, ends), self.model.parameters, strict=True)
        return [part.reshape(parameter.shape).astype(np.float32) for part, parameter in parts]


class PlainStep:
    """The same sum in float32 by torch: analytic norms, one reweighted product a layer."""

    def __init__(self, *, rounds_weights: bool = False) -> None:
        self.rounds_weights = rounds_weights

    def __call__(
        self, parameters: Parameters, features: NDArray[np.uint8], labels: NDArray[np.int64]
    ) -> Parameters:
        if self.rounds_weights:
            parameters = [quantise(value).to_float().astype(np.float32) for value in parameters]
        w1, b1, w2, b2 = (torch.from_numpy(value) for value in parameters)
        x = torch.from_numpy(features).float() / 256
        hidden = torch.relu(x @ w1.T + b1)
        top = torch.softmax(hidden @ w2.T + b2, 1)
        top[torch.arange(len(labels)), torch.from_numpy(labels)] -= 1
        below = (top @ w2) * (hidden > 0)
        norm = torch.sqrt(
            top.square().sum(1) * (hidden.square().sum(1) + 1)
            + below.square().sum(1) * (x.square().sum(1) + 1)
        )
        factor = torch.clamp(CLIP.bound / norm, max=1.0)[:, None]
        top, below = top * factor, below * factor
        return [value.numpy() for value in (below.T @ x, below.sum(0), top.T @ hidden, top.sum(0))]


def train(step: ExactStep | PlainStep, seed: int, epochs: int) -> float:
    """Test accuracy after training by gradient descent on clipped sums."""
    features, labels = mnist.load_training_set()
    parameters = [value.detach().numpy().copy() for value in peers.dense(WIDTHS, seed).parameters()]
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(features))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            gradients = step(parameters, features[rows], labels[rows])
            parameters = [
                value - np.float32(RATE / BATCH) * gradient
                for value, gradient in zip(parameters, gradients, strict=True)
            ]
    return accuracy(parameters)


def accuracy(parameters: Parameters) -> float:
    """On the test set, in float32."""
    features, labels = mnist.load_test_set()
    w1, b1, w2, b2 = parameters
    hidden = np.maximum(features.astype(np.float32) / 256 @ w1.T + b1, 0)
    return float(((hidden @ w2.T + b2).argmax(1) == labels).mean())


def main() -> None:
    """Train each seed three ways and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = [
        Accuracy(
            seed=seed,
            exact=train(ExactStep(seed), seed, arguments.epochs),
            float32_rounded_weights=train(PlainStep(rounds_weights=True), seed, arguments.epochs),
            plain=train(PlainStep(), seed, arguments.epochs),
        )
        for seed in range(arguments.seeds)
    ]
    show(found, is_json=arguments.json)


if __name__ == "__main__":
    main()
