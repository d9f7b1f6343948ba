"""The scale and the shift of a logit with the least cross-entropy (Platt scaling).

    found = Calibration.fit(logits, positives, negatives)
    loss = least_loss(logits, is_positive)      # what would be left with the two numbers

Source: J. Platt, "Probabilistic outputs for support vector machines", 1999.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss

_STEPS: Final = 100
# The weight of scale 1, as that of so many records: keeps a scale that few records say nothing about.
_PRIOR: Final = 1.0
_LEAST_STEP: Final = 1e-12
_RIDGE: Final = 1e-12
_RESOLUTION: Final = 1e-9
# How far the mean prediction may be from the share of positives, as a part of it.
_MOST_OFF: Final = 1e-3
_LEAST_SCORE: Final = 1e-12


@frozen
class Calibration:
    """The calibrated logit is `scale` times the model's, plus `shift`."""

    scale: float
    shift: float

    @classmethod
    def fit(
        cls, logits: NDArray[np.float64], positives: NDArray[np.float64], negatives: NDArray[np.float64]
    ) -> "Calibration":
        """Find the scale and the shift with the least cross-entropy.

        Shapes: logits (n,); positives and negatives (n,), how many records have the logit and the label.

        Guarantees: the mean prediction over the records is the share of positives, to within a thousandth of
            it.

        Raises:
            InvalidTask: there are no positives or no negatives; a logit is not finite; or the best scale is
                not positive: the model ranks the records in the wrong order, or not at all.
        """
        positive, negative = float(positives.sum()), float(negatives.sum())
        if not (positive > 0 and negative > 0):
            raise InvalidTask(
                f"calibration needs both labels, but found {positive:.0f} positives and {negative:.0f} "
                "negatives: use more records, or a larger epsilon"
            )
        if not np.isfinite(logits).all():
            raise InvalidTask(
                "the model's outputs are not finite for some records: train it again, with a lower learning "
                "rate"
            )
        scale, shift = _minimise(logits, positives, negatives)
        if not (scale > 0 and np.isfinite(shift)):
            raise InvalidTask(
                f"the best scale of the logit is {scale:.3g}, so the model does not rank these records: "
                "train it for longer, or evaluate it with a larger epsilon"
            )
        return cls(scale=scale, shift=shift)


def chances_of(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of logits, of any shape."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))


def logits_of(outputs: NDArray[np.float64], loss: Loss) -> NDArray[np.float64]:
    """Return the logits of a model's outputs (n,) for its loss."""
    if loss is Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
        return outputs
    chance = outputs.clip(_LEAST_SCORE, 1 - _LEAST_SCORE)
    return np.asarray(np.log(chance) - np.log1p(-chance))


def _minimise(
    logits: NDArray[np.float64], positives: NDArray[np.float64], negatives: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the scale and the shift with the least cross-entropy plus the prior's, by Newton's method.

    It works on logits of mean 0 and deviation 1, where the curvature is far from 0 however large they are.

    Raises:
        InvalidTask: the predictions do not add up after `_STEPS` steps.
    """
    records = positives + negatives
    rate = float(positives.sum() / records.sum())
    mean = float(np.average(logits, weights=records))
    deviation = float(np.sqrt(np.average((logits - mean) ** 2, weights=records)))
    if deviation <= _RESOLUTION * abs(mean):  # equal logits say nothing about a scale
        deviation = 1.0
    inputs = np.stack([(logits - mean) / deviation, np.ones_like(logits)])
    ridge = np.diag([_PRIOR / deviation**2, _RIDGE * records.sum()])

    def cost(at: NDArray[np.float64]) -> float:
        sums = at @ inputs
        losses = positives @ np.logaddexp(0, -sums) + negatives @ np.logaddexp(0, sums)
        return float(losses + _PRIOR / 2 * (at[0] / deviation - 1) ** 2)

    # The base rate alone: what a model gets that says nothing.
    point = np.array([0.0, np.log(rate / (1 - rate))])
    costs = cost(point)
    for _ in range(_STEPS):
        chances = chances_of(point @ inputs)
        gradient = inputs @ (chances * negatives - (1 - chances) * positives)
        gradient[0] += _PRIOR * (point[0] / deviation - 1) / deviation
        step = np.linalg.solve((inputs * (chances * (1 - chances) * records)) @ inputs.T + ridge, gradient)
        # Far from the minimum a whole step of Newton's may lead uphill.
        while (following := cost(point - step)) > costs and np.abs(step).max() > _LEAST_STEP:
            step /= 2
        if following >= costs:
            break
        point, costs = point - step, following
    scale, shift = float(point[0] / deviation), float(point[1] - point[0] * mean / deviation)
    if not abs(chances_of(scale * logits + shift) @ records / records.sum() - rate) <= _MOST_OFF * rate:
        raise InvalidTask(
            "no scale and shift of the logit make the predictions add up to the labels: use more records, or "
            "train the model again"
        )
    return scale, shift


def least_loss(logits: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> float | None:
    """Return the mean cross-entropy that the logits leave with the best scale and shift.

    It tells how much the logits say about the labels, also where they are all too small or too large; on few
    records the prior of `fit` leaves some of the loss of logits that are tens of times too small. Logits in
    the wrong order say nothing, so the loss is that of the base rate; None if there is one label only or a
    logit is not finite.

    Shapes: both (n,).
    """
    rate = float(is_positive.mean()) if len(is_positive) else 0.0
    if not 0 < rate < 1 or not np.isfinite(logits).all():
        return None
    positives = is_positive.astype(np.float64)
    try:
        found = Calibration.fit(logits, positives, 1 - positives)
        scaled = found.scale * logits + found.shift
    except InvalidTask:
        scaled = np.full(len(logits), np.log(rate / (1 - rate)))
    return float((np.logaddexp(0.0, scaled) - positives * scaled).mean())
