"""Parameters that an exporter merged because they began with equal values.

torch's exporters store initializers of equal contents once. Tables, biases and scales that all begin at zero,
or at one, are then one tensor with several readers, and would be trained as one. torch's present exporter
writes with each operator which parameters it was made of, so what was meant is known and is restored. Where a
file does not say, equal numbers throughout look the same whether they were merged or are meant to be one:
such a file is refused. A tensor of differing numbers that several operators read is one on purpose.
"""

import re
from collections import defaultdict
from typing import Final, NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.limits import Limits
from maskedlark.model.wire_scan import scan

_SIGNATURE: Final = "pkg.torch.export.ExportedProgram.graph_signature"
_MADE_OF: Final = "pkg.torch.onnx.fx_node"
NOTES_OF_PARAMETERS: Final = frozenset({_SIGNATURE, _MADE_OF})
"""What torch notes of the parameters that each node was made of: names of modules and tensors."""
_DECLARED: Final = re.compile(r"^(\w+): (?:PARAMETER|BUFFER) target='([^']+)'", re.MULTILINE)
_NAMED: Final = re.compile(r"%(\w+)")
_DEFAULT_LIMITS: Final = Limits()
# Operators whose inputs are the data and then the parameters, in the order in which torch's takes them.
_IN_ORDER: Final = frozenset({"BatchNormalization", "LayerNormalization"})
_SPREADING: Final = frozenset({"Add", "Sub", "Mul", "Div"})


class _Use(NamedTuple):
    """One input of one node."""

    node: int
    position: int


def separate_parameters(encoded: bytes, *, limits: Limits = _DEFAULT_LIMITS) -> bytes:
    """Return an ONNX file with each of torch's parameters on its own; unchanged if none were merged.

    Raises:
        InvalidModel: MERGED_PARAMETERS (several operators read one tensor of equal numbers, and the file does
            not say whether it was one parameter or several), TOO_LARGE, or what the parser refuses before it
            decodes a file.
    """
    # Before protobuf decodes the file: a few bytes may become an object of 150.
    scan(encoded, limits)
    try:
        proto = onnx.ModelProto.FromString(encoded)
    except DecodeError:
        return encoded  # the parser says what is wrong
    graph = proto.graph
    shared = _shared_tensors(graph)
    if not shared:
        return encoded
    if len(graph.node) > limits.max_nodes:
        raise InvalidModel(
            ModelReason.TOO_LARGE,
            f"the graph has {len(graph.node)} operators, the limit is {limits.max_nodes}",
        )
    there = {tensor.name for tensor in graph.initializer}
    # A small file could ask for thousands of copies of its one large tensor.
    named, room = _named_parameters(graph), limits.max_bytes - len(encoded)
    for tensor, uses in shared:
        if all(_reads_a_constant(graph.node[use.node], named[use.node]) for use in uses) and _is_scalar(
            tensor
        ):
            del tensor.dims[:]  # a single number is no parameter
            continue
        meant = _meant(graph, uses, tensor.name, named, there)
        # A guess would tie parameters in silence, or untie what was meant as one.
        if meant is None:
            raise _reject(tensor.name, len(uses))
        for use, name in zip(uses, meant, strict=True):
            graph.node[use.node].input[use.position] = name
        for name in [one for one in dict.fromkeys(meant) if one not in there]:
            room -= tensor.ByteSize()
            if room < 0:
                raise InvalidModel(
                    ModelReason.TOO_LARGE,
                    f"with each merged parameter on its own the file has over {limits.max_bytes} bytes, the "
                    "limit: use a smaller model",
                )
            copied = onnx.TensorProto()
            copied.CopyFrom(tensor)
            copied.name = name
            graph.initializer.append(copied)
            there.add(name)
    return bytes(proto.SerializeToString(deterministic=True))


def _targets(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the name of each of torch's parameters and buffers, by the name that operators call it."""
    said = "".join(entry.value for entry in graph.metadata_props if entry.key == _SIGNATURE)
    return dict(_DECLARED.findall(said))


def _shared_tensors(graph: onnx.GraphProto) -> list[tuple[onnx.TensorProto, list[_Use]]]:
    """Return the float32 tensors of one value throughout that several operators read, with their readers."""
    uses: defaultdict[str, list[_Use]] = defaultdict(list)
    for number, node in enumerate(graph.node):
        for position, name in enumerate(node.input):
            uses[name].append(_Use(number, position))
    return [
        (tensor, uses[tensor.name])
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
        and len(tensor.dims)
        and len(uses[tensor.name]) > 1
        and _is_one_number(tensor)
    ]


def _is_one_number(tensor: onnx.TensorProto) -> bool:
    """Return whether all entries of a tensor are equal."""
    if tensor.raw_data:
        values = np.frombuffer(tensor.raw_data, "<f4") if len(tensor.raw_data) % 4 == 0 else np.empty(0)
    else:
        values = np.array(tensor.float_data, np.float32)
    return values.size > 0 and bool((values == values[0]).all())


def _named_parameters(graph: onnx.GraphProto) -> list[list[str]]:
    """Return for each node the parameters that it was made of, each once, in their order."""
    targets = _targets(graph)
    named = []
    for node in graph.node:
        said = "".join(entry.value for entry in node.metadata_props if entry.key == _MADE_OF)
        words = _NAMED.findall(said.partition(" = ")[2])
        named.append(list(dict.fromkeys(targets[word] for word in words if word in targets)))
    return named


def _reads_a_constant(node: onnx.NodeProto, named: list[str]) -> bool:
    """Return whether a node takes any shape that spreads, and was made of no parameter, as the file says.

    Such as attention's: its scale multiplies queries and keys.
    """
    is_told = any(entry.key == _MADE_OF for entry in node.metadata_props)
    return node.op_type in _SPREADING and is_told and not named


def _is_scalar(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor of no dimension does the same: more of them would add dimensions to others."""
    return list(tensor.dims) == [1]


def _meant(
    graph: onnx.GraphProto, uses: list[_Use], name: str, named: list[list[str]], there: set[str]
) -> list[str] | None:
    """Return the parameter that each use was of; None if the file does not say of one.

    A parameter that is in the file under its own name was not merged into this tensor.
    """
    by_node: defaultdict[int, list[_Use]] = defaultdict(list)
    for use in uses:
        by_node[use.node].append(use)
    found: dict[_Use, str] = {}
    for number, of_node in by_node.items():
        node, known = graph.node[number], named[number]
        if node.op_type in _IN_ORDER and len(known) == len(node.input) - 1:
            found.update({use: known[use.position - 1] for use in of_node if use.position})
        elif len(of_node) == len(possible := [one for one in known if one == name or one not in there]) == 1:
            found[of_node[0]] = possible[0]
    if len(found) < len(uses):
        return None
    return [found[use] for use in uses]


def _reject(name: str, readers: int) -> InvalidModel:
    return InvalidModel(
        ModelReason.MERGED_PARAMETERS,
        f"{readers} operators read the one tensor {name[:80]!r}, all of whose numbers are equal: an exporter "
        "merges parameters that begin with equal values, and would tie them. Export with torch's "
        "present exporter (`dynamo=True`), or let the parameters begin with small random values; if they are "
        "to be one, let one of its numbers differ",
    )
