"""Digits as a browser's histograms of oriented gradients: accuracy at epsilon 3, with both helpers' noise.

python -m tests.bench.models_images [--seeds N]          prints JSON; a part of `make bench-models`

MNIST's 60,000 training images as 392 bytes each, 64 tanh units, 20 epochs of 24 steps, momentum, a cosine
schedule, tested on the 10,000 others. Each record takes part in one step of each epoch (random allocation).
Epsilon counts both helpers' noises and secret samples; the colluding budget counts one helper's noise, and
samples that this helper knows.
"""

import argparse
import json
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.inference import predict
from maskedlark.encoding.images import hog
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.job import charge
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR
from tests.bench.in_process import train_in_process
from tests.bench.mnist import load_test_set, load_training_set
from tests.builders import fitting_noise, job_spec, world
from tests.training_plans import training_plan

EPSILON: Final = 3.0
DELTA: Final = 1e-5
EPOCHS: Final = 20
STEPS: Final = 24
HIDDEN: Final = 64
RATE: Final = 3.0
CLASSES: Final = 10


def train(
    features: NDArray[np.uint8], labels: NDArray[np.int64], *, epsilon: float, seed: int
) -> tuple[bytes, Epsilons]:
    """Train by the product's functions; return the model's file and what it costs."""
    width, rounds = features.shape[1], EPOCHS * STEPS
    encoded = dense_network([width, HIDDEN, CLASSES], "tanh", seed=seed)
    model = parse(encoded, num_features=width)
    of = world(
        num_features=width,
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
        loss=Loss.CROSS_ENTROPY,
        rounds=rounds,
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
        optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=RATE),
        schedule=Schedule(kind=ScheduleKind.COSINE),
    )
    values = train_in_process(of, plan, model, features, labels)
    return replace_parameters(encoded, model, values), spent([charge(of.task, job, rounds)], DELTA)


def images_figures(seeds: int = 2) -> dict[str, float]:
    """The accuracy's mean over seeds with its spread, and both budgets."""
    (images, labels), (others, expected) = load_training_set(), load_test_set()
    features, tested = (hog(some.reshape(-1, 28, 28)) for some in (images, others))
    accuracies, costs = [], []
    for seed in range(1, seeds + 1):
        trained, cost = train(features, labels, epsilon=EPSILON, seed=seed)
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
