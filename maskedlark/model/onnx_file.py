"""An ONNX file as a `Model`, and back.

The gate that everything an ad server sends as a model passes at each helper.

The file comes from an untrusted party and is read in memory only. Checks run from cheap to expensive: the
bytes are scanned (`wire_scan`), decoded by protobuf, each node is held against the allow-list (`node_proto`,
`operators`), and the shapes are worked out (`resolve`). No path is opened, no code of onnx but the message
classes is used, and only `InvalidModel` comes out.
"""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from maskedlark.canonical import digest
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.graph import Constant, Model, Node, Parameter
from maskedlark.model.limits import Limits
from maskedlark.model.node_proto import DEFAULT_DOMAINS, RawNode, read_node
from maskedlark.model.operators.call import ValueKind
from maskedlark.model.resolve import RawGraph, ResolvedGraph, leading_to, resolve
from maskedlark.model.tensor_proto import to_array
from maskedlark.model.weights import quantise
from maskedlark.model.wire_scan import scan

MIN_OPSET: Final = 11
MAX_OPSET: Final = 23
_MAX_OUTPUTS: Final = 16
_DEFAULT_LIMITS: Final = Limits()


def parse(
    encoded: bytes,
    *,
    num_features: int,
    limits: Limits = _DEFAULT_LIMITS,
    trained: Sequence[str] | None = None,
) -> Model:
    """Check an ONNX file and bring it into the form that engines run.

    Called by both helpers and the ad server.

    Trained are the float32 initializers that reach a parameter position of an operator (`operators.table`),
    unless they hold one number of rank 0: exporters store plain constants so. Everything else is constant,
    and so are the parameters that `trained` leaves out, at the values that the file has for them.

    Args:
        encoded: The file.
        num_features: The task's number of features: the width that the input must have.
        limits: What is too large.
        trained: The parameters that train: some of the model's, in its order. None: all of them.

    Guarantees: the same bytes and names give the same model, with the same digest, everywhere; parsing reads
        no file.

    Raises:
        InvalidModel: every reason but UNKNOWN_LOSS and WRONG_LOSS.
    """
    # Before protobuf: decoding a hostile file is what is to be avoided.
    scan(encoded, limits)
    proto = _decode(encoded)
    graph, is_batched = _read_graph(proto, num_features, limits)
    resolved = resolve(graph, 1, limits)
    width = _output_width(resolved, 1)
    # A file that fixes its first axis at 1 cannot be asked: engines run it for one record at a time.
    if is_batched:
        _check_record_axis(graph, width, limits)
    return _model(graph, resolved, width, trained)


def replace_parameters(encoded: bytes, model: Model, values: Sequence[NDArray[np.float32]]) -> bytes:
    """Return the ONNX file with other parameter values: how a trained model leaves the ad server.

    Args:
        encoded: The file that `model` was parsed from.
        model: Says which initializers are parameters.
        values: One finite float32 array a parameter, in the model's order.

    Raises:
        InvalidModel: NOT_ONNX (the file is not the model's), WRONG_SHAPE or NOT_FINITE (a value).
    """
    if parse(encoded, num_features=model.input_width, trained=trained_names(model)).digest != model.digest:
        raise InvalidModel(ModelReason.NOT_ONNX, "the file is not the one that this model was parsed from")
    if len(values) != len(model.parameters):
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"{len(values)} arrays given, the model has {len(model.parameters)} parameters",
        )
    proto = _decode(encoded)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for parameter, value in zip(model.parameters, values, strict=True):
        if value.shape != parameter.shape:
            raise InvalidModel(
                ModelReason.WRONG_SHAPE, f"{parameter.name!r} has shape {parameter.shape}, not {value.shape}"
            )
        # Helpers refuse such a file, and so would its owner's next job.
        if not np.isfinite(value).all():
            raise InvalidModel(ModelReason.NOT_FINITE, f"the new value of {parameter.name!r} is not finite")
        tensor = tensors[parameter.name]
        tensor.ClearField("float_data")  # else the values would stand in two fields, which `parse` refuses
        tensor.raw_data = np.ascontiguousarray(value, "<f4").tobytes()
    return proto.SerializeToString(deterministic=True)


def trained_names(model: Model) -> tuple[str, ...] | None:
    """Return the parameters that train, as `parse` takes them: None for all."""
    return tuple(parameter.name for parameter in model.parameters) if model.frozen else None


def _decode(encoded: bytes) -> onnx.ModelProto:
    try:
        proto = onnx.ModelProto.FromString(encoded)
    except DecodeError:
        raise InvalidModel(ModelReason.NOT_ONNX, "not an ONNX file: protobuf cannot decode it") from None
    if not proto.HasField("graph"):
        raise InvalidModel(ModelReason.NOT_ONNX, "not an ONNX file: it holds no graph")
    return proto


def _read_graph(proto: onnx.ModelProto, num_features: int, limits: Limits) -> tuple[RawGraph, bool]:
    """Read the graph, and whether its input takes any number of records.

    Its values are checked to be well defined.
    """
    opset = _opset(proto)
    if len(proto.graph.node) > limits.max_nodes:
        raise InvalidModel(
            ModelReason.TOO_LARGE,
            f"the graph has {len(proto.graph.node)} nodes, the limit is {limits.max_nodes}",
        )
    initializers = _read_initializers(proto.graph, limits)
    input_name, is_batched = _read_input(proto.graph, initializers.keys(), num_features)
    output_names = _read_outputs(proto.graph)
    nodes = tuple(read_node(node, limits) for node in proto.graph.node)
    _check_definitions(nodes, {input_name, *initializers}, output_names)
    nodes = leading_to(output_names, nodes)
    trained = _find_trained(nodes, initializers)
    _check_parameter_count(trained, limits)
    graph = RawGraph(
        input_name=input_name,
        input_width=num_features,
        output_names=output_names,
        opset=opset,
        nodes=nodes,
        parameters=trained,
        constants={name: value for name, value in initializers.items() if name not in trained},
    )
    return graph, is_batched


def _opset(proto: onnx.ModelProto) -> int:
    # One default operator set decides what each node means; those of other domains are not used.
    versions = [entry.version for entry in proto.opset_import if entry.domain in DEFAULT_DOMAINS]
    if len(versions) != 1:
        raise InvalidModel(ModelReason.NOT_ONNX, "the file must import the default operator set once")
    if not MIN_OPSET <= versions[0] <= MAX_OPSET:
        raise InvalidModel(
            ModelReason.UNKNOWN_OPERATOR, f"opset {versions[0]} is outside {MIN_OPSET}..{MAX_OPSET}"
        )
    return int(versions[0])


def _read_initializers(graph: onnx.GraphProto, limits: Limits) -> dict[str, Constant]:
    """Read every initializer by name, in the file's order."""
    initializers: dict[str, Constant] = {}
    for tensor in graph.initializer:
        # Of two with one name each reader could take another one.
        if not tensor.name or tensor.name in initializers:
            raise InvalidModel(
                ModelReason.NOT_ONNX, f"the name {tensor.name[:80]!r} of an initializer is empty or repeats"
            )
        initializers[tensor.name] = to_array(tensor, limits)
    return initializers


def count_inputs(count: int) -> str:
    """Say that a graph has a wrong number of inputs."""
    return f"the graph has {count} inputs: it must have one, the features"


def _read_input(
    graph: onnx.GraphProto, initializers: AbstractSet[str], num_features: int
) -> tuple[str, bool]:
    """Return the one input that is not an initializer, and whether its first axis is open.

    Older files list initializers as inputs too.
    """
    inputs = [value for value in graph.input if value.name not in initializers]
    if len(inputs) != 1 or not inputs[0].name:
        raise InvalidModel(ModelReason.WRONG_SHAPE, count_inputs(len(inputs)))
    tensor = inputs[0].type.tensor_type
    axes = list(tensor.shape.dim)
    if tensor.elem_type != onnx.TensorProto.FLOAT or len(axes) != 2 or axes[1].dim_value != num_features:
        width = axes[1].dim_value if len(axes) == 2 else 0
        given = f": {num_features} features wanted, {width} given" if width not in (0, num_features) else ""
        raise InvalidModel(
            ModelReason.WRONG_SHAPE, f"the input must be float32 of shape (records, {num_features}){given}"
        )
    if axes[0].HasField("dim_value") and axes[0].dim_value != 1:
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            "the first axis of the input must be dynamic or 1: export with an example of one record, or with"
            " dynamic_shapes",
        )
    return inputs[0].name, not axes[0].HasField("dim_value")


def _read_outputs(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Return the names of the outputs, one for each head."""
    names = tuple(output.name for output in graph.output)
    if not 1 <= len(names) <= _MAX_OUTPUTS or len(set(names)) < len(names):
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"the graph has {len(names)} outputs: it must have 1 to {_MAX_OUTPUTS}, of different names",
        )
    return names


def _check_definitions(nodes: Sequence[RawNode], defined: set[str], output_names: Sequence[str]) -> None:
    """Check that every value is defined once, before its use: so there is no cycle."""
    usable = {*defined, ""}
    for node in nodes:
        missing = [name for name in node.inputs if name not in usable]
        if missing:
            raise InvalidModel(
                ModelReason.NOT_ONNX, f"{node.operator} reads {missing[0][:80]!r} before it is defined"
            )
        for name in filter(None, node.outputs):
            if name in defined:
                raise InvalidModel(ModelReason.NOT_ONNX, f"the value {name[:80]!r} is defined twice")
            defined.add(name)
        # The mask of Dropout does not exist.
        usable.update(node.outputs[:1] if node.operator == "Dropout" else node.outputs)
    for name in output_names:
        if name not in usable - {""}:
            raise InvalidModel(ModelReason.NOT_ONNX, f"the output {name[:80]!r} is not defined")


def _find_trained(nodes: Sequence[RawNode], initializers: dict[str, Constant]) -> dict[str, Constant]:
    """Return the initializers that are trained, in the file's order."""
    # From the outputs back, so that a weight is found behind nodes that only move it on its way.
    reaching: set[str] = set()
    for node in reversed(nodes):
        positions = node.row.parameters
        if not reaching.isdisjoint(node.outputs):
            positions |= node.row.carries
        reaching.update(name for position, name in enumerate(node.inputs) if position in positions)
    found = {
        name: value for name, value in initializers.items() if name in reaching and value.ndim and value.size
    }
    # A float64 weight would silently stay as it is: exporters mean it to be trained.
    for name, value in found.items():
        if value.dtype == np.float64:
            raise InvalidModel(
                ModelReason.WRONG_SHAPE, f"the weight {name[:80]!r} is float64: export the model in float32"
            )
    return {name: value for name, value in found.items() if value.dtype == np.float32}


def _check_parameter_count(trained: dict[str, Constant], limits: Limits) -> None:
    count = sum(value.size for value in trained.values())
    if count > limits.max_parameters:
        raise InvalidModel(
            ModelReason.TOO_LARGE, f"the model has {count} parameters, the limit is {limits.max_parameters}"
        )


def _output_width(resolved: ResolvedGraph, records: int) -> int:
    kind, shape = resolved.output.kind, resolved.output.shape
    if kind is not ValueKind.FLOAT or len(shape) != 2 or shape[0] != records:
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"the output has shape {shape} for {records} record(s): it must be float32 of shape (records, "
            "outputs), and treat "
            "each record alone",
        )
    return shape[1]


def _check_record_axis(graph: RawGraph, width: int, limits: Limits) -> None:
    """Check that two records at once give two rows of the same width."""
    if _output_width(resolve(graph, 2, limits), 2) != width:
        raise InvalidModel(ModelReason.WRONG_SHAPE, "the output's width depends on the number of records")


def _model(graph: RawGraph, resolved: ResolvedGraph, width: int, trained: Sequence[str] | None) -> Model:
    # A parameter that reaches no output would be clipped, noised and sent for nothing.
    used = {name for node in resolved.nodes for name in node.inputs}
    values = {name: value for name, value in graph.parameters.items() if name in used}
    if not values:
        raise InvalidModel(
            ModelReason.NOTHING_TO_TRAIN, "no float32 initializer of the graph is a trainable parameter"
        )
    frozen = {} if trained is None else _freeze(values, trained)
    values = {name: value for name, value in values.items() if name not in frozen}
    parameters = tuple(Parameter(name=name, shape=value.shape) for name, value in values.items())
    model = Model(
        input_name=graph.input_name,
        input_width=graph.input_width,
        output_name=resolved.output_name,
        output_width=width,
        outputs=resolved.outputs,
        nodes=resolved.nodes,
        parameters=parameters,
        initial_values=tuple(values.values()),
        constants={**resolved.constants, **frozen},
        work=resolved.work,
        digest=b"",
        frozen=tuple(frozen),
        num_axes=resolved.num_axes,
    )
    return replace(model, digest=_digest(model))


def _freeze(values: Mapping[str, Constant], trained: Sequence[str]) -> dict[str, Constant]:
    """Return the parameters that are not trained, rounded as a round's weights are.

    There is one way to name a choice: some parameters and not all, each once, in the model's order.
    """
    unknown = next((name for name in trained if name not in values), None)
    if unknown is not None:
        raise InvalidModel(
            ModelReason.WRONG_PARAMETERS,
            f"the job trains {unknown[:80]!r}, which is no parameter of the model: "
            "`adserver model show` lists them",
        )
    chosen = set(trained)
    frozen = [name for name in values if name not in chosen]
    if not trained or not frozen or list(trained) != [name for name in values if name in chosen]:
        raise InvalidModel(
            ModelReason.WRONG_PARAMETERS,
            f"the job names {len(trained)} of the model's {len(values)} parameters to train: name some and "
            "not all, each once, in the model's order",
        )
    return {name: quantise(values[name], name).to_float().astype(np.float32) for name in frozen}


def _digest(model: Model) -> bytes:
    """Return the 32 bytes that both helpers and the ad server compute alike; ignores `model.digest`.

    The canonical form is JSON of plain lists: attributes and constants in the order of their names, floats as
    Python's shortest exact decimals (an int and a float of one value differ), each constant by the hash of
    its little-endian bytes.
    """
    structure: list[Any] = [
        [model.input_name, model.input_width, model.output_name, model.output_width],
        [_as_list(node) for node in model.nodes],
        [[parameter.name, parameter.shape] for parameter in model.parameters],
        [[name, *_array(model.constants[name])] for name in sorted(model.constants)],
    ]
    # Absent unless used: models of one output, or without frozen parameters, keep the digests that they have.
    if len(model.outputs) > 1:
        structure.append([list(one) for one in model.outputs])
    if model.frozen:  # their values are among the constants
        structure.append({"frozen": model.frozen})
    return digest(
        "model",
        json.dumps(structure, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii"),
    )


def _as_list(node: Node) -> list[Any]:
    return [node.operator, node.inputs, node.outputs, sorted(node.attributes.items())]


def _array(value: Constant) -> list[Any]:
    little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return [little.dtype.str, value.shape, sha256(little.data).hexdigest()]
