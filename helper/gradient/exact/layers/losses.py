"""Where going back begins: each loss's deltas at the model's output.

A loss of one output has one seed a record, the number 1, and each label's gradient is a coefficient times the
seed's: any number of labels costs one way back. Cross-entropy has a seed a label, softmax(z) - onehot(label),
and coefficients 1. Several heads have a seed a label too: its deltas of all heads, by the job's table.

Specification: docs/spec/numerics.md, section "Losses".
"""

from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.rows import Real
from helper.gradient.exact.kernels.tables import MAX_RATE_LOG, ONE, Table, exponential, look_up
from helper.gradient.exact.layers.elementwise import softmax_weights
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.heads import BoundHeads, Heads, TrainedLoss
from maskedlark.model.losses import Loss

Labels = NDArray[np.uint32]


@frozen
class _Seeds:
    """What a loss hands to the way back.

    Attributes:
        deltas: (seeds, records, outputs), seeds being 1 or the number of labels.
        coefficients: (records, labels): a label's gradient is coefficient times its seed's.
    """

    deltas: Real
    coefficients: Real


def count_seeds(loss: TrainedLoss | BoundHeads, labels: int) -> int:
    """Return how many backward passes a record takes."""
    match loss:
        case Heads() | BoundHeads():
            return labels
        case Loss.CROSS_ENTROPY:
            return labels
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS | Loss.MSE | Loss.POISSON:
            return 1


def seeds(loss: Loss | BoundHeads, output: Real, labels: Labels, buffers: Buffers | None = None) -> _Seeds:
    """Return the deltas of a block.

    Output (records, outputs), labels (records, labels); binary losses read the output as a logit. Given
    buffers, the deltas lie in them until the next call.

    Raises:
        JobRefused(MALFORMED): a label is not a class of the output, or not a code of the heads.
    """
    if isinstance(loss, BoundHeads):
        return _head_seeds(loss, output, labels, buffers or Buffers())
    if loss is Loss.CROSS_ENTROPY:
        return _class_seeds(output, labels, buffers or Buffers())
    coefficients = _coefficients(loss, output[:, 0], labels.astype(np.float64))
    return _Seeds(deltas=np.ones((1, len(labels), 1)), coefficients=coefficients)


def _coefficients(loss: Loss, z: Real, y: Real) -> Real:
    """Return the derivative by the output z (records,) for each target y (records, labels)."""
    coefficients = np.empty(y.shape)
    match loss:
        case Loss.CROSS_ENTROPY:
            raise AssertionError("cross-entropy has a delta for each class")
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            _binary(z, y, exponential(), coefficients)
        case Loss.MSE:
            np.multiply(2.0, z[:, None] - y, out=coefficients)
        case Loss.POISSON:
            _poisson(z, y, exponential(), coefficients)
        case _:
            assert_never(loss)
    return coefficients


def _head_seeds(heads: BoundHeads, output: Real, labels: Labels, buffers: Buffers) -> _Seeds:
    """Return each label's deltas of all heads, by table; a code that says nothing has weight 0 in it."""
    records, count = labels.shape
    if labels.size and int(labels.max()) >= heads.codes:
        raise JobRefused(JobReason.MALFORMED, f"a label is outside the {heads.codes} codes of the heads")
    deltas: Real = buffers.empty("heads", (count, records, output.shape[1]))
    deltas[...] = 0.0
    for head in heads.heads:
        targets, weights = head.targets[labels], head.weights[labels]
        here = output[:, head.columns]
        if head.loss is Loss.CROSS_ENTROPY:
            found = _class_seeds(np.ascontiguousarray(here), targets.astype(np.uint32), Buffers()).deltas
            deltas[:, :, head.columns] = found * weights.T[:, :, None]
        else:
            found = _coefficients(head.loss, np.ascontiguousarray(here[:, 0]), targets) * weights
            deltas[:, :, head.columns.start] = found.T
    return _Seeds(deltas=deltas, coefficients=np.ones((records, count)))


def _class_seeds(output: Real, labels: Labels, buffers: Buffers) -> _Seeds:
    records, count = labels.shape
    if labels.size and int(labels.max()) >= output.shape[1]:
        raise JobRefused(JobReason.MALFORMED, f"a label is outside the model's {output.shape[1]} classes")
    weights = buffers.empty("weights", output.shape, np.int64)
    softmax_weights(output, exponential(), weights)
    deltas: Real = buffers.empty("deltas", (count, records, output.shape[1]))
    _cross_entropy(weights, labels, deltas)
    return _Seeds(deltas=deltas, coefficients=np.ones((records, count)))


@kernel
def _cross_entropy(weights: NDArray[np.int64], labels: Labels, deltas: Real) -> None:
    """Compute (w_c - [c = label] sum w) / sum w: an exact integer over an exact integer."""
    for r in range(weights.shape[0]):
        total = weights[r].sum()
        for k in range(labels.shape[1]):
            for c in range(weights.shape[1]):
                above = weights[r, c] - (total if c == labels[r, k] else 0)
                deltas[k, r, c] = np.float64(above) / np.float64(total)


@kernel
def _binary(z: Real, labels: Real, exp: Table, coefficients: Real) -> None:
    """Compute sigmoid(z) - y as one division of integers, so that it does not cancel."""
    one = np.float64(ONE)
    for r in range(len(z)):
        e = np.float64(look_up(exp, abs(z[r])))
        for k in range(labels.shape[1]):
            coefficients[r, k] = ((one if z[r] > 0.0 else e) - labels[r, k] * (one + e)) / (one + e)


@kernel
def _poisson(z: Real, labels: Real, exp: Table, coefficients: Real) -> None:
    """Compute e^z - y; the rate saturates at e^20."""
    one = np.float64(ONE)
    for r in range(len(z)):
        e = np.float64(look_up(exp, min(abs(z[r]), MAX_RATE_LOG)))
        # One division, whichever sign z has.
        is_above = z[r] > 0.0
        rate = (one if is_above else e) / (e if is_above else one)
        for k in range(labels.shape[1]):
            coefficients[r, k] = rate - labels[r, k]
