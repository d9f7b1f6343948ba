"""Trainings with correlated and with independent noise at one colluding epsilon.

    python -m tests.bench.correlated_training wbcd|mnist|online_shoppers [--seeds 5] [--json]

The networks and data of docs/explanation/utility.md, random allocation, SGD with momentum .9 on clipped sums,
float32 and continuous noise: each of two helpers adds its own full noise, and epsilon is against the ad
server with one of them, delta 1e-5. Each cell has the best of four learning rates, the same four for both
noises, by seeds of their own. The same seeds give the same splits, initial weights and slots. Needs
MASKEDLARK_DATA, as tests/bench/privacy.py.
"""

import argparse
import json
import math
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.bench.correlated_noise import (
    INDEPENDENT,
    MOMENTUM,
    Family,
    Schedule,
    choose,
    gram_of,
    sensitivity,
    shift,
)
from tests.bench.private_training import SETUPS, Setup, load, score, untrained

_RATES: Final = (0.1, 0.2, 0.4, 0.8)  # times the setup's
Values = list[NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is tried on a data set, with how many seeds the learning rate is chosen."""

    schedules: tuple[tuple[int, int], ...]
    epsilons: tuple[float, ...]
    rate_seeds: int = 3


PLANS: Final = {
    "wbcd": Plan(schedules=((60, 1), (20, 3)), epsilons=(1.0, 2.0, 4.0, 8.0)),
    "mnist": Plan(schedules=((7, 29),), epsilons=(0.5, 1.0, 2.0, 4.0), rate_seeds=1),
    "online_shoppers": Plan(schedules=((17, 9),), epsilons=(0.5, 1.0, 2.0, 4.0, 8.0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Scores at one epsilon, of the best learning rate."""

    data: str
    epochs: int
    steps: int
    noise: str
    rmse_ratio: float
    epsilon: float
    learning_rate: float
    score: float
    standard_error: float
    seeds: int


def clipped_sum(values: Values, features: NDArray[np.float32], labels: NDArray[np.int64]) -> Values:
    """Sum of each record's gradient, clipped in L2 to 1, of a dense ReLU network."""
    inputs = [features]
    for matrix, bias in zip(values[:-2:2], values[1:-2:2], strict=True):
        inputs.append(np.maximum(inputs[-1] @ matrix.T + bias, 0))
    outputs = inputs[-1] @ values[-2].T + values[-1]
    if outputs.shape[1] == 1:
        delta = (1 / (1 + np.exp(-np.clip(outputs, -30, 30))) - labels[:, None]).astype(np.float32)
    else:
        delta = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        delta /= delta.sum(axis=1, keepdims=True)
        delta[np.arange(len(labels)), labels] -= 1
    deltas = [delta]
    for matrix, below in zip(values[-2:0:-2], inputs[:0:-1], strict=True):
        deltas.insert(0, (deltas[0] @ matrix) * (below > 0))
    square = sum(
        np.square(d).sum(axis=1) * (np.square(x).sum(axis=1) + 1) for d, x in zip(deltas, inputs, strict=True)
    )
    factor = np.minimum(1, 1 / np.sqrt(np.maximum(square, 1e-12)))[:, None].astype(np.float32)
    found: Values = []
    for d, x in zip(deltas, inputs, strict=True):
        found += [(d * factor).T @ x, (d * factor).sum(axis=0)]
    return found


def train(
    setup: Setup, schedule: Schedule, family: Family, *, epsilon: float, rate: float, seed: int
) -> float:
    """The test score after one training."""
    data = load(setup, 0 if setup.name == "mnist" else seed)  # MNIST is split once for all
    length = schedule.epochs * schedule.steps
    c = family.coefficients(length)
    scale = sensitivity(gram_of(c), schedule.epochs, schedule.steps) / shift(epsilon) * math.sqrt(2)
    values: Values = [value.astype(np.float32) for value in untrained(setup, seed).initial_values]
    velocity = [np.zeros_like(value) for value in values]
    rng, slots = np.random.default_rng(seed), np.random.default_rng(1000 + seed)
    ends = np.cumsum([value.size for value in values])
    past: deque[NDArray[np.float32]] = deque(maxlen=max(family.bands - 1, 0))  # the newest first
    features = data.features.astype(np.float32) / np.float32(256)
    for _ in range(schedule.epochs):
        slot = slots.integers(schedule.steps, size=len(data.labels))
        for step in range(schedule.steps):
            rows = np.flatnonzero(slot == step)
            sums = clipped_sum(values, features[rows], data.labels[rows])
            noise = rng.standard_normal(int(ends[-1]), dtype=np.float32) * np.float32(scale)
            for weight, before in zip(c[1:], past, strict=False):
                noise -= np.float32(weight) * before
            past.appendleft(noise)
            parts = np.split(noise, ends[:-1])
            gradients = [
                (total + part.reshape(total.shape)) * np.float32(schedule.steps / len(data.labels))
                for total, part in zip(sums, parts, strict=True)
            ]
            velocity = [
                np.float32(MOMENTUM) * v + gradient for v, gradient in zip(velocity, gradients, strict=True)
            ]
            values = [value - np.float32(rate) * v for value, v in zip(values, velocity, strict=True)]
    result = score(setup, tuple(values), data) if all(np.isfinite(v).all() for v in values) else 0.0
    return float(result)


def cell(
    setup: Setup, schedule: Schedule, family: Family, *, ratio: float, epsilon: float, seeds: int
) -> Cell:
    """The mean at the best learning rate."""

    def scores(factor: float, of: range) -> list[float]:
        rate = factor * setup.learning_rate
        return [train(setup, schedule, family, epsilon=epsilon, rate=rate, seed=s) for s in of]

    own = range(1000, 1000 + PLANS[setup.name].rate_seeds)
    best = max(_RATES, key=lambda factor: float(np.mean(scores(factor, own))))
    found = scores(best, range(seeds))
    return Cell(
        data=setup.name,
        epochs=schedule.epochs,
        steps=schedule.steps,
        noise="independent" if family.bands == 1 else "correlated",
        rmse_ratio=ratio,
        epsilon=epsilon,
        learning_rate=best * setup.learning_rate,
        score=float(np.mean(found)),
        standard_error=float(np.std(found, ddof=1) / math.sqrt(seeds)),
        seeds=seeds,
    )


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", choices=tuple(PLANS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="+", help="instead of the plan's")
    parser.add_argument("--schedules", nargs="+", help="instead of the plan's, as 7x29")
    parser.add_argument("--noise", choices=("independent", "correlated"), help="one of the two")
    parser.add_argument("--json", action="store_true", help="one object a line")
    arguments = parser.parse_args()
    setup = next(one for one in SETUPS if one.name == arguments.data)
    plan = PLANS[setup.name]
    pairs = [tuple(map(int, one.split("x"))) for one in arguments.schedules or ()] or plan.schedules
    for epochs, steps in pairs:
        schedule = Schedule(name=setup.name, epochs=epochs, steps=steps)
        choice = choose(schedule, MOMENTUM)
        both = [(INDEPENDENT, 1.0)] + [(choice.family, choice.ratio)] * (choice.family.bands > 1)
        for epsilon in arguments.epsilons or plan.epsilons:
            for family, ratio in both:
                if arguments.noise == ("correlated" if family is INDEPENDENT else "independent"):
                    continue
                began = time.process_time()
                found = cell(setup, schedule, family, ratio=ratio, epsilon=epsilon, seeds=arguments.seeds)
                if arguments.json:
                    sys.stdout.write(json.dumps(asdict(found)) + "\n")
                else:
                    sys.stdout.write(
                        f"{found.data} {epochs} x {steps}, colluding {epsilon:g}, {found.noise:11} (RMSE"
                        f" {ratio:.3f}): {found.score:.4f} +- {found.standard_error:.4f}, rate"
                        f" {found.learning_rate:g} ({time.process_time() - began:.0f} s)\n"
                    )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
