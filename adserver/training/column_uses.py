"""What a model reads of an encoder's columns: which rows of its tables, and which codes as numbers.

    check_vocabulary(file, encoder)     # raises if a table is shorter than the column that reads it
    check_lookups(file, encoder)        # raises if a table is entered by numbers, or by one byte of an id
    warn_of_columns(file, encoder)      # ("the model reads ... only as rows of a table, but ...",)

A graph is asked and not read: values that depend on features alone are evaluated where one feature changes,
so that whatever an exporter writes for `x[:, [0, 3]]` is understood.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Self, assert_never

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from adserver.training.inference import open_session
from maskedlark.encoding.encoder import (
    CategoryColumn,
    Column,
    Encoder,
    HashColumn,
    IdColumn,
    ImageColumn,
    NumberColumn,
)
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.exactness import find_code_factors
from maskedlark.model.graph import Model

_TABLE_RANK: Final = 2
_LOOKING_UP: Final = ("Gather", "GatherND", "GatherElements")
_BYTE: Final = 256
_NO_FACTOR: Final = 255
# More numbers than that are pixels: to ask of each would take minutes.
_MOST_ASKED: Final = 1_000
# Of two words the code is one of two numbers, as good as a table's row.
_MOST_WORDS_OF_NUMBER: Final = 2
_MOST_NAMED: Final = 5
_WHOLE: Final = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
_FACTOR: Final = "byte.factor"
# A row that any of them changes is chosen by features; rows of a table of two words seldom stay in so many.
_RECORDS_DRAWN: Final = 16
# Numbers that the network leaves alone move by less than 1, and by some 5 if it standardises them.
_LARGE: Final = 100
# Steps of a code that differ by less are equal: float32 has rounded them.
_ROUNDED: Final = 1e-3


def check_vocabulary(encoded: bytes, encoder: Encoder) -> None:
    """Check that no table of a model is shorter than the column that reads it.

    A table with fewer rows would train without the records that name a missing one: helpers give such a
    record no gradient. So it is refused before a job is planned or anything is spent.

    The graph's indices are evaluated where every column has its last row. The parser has
    accepted the model for the encoder's number of features.

    Raises:
        InvalidModel: WRONG_SHAPE (a table has too few rows; the message says how many it needs) or NOT_ONNX
            (onnxruntime cannot run the graph).
    """
    proto = onnx.ModelProto.FromString(encoded)
    entered = lookups(proto.graph)
    if not entered:
        return
    names = sorted({index for _, index in entered})
    reader, last = _Reader(proto, names), _last_rows(encoder)
    found = reader.read(last)
    rows = {tensor.name: tensor.dims[0] for tensor in proto.graph.initializer if tensor.dims}
    for table, index in entered:
        needed = int(found[index].max(initial=0)) + 1
        if needed > rows[table]:
            columns = _entering(reader, index, encoder, last)
            are_numbers = bool(columns) and not any(_holds_words(column) for column in columns)
            named = " and ".join(f"{column.name!r}" for column in columns)
            of = f"column{'s' * (len(columns) > 1)} {named}" if columns else "the encoder's columns"
            remedy = (
                "numbers stand there and no words: look up another column, or "
                if are_numbers
                else "if that is the column you mean, "
            )
            raise InvalidModel(
                ModelReason.WRONG_SHAPE,
                f"the table {table[:80]!r} has {rows[table]} rows, but {of} name{'s' * (len(columns) == 1)} "
                f"rows up to {needed - 1}: {remedy}give the table {needed} rows"
                + ("" if are_numbers else ", or fit the encoder with fewer words (--words)"),
            )


def _entering(reader: "_Reader", index: str, encoder: Encoder, last: NDArray[np.uint8]) -> list[Column]:
    """Return the columns on which the rows that are looked up depend."""
    found, start, base = list[Column](), 0, reader.read(np.zeros_like(last))[index]
    for column in encoder.columns:
        changed = np.zeros_like(last)
        changed[start : start + column.num_bytes] = last[start : start + column.num_bytes]
        if not np.array_equal(reader.read(changed)[index], base):
            found.append(column)
        start += column.num_bytes
    return found


def check_lookups(encoded: bytes, encoder: Encoder) -> None:
    """Check that no table is entered by what is no code.

    That is by numbers that are nothing else, by a byte of an id, or by the same row for every record.

    Arguments are those of `warn_of_columns`.

    Raises:
        InvalidModel: WRONG_SHAPE.
    """
    if lines := _warn(encoded, encoder, (_warn_of_constant_lookups, _warn_of_numbers, _warn_of_parts)):
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"{'; '.join(lines)}; look up the columns of words, or say that it is meant so (--any-columns, "
            "check_columns=False)",
        )


def check_codes(model: Model) -> None:
    """Check that no index is a feature times 255, which is the code less 1: a feature is its byte over 256.

    Raises:
        InvalidModel: WRONG_SHAPE.
    """
    if _NO_FACTOR in find_code_factors(model):
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"the model makes codes of features times {_NO_FACTOR}, but a feature is its byte over {_BYTE}: "
            f"every code but 0 would be 1 too small; write (x * {_BYTE}).long(), or say that it is meant so "
            "(--any-columns, check_columns=False)",
        )


def warn_of_columns(encoded: bytes, encoder: Encoder) -> tuple[str, ...]:
    """Return a line for each way in which a model reads columns as what they are not.

    Tables of which every record reads one row, numbers that only choose rows of a table, words whose codes
    are read as numbers and never looked up (more than two words: the code of two is a number as good as any),
    ids of which a table is given one byte without the others, and numbers that are all multiplied as if they
    were to be looked up.

    Args:
        encoded: A prepared file, which the parser accepts for the encoder's number of features.
        encoder: The task's.
    """
    return _warn(
        encoded,
        encoder,
        (_warn_of_constant_lookups, _warn_of_numbers, _warn_of_parts, _warn_of_codes, _warn_of_scale),
    )


def _warn(
    encoded: bytes,
    encoder: Encoder,
    warnings: "Sequence[Callable[[_Uses, Sequence[_Place]], Iterator[str]]]",
) -> tuple[str, ...]:
    places = tuple(_places(encoder))
    try:
        uses = _Uses.of(onnx.ModelProto.FromString(encoded), len(places))
        return tuple(line for warn in warnings for line in warn(uses, places))
    # A warning must stop nothing: planning the job says what is wrong with the file
    except (InvalidModel, ModuleNotFoundError):
        return ()


def _holds_words(column: Column) -> bool:
    return isinstance(column, CategoryColumn | IdColumn | HashColumn)


class _Place(NamedTuple):
    """One feature: its column, which of the column's bytes it is, and the largest one that it can be."""

    feature: int
    column: Column
    byte: int
    most: int

    @property
    def is_word(self) -> bool:
        """Whether it is a code, or a part of one."""
        return _holds_words(self.column)

    def __str__(self) -> str:
        return f"{self.feature} ({self.column.name})"


class _Reader:
    """Some values of a graph for one record, without what they do not depend on."""

    def __init__(self, proto: onnx.ModelProto, names: Sequence[str]) -> None:
        """Load a part of a graph.

        Args:
            proto: The whole graph.
            names: The values to read; they depend on the features.

        Raises:
            InvalidModel: NOT_ONNX (onnxruntime cannot load the graph).
        """
        graph, held = proto.graph, {tensor.name for tensor in proto.graph.initializer}
        inputs = [one for one in graph.input if one.name not in held]
        self._names = list(names)
        self._input = inputs[0].name
        nodes = _leading_to(graph, names)
        wanted = {*names, *(name for node in nodes for name in node.input)}
        part = helper.make_model(
            helper.make_graph(
                # The features themselves cannot be an output, but a copy can
                [*nodes, *(helper.make_node("Identity", [one], [f"read.{one}"]) for one in names)],
                "read",
                inputs,
                [helper.make_empty_tensor_value_info(f"read.{one}") for one in names],
                initializer=[tensor for tensor in graph.initializer if tensor.name in wanted],
            ),
            opset_imports=proto.opset_import,
            ir_version=proto.ir_version,
        )
        with _as_refusal():
            self._session = open_session(part.SerializeToString()) if names else None

    def read(self, features: NDArray[np.uint8]) -> dict[str, NDArray[np.float64]]:
        """Return each value, flattened, for one record's features.

        Raises:
            InvalidModel: NOT_ONNX (onnxruntime cannot run the graph).
        """
        if self._session is None:
            return {}
        scaled = features[None].astype(np.float32) / np.float32(_BYTE)
        with _as_refusal():
            found = self._session.run([f"read.{one}" for one in self._names], {self._input: scaled})
        return {
            name: np.asarray(value, np.float64).ravel()
            for name, value in zip(self._names, found, strict=True)
        }


class _Probe:
    """How some values of a graph depend on single features."""

    def __init__(self, proto: onnx.ModelProto, names: Collection[str], width: int) -> None:
        self._reader = _Reader(proto, sorted(names))
        self._width = width
        self._base = self._at([], 0)

    def changed_by(self, places: Sequence[_Place]) -> NDArray[np.bool_]:
        """Return which entries change with some features together: at their largest bytes, or at 1."""
        return np.concatenate([np.zeros(0, np.bool_), *self._changes(places).values()])

    def changes(self, place: _Place) -> bool:
        """Return whether an entry changes with a feature."""
        return bool(self.changed_by([place]).any())

    def names_changed_by(self, place: _Place) -> set[str]:
        """Return the values of which an entry changes with a feature."""
        return {name for name, changed in self._changes([place]).items() if changed.any()}

    def grows_evenly(self, place: _Place) -> bool:
        """Return whether an entry grows by as much from a feature's byte 0 to 1 as from 1 to 2."""
        at_1, at_2 = self._at([place], 1), self._at([place], 2)
        steps = [(at_1[name] - base, at_2[name] - at_1[name]) for name, base in self._base.items()]
        return any(
            ((first != 0) & (np.abs(second - first) <= _ROUNDED * np.abs(first))).any()
            for first, second in steps
        )

    def moves(self) -> NDArray[np.float64]:
        """Return by how much each entry moves that changes when all bytes go from 0 to 255."""
        most = self._reader.read(np.full(self._width, _BYTE - 1, np.uint8))
        moved = [np.abs(most[name] - base) for name, base in self._base.items()]
        found = np.concatenate([np.zeros(0), *moved])
        return found[found > 0]

    def find_constant(self, places: Sequence[_Place]) -> dict[str, int]:
        """Return the values that are one number in all entries, whatever bytes some features have."""
        draws, most = np.random.default_rng(0), [one.most or _BYTE - 1 for one in places]
        features = np.zeros(self._width, np.uint8)
        found = {
            name: int(entries[0]) for name, entries in self._base.items() if np.unique(entries).size == 1
        }
        for drawn in (most, *draws.integers(0, np.array(most) + 1, (_RECORDS_DRAWN, len(places)))):
            features[[one.feature for one in places]] = drawn
            read = self._reader.read(features)
            found = {name: number for name, number in found.items() if (read[name] == number).all()}
        return found

    def _changes(self, places: Sequence[_Place]) -> dict[str, NDArray[np.bool_]]:
        at_most, at_1 = self._at(places, _BYTE - 1), self._at(places, 1)
        return {name: (at_most[name] != base) | (at_1[name] != base) for name, base in self._base.items()}

    def _at(self, places: Sequence[_Place], byte: int) -> dict[str, NDArray[np.float64]]:
        features = np.zeros(self._width, np.uint8)
        for one in places:
            features[one.feature] = min(byte, one.most)
        return self._reader.read(features)


class _Uses(NamedTuple):
    """The values by which a graph enters tables, those that it computes with, and each table with its value.

    Both kinds depend on features and constants alone, and are read by what depends on parameters too, or are
    outputs.
    """

    proto: onnx.ModelProto
    rows: _Probe
    numbers: _Probe
    tables: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, proto: onnx.ModelProto, width: int) -> Self:
        """Find them in the graph of a model of so many features."""
        graph = proto.graph
        held = {one.name for one in graph.initializer}
        # What the parser takes for parameters: initializers of floats with an axis
        weighed = {
            one.name for one in graph.initializer if one.data_type == onnx.TensorProto.FLOAT and one.dims
        }
        read = {one.name for one in graph.input} - held
        outputs = {one.name for one in graph.output}
        rows, numbers = set[str](), set(outputs)
        for node in _leading_to(graph, outputs):
            if not weighed.isdisjoint(node.input):
                weighed.update(node.output)
                for at, name in enumerate(node.input):
                    (rows if node.op_type in _LOOKING_UP and at == 1 else numbers).add(name)
            elif not read.isdisjoint(node.input):
                read.update(node.output)
        return cls(
            proto,
            _Probe(proto, rows & read, width),
            _Probe(proto, numbers & read, width),
            [(table, index) for table, index in lookups(graph) if index in rows & read],
        )


def _scale_whole_numbers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with the factor that was forgotten before each Cast to whole numbers."""
    scaled = onnx.ModelProto.FromString(proto.SerializeToString())
    del scaled.graph.node[:]
    scaled.graph.initializer.append(numpy_helper.from_array(np.array(_BYTE, np.float32), _FACTOR))
    for node in proto.graph.node:
        added = onnx.NodeProto.FromString(node.SerializeToString())
        if node.op_type == "Cast" and any(one.name == "to" and one.i in _WHOLE for one in node.attribute):
            added.input[0] = f"{node.output[0]}.{_FACTOR}"
            scaled.graph.node.append(helper.make_node("Mul", [node.input[0], _FACTOR], [added.input[0]]))
        scaled.graph.node.append(added)
    return scaled


def _warn_of_constant_lookups(uses: _Uses, places: Sequence[_Place]) -> Iterator[str]:
    """Yield the tables of which every record reads the same row, though its features choose it."""
    constant = uses.rows.find_constant(places)
    suspected = [(table, index) for table, index in uses.tables if index in constant]
    if not suspected:
        return
    scaled = _Probe(_scale_whole_numbers(uses.proto), {index for _, index in suspected}, len(places))
    entered = [(place, scaled.names_changed_by(place)) for place in places[:_MOST_ASKED]]
    # Without any no feature enters, such as where positions are looked up
    found = [(table, index) for table, index in suspected if any(index in names for _, names in entered)]
    if not found:
        return
    indices = {index for _, index in found}
    entering = [place for place, names in entered if not indices.isdisjoint(names)]
    below = f"as {_name(entering)} over {_BYTE} {'are' if len(entering) > 1 else 'is'} below 1"
    tables = [repr(table[:80]) for table, _ in found]
    if len(tables) == 1:
        reads = f"the table {tables[0]} reads row {constant[found[0][1]]}"
    else:
        more = f" and {len(tables) - _MOST_NAMED} more" if len(tables) > _MOST_NAMED else ""
        reads = f"the tables {', '.join(tables[:_MOST_NAMED])}{more} read one row each"
    yield f"{reads} for every record, {below}: write (x * {_BYTE}).long()"


def _warn_of_numbers(uses: _Uses, places: Sequence[_Place]) -> Iterator[str]:
    """Yield the numbers that choose rows of tables and are nothing else."""
    numbers = [one for one in places if not one.is_word][:_MOST_ASKED]
    # All at once first: of pixels there are hundreds, which seldom choose rows
    if not uses.rows.changed_by(numbers).any():
        return
    only = [one for one in numbers if uses.rows.changes(one) and not uses.numbers.changes(one)]
    if only:
        words = ", ".join(str(one) for one in [one for one in places if one.is_word][:_MOST_NAMED])
        yield (
            f"the model reads {_name(only)} only as rows of a table, but the encoder has numbers there; "
            + (f"words are at {words}" if words else "it has no words")
        )


def _warn_of_parts(uses: _Uses, places: Sequence[_Place]) -> Iterator[str]:
    """Yield the ids of which a table is given one byte without the others."""
    for one in places:
        first = places[one.feature - one.byte]
        is_read_apart = one.is_word and one.byte > 0 and one.most > 0
        if is_read_apart and (uses.rows.changed_by([first]) != uses.rows.changed_by([one])).any():
            yield (
                f"the model looks up byte {one.byte} of the id {one.column.name!r} apart from its byte 0: "
                f"a row is byte 0 + {_BYTE} * byte 1 + ..., from feature {first.feature} on"
            )


def _warn_of_codes(uses: _Uses, places: Sequence[_Place]) -> Iterator[str]:
    """Yield the words that are read as numbers and by no table."""
    found = [
        one
        for one in places
        if one.is_word
        and one.byte == 0
        and (not isinstance(one.column, CategoryColumn) or len(one.column.words) > _MOST_WORDS_OF_NUMBER)
        and one.most > 1
        and uses.numbers.grows_evenly(one)
        and not uses.rows.changes(one)
    ]
    if found:
        yield (
            f"the model reads the codes of words at {_name(found)} as numbers, but their order means "
            "nothing: look them up in tables (nn.Embedding), one for each column"
        )


def _warn_of_scale(uses: _Uses, _: Sequence[_Place]) -> Iterator[str]:
    """Yield that all numbers enter the first layer many times as large as features are."""
    moves = uses.numbers.moves()
    if moves.size and moves.min() >= _LARGE:
        yield (
            f"the model's first layer reads numbers of up to {moves.max():.3g}, but trains as if they were "
            f"about 1: features are bytes over {_BYTE}, and x * {_BYTE} is for codes, which tables look "
            "up; give other layers x"
        )


def _name(places: Sequence[_Place]) -> str:
    more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
    return f"feature{'s' * (len(places) > 1)} {', '.join(map(str, places[:_MOST_NAMED]))}{more}"


def _places(encoder: Encoder) -> Iterator[_Place]:
    feature = 0
    for column in encoder.columns:
        last = _last_code(column)
        for byte in range(column.num_bytes):
            # The lowest bytes take every value once there are higher ones
            yield _Place(feature, column, byte, min(last >> 8 * byte, _BYTE - 1))
            feature += 1


def lookups(graph: onnx.GraphProto) -> list[tuple[str, str]]:
    """Return the table and the index of each Gather of a table's rows that the features choose."""
    tables = {
        tensor.name
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == _TABLE_RANK
    }
    known = {tensor.name for tensor in graph.initializer}
    known |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    return [
        (node.input[0], node.input[1])
        for node in graph.node
        if node.op_type == "Gather" and node.input[0] in tables and node.input[1] not in known
    ]


def _last_rows(encoder: Encoder) -> NDArray[np.uint8]:
    """Return the features of a record that names each column's last row, (features,)."""
    return np.array(
        [
            _last_code(column) >> 8 * place & (_BYTE - 1)
            for column in encoder.columns
            for place in range(column.num_bytes)
        ],
        np.uint8,
    )


def _last_code(column: Column) -> int:
    match column:
        case NumberColumn():
            return max(column.missing, column.byte_of_bin(len(column.edges)))
        case CategoryColumn() | IdColumn() | HashColumn():
            return column.rows - 1
        case ImageColumn():
            return (1 << 8 * column.num_bytes) - 1
    assert_never(column)


def _leading_to(graph: onnx.GraphProto, names: Collection[str]) -> list[onnx.NodeProto]:
    """Return the nodes from which some values are computed, in the graph's order."""
    wanted, nodes = set(names), []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            nodes.append(node)
    return nodes[::-1]


@contextmanager
def _as_refusal() -> Iterator[None]:
    """Turn what onnxruntime raises into InvalidModel."""
    try:
        yield
    except ModuleNotFoundError:
        raise  # the command line says what to install
    except Exception as error:  # onnxruntime's exceptions have no common base but this
        raise InvalidModel(ModelReason.NOT_ONNX, f"onnxruntime cannot run the model: {error}") from error
