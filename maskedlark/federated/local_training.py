"""What a device does with its own examples: how many passes, in which batches, and which models can do it.

A model is anything with the methods of `LocalModel`. `maskedlark.federated.dense` holds one in plain numpy. A
model that needs torch lives with the party that installs torch.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from maskedlark.canonical import canonical
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness

Parameters: TypeAlias = NDArray[np.float32]
"""All weights of a model, flat, in the model's order: what a round sends to devices."""

Differences: TypeAlias = NDArray[np.float32]
"""(devices, parameters): trained minus received weights, one row a device."""

Projection: TypeAlias = Callable[[Differences], Differences]
"""Clips each row to a bound."""

IDLE: Final = -1
"""In a schedule of batches: no example at this place."""


@frozen
class Examples:
    """The examples of one device.

    Attributes:
        features: (n, ...), uint8 for `DenseModel`; token ids for a language model.
        labels: (n,), integers; for a language model (n, tokens).
    """

    features: NDArray[np.integer]
    labels: NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.labels)


@canonical
class LocalTraining:
    """How a device trains. Public and the same for all devices of a job.

    Attributes:
        epochs: Passes over the device's examples.
        batch_size: Examples a step; the last batch of a pass may be smaller.
        learning_rate: Of plain SGD on the device.
    """

    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    batch_size: Annotated[int, Field(ge=1, le=1 << 20)] = 10
    learning_rate: Annotated[float, Field(gt=0.0, le=1e6)] = 0.1


@frozen
class TrainingSteps:
    """How the devices of a stack take their SGD steps.

    Attributes:
        schedule: (devices, steps, batch_size) from `batch_schedule`.
        learning_rate: Of each step.
        proximal: The weight mu of FedProx's term mu/2 |theta - start|^2.
        project: Applied to trained minus received weights after each step; None for nothing.
    """

    schedule: NDArray[np.int64]
    learning_rate: float
    proximal: float = 0.0
    project: Projection | None = None


class LocalModel(Protocol):
    """A model that many devices train side by side, each on its own copy."""

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """The number of parameters of each weight vector; their sum is the length of `Parameters`."""

    def train(self, parameters: Parameters, stack: Sequence[Examples], steps: TrainingSteps) -> Differences:
        """Let every device of a stack take its SGD steps from the same start.

        Args:
            parameters: The round's weights.
            stack: The devices' examples.
            steps: How they train.

        Guarantees: a device's row does not depend on which other devices are in the stack.
        """


def batch_schedule(
    counts: Sequence[int], local: LocalTraining, randomness: Sequence[Randomness]
) -> NDArray[np.int64]:
    """Return which example each device uses at each place of each step.

    Args:
        counts: Examples a device has.
        local: Passes and batch size.
        randomness: One source a device; it takes 8 bytes an example and pass.

    Returns:
        (devices, steps, batch_size) of example numbers, `IDLE` at unused places. A device with fewer steps
        than others has whole idle steps at the end.
    """
    size = local.batch_size
    steps = [local.epochs * -(-count // size) for count in counts]
    schedule = np.full((len(counts), max(steps, default=0), size), IDLE, np.int64)
    for device, (count, source) in enumerate(zip(counts, randomness, strict=True)):
        if not count:
            continue
        a_pass = -(-count // size)
        for epoch in range(local.epochs):
            order = np.full(a_pass * size, IDLE, np.int64)
            order[:count] = shuffle(count, source)
            schedule[device, epoch * a_pass : (epoch + 1) * a_pass] = order.reshape(a_pass, size)
    return schedule


def shuffle(count: int, randomness: Randomness) -> NDArray[np.int64]:
    """Return the numbers 0 to count-1, sorted by 8 random bytes each: the same order on every machine."""
    # Not numpy's own shuffle, whose order is promised of no version.
    keys = np.frombuffer(randomness(8 * count), "<u8")
    return np.argsort(keys, kind="stable").astype(np.int64)
