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
_MOST_STEP: Final = 2.0
_LEAST_SCORE: Final = 1e-12
_LOSSES: Final = (Loss.BINARY_CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
_SCALE, _SHIFT, _OUTPUT = "calibration.scale", "calibration.shift", "calibration.output"


@frozen
class Calibration:
    """The calibrated logit is `scale` times the model's, plus `shift`."""

    scale: float
    shift: float


def check_calibrates(loss: TrainedLoss) -> Loss:
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


def logits_of(outputs: NDArray[np.float64], loss: Loss) -> NDArray[np.float64]:
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

    Guarantees: the mean prediction over the records is the share of positives, to within rounding and the
        weight of the prior.

    Raises:
        InvalidTask: there are no positives or no negatives, or the best scale is not positive: the model
            ranks the records in the wrong order, or not at all.
    """
    positive, negative = float(positives.sum()), float(negatives.sum())
    if not (positive > 0 and negative > 0):
        raise InvalidTask(
            f"calibration needs both labels, but found {positive:.0f} positives and {negative:.0f} "
            "negatives: use more records, or a larger epsilon"
        )
    inputs = np.stack([logits, np.ones_like(logits)])
    point = np.array([1.0, 0.0])
    for _ in range(_STEPS):
        chances = 1 / (1 + np.exp(-(point @ inputs).clip(-500, 500)))
        residual = chances * negatives - (1 - chances) * positives
        gradient = inputs @ residual + [_PRIOR * (point[0] - 1), 0.0]
        curvature = (inputs * (chances * (1 - chances) * (positives + negatives))) @ inputs.T
        step = np.linalg.solve(curvature + np.diag([_PRIOR, 1e-9]), gradient)
        point = point - step * min(1.0, _MOST_STEP / max(float(np.abs(step).max()), 1e-300))
        if float(np.abs(step).max()) < 1e-10:
            break
    scale, shift = (float(value) for value in point)
    if not (scale > 0 and np.isfinite(shift)):
        raise InvalidTask(
            f"the best scale of the logit is {scale:.3g}, so the model does not rank these records: train it "
            "for longer, or evaluate it with a larger epsilon"
        )
    return Calibration(scale=scale, shift=shift)


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
    loss = check_calibrates(trained)
    scores = (np.arange(counts.shape[1]) + 0.5) / counts.shape[1]
    return _calibrated(exported, fit(np.log(scores) - np.log1p(-scores), counts[1], counts[0]), loss)


def calibrate_by_panel(exported: ExportedModel, panel: bytes, trained: TrainedLoss) -> CalibratedModel:
    """Calibrate by labelled records in an .npz file.

    Raises:
        JobRefused(MALFORMED): the file is no such panel, or does not fit the model.
        InvalidTask: as `fit`.
    """
    loss = check_calibrates(trained)
    examples = read_eval_set(panel)
    examples.check_fits(parse(exported.encoded, num_features=examples.features.shape[1]), loss)
    logits = logits_of(predict(exported.encoded, examples.features)[:, 0].astype(np.float64), loss)
    is_positive = (examples.labels == 1).astype(np.float64)
    return _calibrated(exported, fit(logits, is_positive, 1 - is_positive), loss)


def _calibrated(exported: ExportedModel, found: Calibration, loss: Loss) -> CalibratedModel:
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
