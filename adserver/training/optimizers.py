"""The optimizers: how a mean gradient becomes a step, as torch.optim defines each, in numpy.

    moments = fresh_moments(OptimizerKind.ADAM, masters)
    step(settings, rate=0.1, steps_taken=0, masters=masters, moments=moments, gradients=gradients)

A step is a few passes over float32 arrays. Each is one IEEE operation a number, so a step has the same bits
on every machine, and a worker that only trains never loads torch.
"""

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.training_plan import Optimizer
from maskedlark.frozen import frozen

_Array: TypeAlias = NDArray[np.float32]
Arrays: TypeAlias = tuple[_Array, ...]
"""One array a parameter, in the model's order."""

_MOMENTS: Final = {
    OptimizerKind.SGD: 0,
    OptimizerKind.MOMENTUM: 1,
    OptimizerKind.ADAM: 2,
    OptimizerKind.ADAGRAD: 1,
}
# As torch has them by default.
_ADAM_FIRST: Final = 0.9
_ADAM_SECOND: Final = 0.999
_ADAM_EPSILON: Final = np.float32(1e-8)
_ADAGRAD_EPSILON: Final = np.float32(1e-10)


def fresh_moments(kind: OptimizerKind, masters: Arrays) -> tuple[Arrays, ...]:
    """Return an optimizer's state before its first step: zeros, one set of arrays a moment."""
    return tuple(tuple(np.zeros_like(master) for master in masters) for _ in range(_MOMENTS[kind]))


def step(
    settings: Optimizer,
    *,
    rate: float,
    steps_taken: int,
    masters: Arrays,
    moments: tuple[Arrays, ...],
    gradients: Arrays,
) -> None:
    """Take one step, in place.

    Args:
        settings: Which optimizer.
        rate: The learning rate of this step.
        steps_taken: How many steps were taken before.
        masters: The weights; changed.
        moments: As `fresh_moments` made them, or after earlier steps; changed.
        gradients: The mean gradient.
    """
    now = _Now(rate=rate, momentum=settings.momentum, steps=steps_taken + 1)
    take = _STEPS[settings.kind]
    for index, (master, gradient) in enumerate(zip(masters, gradients, strict=True)):
        take(now, master, [moment[index] for moment in moments], gradient)


@frozen
class _Now:
    """The numbers of one step, this one counted."""

    rate: float
    momentum: float
    steps: int


def _sgd(now: _Now, master: _Array, _moments: list[_Array], gradient: _Array) -> None:
    master -= np.float32(now.rate) * gradient


def _momentum(now: _Now, master: _Array, moments: list[_Array], gradient: _Array) -> None:
    (velocity,) = moments
    velocity *= np.float32(now.momentum)
    velocity += gradient
    master -= np.float32(now.rate) * velocity


def _adam(now: _Now, master: _Array, moments: list[_Array], gradient: _Array) -> None:
    mean, square = moments
    mean += (gradient - mean) * np.float32(1 - _ADAM_FIRST)
    square *= np.float32(_ADAM_SECOND)
    square += gradient * gradient * np.float32(1 - _ADAM_SECOND)
    # One array for the rest of the formula: each temporary would be as large as the parameter.
    spread = np.sqrt(square, out=np.empty_like(square))
    # Both corrections of the bias where torch has them: of the square by its root, of the mean in the rate.
    spread /= np.float32(math.sqrt(1 - _ADAM_SECOND**now.steps))
    spread += _ADAM_EPSILON
    np.divide(mean, spread, out=spread)
    spread *= np.float32(now.rate / (1 - _ADAM_FIRST**now.steps))
    master -= spread


def _adagrad(now: _Now, master: _Array, moments: list[_Array], gradient: _Array) -> None:
    (total,) = moments
    total += gradient * gradient
    spread = np.sqrt(total, out=np.empty_like(total))
    spread += _ADAGRAD_EPSILON
    np.divide(gradient, spread, out=spread)
    spread *= np.float32(now.rate)
    master -= spread


_STEPS: Final[dict[OptimizerKind, Callable[[_Now, _Array, list[_Array], _Array], None]]] = {
    OptimizerKind.SGD: _sgd,
    OptimizerKind.MOMENTUM: _momentum,
    OptimizerKind.ADAM: _adam,
    OptimizerKind.ADAGRAD: _adagrad,
}
