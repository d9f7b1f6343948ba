"""The score bin of each record, for a private evaluation.

Integers that both helpers compute alike, on any machine.

The model runs in the exact path, so its outputs are equal bits everywhere. A logit's bin is found by
comparing it with the logits of the bins' edges, computed in decimal arithmetic; a softmax's from the exact
path's integer table. No libm is asked.
"""

from decimal import Context, Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.forward import ForwardPass
from helper.gradient.exact.kernels.scores import count_edges_up_to, first_largest
from helper.gradient.exact.kernels.tables import exponential
from helper.gradient.exact.layers.elementwise import softmax_weights
from helper.gradient.exact.layers.layer import NotExact
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.model.weights import QuantisedTensor

# More than twice a double's digits: the nearest double is that of the true logarithm.
_DIGITS = Context(prec=40)


@frozen
class Scores:
    """What a model says of n records.

    Attributes:
        bins: (n,) of the probability of label 1, or of the confidence in the first choice.
        choices: (n,) the first choice of the classes, the lower one of two that are equal; None for a model
            of one output.
    """

    bins: NDArray[np.int64]
    choices: NDArray[np.int64] | None


def score(
    model: Model,
    loss: TrainedLoss,
    weights: tuple[QuantisedTensor, ...],
    features: NDArray[np.uint8],
    num_bins: int,
    *,
    interrupt: Interrupt = never,
) -> Scores:
    """Score records, by the loss or by the one head that is given.

    Called by a helper; `interrupt` at least once every 512 records.

    Edge cases: a probability at an edge is in the bin above it; a logit that is no number is in the highest
    bin, and a softmax of which no weight is left (its first output is no number) in the lowest.

    Raises:
        InvalidModel(UNKNOWN_OPERATOR): the model has no exact form, in which alone the helpers surely agree
        on every bin.
    """
    outputs = _forward(model, loss).outputs(weights, features, interrupt)
    if isinstance(loss, Heads):
        (head,) = loss.heads
        outputs, loss = np.ascontiguousarray(outputs[:, head.columns(model)]), head.loss
    # Contiguous, here and above: a loop is compiled for one layout of its arrays, before a helper serves.
    if loss is not Loss.CROSS_ENTROPY:
        return Scores(
            bins=count_edges_up_to(np.ascontiguousarray(outputs[:, 0]), _edge_logits(num_bins)), choices=None
        )
    parts = np.empty(outputs.shape, np.int64)
    softmax_weights(outputs, exponential(), parts)
    # 1 where no weight is left: a division by 0 would take other steps.
    whole = np.maximum(parts.sum(1), 1)
    bins = np.minimum(
        parts.max(1, initial=0) * num_bins // whole, num_bins - 1
    )  # parts are at most 2^40, bins under 2^14
    return Scores(bins=bins, choices=first_largest(outputs))


def scoring_bytes(model: Model, loss: TrainedLoss) -> int:
    """Return the bytes that `score` takes at once, by counts: what it gives of each record comes on top.

    Raises:
        InvalidModel(UNKNOWN_OPERATOR): see `score`.
    """
    return _forward(model, loss).num_bytes


def _forward(model: Model, loss: TrainedLoss) -> ForwardPass:
    try:
        return ForwardPass(model, loss)
    except NotExact as error:
        raise InvalidModel(
            ModelReason.UNKNOWN_OPERATOR, f"{error}: only models with an exact form are evaluated"
        ) from None


@lru_cache(maxsize=8)
def _edge_logits(num_bins: int) -> NDArray[np.float64]:
    """Return (num_bins - 1,) log(k / (num_bins - k)), each the double nearest to it."""
    ratios = (_DIGITS.divide(Decimal(k), Decimal(num_bins - k)) for k in range(1, num_bins))
    return np.array([float(_DIGITS.ln(ratio)) for ratio in ratios])
