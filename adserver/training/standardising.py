"""A network as torch begins it, made ready for private training: on a panel, which is public to its owner.

    found = standardise(encoded, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, panel)
    found.model, found.told

Features are bytes over 256: a word's place in its column, such as .02, next to numbers up to 1. Clipped and
noised gradients of as many rounds as a budget pays for do not even that out, and a direction that all records
share takes most of each gradient. So each feature is centred on its mean in the panel and scaled by a power
of two, which the exact path takes. The logit of two classes begins at the panel's base rate: else the first
rounds, in which the bound is found, teach nothing but that rate.

Weights that know something of the labels stay as they are: those do better than the base rate alone, or
rank records well.
"""

import math
from typing import Final, assert_never

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from adserver.records.submissions import Submission
from adserver.training.calibration import fold
from adserver.training.eval_set import EvalSet, read_eval_set
from adserver.training.inference import OF_TWO_CLASSES, evaluate
from adserver.training.logit_scaling import Calibration
from adserver.training.merged_parameters import separate_parameters
from maskedlark.errors import MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.model.heads import Heads, TrainedLoss, trained_loss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse

# The standard deviation that features are brought to, to the root of 2: about that of a uniform byte.
_SPREAD: Final = 0.3
_MOST_DOUBLINGS: Final = 6
# A loss below this share of the base rate's is one of weights that were trained.
_KNOWS: Final = 0.99
# The same of calibrated outputs: weights that were trained on fewer negatives begin far from the base rate.
# Less would count untrained networks that one feature lets rank records well.
_KNOWS_CALIBRATED: Final = 0.8
# Of more, such as pixels, many are the same in nearly all records: their scale would be one of chance.
_MOST_FEATURES: Final = 100
_BYTE: Final = 256.0
_CENTRES, _SCALE, _CENTRED, _STANDARDISED = (
    f"standardised.{part}" for part in ("centres", "scale", "centred", "features")
)


@frozen
class StandardisedModel:
    """A model that a job begins with, and what was done to it.

    Attributes:
        model: The ONNX file, of the same input and outputs.
        told: What was changed, in a line for people; empty if nothing was.
    """

    model: bytes
    told: str = ""


def standardise(encoded: bytes, loss: TrainedLoss, panel: EvalSet) -> StandardisedModel:
    """Return the model with its features standardised on a panel, and its logit at the panel's base rate.

    A constant that the network subtracts from its features first is replaced. A file stays as it is if its
    weights do better on the panel than the base rate alone, or far better once they are calibrated, or if
    one label is all that the panel has, so that nobody can tell. So it does if it looks words up in tables or
    has a scale of its own for each feature, if it has more than 100 features or several heads, or if it is no
    model that fits the panel: planning the job says why.

    Guarantees: equal arguments give equal bytes; the parameters keep names, order and values.
    """
    try:
        encoded = separate_parameters(encoded)
        model = parse(encoded, num_features=panel.features.shape[1])
        panel.check_fits(model, loss)
        if isinstance(loss, Heads) or _is_left(encoded, loss, panel):
            return StandardisedModel(model=encoded)
        made = _put_before(encoded, panel)
        if made is None:
            return StandardisedModel(model=encoded)
        told = "the network is untrained, so its features are centred and scaled by the panel"
        if loss in OF_TWO_CLASSES:
            rate = _base_rate(panel.labels)
            made = fold(made, Calibration(scale=1.0, shift=math.log(rate / (1 - rate))), loss)
            told += f", and it begins at the panel's base rate, {rate:.3g}"
        parse(made, num_features=panel.features.shape[1])
    except MaskedLarkError:
        return StandardisedModel(model=encoded)
    return StandardisedModel(model=made, told=told)


def standardise_submission(submission: Submission, panel: EvalSet | None = None) -> StandardisedModel:
    """Return the model that a job begins with, by its evaluation set or another panel.

    It is the submitted one where the job asks for that, has no panel, or trains a part of a model.
    """
    if panel is None and submission.eval_set is not None:
        panel = read_eval_set(submission.eval_set)
    if panel is None or not submission.is_standardised or submission.train or submission.freeze:
        return StandardisedModel(model=submission.model)
    return standardise(submission.model, trained_loss(submission.loss), panel)


def _is_left(encoded: bytes, loss: Loss, panel: EvalSet) -> bool:
    """Return whether a model stays as it is: see `standardise`."""
    if panel.features.shape[1] > _MOST_FEATURES:
        return True
    match loss:
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS | Loss.CROSS_ENTROPY:
            shares = np.unique(panel.labels, return_counts=True)[1] / len(panel)
            least = float(-(shares * np.log(shares)).sum())
        case Loss.MSE:
            least = float(np.var(panel.labels))
        case Loss.POISSON:
            return True
        case _:
            assert_never(loss)
    if not least > 0:
        return True
    found = evaluate(encoded, panel.features, panel.labels, loss)
    return found.loss < _KNOWS * least or (
        found.calibrated_loss is not None and found.calibrated_loss < _KNOWS_CALIBRATED * least
    )


class _Entrance:
    """Where the features enter a graph: what reads them, after a constant that the graph subtracts itself."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        held = {one.name for one in graph.initializer}
        self.input = self.value = next(one.name for one in graph.input if one.name not in held)
        self.constants = {one.name: int(np.prod(one.dims)) for one in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].HasField("t"):
                self.constants[node.output[0]] = int(np.prod(node.attribute[0].t.dims))
        readers = self.readers()
        if len(readers) == 1 and readers[0].op_type == "Sub" and readers[0].input[1] in self.constants:
            self.value = readers[0].output[0]

    def readers(self) -> list[onnx.NodeProto]:
        """Return the nodes that read the features."""
        return [node for node in self._graph.node if self.value in node.input]

    @property
    def is_scaled(self) -> bool:
        """Return whether the graph has a scale of its own for each feature, or reads features as words."""
        reading = [node for node in self._graph.node if node.op_type == "Gather"]
        scaling = [node for node in self.readers() if node.op_type in ("Mul", "Div")]
        # The scale of one feature alone looks like one of all.
        is_standardised = any(_STANDARDISED in node.output for node in self._graph.node)
        return (
            is_standardised
            or bool(reading)
            or any(
                self.constants.get(name, 1) > 1
                for node in scaling
                for name in node.input
                if name != self.value
            )
        )

    def put(self, nodes: list[onnx.NodeProto], made: str) -> None:
        """Put nodes at the graph's beginning, and let the readers read what they make."""
        for node in self.readers():
            node.input[:] = [made if name == self.value else name for name in node.input]
        kept = [node for node in self._graph.node if self.value not in node.output]
        del self._graph.node[:]
        self._graph.node.extend([*nodes, *kept])


def _base_rate(labels: NDArray[np.generic]) -> float:
    """Return the share of label 1, half a record away from 0 and 1."""
    return float((np.count_nonzero(labels) + 0.5) / (len(labels) + 1))


def _put_before(encoded: bytes, panel: EvalSet) -> bytes | None:
    """Return the file with features centred and scaled; None if it scales them itself, or reads words."""
    proto = onnx.ModelProto.FromString(encoded)
    entrance = _Entrance(proto.graph)
    if entrance.is_scaled:
        return None
    centres = np.array(panel.mean_bytes()) / _BYTE
    # Column by column: all at once would take 8 times the panel's memory, which may be a gigabyte.
    deviations = np.array([max(column.std(), 1.0) for column in panel.features.T]) / _BYTE
    scale = np.exp2(np.rint(np.log2(_SPREAD / deviations)).clip(0, _MOST_DOUBLINGS))
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value.astype(np.float32)))
        for name, value in ((_CENTRES, centres), (_SCALE, scale))
    ]
    nodes.append(helper.make_node("Sub", [entrance.input, _CENTRES], [_CENTRED]))
    nodes.append(helper.make_node("Mul", [_CENTRED, _SCALE], [_STANDARDISED]))
    entrance.put(nodes, _STANDARDISED)
    return bytes(proto.SerializeToString(deterministic=True))
