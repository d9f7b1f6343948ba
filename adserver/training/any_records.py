"""A file that was exported for one record a run, made to take any number of records where its layers do.

    freed = take_any_records(encoded)      # the same bytes where they already do, or cannot

torch's exporter fixes the first axis at the example's 1 unless it is told otherwise.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from adserver.training.column_uses import lookups
from adserver.training.inference import run_graph
from maskedlark.errors import InvalidModel
from maskedlark.model.onnx_file import parse

_RECORDS: Final = "records"
_TRIED: Final = 3
_BYTE: Final = 256
# Of float32, whose sums have another order in products of several records.
_ROUNDING: Final = 1e-6
# Of what records differ by: what one takes from another is more.
_MIXED: Final = 0.01


TAKES_ONE_RECORD: Final = (
    "the file takes one record a run, and so do files that a job of it exports, since its layers fix that: "
    "export it with an open first axis (dynamic_shapes, dynamic_axes)"
)
"""What people read of a file that stays so."""


def takes_one_record(encoded: bytes) -> bool:
    """Return whether a file fixes the first axis of its features at 1."""
    return any(_is_fixed(one) for one in _entries(onnx.ModelProto.FromString(encoded).graph))


def take_any_records(encoded: bytes) -> bytes:
    """Return the file with an open first axis of input, outputs and what it reshapes.

    A file that does not fix that axis stays as it is. So does one whose layers fix it: where they move it,
    the parser finds another function, or onnxruntime gives other outputs for three records together than for
    each of them.

    Guarantees: the model's digest, its parameters and its outputs for one record are as before.
    """
    if not takes_one_record(encoded):
        return encoded
    proto = onnx.ModelProto.FromString(encoded)
    graph = proto.graph
    # Of one record any order of axes is the same. Small weights could hide from the outputs that it is not.
    parameters = {one.name for one in graph.initializer}
    if any(
        _moves_first_axis(node) for node in graph.node if node.input[:1] and node.input[0] not in parameters
    ):
        return encoded
    for value in (*_entries(graph), *graph.output):
        if _is_fixed(value):
            value.type.tensor_type.shape.dim[0].dim_param = _RECORDS
    # They are of one record, and onnxruntime infers them again.
    del graph.value_info[:]
    _open_reshapes(graph)
    freed = bytes(proto.SerializeToString(deterministic=True))
    return freed if _is_same(encoded, freed) else encoded


def _entries(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield the inputs that are fed; older exporters list initializers among them."""
    held = {one.name for one in graph.initializer}
    yield from (one for one in graph.input if one.name not in held)


def _is_fixed(value: onnx.ValueInfoProto) -> bool:
    dims = value.type.tensor_type.shape.dim
    return bool(dims) and dims[0].dim_value == 1


def _moves_first_axis(node: onnx.NodeProto) -> bool:
    if node.op_type != "Transpose":
        return False
    order = next((one.ints for one in node.attribute if one.name == "perm"), None)
    return order is None or order[0] != 0


def _open_reshapes(graph: onnx.GraphProto) -> None:
    """Let each Reshape to a constant shape that begins with 1 infer that axis, or copy it."""
    constants = {one.name: one for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    for place, node in enumerate(graph.node):
        if node.op_type != "Reshape" or node.input[1] not in constants:
            continue
        shape = numpy_helper.to_array(constants[node.input[1]])
        if shape.ndim != 1 or not shape.size or shape[0] != 1:
            continue
        # Of another axis that is inferred, the first one copies its input's.
        opened = np.concatenate([[0 if -1 in shape else -1], shape[1:]]).astype(np.int64)
        # Others may read the shape as a constant of theirs.
        name = f"{node.output[0]}.{_RECORDS}.{place}"
        graph.initializer.append(numpy_helper.from_array(opened, name))
        node.input[1] = name
        # With it a 0 would be an axis of no entries.
        kept = [one for one in node.attribute if one.name != "allowzero"]
        del node.attribute[:]
        node.attribute.extend(kept)


def _is_same(encoded: bytes, freed: bytes) -> bool:
    """Return whether both files are one function of a record, and records of the other stay apart."""
    (entry,) = _entries(onnx.ModelProto.FromString(encoded).graph)
    width = entry.type.tensor_type.shape.dim[1].dim_value
    # Tables that are looked up have rows for few bytes, perhaps.
    most = 2 if lookups(onnx.ModelProto.FromString(encoded).graph) else _BYTE
    codes = np.random.default_rng(0).integers(0, most, (_TRIED, width))
    features = codes.astype(np.float32) / np.float32(_BYTE)

    def run(file: bytes, chosen: slice) -> NDArray[np.float32]:
        records = features[chosen]
        return run_graph(file, lambda rows: {entry.name: records[rows]}, len(records), width=1)

    each = [slice(at, at + 1) for at in range(_TRIED)]
    try:
        if parse(encoded, num_features=width).digest != parse(freed, num_features=width).digest:
            return False
        before, after = (np.concatenate([run(file, one) for one in each]) for file in (encoded, freed))
        together = run(freed, slice(None))
    except InvalidModel:
        return False
    if together.shape != before.shape or not np.array_equal(before, after):
        return False
    # Of outputs that differ little from each other, what one record takes from another is little, too
    near = _MIXED * before.std(0).max() + _ROUNDING * np.abs(before).max()
    return bool(np.abs(together - before).max() <= near)
