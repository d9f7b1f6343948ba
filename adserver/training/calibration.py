"""Two numbers that make a model's predictions add up: a scale and a shift of its logit (Platt scaling).

    calibrated = fold(onnx, found)      # the same input and output, with the two numbers in the graph

Clipping and noise leave a model that ranks people well and predicts too little or too much: where labels are
rare, a third of the true rate. A panel says by how much, and so does the histogram of a private evaluation
that was paid for, which costs nothing again.
"""

import math
from dataclasses import replace
from itertools import count
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from adserver.records.exported_model import CalibratedModel, ExportedModel
from adserver.records.scored_loss import scored_loss
from adserver.training.defaults import CALIBRATING
from adserver.training.eval_set import read_eval_set
from adserver.training.inference import check_loads, predict
from adserver.training.logit_scaling import Calibration, logits_of
from adserver.training.pipeline import encoder_of
from maskedlark.errors import InvalidModel, InvalidTask, ModelReason
from maskedlark.model.heads import Heads, TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse

_LOSSES: Final = (Loss.BINARY_CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
_NAME: Final = "calibration"


def _check_calibrates(loss: TrainedLoss, outputs: int = 1) -> Loss:
    """Return the loss of a model whose outputs are the probability of one label.

    Two logits are: the second's less the first's is the label's.

    Raises:
        InvalidTask: it is not, or there are heads that do more than weigh the two classes.
    """
    loss = scored_loss(loss, outputs)
    if isinstance(loss, Heads):
        raise InvalidTask(
            f"the outputs of {_describe_heads(loss)} are not the one probability of label 1 that is "
            "calibrated: that of one head is, which reads the model's only output and has the targets [0, 1] "
            "and weights above 0"
        )
    if loss is Loss.CROSS_ENTROPY and outputs == 2:
        return loss
    if loss not in _LOSSES:
        raise InvalidTask(
            f"a model of loss {loss.value} has no probability to calibrate: it needs one output that was "
            f"trained with {' or '.join(one.value for one in _LOSSES)}, or two logits, and a panel"
        )
    return loss


def _describe_heads(heads: Heads) -> str:
    if len(heads.heads) > 1:
        return f"{len(heads.heads)} heads"
    found = heads.heads[0].setting()
    # Four digits, since targets are kept in units of 2^-16
    shown = ", ".join("None" if one is None else f"{one:.4g}" for one in found["targets"])
    return f"the head {found['name']!r} with the targets [{shown}]"


def fold(encoded: bytes, found: Calibration, loss: Loss) -> bytes:
    """Return the ONNX file with the calibration before its output, or before the Sigmoid that it ends in.

    Of two logits both are scaled, and the second is shifted. The output keeps its name, by which heads of a
    job read it.

    Raises:
        InvalidModel(WRONG_LOSS): the output is trained as a probability, and comes from no last Sigmoid.
    """
    proto = onnx.ModelProto.FromString(encoded)
    graph = proto.graph
    scale, shift, scaled, wire, shifted = _new_names(graph)
    at = len(graph.node)
    # A Sigmoid's input is the logit; its output, a probability, would not stay one when scaled and shifted.
    if loss is Loss.BINARY_CROSS_ENTROPY:
        at = _last_sigmoid(graph)
        wire = graph.node[at].input[0]
        graph.node[at].input[0] = shifted
    else:
        shifted = graph.output[0].name
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [wire if name == shifted else name for name in names]
    # In this place, because ONNX lists nodes in an order in which they can be computed.
    for place, node in enumerate(
        (
            helper.make_node("Mul", [wire, scale], [scaled]),
            helper.make_node("Add", [scaled, shift], [shifted]),
        )
    ):
        graph.node.insert(at + place, node)
    added = [0.0, found.shift] if loss is Loss.CROSS_ENTROPY else found.shift
    for name, value in ((scale, found.scale), (shift, added)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    return bytes(proto.SerializeToString(deterministic=True))


def _last_sigmoid(graph: onnx.GraphProto) -> int:
    for index, node in enumerate(graph.node):
        if node.op_type == "Sigmoid" and _feeds(graph, node, graph.output[0].name):
            return index
    raise InvalidModel(
        ModelReason.WRONG_LOSS,
        f"the model does not end with a Sigmoid, so it has no logit to scale or shift: end it with one, or "
        f"train logits with {Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS}",
    )


def _new_names(graph: onnx.GraphProto) -> list[str]:
    """Return names of scale, shift, scaled, given and shifted logit; a model calibrated before has others."""
    taken = {one.name for one in graph.initializer} | {out for node in graph.node for out in node.output}
    taken |= {one.name for one in graph.input}
    for number in count():
        names = [
            f"{_NAME}{number or ''}.{what}" for what in ("scale", "shift", "output.scaled", "logit", "output")
        ]
        if taken.isdisjoint(names):
            return names
    raise AssertionError("counting does not end")


def calibrate_by_histogram(
    exported: ExportedModel, counts: NDArray[np.float64], trained: TrainedLoss
) -> CalibratedModel:
    """Calibrate by records (2, B) of each label in each bin of scores, each at its bin's middle.

    Raises as `Calibration.fit`.
    """
    loss = _check_calibrates(trained)
    # Middles are neither 0 nor 1, whose logits would be infinite.
    scores = (np.arange(counts.shape[1]) + 0.5) / counts.shape[1]
    return _calibrate_model(
        exported, Calibration.fit(np.log(scores) - np.log1p(-scores), counts[1], counts[0]), loss
    )


def calibrate_by_panel(exported: ExportedModel, panel: bytes, trained: TrainedLoss) -> CalibratedModel:
    """Calibrate by labelled records in an .npz file.

    Raises:
        JobRefused(MALFORMED): the file is no such panel, or does not fit the model.
        InvalidTask: as `Calibration.fit`.
    """
    examples = read_eval_set(panel)
    model = parse(exported.encoded, num_features=examples.features.shape[1])
    loss = _check_calibrates(trained, model.output_width)
    examples.check_fits(model, loss)
    examples.check_encoder(encoder_of(exported.encoded), owner="model")
    outputs = predict(exported.encoded, examples.features).astype(np.float64)
    # Softmax of two logits is the logistic function of their difference.
    is_pair = loss is Loss.CROSS_ENTROPY
    logits = outputs[:, 1] - outputs[:, 0] if is_pair else logits_of(outputs[:, 0], loss)
    is_positive = (examples.labels == 1).astype(np.float64)
    made = _calibrate_model(exported, Calibration.fit(logits, is_positive, 1 - is_positive), loss)
    return replace(made, warning=_warn_of_few(int(is_positive.sum()), len(examples)))


def _warn_of_few(positives: int, rows: int) -> str:
    """Return a line if a panel has few rows of a label, whose share the predictions follow."""
    if (rarer := min(positives, rows - positives)) >= CALIBRATING:
        return ""
    error, label = 100 * math.sqrt((rows - rarer) / (rarer * rows)), int(rarer == positives)
    return (
        f"of the panel's {rows} rows {rarer} are of class {label}: their share, which predictions add up to, "
        f"may be off by {error:.0f} % (one standard error)"
    )


def _calibrate_model(exported: ExportedModel, found: Calibration, loss: Loss) -> CalibratedModel:
    encoded = fold(exported.encoded, found, loss)
    # No parser has seen the changed graph, and whoever gets the file has onnxruntime only.
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
