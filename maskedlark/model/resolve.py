"""From the file's nodes to the graph that an engine runs.

Every shape known, constants computed, what does nothing left out.

A model is a function of one record. All shapes are worked out for one record; a second pass with two of them
shows that the record axis stays first, so that the ad server may also run records side by side.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final, TypeVar, cast

import numpy as np

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen
from maskedlark.model.graph import AttributeValue, Constant, GraphCost, Node
from maskedlark.model.limits import Limits
from maskedlark.model.node_proto import RawNode
from maskedlark.model.operators.call import KIND_OF_DTYPE, CheckedCall, OperatorCall, ValueKind, ValueType

_ABSENT: Final = ValueType(ValueKind.FLOAT, ())
_TRAINING_MODE: Final = 2  # the input of Dropout
_ACTIVATIONS: Final = frozenset({"Sigmoid", "Relu", "Tanh", "Softplus", "Exp", "Elu", "Gelu"})
AnyNode = TypeVar("AnyNode", Node, RawNode)


@frozen
class RawGraph:
    """A file's graph, with its initializers divided into weights and constants.

    Nodes are in an order in which every value is defined before it is used.
    """

    input_name: str
    input_width: int
    output_names: tuple[str, ...]
    opset: int
    nodes: tuple[RawNode, ...]
    parameters: Mapping[str, Constant]
    constants: Mapping[str, Constant]


@dataclass(slots=True, kw_only=True)
class ResolvedGraph:
    """The graph in normal form, for one number of records."""

    output_name: str
    output: ValueType
    outputs: tuple[tuple[str, int], ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Constant]
    work: GraphCost
    num_axes: Mapping[str, int]


@dataclass(slots=True)
class _State:
    """What is known after the nodes so far."""

    types: dict[str, ValueType]
    constants: dict[str, Constant]
    same_as: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    elements: int = 0
    computed: int = 0
    multiplications: int = 0


def resolve(graph: RawGraph, records: int, limits: Limits) -> ResolvedGraph:
    """Infer every shape for `records` records and bring the graph into normal form.

    Guarantees: the result's nodes all lead to the output; its constants are those that they read.

    Raises:
        InvalidModel: WRONG_SHAPE, TOO_LARGE, UNSUPPORTED_ATTRIBUTE or NOT_ONNX.
    """
    initial = {**graph.parameters, **graph.constants}
    types = {name: _type_of(value) for name, value in initial.items()}
    types[graph.input_name] = ValueType(ValueKind.FLOAT, (records, graph.input_width))
    state = _State(types, dict(graph.constants))
    for node in graph.nodes:
        _step(state, node, graph.opset, limits)
    output_name, outputs = _join_outputs(state, graph.output_names, records)
    # Again: undoing a squeeze and folding leave nodes that no output reads.
    nodes = leading_to((output_name,), state.nodes)
    used = {name for node in nodes for name in node.inputs}
    return ResolvedGraph(
        output_name=output_name,
        output=state.types[output_name],
        outputs=outputs,
        nodes=nodes,
        constants={name: value for name, value in state.constants.items() if name in used},
        work=GraphCost(multiplications=state.multiplications, entries=state.elements),
        num_axes={name: len(state.types[name].shape) for name in used if name},
    )


def _join_outputs(
    state: _State, names: tuple[str, ...], records: int
) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return the value of all outputs concatenated, and each output's width."""
    values = [state.same_as.get(name, name) for name in names]
    columns = [_with_column(state, name, records, others=values) for name in values]
    if len(columns) == 1:
        return columns[0], (
            (names[0], state.types[columns[0]].shape[-1] if state.types[columns[0]].shape else 1),
        )
    types = [state.types[column] for column in columns]
    if any(
        one.kind is not ValueKind.FLOAT or len(one.shape) != 2 or one.shape[0] != records for one in types
    ):
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"the outputs have the shapes {', '.join(str(one.shape) for one in types)} for {records} "
            "record(s): each must be float32 of shape (records, columns)",
        )
    joined = "/".join((*names, "joined"))
    if joined in state.types:
        raise InvalidModel(ModelReason.NOT_ONNX, f"the value {joined[:80]!r} is defined twice")
    widths = tuple(one.shape[1] for one in types)
    state.types[joined] = ValueType(ValueKind.FLOAT, (records, sum(widths)))
    state.nodes.append(
        Node(operator="Concat", inputs=tuple(columns), outputs=(joined,), attributes={"axis": 1})
    )
    return joined, tuple(zip(names, widths, strict=True))


def _with_column(state: _State, output_name: str, records: int, others: Sequence[str]) -> str:
    """Return the output as (records, outputs), undoing a final `squeeze(-1)` of one-output models."""
    if state.types[output_name] != ValueType(ValueKind.FLOAT, (records,)):
        return output_name
    column = (records, 1)
    made_by = {name: node for node in state.nodes for name in node.outputs}
    # A value that others read too keeps its shape: they expect a vector.
    read = Counter([*others, *(name for node in state.nodes for name in node.inputs)])
    after: list[Node] = []  # activations between the squeeze and the output
    name = output_name
    while (node := made_by.get(name)) and node.operator in _ACTIVATIONS and read[node.inputs[0]] == 1:
        after.append(node)
        name = node.inputs[0]
    if node and node.operator == "Reshape" and state.types[node.inputs[0]].shape == column:
        if not after:
            return node.inputs[0]
        first = after[-1]
        state.nodes[state.nodes.index(first)] = replace(first, inputs=node.inputs)
        state.types.update({one.outputs[0]: ValueType(ValueKind.FLOAT, column) for one in after})
        return output_name
    whole = f"{output_name}/column"
    if whole in state.types:
        raise InvalidModel(ModelReason.NOT_ONNX, f"the value {whole[:80]!r} is defined twice")
    state.types[whole] = ValueType(ValueKind.FLOAT, column)
    state.nodes.append(
        Node(operator="Reshape", inputs=(output_name,), outputs=(whole,), attributes={"shape": column})
    )
    return whole


def leading_to(output_names: Iterable[str], nodes: Iterable[AnyNode]) -> tuple[AnyNode, ...]:
    """Return the nodes that the outputs depend on, in their order."""
    wanted = set(output_names)
    kept = []
    for node in reversed(list(nodes)):
        if not wanted.isdisjoint(name for name in node.outputs if name):
            wanted.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


def _type_of(value: Constant) -> ValueType:
    return ValueType(KIND_OF_DTYPE[value.dtype.kind], value.shape)


def _step(state: _State, node: RawNode, opset: int, limits: Limits) -> None:
    """Bring one node into normal form and record what it gives."""
    inputs = tuple(state.same_as.get(name, name) for name in node.inputs)
    if node.row.rule is None:
        _replace(state, replace(node, inputs=inputs), limits)
        return
    call = OperatorCall(
        operator=node.operator,
        inputs=inputs,
        types=tuple(state.types[name] if name else _ABSENT for name in inputs),
        constants=state.constants,
        # Only operators without a rule, such as Constant, carry tensors.
        attributes=cast("Mapping[str, AttributeValue]", node.attributes),
        num_outputs=len(node.outputs),
        opset=opset,
    )
    checked = node.row.rule(call)
    if checked.is_identity:
        # These inputs are resolved already: one look-up finds the original value, however long the chain.
        state.same_as[node.outputs[0]] = inputs[0]
        return
    for value in checked.outputs:
        _check_size(state, node.operator, value, limits)
    state.multiplications += checked.multiplications
    if state.multiplications > limits.max_multiplications:
        raise InvalidModel(
            ModelReason.TOO_LARGE,
            f"the model needs more than {limits.max_multiplications} multiplications a record",
        )
    # Bounded before it is computed, because many small nodes may each make a large constant.
    folded = None
    if all(name in state.constants for name in checked.inputs):
        _check_computed(state, checked.outputs[0].size, limits)
        folded = _fold(checked, [state.constants[name] for name in checked.inputs])
    if folded is not None:
        _define(state, node.outputs[0], folded)
        return
    state.types.update(zip(node.outputs, checked.outputs, strict=False))  # later outputs may have no name
    state.nodes.append(
        Node(
            operator=checked.operator,
            inputs=checked.inputs,
            outputs=node.outputs,
            attributes=checked.attributes,
        )
    )


def _check_size(state: _State, operator: str, value: ValueType, limits: Limits) -> None:
    state.elements += value.size
    if (
        value.size > limits.max_elements
        or len(value.shape) > limits.max_rank
        or state.elements > limits.max_total_elements
    ):
        raise InvalidModel(
            ModelReason.TOO_LARGE,
            f"{operator}: a value of shape {value.shape} is too large (at most {limits.max_rank} axes, "
            f"{limits.max_elements} entries, "
            f"{limits.max_total_elements} in all values together)",
        )
    if value.size == 0 and value.kind is ValueKind.FLOAT:
        raise InvalidModel(ModelReason.WRONG_SHAPE, f"{operator}: a value of shape {value.shape} is empty")


def _check_computed(state: _State, size: int, limits: Limits) -> None:
    state.computed += size
    if state.computed > limits.max_computed_elements:
        raise InvalidModel(
            ModelReason.TOO_LARGE,
            f"the graph computes constants of more than {limits.max_computed_elements} entries",
        )


def _define(state: _State, name: str, value: Constant) -> None:
    state.constants[name] = value
    state.types[name] = _type_of(value)


def _replace(state: _State, node: RawNode, limits: Limits) -> None:
    """Do away with a node that is a constant or that passes its input on."""
    if node.operator in ("Identity", "Dropout"):
        mode = (
            state.constants.get(node.inputs[_TRAINING_MODE])
            if len(node.inputs) > _TRAINING_MODE
            else np.False_
        )
        # A mode that the graph computes could turn training on for some records.
        if mode is None or np.any(mode):
            raise InvalidModel(
                ModelReason.UNSUPPORTED_ATTRIBUTE,
                "Dropout: training_mode must be false: export the model in eval mode",
            )
        state.same_as[node.outputs[0]] = node.inputs[0]
    elif node.operator == "Constant":
        _define(state, node.outputs[0], _constant(node))
    elif node.operator == "ConstantOfShape":
        _define(state, node.outputs[0], _fill(state, node, limits))
    else:
        cut = slice(cast("int", node.attributes["start"]), cast("int", node.attributes["end"]))
        _define(state, node.outputs[0], np.array(state.types[node.inputs[0]].shape[cut], np.int64))


def _constant(node: RawNode) -> Constant:
    if len(node.attributes) != 1:
        raise InvalidModel(ModelReason.NOT_ONNX, "Constant: needs exactly one value")
    ((name, value),) = node.attributes.items()
    return (
        np.array(value) if name == "value" else np.array(value, np.float32 if "float" in name else np.int64)
    )


def _fill(state: _State, node: RawNode, limits: Limits) -> Constant:
    shape = state.constants.get(node.inputs[0])
    if shape is None or shape.ndim != 1 or shape.dtype.kind != "i" or (shape < 0).any():
        raise InvalidModel(ModelReason.WRONG_SHAPE, "ConstantOfShape: the shape must be known integers")
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32)))
    if value.size != 1:
        raise InvalidModel(ModelReason.WRONG_SHAPE, "ConstantOfShape: the value must be one number")
    sizes = tuple(int(size) for size in shape)
    # Before `full`: the file may ask for any number of bytes by a few integers.
    _check_size(state, node.operator, ValueType(KIND_OF_DTYPE[value.dtype.kind], sizes), limits)
    _check_computed(state, prod(sizes), limits)
    return np.full(sizes, value.reshape(()), value.dtype)


_Attributes = Mapping[str, Any]  # a rule of `operators.layout` wrote them: their types are known here


def _cut(values: Sequence[Constant], attributes: _Attributes, _: CheckedCall) -> Constant:
    cuts = [slice(None)] * values[0].ndim
    for axis, start, end, step in zip(
        *(attributes[key] for key in ("axes", "starts", "ends", "steps")), strict=True
    ):
        cuts[axis] = slice(start, end, step)
    return values[0][tuple(cuts)]


def _divide(values: Sequence[Constant]) -> Constant:
    """Divide toward zero, as ONNX divides integers."""
    quotient = np.floor_divide(*_nonzero(values))
    # Rounded down is one too low where the quotient is negative and has a remainder.
    rounded: Constant = quotient + ((quotient < 0) & (quotient * values[1] != values[0]))
    return rounded


def _modulo(values: Sequence[Constant]) -> Constant:
    return np.mod(*_nonzero(values))


def _nonzero(values: Sequence[Constant]) -> Sequence[Constant]:
    if not values[1].all():
        raise InvalidModel(ModelReason.WRONG_SHAPE, "the graph divides integers by zero")
    return values


_MOVES: Final[Mapping[str, Callable[[Sequence[Constant], _Attributes, CheckedCall], Constant]]] = {
    "Reshape": lambda values, _, check: values[0].reshape(check.outputs[0].shape),
    "Expand": lambda values, _, check: np.broadcast_to(values[0], check.outputs[0].shape),
    "Transpose": lambda values, attributes, _: values[0].transpose(attributes["perm"]),
    "Concat": lambda values, attributes, _: np.concatenate(values, axis=attributes["axis"]),
    "Gather": lambda values, attributes, _: np.take(values[0], values[1], axis=attributes["axis"]),
    "GatherND": lambda values, _, __: values[0][tuple(np.moveaxis(values[1], -1, 0))],
    "Slice": _cut,
}
_ARITHMETIC: Final[Mapping[str, Callable[[Sequence[Constant]], Constant]]] = {
    "Add": lambda values: np.add(*values),
    "Sub": lambda values: np.subtract(*values),
    "Mul": lambda values: np.multiply(*values),
    "Div": _divide,
    "Mod": _modulo,
}


def _fold(check: CheckedCall, values: Sequence[Constant]) -> Constant | None:
    """Compute a node whose inputs are known; None where it is left to the engines.

    Exporters build shapes and start states from such nodes. Only moves of entries and integer arithmetic are
    computed, so nothing is rounded here.

    Guarantees: the result has the checked kind and shape, and is a fresh array.

    Raises:
        InvalidModel(WRONG_SHAPE): a division by zero.
    """
    with np.errstate(all="ignore"):  # integer overflow wraps; a shape made of it is refused where it is used
        if check.operator in _MOVES:
            result = _MOVES[check.operator](values, check.attributes, check)
        elif check.operator in _ARITHMETIC and all(value.dtype.kind == "i" for value in values):
            result = _ARITHMETIC[check.operator](values)
        elif check.operator == "Cast" and values[0].dtype.kind in "ib":
            result = values[0].astype(np.float32)
        else:
            return None
    # A fresh array: a view would keep the whole of what it was cut from, and change with it.
    return np.array(result).reshape(check.outputs[0].shape)
