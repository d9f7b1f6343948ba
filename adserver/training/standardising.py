"""A network as torch begins it, made ready for private training: on a panel, which is public to its owner.

    found = standardise(encoded, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, panel)
    found.model, found.told

Features are bytes over 256: a word's place in its column, such as .02, next to numbers up to 1. Clipped and
noised gradients of as many rounds as a budget pays for do not even that out, and a direction that all records
share takes most of each gradient. So each feature is centred on its mean in the panel and scaled by a power
of two, which the exact path takes. The logit of two classes begins at the panel's base rate: else the first
rounds, in which the bound is found, teach nothing but that rate. Tables that words are looked up in begin
with short rows: long ones make the next layer's gradient most of each record's, and the clip bound leaves
little for the rows.

Weights that know something of the labels stay as they are (`adserver.training.trained_weights`). Those of
another base rate have their logit shifted to the panel's, which changes no order of records.
"""

import math
from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from adserver.records.scored_loss import class_weights, scored_loss
from adserver.records.submissions import Submission
from adserver.training.calibration import fold
from adserver.training.column_uses import lookups
from adserver.training.eval_set import EvalSet, read_eval_set
from adserver.training.inference import OF_TWO_CLASSES, predict
from adserver.training.logit_scaling import Calibration, chances_of, logits_of
from adserver.training.merged_parameters import separate_parameters
from adserver.training.panel_note import is_noted_trained
from adserver.training.trained_weights import know_labels
from maskedlark.errors import MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.model.exactness import why_general
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, TrainedLoss, trained_loss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse

# The standard deviation that features are brought to, to the root of 2: about that of a uniform byte.
_SPREAD: Final = 0.3
_MOST_DOUBLINGS: Final = 6
# Of more, such as pixels, many are the same in nearly all records: their scale would be one of chance.
_MOST_FEATURES: Final = 100
_BYTE: Final = 256.0
# The root mean square that a table's entries are brought to, to the root of 2.
_ENTRY: Final = 0.125
# Torch begins them at 1. Below this their author has chosen.
_LONG_ENTRY: Final = 0.5
# A hundredth of a base rate is more than a panel knows.
_STEPS_OF_SHIFT: Final = 64
# Each brings the mean prediction nearer to the base rate; spread logits need some.
_MOST_SHIFTS: Final = 32
# So many standard errors of the base rate's logit: weights that are less off may be right.
_ERRORS: Final = 2.0
_LEAST_CHANCE: Final = 1e-9
_WHOLE: Final = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
# What takes some features, or all in another order.
_CHOOSING: Final = ("Gather", "GatherND", "Slice", "Split", "Transpose", "Reshape", "Squeeze", "Unsqueeze")
_CENTRES, _SCALE, _CENTRED, _STANDARDISED = (
    f"standardised.{part}" for part in ("centres", "scale", "centred", "features")
)


_Weights: TypeAlias = tuple[float, float]


@frozen
class StandardisedModel:
    """A model that a job begins with, and what was done to it.

    Attributes:
        model: The ONNX file, of the same input and outputs.
        told: What was changed, in a line for people; empty if nothing was.
        is_trained: Whether the weights know something of the panel's labels.
    """

    model: bytes
    told: str = ""
    is_trained: bool = False


def standardise(encoded: bytes, loss: TrainedLoss, panel: EvalSet) -> StandardisedModel:
    """Return the model with its features standardised on a panel, and its logit at the panel's base rate.

    A constant that the network subtracts from its features first is replaced. A file of weights that know
    the panel's labels stays as it is, but for a shift of its logit to the panel's base rate. A file also
    stays as it is if one label is all that the panel has, so that nobody can tell; if it scales single
    features itself; if it has more than 100 features or several heads; or if it is no model that fits the
    panel: planning the job says why.

    Features that the network makes whole numbers of, to look words up in tables, enter as they are, and a
    table whose entries are as large as torch begins them is scaled down by a power of two.

    Guarantees: equal arguments give equal bytes; the parameters keep names and order, and all but tables and
    the last bias their values.
    """
    try:
        encoded, width = separate_parameters(encoded), panel.features.shape[1]
        model = parse(encoded, num_features=width)
        panel.check_fits(model, loss)
        weights = class_weights(loss, model.output_width)
        loss = scored_loss(loss, model.output_width)
        if know_labels(encoded, loss, panel):
            return _shift_trained(encoded, loss, panel, weights)
        if isinstance(loss, Heads) or _is_left(loss, panel):
            return StandardisedModel(model=encoded)
        made, done = _change(encoded, model, loss, panel)
        if not done:
            return StandardisedModel(model=encoded)
        if loss in OF_TWO_CLASSES:
            made = _begun_at_base_rate(made, loss, panel, weights)
            done.append(f"it begins at the panel's {_describe_rate(panel, weights)}")
        parse(made, num_features=width)
    except MaskedLarkError:
        return StandardisedModel(model=encoded)
    return StandardisedModel(model=made, told=f"the network is untrained, so {_join(done)}")


def standardise_submission(submission: Submission, panel: EvalSet | None = None) -> StandardisedModel:
    """Return the model that a job begins with, by its evaluation set or another panel.

    It is the submitted one where the job asks for that, has no panel, or trains a part of a model. Of such a
    part nobody can tell whether it was trained.
    """
    if panel is None and submission.eval_set is not None:
        panel = read_eval_set(submission.eval_set)
    if panel is None or submission.train or submission.freeze:
        return StandardisedModel(model=submission.model)
    loss = trained_loss(submission.loss)
    if submission.is_standardised:
        return standardise(submission.model, loss, panel)
    return StandardisedModel(model=submission.model, is_trained=_are_trained(submission.model, loss, panel))


def warn_without_panel(submission: Submission, *, num_features: int, is_python: bool = False) -> str:
    """Return a line that says what a panel would have changed in an untrained network; empty if nothing.

    Without labels nothing tells whether weights are trained, so not even long rows of tables are changed.
    A model whose notes say so was trained.
    """
    loss = trained_loss(submission.loss)
    if (
        submission.eval_set is not None
        or not _is_asked_for(submission)
        or loss is Loss.POISSON
        or num_features > _MOST_FEATURES
        or is_noted_trained(submission.model)
    ):
        return ""
    blank = EvalSet(features=np.zeros((1, num_features), np.uint8), labels=np.zeros(1, np.int64))
    try:
        encoded = separate_parameters(submission.model)
        model = parse(encoded, num_features=num_features)
        loss = scored_loss(loss, model.output_width)
        if isinstance(loss, Heads):
            return ""
        _, done = _change(encoded, model, loss, blank)
    except MaskedLarkError:
        return ""
    if done and loss in OF_TWO_CLASSES:
        done.append("it begins at the panel's base rate")
    return (
        f"no evaluation set, so an untrained network trains as it is; with one {_join(done)}: give "
        + ("eval_set=FILE" if is_python else "--eval-set FILE")
        + ", or say that it is meant so: "
        + ("standardise=False" if is_python else "--as-it-is")
        if done
        else ""
    )


def _is_asked_for(submission: Submission) -> bool:
    return submission.is_standardised and not submission.train and not submission.freeze


def _change(encoded: bytes, model: Model, loss: Loss, panel: EvalSet) -> tuple[bytes, list[str]]:
    """Return an untrained network with the panel's features standardised and short rows, and the changes."""
    done, made = list[str](), _put_before(encoded, panel)
    if made is None or _is_slower(parse(made, num_features=model.input_width), model, loss):
        made = encoded
    else:
        done.append("its features are centred and scaled by the panel")
    if (with_short_rows := _shorten_rows(made)) is not None:
        made = with_short_rows
        done.append("its tables of words are scaled down")
    return made, done


def _is_left(loss: Loss, panel: EvalSet) -> bool:
    """Return whether an untrained model stays as it is: see `standardise`."""
    is_of_many = panel.features.shape[1] > _MOST_FEATURES
    return is_of_many or loss is Loss.POISSON or bool((panel.labels == panel.labels[0]).all())


def _are_trained(encoded: bytes, loss: TrainedLoss, panel: EvalSet) -> bool:
    """Return whether weights know the panel's labels; not, of what is no model that fits the panel."""
    try:
        model = parse(encoded, num_features=panel.features.shape[1])
        panel.check_fits(model, loss)
        return know_labels(encoded, scored_loss(loss, model.output_width), panel)
    except MaskedLarkError:
        return False


def _shift_trained(encoded: bytes, loss: TrainedLoss, panel: EvalSet, weights: _Weights) -> StandardisedModel:
    """Return trained weights as they are, but for a logit that is far from the panel's base rate."""
    if isinstance(loss, Heads) or loss not in OF_TWO_CLASSES:
        return StandardisedModel(model=encoded, is_trained=True)
    rate, shift = _base_rate(panel.labels), _shift_to_base_rate(encoded, loss, panel, weights)
    if abs(shift) <= _ERRORS / math.sqrt(len(panel) * rate * (1 - rate)):
        return StandardisedModel(model=encoded, is_trained=True)
    try:
        shifted = fold(encoded, Calibration(scale=1.0, shift=shift), loss)
    except MaskedLarkError:  # a probability that no last Sigmoid makes
        return StandardisedModel(model=encoded, is_trained=True)
    told = (
        f"the weights know the panel's labels and stay; only the logit is shifted, by {shift:+.3g}, so that "
        f"the mean prediction is the panel's {_describe_rate(panel, weights)}"
    )
    return StandardisedModel(model=shifted, told=told, is_trained=True)


class _Entrance:
    """Where features enter a graph as numbers, apart from where they become whole numbers: places of words.

    What leads to a Cast to integers keeps reading the file's own features. A constant that the graph
    subtracts from all features first is passed over, unless words are looked up.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        held = {one.name for one in graph.initializer}
        self.input = self.value = next(one.name for one in graph.input if one.name not in held)
        self._constants = {one.name: int(np.prod(one.dims)) for one in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].HasField("t"):
                self._constants[node.output[0]] = int(np.prod(node.attribute[0].t.dims))
        self._codes = self._leading_to_codes()
        readers = [node for node in graph.node if self.value in node.input]
        if not self._codes and len(readers) == 1 and self._subtracts(readers[0]):
            self.value = readers[0].output[0]

    @property
    def is_scaled(self) -> bool:
        """Return whether the graph centres or scales single features itself."""
        made = {_STANDARDISED} & {name for node in self._graph.node for name in node.output}
        # The scale of one feature alone looks like one of all.
        return bool(made) or any(map(self._scales, self._numbers()))

    def put(self, nodes: list[onnx.NodeProto], made: str) -> bool:
        """Put nodes at the graph's beginning, and let what reads numbers read what they make.

        Return whether anything does.
        """
        renamed, kept = {self.value: made}, list[onnx.NodeProto]()
        for node in self._graph.node:
            if self.value in node.output:
                continue
            kept.append(node)
            if renamed.keys().isdisjoint(node.input) or _is_code(node):
                continue
            if not self._codes.isdisjoint(node.output):
                # Both words and numbers may be chosen from what it makes, such as all features transposed.
                kept.append(node := onnx.NodeProto.FromString(node.SerializeToString()))
                renamed |= {name: f"{made}.{name}" for name in node.output}
                node.output[:] = [renamed[name] for name in node.output]
                node.name = ""
            node.input[:] = [renamed.get(name, name) for name in node.input]
        kept = _without_unused(kept, set(renamed.values()) - {made})
        del self._graph.node[:]
        self._graph.node.extend([*nodes, *kept])
        return any(made in node.input for node in kept)

    def _leading_to_codes(self) -> set[str]:
        """Return the values that become whole numbers, and what those are computed from."""
        found = set[str]()
        for node in reversed(self._graph.node):
            if _is_code(node) or not found.isdisjoint(node.output):
                found |= set(node.input) - self._constants.keys()
        return found

    def _numbers(self) -> Iterator[onnx.NodeProto]:
        """Yield what reads the features, or some of them, in another way than as codes."""
        features = {self.value}
        for node in self._graph.node:
            if features.isdisjoint(node.input) or _is_code(node):
                continue
            if node.op_type in _CHOOSING:
                features |= set(node.output)
            if not self._codes.issuperset(node.output):
                yield node

    def _scales(self, node: onnx.NodeProto) -> bool:
        if node.op_type in ("Mul", "Div"):
            return any(self._constants.get(name, 1) > 1 for name in node.input)
        return bool(self._codes) and self._subtracts(node)

    def _subtracts(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Sub" and node.input[1] in self._constants


def _is_code(node: onnx.NodeProto) -> bool:
    """Return whether a node makes whole numbers of others."""
    return node.op_type == "Cast" and any(one.name == "to" and one.i in _WHOLE for one in node.attribute)


def _without_unused(nodes: list[onnx.NodeProto], names: set[str]) -> list[onnx.NodeProto]:
    """Return nodes without those that make some of the names and that nothing reads."""
    kept, read = list[onnx.NodeProto](), set[str]()
    for node in reversed(nodes):
        if not names.issuperset(node.output) or not read.isdisjoint(node.output):
            kept.append(node)
            read.update(node.input)
    return kept[::-1]


def _is_slower(made: Model, model: Model, loss: Loss) -> bool:
    """Return whether a model would leave the exact path by what was made of it."""
    return bool(why_general(made, loss)) and not why_general(model, loss)


def _begun_at_base_rate(encoded: bytes, loss: Loss, panel: EvalSet, weights: _Weights) -> bytes:
    """Return the file with its logit shifted, so that its mean prediction is about the panel's base rate."""
    shift = _shift_to_base_rate(encoded, loss, panel, weights)
    return fold(encoded, Calibration(scale=1.0, shift=shift), loss) if shift else encoded


def _shift_to_base_rate(encoded: bytes, loss: Loss, panel: EvalSet, weights: _Weights) -> float:
    """Return what is to be added to the logit for a mean prediction of about the panel's base rate."""
    logits = logits_of(predict(encoded, panel.features)[:, 0].astype(np.float64), loss)
    # Where outputs are no numbers, nothing is known of where it begins, and it stays.
    if not np.isfinite(logits).all():
        return 0.0
    shift, rate = 0.0, _base_rate(panel.labels, weights)
    for _ in range(_MOST_SHIFTS):
        # Away from 0 and 1, which a bias far off gives.
        mean = float(chances_of(logits + shift).mean().clip(_LEAST_CHANCE, 1 - _LEAST_CHANCE))
        shift += _logit(rate) - _logit(mean)
    # In steps, since the last bits of an inference are another machine's own.
    return round(shift * _STEPS_OF_SHIFT) / _STEPS_OF_SHIFT


def _base_rate(labels: NDArray[np.generic], weights: _Weights = (1.0, 1.0)) -> float:
    """Return the share of label 1, each record counted by its label's weight, half a record from 0 and 1."""
    positives = np.count_nonzero(labels)
    of_0, of_1 = weights[0] * (len(labels) - positives + 0.5), weights[1] * (positives + 0.5)
    return float(of_1 / (of_0 + of_1))


def _describe_rate(panel: EvalSet, weights: _Weights) -> str:
    weighted = "" if weights[0] == weights[1] else " by the classes' weights"
    return f"base rate{weighted}, {_base_rate(panel.labels, weights):.3g}"


def _logit(chance: float) -> float:
    return math.log(chance / (1 - chance))


def _put_before(encoded: bytes, panel: EvalSet) -> bytes | None:
    """Return the file with the panel's features centred and scaled; None if no numbers are there to scale."""
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
    if not entrance.put(nodes, _STANDARDISED):
        return None
    return bytes(proto.SerializeToString(deterministic=True))


def _shorten_rows(encoded: bytes) -> bytes | None:
    """Return the file with smaller entries in tables of words; None if no table has large ones.

    Only tables that nothing but lookups read: what else reads one was not made for other values.
    """
    proto = onnx.ModelProto.FromString(encoded)
    graph, is_changed = proto.graph, False
    tables = {table for table, _ in lookups(graph)}
    others = {
        name for node in graph.node for at, name in enumerate(node.input) if at or node.op_type != "Gather"
    }
    for tensor in graph.initializer:
        if tensor.name not in tables or tensor.name in others:
            continue
        entries = numpy_helper.to_array(tensor).astype(np.float64)
        entry = math.sqrt(np.square(entries).mean())
        if not _LONG_ENTRY < entry < math.inf:
            continue
        scaled = entries * 2.0 ** round(math.log2(_ENTRY / entry))
        tensor.CopyFrom(numpy_helper.from_array(scaled.astype(np.float32), tensor.name))
        is_changed = True
    return bytes(proto.SerializeToString(deterministic=True)) if is_changed else None


def _join(said: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(said[:-1]), said[-1]]))
