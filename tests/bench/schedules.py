"""Correlated noise under learning-rate schedules, on Adult: what ADR 42 says of a cosine.

    python -m tests.bench.schedules        about 2 minutes on one core

A network of 32 hidden units, trained with float32 and continuous noise in this process: 10 epochs of 20
steps, momentum .9, clip 1, both helpers' noise, epsilon 1 against the ad server with one helper. Printed is
the mean AUC of the test set over seeds, with the standard deviation, for each kind of noise, schedule and
rate.
"""

import gzip
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from maskedlark.privacy.composing.analytic_gaussian import analytic_sigma
from maskedlark.privacy.correlated import DENOMINATOR, best_carried, sensitivity

STEPS: Final = 20
EPOCHS: Final = 10
MOMENTUM: Final = 0.9
HIDDEN: Final = 32
SEEDS: Final = 3
RATES: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
SCHEDULES: Final[dict[str, Callable[[float], float]]] = {
    "constant": lambda part: 1.0,
    "cosine": lambda part: (1 + math.cos(math.pi * part)) / 2,
}
_DATA: Final = Path(
    os.environ.get("MASKEDLARK_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")
)
_NUMBERS: Final = (0, 2, 4, 10, 11, 12)
_LOGARITHMS: Final = (10, 11)
_NAMES: Final = (1, 3, 5, 6, 7, 8, 9, 13)
_LABEL: Final = 14


@dataclass(frozen=True, slots=True)
class Table:
    """Features (n, d) and labels (n,) of 0 and 1."""

    features: NDArray[np.float32]
    labels: NDArray[np.float32]


def read_tables() -> tuple[Table, Table]:
    """Read the training and the test set: numbers standardised by the former, names one-hot."""
    rows = [_rows(name) for name in ("adult.data.gz", "adult.test.gz")]
    columns: list[list[NDArray[np.float64]]] = [[], []]
    for place in _NUMBERS:
        values = [np.array([float(row[place]) for row in part]) for part in rows]
        values = [np.log1p(one) for one in values] if place in _LOGARITHMS else values
        for column, one in zip(columns, values, strict=True):
            column.append((one - values[0].mean())[:, None] / values[0].std() / 3)
    for place in _NAMES:
        names = np.array(sorted({row[place] for row in rows[0]}))
        for column, part in zip(columns, rows, strict=True):
            column.append(np.array([row[place] for row in part])[:, None] == names)
    train, test = (
        Table(
            np.hstack(column).astype(np.float32),
            np.array([row[_LABEL].startswith(">50K") for row in part], np.float32),
        )
        for column, part in zip(columns, rows, strict=True)
    )
    return train, test


def _rows(name: str) -> list[list[str]]:
    with gzip.open(_DATA / "ads" / name, "rt") as file:
        rows = [[word.strip() for word in line.split(",")] for line in file]
    return [row for row in rows if len(row) > _LABEL]


def train(
    table: Table, *, carried: int, noise: float, rate: float, schedule: Callable[[float], float], seed: int
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Train one network; returns its score of features."""
    rng, (count, width) = np.random.default_rng(seed), table.features.shape
    first = rng.standard_normal((width, HIDDEN)).astype(np.float32) * math.sqrt(2 / width)
    second = rng.standard_normal(HIDDEN).astype(np.float32) * math.sqrt(1 / HIDDEN)
    parts: list[NDArray[np.float32]] = [
        first,
        np.zeros(HIDDEN, np.float32),
        second,
        np.zeros(1, np.float32),
    ]
    ends = np.cumsum([one.size for one in parts])
    velocity, before = np.zeros(ends[-1]), np.zeros(ends[-1])
    slots = rng.integers(0, STEPS, count)
    for step in range(rounds := STEPS * EPOCHS):
        if not carried and step % STEPS == 0:
            slots = rng.integers(0, STEPS, count)
        chosen = slots == step % STEPS
        summed = _clipped_sum(parts, table.features[chosen], table.labels[chosen])
        drawn = rng.standard_normal(ends[-1]) * noise * math.sqrt(2)
        summed, before = summed + drawn - carried / DENOMINATOR * before, drawn
        velocity = MOMENTUM * velocity + summed / (count / STEPS)
        change = rate * schedule(step / (rounds - 1)) * velocity
        moved = np.split(change, ends[:-1])
        parts = [one - by.reshape(one.shape).astype(np.float32) for one, by in zip(parts, moved, strict=True)]
    return lambda features: np.maximum(features @ parts[0] + parts[1], 0) @ parts[2] + parts[3]


def _clipped_sum(
    parts: list[NDArray[np.float32]], features: NDArray[np.float32], labels: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the sum of the gradients of the cross-entropy, each clipped to length 1."""
    inner = features @ parts[0] + parts[1]
    active = np.maximum(inner, 0)
    of_output = 1 / (1 + np.exp(-(active @ parts[2] + parts[3]))) - labels
    of_inner = of_output[:, None] * parts[2] * (inner > 0)
    squares = of_output**2 * (np.square(active).sum(1) + 1)
    squares += np.square(of_inner).sum(1) * (np.square(features).sum(1) + 1)
    scale = np.minimum(1, 1 / np.sqrt(squares + 1e-20))
    of_output, of_inner = of_output * scale, of_inner * scale[:, None]
    sums = (features.T @ of_inner, of_inner.sum(0), active.T @ of_output, of_output.sum(keepdims=True))
    return np.concatenate([one.ravel() for one in sums]).astype(np.float64)


def area(scores: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    """Return the area under the ROC curve."""
    positive = labels.sum()
    ranks = rankdata(scores)[labels == 1].sum() - positive * (positive + 1) / 2
    return float(ranks / (positive * (len(labels) - positive)))


def main() -> None:
    """Train and print."""
    table, test = read_tables()
    for carried in (0, best_carried(steps=STEPS, epochs=EPOCHS, momentum=MOMENTUM)):
        length = sensitivity(carried, steps=STEPS, epochs=EPOCHS)
        noise = length * analytic_sigma(1.0, 1e-5)
        for name, schedule in SCHEDULES.items():
            for rate in RATES:
                found = [
                    area(
                        train(table, carried=carried, noise=noise, rate=rate, schedule=schedule, seed=seed)(
                            test.features
                        ),
                        test.labels,
                    )
                    for seed in range(SEEDS)
                ]
                print(
                    f"carried {carried:2}  {name:8}  rate {rate}  {np.mean(found):.4f} +- {np.std(found):.4f}"
                )


if __name__ == "__main__":
    main()
