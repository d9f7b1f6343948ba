"""Whether a model's tables have a row for each word of the task's encoder.

A table with fewer rows trains without the records that name a missing one: helpers give such a record no
gradient. So it is refused before a job is planned or anything is spent.
"""

from collections.abc import Collection
from typing import Final, assert_never

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

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

_TABLE_RANK: Final = 2


def check_vocabulary(encoded: bytes, encoder: Encoder) -> None:
    """Check that no table of a model is shorter than the column that reads it.

    The graph's indices are evaluated where every column has its last row. Called by the ad server with a
    model that the parser has accepted for the encoder's number of features.

    Raises:
        InvalidModel: WRONG_SHAPE (a table has too few rows; the message says how many it needs) or NOT_ONNX
            (onnxruntime cannot run the graph).
    """
    proto = onnx.ModelProto.FromString(encoded)
    lookups = _lookups(proto.graph)
    if not lookups:
        return
    names = sorted({index for _, index in lookups})
    found = dict(zip(names, _evaluate(proto, names, _last_rows(encoder)), strict=True))
    rows = {tensor.name: tensor.dims[0] for tensor in proto.graph.initializer if tensor.dims}
    for table, index in lookups:
        needed = int(found[index].max(initial=0)) + 1
        if needed > rows[table]:
            raise InvalidModel(
                ModelReason.WRONG_SHAPE,
                f"the table {table[:80]!r} has {rows[table]} rows, but the encoder's columns name rows up to "
                f"{needed - 1}: give the table {needed} rows, or fit the encoder with fewer words (--words)",
            )


def _lookups(graph: onnx.GraphProto) -> list[tuple[str, str]]:
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


def _last_rows(encoder: Encoder) -> NDArray[np.float32]:
    """Return the features of a record that names each column's last row, (1, features)."""
    spelt = [
        _last_code(column) >> 8 * place & 255
        for column in encoder.columns
        for place in range(column.num_bytes)
    ]
    return np.array([spelt], np.float32) / np.float32(256)


def _last_code(column: Column) -> int:
    match column:
        case NumberColumn():
            return max(column.missing, column.byte_of_bin(len(column.edges)))
        case CategoryColumn():
            return max(column.missing, column.other)
        case IdColumn() | HashColumn():
            return column.rows - 1
        case ImageColumn():
            return (1 << 8 * column.num_bytes) - 1
    assert_never(column)


def _evaluate(
    proto: onnx.ModelProto, names: Collection[str], features: NDArray[np.float32]
) -> list[NDArray[np.int64]]:
    """Return some values of a graph, without what they do not depend on."""
    graph, wanted, nodes = proto.graph, set(names), []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            nodes.append(node)
    held = [tensor for tensor in graph.initializer if tensor.name in wanted]
    known = {tensor.name for tensor in graph.initializer}
    inputs = [one for one in graph.input if one.name not in known]
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    part = helper.make_model(
        helper.make_graph(nodes[::-1], "indices", inputs, outputs, initializer=held),
        opset_imports=proto.opset_import,
        ir_version=proto.ir_version,
    )
    try:
        session = open_session(part.SerializeToString())
        return [np.asarray(value) for value in session.run(list(names), {inputs[0].name: features})]
    except ModuleNotFoundError:
        raise  # the command line says what to install
    except Exception as error:  # onnxruntime's exceptions have no common base but this
        raise InvalidModel(ModelReason.NOT_ONNX, f"onnxruntime cannot run the model: {error}") from error
