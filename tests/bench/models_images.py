"""Digits as a browser's histograms of oriented gradients: accuracy at epsilon 3, with both helpers' noise.

python -m tests.bench.models_images [--seeds N]          prints JSON; a part of `make bench-models`

MNIST's 60,000 training images as 392 bytes each, 64 tanh units, 20 epochs of 24 steps, momentum, a cosine
schedule, tested on the 10,000 others. Each record takes part in one step of each epoch (random allocation).
Epsilon counts both helpers' noises and secret samples; the colluding budget counts one helper's noise, and
samples that this helper knows.
"""

import argparse
import json
from typing import Final

import numpy as np

from adserver.training.inference import predict
from maskedlark.encoding.images import hog
from maskedlark.model.dense import dense_network
from maskedlark.model.onnx_file import parse
from tests.bench.digits_job import CLASSES, train_digits
from tests.bench.mnist import load_test_set, load_training_set

EPSILON: Final = 3.0
EPOCHS: Final = 20
STEPS: Final = 24
HIDDEN: Final = 64
RATE: Final = 3.0


def images_figures(seeds: int = 2) -> dict[str, float]:
    """The accuracy's mean over seeds with its spread, and both budgets."""
    (images, labels), (others, expected) = load_training_set(), load_test_set()
    features, tested = (hog(some.reshape(-1, 28, 28)) for some in (images, others))
    width = features.shape[1]
    accuracies, costs = [], []
    for seed in range(1, seeds + 1):
        untrained = dense_network([width, HIDDEN, CLASSES], "tanh", seed=seed)
        trained, cost = train_digits(
            untrained,
            parse(untrained, num_features=width),
            features,
            labels,
            epochs=EPOCHS,
            steps=STEPS,
            rate=RATE,
            epsilon=EPSILON,
            seed=seed,
        )
        accuracies.append(float((predict(trained, tested).argmax(axis=1) == expected).mean()))
        costs.append(cost)
    return {
        "mnist_hog_accuracy": float(np.mean(accuracies)),
        "mnist_hog_accuracy_spread": float(np.std(accuracies, ddof=1)) if seeds > 1 else 0.0,
        "mnist_hog_seeds": seeds,
        "mnist_hog_epsilon": costs[0].ad_server,
        "mnist_hog_collusion_epsilon": costs[0].colluding,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    print(json.dumps(images_figures(parser.parse_args().seeds), indent=2))


if __name__ == "__main__":
    main()
