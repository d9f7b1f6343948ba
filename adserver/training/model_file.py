"""From a model's file as exporters write it to the one that a job trains.

    encoded = read_model(Path("model.onnx"))    # weights in files next to it are folded in
    model = prepare_model(encoded, num_features=30, encoder=None)     # before a job is planned or stored
    trained = parse_chosen(model.file, num_features=30, train=("head.*",), freeze=())

torch's default exporter writes weights to `NAME.onnx.data`. Helpers read no files, so they get one that holds
all.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

import onnx
from google.protobuf.message import DecodeError, Message

from adserver.records.scored_loss import scored_loss
from adserver.training.column_uses import check_codes, check_lookups, check_vocabulary
from adserver.training.merged_parameters import NOTES_OF_PARAMETERS, separate_parameters
from adserver.training.panel_note import PANELS_ARE
from adserver.training.pipeline import LOSS_IS, check_is_scaled, notes_of
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.graph import AttributeValue, Model
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.limits import Limits
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import count_inputs, parse
from maskedlark.model.operators.table import OPERATORS
from maskedlark.model.wire_scan import scan

_EXTERNAL: Final = onnx.TensorProto.EXTERNAL
_TABLE_RANK: Final = 2
# torch's exporter: the modules that lead to a node and its function, such as aten.sort.default.
_NOTE_OF_FUNCTION: Final = "pkg.torch.onnx.class_hierarchy"
_FUNCTION: Final = re.compile(r"'aten\.(\w{1,40})")
_MOST_NOTED: Final = 10_000
# What gives entries of its first input, in another shape or order.
_MOVING: Final = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice", "Split", "Gather",
     "GatherND", "Cast"}
)  # fmt: skip
# What stays within its input's bounds, or those of a share of them.
_SUMMARISING: Final = frozenset({"Concat", "ReduceMean", "MaxPool", "AveragePool", "Clip", "Relu", "Sqrt"})
_ARITHMETIC: Final = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Where", "ReduceSum"})


def why_loss_misfits(model: Model, loss: TrainedLoss) -> str:
    """Return what is wrong if a loss is not of a model's kind of output, else nothing.

    It is wrong if the loss takes a probability and the model gives none, or if the model ends with the
    function that the loss applies anyway. Nothing else would say so: helpers train both, and the weights are
    of no use.
    """
    last, loss = _last_operator(model), scored_loss(loss, model.output_width)
    if loss is Loss.BINARY_CROSS_ENTROPY and not _may_be_chance(model):
        return (
            f"the loss {loss} takes a probability, but the model's output, of {last}, is none: use "
            f"{Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS} on logits"
        )
    if last == "Sigmoid" and loss is Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
        instead = f"use the loss {Loss.BINARY_CROSS_ENTROPY}, or leave out the Sigmoid"
    elif last == "Softmax" and loss is Loss.CROSS_ENTROPY:
        instead = "leave out the Softmax"
    else:
        return ""
    return f"the model ends with {last}, which {loss} applies once more: {instead}"


def require_fitting_loss(model: Model, loss: TrainedLoss) -> None:
    """Raise InvalidModel(WRONG_LOSS) unless a loss is of a model's kind of output."""
    if why := why_loss_misfits(model, loss):
        raise InvalidModel(ModelReason.WRONG_LOSS, why)


def check_loss_fits(encoded: bytes, loss: TrainedLoss, *, num_features: int) -> None:
    """Check that the loss of a job is of its model's kind of output, before the file is standardised.

    Raises:
        InvalidModel, InvalidTask: WRONG_LOSS; or as `prepare_model`.
    """
    require_fitting_loss(prepare_model(encoded, num_features=num_features, encoder=None).parsed, loss)


def check_reading(encoded: bytes, *, num_features: int) -> None:
    """Check that an evaluation reads a model's one output as what it is: a logit, unless a Sigmoid is last.

    A file that a job exported says its loss. Of others the operators say what the output may be.

    Raises:
        InvalidModel(WRONG_LOSS)
    """
    model, loss = parse(encoded, num_features=num_features), notes_of(encoded).get(LOSS_IS)
    if model.output_width != 1 or model.nodes[-1].operator == "Sigmoid":
        return
    if loss != Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS and _may_be_chance(model):
        raise InvalidModel(
            ModelReason.WRONG_LOSS,
            f"the model's output may be a chance, but its last operator is {model.nodes[-1].operator}, and "
            "evaluations read what no last Sigmoid makes as a logit: end the model with a Sigmoid, or export "
            "its logits",
        )


def warn_of_loss(model: Model, loss: TrainedLoss, num_classes: int | None) -> str:
    """Return a line if an evaluation will refuse what a loss trains, or read it as something else."""
    loss = scored_loss(loss, model.output_width)
    if loss is Loss.BINARY_CROSS_ENTROPY and model.nodes[-1].operator != "Sigmoid":
        return (
            f"the model's last operator is {model.nodes[-1].operator} and no Sigmoid: private evaluations "
            "and calibration will refuse it; end it with a Sigmoid, or train its logits with "
            f"{Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS}"
        )
    if loss not in (Loss.MSE, Loss.POISSON) or num_classes != 2:
        return ""
    if loss is Loss.MSE and _may_be_chance(model):
        return ""  # the Brier score
    return (
        f"the labels are of two classes, and {loss} makes the output a number that may lie outside 0 to 1; "
        f"evaluations read it as a logit: {Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS} makes it one"
    )


def _last_operator(model: Model) -> str:
    """Return the operator that computes the output's entries, apart from what moves those of one value."""
    made = {name: node for node in model.nodes for name in node.outputs}
    node = made.get(model.output_name, model.nodes[-1])
    while node.operator in _MOVING and node.inputs[0] in made:
        node = made[node.inputs[0]]
    return node.operator


def _may_be_chance(model: Model) -> bool:
    """Return whether a bounded function follows the last layer, so that the output may lie from 0 to 1.

    Sums, products and mixtures of such functions may, too: whether they do is not followed.
    """
    made = {name: node for node in model.nodes for name in node.outputs}
    waiting, seen = [(model.output_name, False, False)], set[tuple[str, bool, bool]]()
    while waiting:
        name, is_scaled, is_cut = step = waiting.pop()
        if step in seen or name not in made:
            continue
        seen.add(step)
        node = made[name]
        inputs = [one for one in node.inputs if one in made]
        bounds = [node.attributes.get(which) for which in ("min", "max")]
        if node.operator in ("Sigmoid", "Softmax", "Exp") or (node.operator == "Div" and inputs[1:]):
            return True
        if node.operator == "Clip" and None not in bounds and (is_scaled or _is_from_0_to_1(bounds)):
            return True
        if node.operator in ("Tanh", "Erf") and is_scaled:
            return True
        # Two of them cut off both ends: relu(1 - relu(1 - z))
        if node.operator == "Relu" and is_scaled and is_cut:
            return True
        is_cut = is_cut or node.operator == "Relu"
        if node.operator in _MOVING | _SUMMARISING:
            waiting += [(one, is_scaled, is_cut) for one in inputs]
        elif node.operator in _ARITHMETIC or (node.operator == "MatMul" and inputs[1:]):
            waiting += [(one, True, is_cut) for one in inputs]
    return False


def _is_from_0_to_1(bounds: Sequence[AttributeValue | None]) -> bool:
    return all(isinstance(one, int | float) and 0 <= one <= 1 for one in bounds)


def read_model(path: Path, *, limits: Limits | None = None) -> bytes:
    """Read an ONNX file and embed its external data; a file without external data is returned unchanged.

    Guarantees: only files of the model's own folder are read.

    Raises:
        InvalidModel: EXTERNAL_DATA where a file is missing, shorter than the model says, or in another
            folder; TOO_LARGE.
    """
    most = (limits or Limits()).max_bytes
    if path.stat().st_size > most:
        raise InvalidModel(
            ModelReason.TOO_LARGE, f"{path.name} has more than {most} bytes, the limit: use a smaller model"
        )
    encoded = path.read_bytes()
    try:
        proto = onnx.ModelProto.FromString(encoded)
    except DecodeError:
        return encoded  # the parser says what is wrong
    outside = [tensor for tensor in _tensors(proto) if tensor.data_location == _EXTERNAL]
    if not outside:
        return encoded
    # What counts is the sum: many tensors may name the same bytes of one file.
    room = most - len(encoded)
    for tensor in outside:
        content = _content(path, tensor, room)
        room -= len(content)
        tensor.raw_data = content
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return bytes(proto.SerializeToString(deterministic=True))


def declared_width(encoded: bytes) -> int | None:
    """Return the number of features that a file's input declares; None if it leaves that open.

    It reads what is no model as one that says nothing: the parser says what is wrong.

    Raises:
        InvalidModel(WRONG_SHAPE): the graph has another number of inputs than one, which no width mends.
    """
    try:
        graph = onnx.ModelProto.FromString(encoded).graph
    except DecodeError:
        return None
    held = {tensor.name for tensor in graph.initializer}
    dims = [one.type.tensor_type.shape.dim for one in graph.input if one.name not in held]
    if graph.node and len(dims) != 1:
        raise InvalidModel(ModelReason.WRONG_SHAPE, count_inputs(len(dims)))
    return (dims[0][1].dim_value or None) if dims and len(dims[0]) == 2 else None


class PreparedModel(NamedTuple):
    """A model that a job can train: its file, and what the parser made of it."""

    file: bytes
    parsed: Model


def prepare_model(
    encoded: bytes, *, num_features: int, encoder: Encoder | None, are_columns_checked: bool = False
) -> PreparedModel:
    """Separate merged parameters, drop notes of code, parse, and check what the model reads of columns.

    To plan, to rehearse and to submit a job is refused for the same reasons, since all of them call this.

    Args:
        encoded: One ONNX file.
        num_features: The task's.
        encoder: The task's; None without one: then a table's rows are not checked.
        are_columns_checked: Whether to refuse what looks up columns as what they are not.

    Raises:
        InvalidModel: as `separate_parameters` and `parse`; WRONG_SHAPE: a table has too few rows, or as
            `check_codes` and `check_lookups`.
        InvalidTask: it is an export over bytes or raw columns.
    """
    file = without_notes(separate_parameters(encoded))
    check_is_scaled(notes_of(file))
    parsed = _parse_exported(file, num_features, encoded)
    if encoder is not None:
        check_vocabulary(file, encoder)
    if are_columns_checked:
        check_codes(parsed)
        if encoder is not None:
            check_lookups(file, encoder)
    return PreparedModel(file, parsed)


def _parse_exported(file: bytes, num_features: int, exported: bytes) -> Model:
    """Parse a file; what is no operator here is named as in torch too, where the exporter noted that.

    Args:
        file: What was made of the exported file.
        num_features: The task's.
        exported: The file with the exporter's notes.

    Raises:
        InvalidModel: as `parse`.
    """
    try:
        return parse(file, num_features=num_features)
    except InvalidModel as error:
        if error.reason is not ModelReason.UNKNOWN_OPERATOR or not (names := _torch_functions(exported)):
            raise
        raise InvalidModel(
            error.reason, f"torch's {' and '.join(names)} cannot be trained: {error}"
        ) from None


def _torch_functions(exported: bytes) -> list[str]:
    """Return torch's names of the functions of which no form is supported, each once."""
    notes = [
        note.value
        for node in onnx.ModelProto.FromString(exported).graph.node
        if node.op_type not in OPERATORS
        for note in node.metadata_props
        if note.key == _NOTE_OF_FUNCTION
    ]
    return list(dict.fromkeys(name for note in notes for name in _FUNCTION.findall(note[:_MOST_NOTED])[-1:]))


def without_notes(encoded: bytes) -> bytes:
    """Return a file without what exporters note of the author's code: classes, lines, paths of the machine.

    Metadata of the file itself stays, since its author wrote that; but for digests of panels, by which a
    helper could confirm what it guesses of records that never leave the ad server. What is no model stays as
    it is.

    Raises:
        InvalidModel: what the parser refuses before it decodes a file.
    """
    # Before protobuf decodes the file: a few bytes may become an object of 150.
    scan(encoded, Limits())
    try:
        proto = onnx.ModelProto.FromString(encoded)
    except DecodeError:
        return encoded  # the parser says what is wrong
    noted = proto.ByteSize()
    proto.ClearField("doc_string")
    _clear_notes(proto.graph)
    kept = [one for one in proto.metadata_props if one.key != PANELS_ARE]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    return bytes(proto.SerializeToString(deterministic=True)) if proto.ByteSize() < noted else encoded


def _clear_notes(message: Message) -> None:
    for field, value in message.ListFields():
        if field.name == "doc_string":
            message.ClearField(field.name)
        elif field.name == "metadata_props":
            # An exported file may be prepared again, which asks for the names of its parameters.
            kept = [one for one in value if one.key in NOTES_OF_PARAMETERS]
            del value[:]
            value.extend(kept)
        elif field.message_type is not None:
            for one in [value] if isinstance(value, Message) else value:
                _clear_notes(one)


def parse_chosen(encoded: bytes, *, num_features: int, train: Sequence[str], freeze: Sequence[str]) -> Model:
    """Parse a prepared file as a job trains it that chooses among the parameters.

    Args:
        encoded: The file.
        num_features: The task's.
        train: Names or patterns (`*`, `?`, `[...]`) of parameters to train; empty: all.
        freeze: Names or patterns of those that are not trained.

    Raises:
        InvalidModel: as `parse`; or WRONG_PARAMETERS (nothing has such a name, or nothing is left to train).
    """
    whole = parse(encoded, num_features=num_features)
    names = [parameter.name for parameter in whole.parameters]
    for option, given in (("train", train), ("freeze", freeze)):
        unknown = next((one for one in given if not any(_is_named(name, one) for name in names)), None)
        if unknown is not None:
            raise InvalidModel(
                ModelReason.WRONG_PARAMETERS,
                f"{option}: no parameter of the model is called {unknown[:80]!r}; `adserver model show` "
                f"lists all {len(names)}",
            )
    chosen = [
        name
        for name in names
        if (not train or any(_is_named(name, one) for one in train))
        and not any(_is_named(name, one) for one in freeze)
    ]
    if not chosen:
        raise InvalidModel(
            ModelReason.WRONG_PARAMETERS,
            f"all {len(names)} parameters of the model are frozen: leave at least one to train",
        )
    if len(chosen) == len(names):
        return whole
    return parse(encoded, num_features=num_features, trained=chosen)


def _is_named(name: str, given: str) -> bool:
    """Return whether a parameter has a name, or one of a pattern: `[` may be a part of a name too."""
    return name == given or fnmatchcase(name, given)


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from proto.graph.initializer
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def _content(path: Path, tensor: onnx.TensorProto, room: int) -> bytes:
    """Read the bytes of one tensor."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    name = said.get("location", "")
    # A path would reach every file that the reader of the model may read.
    if not name or Path(name).name != name:
        raise _refuse(f"the data of {tensor.name[:80]!r} lies outside the folder of {path.name}")
    beside = path.parent / name
    # So would a symbolic link.
    if not beside.is_file() or beside.resolve().parent != path.parent.resolve():
        raise _refuse(
            f"{name[:80]!r}, which contains weights of {path.name}, is missing: keep both files in "
            "the same folder"
        )
    try:
        offset, length = int(said.get("offset", "0")), int(said.get("length", "-1"))
    except ValueError:
        raise _refuse(
            f"the offset or length of the data of {tensor.name[:80]!r} is not a number: export the "
            "model again"
        ) from None
    size = beside.stat().st_size
    # ONNX lets the length be left out: then the data goes to the end of the file.
    length = size - offset if length < 0 else length
    if not 0 <= offset <= offset + length <= size:
        raise _refuse(f"{name[:80]!r} is shorter than {path.name} declares: export both again")
    if length > room:
        raise InvalidModel(
            ModelReason.TOO_LARGE,
            f"{path.name} and {name[:80]!r} together are over the size limit: use a smaller model",
        )
    with beside.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _refuse(why: str) -> InvalidModel:
    return InvalidModel(ModelReason.EXTERNAL_DATA, why)
