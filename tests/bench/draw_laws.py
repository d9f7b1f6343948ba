"""The laws that draw and discard's spam test rests on, by simulation, and what its instances compare with."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from maskedlark.federated.generalised_linear import Batches, LinearModel, Reals


def stationary_variance(instances: int, in_flight: int, *, updates: int, trees: int, seed: int) -> float:
    """The mean variance over instances (n - 1 below) over one update's noise variance, without gradients.

    Independent jobs (trees of who came from whom) run side by side; the mean is over the second half of their
    updates.
    All weights of a job share its tree, so jobs, not weights, are what the mean needs many of.
    """
    numbers = np.random.default_rng(seed)
    weights = 4
    held = numbers.standard_normal((trees, instances, weights)) * np.sqrt((instances + in_flight) / 2.0)
    rows = np.arange(trees)
    waiting = deque(held[rows, numbers.integers(0, instances, trees)] for _ in range(in_flight))
    total, count = 0.0, 0
    for update in range(updates):
        drawn, replaced = numbers.integers(0, instances, (2, trees))
        waiting.append(held[rows, drawn])
        held[rows, replaced] = waiting.popleft() + numbers.standard_normal((trees, weights))
        if update >= updates // 2 and update % instances == 0:
            total += float(held.var(axis=1, ddof=1).mean())
            count += 1
    return total / count


def share_that_dies(instances: int, *, trials: int, seed: int) -> float:
    """How often an update's mark is gone from all instances in the end, instead of in all of them."""
    numbers = np.random.default_rng(seed)
    marks = np.zeros((trials, instances), np.bool_)
    marks[:, 0] = True
    rows = np.arange(trials)
    while len(rows):
        drawn, replaced = numbers.integers(0, instances, (2, len(rows)))
        marks[rows, replaced] = marks[rows, drawn]
        held = marks[rows].sum(axis=1)
        rows = rows[(held > 0) & (held < instances)]
    return float(np.mean(~marks[:, 0]))


def batched_averaging(
    model: LinearModel, batches: Batches, order: NDArray[np.int64], *, learning_rate: float, clients: int
) -> Reals:
    """What k instances are compared with: steps along the mean gradient of so many clients."""
    weights = np.zeros(model.size)
    for first in range(0, len(order) // clients * clients, clients):
        members = order[first : first + clients]
        some = Batches(features=batches.features[members], labels=batches.labels[members])
        gradient = model.mean_gradient(np.repeat(weights[None], clients, axis=0), some)
        weights -= learning_rate * np.clip(gradient, -1.0, 1.0).mean(axis=0)
    return weights


def area_under_curve(honest: NDArray[np.float64], spam: NDArray[np.float64]) -> float:
    """The area under the ROC curve: how often spam scores above an honest update, ties counted half."""
    below = np.searchsorted(np.sort(honest), spam, side="left")
    up_to = np.searchsorted(np.sort(honest), spam, side="right")
    return float(np.mean((below + up_to) / 2) / len(honest))
