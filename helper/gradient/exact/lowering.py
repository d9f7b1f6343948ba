"""From a checked model and a loss to a plan, or to one sentence on why there is none.

Each operator's lowering is a short function here; what the layers do is in their own files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from helper.gradient.exact.dense import Dense
from helper.gradient.exact.elementwise import Activation, Curve, Join, Softmax
from helper.gradient.exact.layer import NotExact, Trainable
from helper.gradient.exact.plan import Plan, PlanBuilder, attribute
from helper.gradient.exact.product import MAX_WIDTH
from maskedlark.model.graph import Loss, Model, Node

_BINARY: Final = Loss.BINARY_CROSS_ENTROPY


def lower(model: Model, loss: Loss) -> Plan:
    """The exact form of a model under a loss.

    Raises:
        NotExact: there is none.
    """
    nodes, output_name = _without_head(model, loss)
    builder = PlanBuilder(model)
    graph = _Graph(builder=builder, uses=_uses(nodes, output_name))
    for node in nodes:
        if node.outputs[0] in graph.done:
            continue
        lowering = _LOWERINGS.get(node.operator)
        if lowering is None:
            raise NotExact(f"the operator {node.operator} has no exact form")
        lowering(graph, node)
    return builder.finish(output_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """What the lowering functions share: the builder, who reads each value, and the outputs already taken in by an earlier node."""

    builder: PlanBuilder
    uses: Mapping[str, tuple[Node, ...]]
    done: set[str] = field(default_factory=set)
    transposed: dict[str, str] = field(default_factory=dict)

    def following(self, node: Node, operator: str) -> Node | None:
        """The only reader of a node's output, if it is this operator."""
        readers = self.uses.get(node.outputs[0], ())
        return readers[0] if len(readers) == 1 and readers[0].operator == operator else None


_OUTPUT: Final = Node(operator="", inputs=(), outputs=(), attributes={})


def _uses(nodes: tuple[Node, ...], output_name: str) -> dict[str, tuple[Node, ...]]:
    """The readers of each value; the model's output counts as one."""
    uses: dict[str, tuple[Node, ...]] = {output_name: (_OUTPUT,)}
    for node in nodes:
        for name in node.inputs:
            uses[name] = (*uses.get(name, ()), node)
    return uses


def _without_head(model: Model, loss: Loss) -> tuple[tuple[Node, ...], str]:
    """The nodes without a last Sigmoid or LogSoftmax that the loss takes in, and the value that the loss then reads."""
    last = model.nodes[-1]
    is_last = model.output_name in last.outputs
    if loss is _BINARY:
        if not is_last or last.operator != "Sigmoid":
            raise NotExact("binary_cross_entropy is exact only where the model ends in Sigmoid")
        return model.nodes[:-1], last.inputs[0]
    if loss is Loss.CROSS_ENTROPY and is_last and last.operator == "LogSoftmax":
        return model.nodes[:-1], last.inputs[0]
    return model.nodes, model.output_name


def _gemm(graph: _Graph, node: Node) -> None:
    if attribute(node, "alpha") != 1.0 or attribute(node, "beta") != 1.0 or node.attributes["transA"]:
        raise NotExact("Gemm has a factor or a transposed first input")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    _dense(graph, node, bias, is_transposed=bool(node.attributes["transB"]), output=node.outputs[0])


def _matmul(graph: _Graph, node: Node) -> None:
    follower = graph.following(node, "Add")
    bias = next((name for name in follower.inputs if name != node.outputs[0]), None) if follower else None
    if follower is None or bias is None or not graph.builder.is_parameter(bias):
        _dense(graph, node, None, is_transposed=False, output=node.outputs[0])
        return
    graph.done.add(follower.outputs[0])
    _dense(graph, node, bias, is_transposed=False, output=follower.outputs[0])


def _dense(graph: _Graph, node: Node, bias_name: str | None, *, is_transposed: bool, output: str) -> None:
    builder = graph.builder
    name = node.inputs[1]
    if name in graph.transposed:
        name, is_transposed = graph.transposed[name], not is_transposed
    source, weight = builder.value(node.inputs[0]), builder.parameter(name, node.operator)
    bias = builder.parameter(bias_name, node.operator) if bias_name else None
    if len(weight.shape) != 2 or len(source.shape) != 1:
        raise NotExact(f"{node.operator} multiplies a value of {len(source.shape) + 1} axes; the exact path takes one vector a record")
    outputs = weight.shape[0] if is_transposed else weight.shape[1]
    if max(weight.shape) > MAX_WIDTH:
        raise NotExact(f"{node.operator} has a weight of shape {weight.shape}; the exact path takes up to {MAX_WIDTH} inputs and outputs")
    if bias is not None:
        if bias.size != outputs:
            raise NotExact(f"{node.operator} has a bias of shape {bias.shape} for {outputs} outputs")
        bias = Trainable(index=bias.index, offset=bias.offset, shape=(outputs,))
    layer = Dense(
        weight=weight,
        bias=bias,
        is_transposed=is_transposed,
        reads_bytes=source.is_bytes and source.scale == 1.0,
        passes_back=builder.is_trained(source),
        key=builder.next_key,
    )
    builder.add(output, layer, (source,), (outputs,), has_parameters=True)


def _transpose(graph: _Graph, node: Node) -> None:
    builder = graph.builder
    if builder.is_parameter(node.inputs[0]):
        if node.attributes["perm"] != (1, 0):
            raise NotExact("a parameter is transposed that is not a matrix")
        graph.transposed[node.outputs[0]] = node.inputs[0]
        return
    raise NotExact("Transpose")


def _reshape(graph: _Graph, node: Node) -> None:
    value, shape = graph.builder.value(node.inputs[0]), node.attributes["shape"]
    if not isinstance(shape, tuple) or shape[:1] != (1,):
        raise NotExact("Reshape changes the record axis")
    graph.builder.alias(node.outputs[0], value, shape=tuple(int(size) for size in shape[1:]))


def _activation(curve: Curve) -> Callable[[_Graph, Node], None]:
    def lowering(graph: _Graph, node: Node) -> None:
        value = graph.builder.value(node.inputs[0])
        alpha = attribute(node, "alpha") if curve in (Curve.LEAKY_RELU, Curve.ELU) else 0.0
        graph.builder.add(node.outputs[0], Activation(curve=curve, alpha=float(np.float32(alpha))), (value,), value.shape)

    return lowering


def _softmax(graph: _Graph, node: Node) -> None:
    value = graph.builder.value(node.inputs[0])
    if len(value.shape) != 1 or node.attributes["axis"] != 1:
        raise NotExact("Softmax is exact only over all of a record's values")
    graph.builder.add(node.outputs[0], Softmax(), (value,), value.shape)


def _add(graph: _Graph, node: Node) -> None:
    left, right = (graph.builder.value(name) for name in node.inputs)
    if left.shape != right.shape:
        raise NotExact("Add joins values of two shapes")
    graph.builder.add(node.outputs[0], Join(), (left, right), left.shape)


_LOWERINGS: Final[Mapping[str, Callable[[_Graph, Node], None]]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Relu": _activation(Curve.RELU),
    "LeakyRelu": _activation(Curve.LEAKY_RELU),
    "Elu": _activation(Curve.ELU),
    "Sigmoid": _activation(Curve.SIGMOID),
    "Tanh": _activation(Curve.TANH),
    "Softplus": _activation(Curve.SOFTPLUS),
    "Softmax": _softmax,
    "Add": _add,
}
