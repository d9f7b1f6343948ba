"""A trained model as people use it.

An ONNX graph that takes raw columns, or bytes, instead of bytes over 256.

The model itself takes float32 features, each a byte divided by 256. Whoever feeds it the bytes, or divides by
255, gets other answers. `from_columns` puts the task's encoder before it, `from_bytes` only the division;
both run in onnxruntime alone. Every input of `from_columns` is a column of shape (records, 1): double for
numbers, NaN where missing, and string for words, without space around them, empty where missing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, assert_never

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from maskedlark.canonical import encode
from maskedlark.encoding.cells import MISSING, number
from maskedlark.encoding.encoder import (
    TOP,
    CategoryColumn,
    Column,
    Encoder,
    HashColumn,
    IdColumn,
    ImageColumn,
    NumberColumn,
    coder,
)
from maskedlark.errors import InvalidTask

DIVISOR: Final = 256.0
BYTES_INPUT: Final = "features"
"""The input of a graph that takes bytes."""
INPUT_IS: Final = "maskedlark.input"
ENCODER_IS: Final = "maskedlark.encoder"
ENCODER_ITSELF: Final = "maskedlark.encoder.json"
LOSS_IS: Final = "maskedlark.loss"
SCALED: Final = "float32 (records, features): each feature's byte divided by 256, not by 255"
BYTES: Final = "uint8 (records, features): each feature's byte"
COLUMNS: Final = (
    "one input a column, (records, 1): double for numbers, NaN where missing; string for words, without space"
    " around them, empty where missing"
)

_ML_DOMAIN: Final = "ai.onnx.ml"
_ML_VERSION: Final = 2
_MODEL: Final = "model/"
_ENCODER: Final = "encoder/"
_DIVISION: Final = f"{_ENCODER}Div"


def describe(encoded: bytes, **notes: str) -> bytes:
    """Return the model with notes in its metadata, which describe the input that it takes."""
    proto = onnx.ModelProto.FromString(encoded)
    helper.set_model_props(proto, {**_notes_in(proto), **notes})
    return bytes(proto.SerializeToString(deterministic=True))


def from_bytes(encoded: bytes, num_features: int) -> bytes:
    """Prepend the division by 256: the input becomes uint8 (records, features)."""
    build = _Build(encoded)
    build.input(BYTES_INPUT, TensorProto.UINT8, num_features)
    whole = build.node("Cast", [BYTES_INPUT], to=TensorProto.FLOAT)
    return build.join(whole, {INPUT_IS: BYTES})


def from_columns(encoded: bytes, encoder: Encoder) -> bytes:
    """Prepend the encoder: the inputs become the encoder's columns.

    Guarantees: for the cells that a CSV holds (numbers parsed as float64), the model sees the bytes that
    `Encoder.features` gives.

    Raises:
        InvalidTask: the model takes another number of features, or the encoder has hashes or images.
    """
    build = _Build(encoded)
    if build.width != encoder.num_features:
        raise InvalidTask(
            f"the encoder makes {encoder.num_features} features, but the model takes {build.width}: "
            "give the encoder that the model was trained with"
        )
    whole = build.node("Concat", [_features(build, column) for column in encoder.columns], axis=1)
    named = {ENCODER_IS: encoder.digest.hex(), ENCODER_ITSELF: encode(encoder).decode()}
    return build.join(whole, {INPUT_IS: COLUMNS, **named})


def without_encoder(encoded: bytes, *, num_features: int, encoder: bytes | None) -> bytes:
    """Return the model behind what `from_columns` or `from_bytes` prepended; any other file as it is.

    Guarantees: names and weights are those of the model that went in, so its digest is, too.

    Args:
        encoded: The file.
        num_features: How many features the model takes.
        encoder: The digest of the task's encoder; None: a task that names none takes any.

    Raises:
        InvalidTask: the file holds another encoder.
    """
    notes = notes_of(encoded)
    if notes.get(INPUT_IS, SCALED) not in (BYTES, COLUMNS):
        return encoded
    if encoder is not None and notes.get(ENCODER_IS, encoder.hex()) != encoder.hex():
        raise InvalidTask(
            f"the model holds encoder {notes[ENCODER_IS][:12]}, but the task's is {encoder.hex()[:12]}: give "
            "a model of this task"
        )
    proto = onnx.ModelProto.FromString(encoded)
    graph = proto.graph
    divisions = [node.output[0] for node in graph.node if node.name == _DIVISION]
    if len(divisions) != 1 or not graph.input:
        return encoded  # the parser says what is wrong
    (shape, *_) = graph.input[0].type.tensor_type.shape.dim
    records = shape.dim_value or shape.dim_param
    outputs = {one.name for one in graph.output}

    def outside(name: str) -> str:
        return name if name in outputs else name.removeprefix(_MODEL)

    nodes = [node for node in graph.node if not node.name.startswith(_ENCODER)]
    tensors = [tensor for tensor in graph.initializer if not tensor.name.startswith(_ENCODER)]
    for node in nodes:
        node.name = node.name.removeprefix(_MODEL)
        node.input[:] = [outside(name) for name in node.input]
        node.output[:] = [outside(name) for name in node.output]
    for tensor in tensors:
        tensor.name = outside(tensor.name)
    entry = helper.make_tensor_value_info(outside(divisions[0]), TensorProto.FLOAT, [records, num_features])
    rest = helper.make_graph(nodes, graph.name, [entry], graph.output, tensors)
    opsets = [one for one in proto.opset_import if one.domain != _ML_DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(opsets)
    graph.CopyFrom(rest)
    return describe(proto.SerializeToString(), **{INPUT_IS: SCALED})


def feed_of_columns(encoder: Encoder, cells: Mapping[str, Sequence[str | None]]) -> dict[str, NDArray[Any]]:
    """Return the inputs of a graph of `from_columns`, for cells that the encoder's columns hold."""
    feed: dict[str, NDArray[Any]] = {}
    for column in encoder.columns:
        held = cells[column.name]
        if isinstance(column, NumberColumn):
            numbers = [math.nan if cell is None else number(cell) for cell in held]
            feed[column.name] = np.array(numbers, np.float64)[:, None]
        else:
            feed[column.name] = np.array([cell or "" for cell in held], object)[:, None]
    return feed


def notes_of(encoded: bytes) -> dict[str, str]:
    """Return the notes in a model's metadata; none for what is no model."""
    try:
        return _notes_in(onnx.ModelProto.FromString(encoded))
    except DecodeError:
        return {}


def encoder_of(encoded: bytes) -> bytes | None:
    """Return the digest of the encoder that a model's notes name; None if they name none."""
    try:
        return bytes.fromhex(notes_of(encoded).get(ENCODER_IS, "")) or None
    # A file from elsewhere may say anything
    except ValueError:
        return None


def width_of_outputs(encoded: bytes) -> int:
    """Return the number of outputs that a graph declares for a record; an open or missing axis is one."""
    shapes = (one.type.tensor_type.shape.dim for one in onnx.ModelProto.FromString(encoded).graph.output)
    return sum(max(1, dims[-1].dim_value) if len(dims) > 1 else 1 for dims in shapes)


def names_of_outputs(encoded: bytes) -> tuple[str, ...]:
    """Return the names of a graph's outputs; none of a file that is no model."""
    try:
        return tuple(one.name for one in onnx.ModelProto.FromString(encoded).graph.output)
    except DecodeError:
        return ()  # the parser says what is wrong


def check_is_scaled(notes: Mapping[str, str]) -> None:
    """Refuse a model whose notes say that it takes bytes or raw columns, and not what jobs train.

    Raises:
        InvalidTask
    """
    if notes.get(INPUT_IS, SCALED) != SCALED:
        raise InvalidTask(
            f"the model takes {notes[INPUT_IS]}: give the file that `adserver model export` writes without "
            "--with-encoder and --with-bytes (in Python, `export` without `takes`)"
        )


def _notes_in(proto: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


class _Build:
    """A graph in front of a model.

    Names of the model get a prefix, so that columns may be called anything.
    """

    def __init__(self, encoded: bytes) -> None:
        self._proto = onnx.ModelProto.FromString(encoded)
        graph = self._proto.graph
        held = {tensor.name for tensor in graph.initializer}
        # Older exporters list initializers among the inputs.
        (entry,) = (one for one in graph.input if one.name not in held)
        self._entry = entry.name
        dims = entry.type.tensor_type.shape.dim
        self.width = int(dims[1].dim_value)
        # A graph for one record may have shapes inside that hold for no other number.
        self._records: int | str = 1 if dims[0].dim_value == 1 else "records"
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._rename({one.name for one in graph.output})

    def _rename(self, outputs: set[str]) -> None:
        """Prefix every name inside the model except those of its outputs."""
        graph = self._proto.graph

        def inside(name: str) -> str:
            return name if not name or name in outputs else f"{_MODEL}{name}"

        for node in graph.node:
            node.name = node.name and f"{_MODEL}{node.name}"
            node.input[:] = [inside(name) for name in node.input]
            node.output[:] = [inside(name) for name in node.output]
        for tensor in graph.initializer:
            tensor.name = inside(tensor.name)
        # They describe values by their old names, and onnxruntime infers them again.
        del graph.value_info[:]
        self._entry = inside(self._entry)

    def input(self, name: str, kind: int, width: int) -> None:
        self._inputs.append(helper.make_tensor_value_info(name, kind, [self._records, width]))

    def constant(self, value: NDArray[np.generic]) -> str:
        name = f"{_ENCODER}constant {len(self._constants)}"
        self._constants.append(numpy_helper.from_array(value, name))
        return name

    def node(self, operator: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        name = f"{_ENCODER}{operator} {len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def join(self, whole: str, notes: Mapping[str, str]) -> bytes:
        """Join the whole graph: features as float bytes over 256 are the model's input."""
        graph = self._proto.graph
        taken = {one.name for one in self._inputs} & {one.name for one in graph.output}
        if taken:
            raise InvalidTask(
                f"the model's output and a column have the same name, {taken.pop()!r}: rename one"
            )
        divisor = self.constant(np.array(DIVISOR, np.float32))
        self._nodes.append(helper.make_node("Div", [whole, divisor], [self._entry], name=_DIVISION))
        nodes = [*self._nodes, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(self._constants)
        del graph.input[:]
        graph.input.extend(self._inputs)
        if any(node.domain == _ML_DOMAIN for node in self._nodes):
            self._proto.opset_import.append(helper.make_opsetid(_ML_DOMAIN, _ML_VERSION))
        return describe(self._proto.SerializeToString(), **notes)


def _features(build: _Build, column: Column) -> str:
    """Encode one column as (records, features of the column)."""
    match column:
        case NumberColumn():
            return _number(build, column)
        case CategoryColumn():
            return _category(build, column)
        case IdColumn():
            return _id(build, column)
        case ImageColumn():
            raise InvalidTask(
                f"column {column.name!r} holds images, whose histograms are not exported: export with "
                "--with-bytes, and encode images by the encoder"
            )
        case HashColumn():
            raise InvalidTask(
                f"column {column.name!r} is hashed, which no ONNX operator does: export with --with-bytes, "
                "and encode rows by the encoder"
            )
    assert_never(column)


def _number(build: _Build, column: NumberColumn) -> str:
    """Encode (records, 1): how many edges are at most the number, as a byte; NaN is the missing byte."""
    build.input(column.name, TensorProto.DOUBLE, 1)
    # Without edges all numbers are in one bin: an infinite edge keeps the graph of one form.
    edges = column.edges or (math.inf,)
    bytes_of = [column.byte_of_bin(min(index, len(column.edges))) for index in range(len(edges) + 1)]
    below = build.node("Less", [column.name, build.constant(np.array([edges], np.float64))])
    reached = build.node("Cast", [build.node("Not", [below])], to=TensorProto.FLOAT)
    ones = build.constant(np.ones((len(edges), 1), np.float32))  # float32 counts exactly this far
    index = build.node("Cast", [build.node("MatMul", [reached, ones])], to=TensorProto.INT64)
    byte = build.node("Gather", [build.constant(np.array(bytes_of, np.float32)), index], axis=0)
    is_there = build.node("Equal", [column.name, column.name])  # NaN equals nothing
    missing = build.constant(np.array([[column.missing]], np.float32))
    return build.node("Where", [is_there, byte, missing])


def _category(build: _Build, column: CategoryColumn) -> str:
    """Encode (records, 1): the byte of the word."""
    build.input(column.name, TensorProto.STRING, 1)
    words = {word: column.byte(word) for word in column.categories}
    # Last: a gap is one for the encoder, too, whatever words it lists
    words |= dict.fromkeys(_spellings(), column.missing)
    return build.node("Cast", [_look_up(build, column.name, words, column.other)], to=TensorProto.FLOAT)


def _id(build: _Build, column: IdColumn) -> str:
    """Encode (records, bytes): the row of the word, lowest byte first."""
    build.input(column.name, TensorProto.STRING, 1)
    row = coder(column)
    words = {word: row(word) for word in column.words} | dict.fromkeys(_spellings(), row(None))
    rest = _look_up(build, column.name, words, 1)
    base, parts = build.constant(np.array(TOP + 1, np.int64)), []
    for _ in range(column.num_bytes):
        parts.append(build.node("Mod", [rest, base]))
        rest = build.node("Div", [rest, base])
    return build.node("Cast", [build.node("Concat", parts, axis=1)], to=TensorProto.FLOAT)


def _look_up(build: _Build, name: str, words: Mapping[str, int], rest: int) -> str:
    """Return the number of each word, (records, 1), and `rest` for any other."""
    return build.node(
        "LabelEncoder",
        [name],
        domain=_ML_DOMAIN,
        keys_strings=list(words),
        values_int64s=list(words.values()),
        default_int64=rest,
    )


def _spellings() -> Iterator[str]:
    """Yield each word for a missing cell, in every mix of capitals."""
    for word in MISSING:
        yield from dict.fromkeys(map("".join, product(*((letter, letter.upper()) for letter in word))))
