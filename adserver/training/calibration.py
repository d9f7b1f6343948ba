"""Two numbers that make a model's predictions add up: a scale and a shift of its logit (Platt scaling).

    found = fit(logits, positives, negatives)
    calibrated = fold(onnx, found)      # the same input and output, with the two numbers in the graph

Clipping and noise leave a model that ranks people well and predicts too little or too much: where labels are
rare, a third of the true rate. A panel says by how much, and so does the histogram of a private evaluation
that was paid for, which costs nothing again.

Source: J. Platt, "Probabilistic outputs for support vector machines", 1999.
"""

from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from scipy.special import expit

from adserver.records.exported_model import CalibratedModel, ExportedModel
from adserver.training.eval_set import read_eval_set
from adserver.training.inference import check_loads, predict
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.model.heads import Heads, TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse

_STEPS: Final = 100
_PRIOR: Final = 1.0
"""The weight of scale 1, as that of so many records: keeps a scale that few records say nothing about."""
_LEAST_STEP: Final = 1e-12
_RIDGE: Final = 1e-12
_RESOLUTION: Final = 1e-9
_MOST_OFF: Final = 1e-3
"""How far the mean prediction may be from the share of positives, as a part of it."""
_LEAST_SCORE: Final = 1e-12
_LOSSES: Final = (Loss.BINARY_CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
_SCALE, _SHIFT, _OUTPUT = "calibration.scale", "calibration.shift", "calibration.output"


@frozen
class Calibration:
    """The calibrated logit is `scale` times the model's, plus `shift`."""

    scale: float
    shift: float


def _check_calibrates(loss: TrainedLoss) -> Loss:
    """Return the loss of a model whose output is the probability of one label.

    Raises:
        InvalidTask: it is not, or there are several heads.
    """
    if isinstance(loss, Heads) or loss not in _LOSSES:
        named = "several heads" if isinstance(loss, Heads) else f"loss {loss.value}"
        raise InvalidTask(
            f"a model of {named} has no probability to calibrate: it needs one output that was "
            f"trained with {' or '.join(one.value for one in _LOSSES)}"
        )
    return loss


def _logits_of(outputs: NDArray[np.float64], loss: Loss) -> NDArray[np.float64]:
    """Return the logits of a model's outputs (n,) for its loss."""
    if loss is Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
        return outputs
    chance = outputs.clip(_LEAST_SCORE, 1 - _LEAST_SCORE)
    return np.asarray(np.log(chance) - np.log1p(-chance))


def fit(
    logits: NDArray[np.float64], positives: NDArray[np.float64], negatives: NDArray[np.float64]
) -> Calibration:
    """Find the scale and the shift with the least cross-entropy.

    Shapes: logits (n,); positives and negatives (n,), how many records have the logit and the label.

    Guarantees: the mean prediction over the records is the share of positives, to within a thousandth of it.

    Raises:
        InvalidTask: there are no positives or no negatives; a logit is not finite; or the best scale is not
            positive: the model ranks the records in the wrong order, or not at all.
    """
    positive, negative = float(positives.sum()), float(negatives.sum())
    if not (positive > 0 and negative > 0):
        raise InvalidTask(
            f"calibration needs both labels, but found {positive:.0f} positives and {negative:.0f} "
            "negatives: use more records, or a larger epsilon"
        )
    if not np.isfinite(logits).all():
        raise InvalidTask(
            "the model's outputs are not finite for some records: train it again, with a lower learning rate"
        )
    scale, shift = _minimise(logits, positives, negatives)
    if not (scale > 0 and np.isfinite(shift)):
        raise InvalidTask(
            f"the best scale of the logit is {scale:.3g}, so the model does not rank these records: train it "
            "for longer, or evaluate it with a larger epsilon"
        )
    return Calibration(scale=scale, shift=shift)


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

    point = np.array([0.0, np.log(rate / (1 - rate))])
    costs = cost(point)
    for _ in range(_STEPS):
        chances = expit(point @ inputs)
        gradient = inputs @ (chances * negatives - (1 - chances) * positives)
        gradient[0] += _PRIOR * (point[0] / deviation - 1) / deviation
        step = np.linalg.solve((inputs * (chances * (1 - chances) * records)) @ inputs.T + ridge, gradient)
        while (following := cost(point - step)) > costs and np.abs(step).max() > _LEAST_STEP:
            step /= 2
        if following >= costs:
            break
        point, costs = point - step, following
    scale, shift = float(point[0] / deviation), float(point[1] - point[0] * mean / deviation)
    if not abs(expit(scale * logits + shift) @ records / records.sum() - rate) <= _MOST_OFF * rate:
        raise InvalidTask(
            "no scale and shift of the logit make the predictions add up to the labels: use more records, or "
            "train the model again"
        )
    return scale, shift


def fold(encoded: bytes, found: Calibration, loss: Loss) -> bytes:
    """Return the ONNX file with the calibration before its output, or before the Sigmoid that it ends in."""
    proto = onnx.ModelProto.FromString(encoded)
    graph = proto.graph
    output = graph.output[0].name
    at, wire = len(graph.node), output
    if loss is Loss.BINARY_CROSS_ENTROPY:
        at = next(
            index
            for index, node in enumerate(graph.node)
            if node.op_type == "Sigmoid" and _feeds(graph, node, output)
        )
        wire = graph.node[at].input[0]
        graph.node[at].input[0] = _OUTPUT
    else:
        graph.output[0].name = _OUTPUT
    for place, node in enumerate(
        (
            helper.make_node("Mul", [wire, _SCALE], [f"{_OUTPUT}.scaled"]),
            helper.make_node("Add", [f"{_OUTPUT}.scaled", _SHIFT], [_OUTPUT]),
        )
    ):
        graph.node.insert(at + place, node)
    for name, value in ((_SCALE, found.scale), (_SHIFT, found.shift)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    return bytes(proto.SerializeToString(deterministic=True))


def calibrate_by_histogram(
    exported: ExportedModel, counts: NDArray[np.float64], trained: TrainedLoss
) -> CalibratedModel:
    """Calibrate by records (2, B) of each label in each bin of scores, each at its bin's middle.

    Raises as `fit`.
    """
    loss = _check_calibrates(trained)
    scores = (np.arange(counts.shape[1]) + 0.5) / counts.shape[1]
    return _calibrate_model(exported, fit(np.log(scores) - np.log1p(-scores), counts[1], counts[0]), loss)


def calibrate_by_panel(exported: ExportedModel, panel: bytes, trained: TrainedLoss) -> CalibratedModel:
    """Calibrate by labelled records in an .npz file.

    Raises:
        JobRefused(MALFORMED): the file is no such panel, or does not fit the model.
        InvalidTask: as `fit`.
    """
    loss = _check_calibrates(trained)
    examples = read_eval_set(panel)
    examples.check_fits(parse(exported.encoded, num_features=examples.features.shape[1]), loss)
    logits = _logits_of(predict(exported.encoded, examples.features)[:, 0].astype(np.float64), loss)
    is_positive = (examples.labels == 1).astype(np.float64)
    return _calibrate_model(exported, fit(logits, is_positive, 1 - is_positive), loss)


def _calibrate_model(exported: ExportedModel, found: Calibration, loss: Loss) -> CalibratedModel:
    encoded = fold(exported.encoded, found, loss)
    check_loads(encoded)
    folded = ExportedModel(encoded=encoded, rounds_done=exported.rounds_done)
    return CalibratedModel(exported=folded, scale=found.scale, shift=found.shift)


def _feeds(graph: onnx.GraphProto, node: onnx.NodeProto, output: str) -> bool:
    """Return whether a node's output reaches the graph's through nodes that move entries only."""
    moves = {"Reshape", "Squeeze", "Flatten", "Identity", "Cast"}
    made = {one.output[0]: one for one in graph.node}
    at = output
    while at in made and at != node.output[0] and made[at].op_type in moves:
        at = made[at].input[0]
    return at == node.output[0]
