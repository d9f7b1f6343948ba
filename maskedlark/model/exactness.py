"""Why a model would train on the general path, as far as its graph shows before a helper has seen it.

A helper decides when a job opens (`helper.gradient.choose`): what is listed here forces the general path,
where samples are no secret and records take a hundred times as long. A graph of which nothing is listed may
still have a form that the exact path does not take; the job then says so.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from maskedlark.model.graph import Model, Node
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.losses import Loss

EXACT: Final = frozenset(
    {
        "Add", "AveragePool", "BatchNormalization", "Cast", "Concat", "Conv", "Div", "Elu", "Expand",
        "Gather", "GatherND", "Gemm", "LayerNormalization", "LeakyRelu", "MatMul", "MaxPool", "Mul", "Pow",
        "ReduceMean", "ReduceSum", "Relu", "Reshape", "Sigmoid", "Slice", "Softmax", "Softplus", "Split",
        "Sub", "Tanh", "Transpose",
    }
)  # fmt: skip
INSTEAD: Final = {
    "Gelu": "Relu, Elu or SiLU",
    "Erf": "Relu, Elu or SiLU, where it is a part of GELU",
    "LSTM": "convolutions over the steps",
    "GRU": "convolutions over the steps",
    "PRelu": "LeakyRelu",
    "Clip": "Relu",
    "LogSoftmax": "the loss cross_entropy on the values before it",
    "Exp": "the loss poisson on the log-rate",
    "Where": "a sum of products",
    "Greater": "Relu or Sigmoid of the difference; Elu, where it is a part of torch's Softplus",
    "Log": "logarithms that are taken before columns are encoded",
    "Mod": "bytes as they are: the encoder divides an id into them",
    "Sqrt": "LayerNormalization, where it is a part of one",
}
"""What to write in place of each operator that the exact path does not have."""

# Axes of one vector a record
_VECTOR: Final = 2
_BYTE: Final = 256.0
_WHOLE: Final = (6, 7)  # ONNX's numbers of int32 and int64
_CHOOSING: Final = ("Gather", "GatherND", "Reshape", "Slice", "Split", "Transpose")


def why_general(model: Model, loss: TrainedLoss | None) -> tuple[str, ...]:
    """Return what forces a model to the general path, each with what to write instead; empty if nothing does.

    Args:
        model: The checked graph.
        loss: What the job minimises, where it is known.
    """
    nodes, found = list(model.nodes), []
    if loss is Loss.BINARY_CROSS_ENTROPY:
        if nodes[-1].operator == "Sigmoid":
            nodes.pop()
        else:
            found.append(
                "binary_cross_entropy without a last Sigmoid: use binary_cross_entropy_with_logits on logits"
            )
    # The loss takes the softmax of its input anyway: a LogSoftmax before it changes nothing.
    elif loss in (Loss.CROSS_ENTROPY, None) and nodes[-1].operator == "LogSoftmax":
        nodes.pop()
    for operator in sorted({node.operator for node in nodes} - EXACT):
        instead = INSTEAD.get(operator)
        found.append(f"the operator {operator}" + (f": use {instead}" if instead else ""))
    names = {parameter.name for parameter in model.parameters}
    # One table may be read by several Gathers; any other parameter has one use.
    uses = Counter(name for node in nodes for name in node.inputs if name in names)
    looked_up = {node.inputs[0] for node in nodes if node.operator == "Gather"}
    others = {name for node in nodes if node.operator != "Gather" for name in node.inputs}
    found += [
        f"the parameter {name!r} has {count} uses: give each its own"
        for name, count in uses.items()
        if count > 1 and (name in others or name not in looked_up)
    ]
    made = {name: node for node in nodes for name in node.outputs}
    found += [why for node in nodes if (why := _why(model, node, names) or _why_no_code(model, node, made))]
    return tuple(dict.fromkeys(found))


def _why(model: Model, node: Node, names: set[str]) -> str | None:
    """Return what of a node's inputs has no exact form."""
    known = [name in model.constants for name in node.inputs]
    if node.operator == "Div" and not known[1]:
        return "Div by a computed value: multiply instead"
    power = model.constants.get(node.inputs[-1]) if node.operator == "Pow" else None
    if node.operator == "Pow" and (power is None or not (np.asarray(power) == 2).all()):
        return "Pow with another exponent than 2"
    if node.operator == "MatMul" and not any(known) and names.isdisjoint(node.inputs):
        made = {
            name for one in model.nodes if one.operator in ("Transpose", "Reshape") for name in one.outputs
        }
        return None if made & set(node.inputs) else "MatMul of two computed values (attention)"
    num_axes = model.num_axes.get(node.inputs[0], _VECTOR)
    if node.operator in ("Gemm", "MatMul") and num_axes > _VECTOR and not known[1]:
        return f"{node.operator} at each step of a sequence: use a convolution with a kernel of 1"
    if node.operator == "Softmax" and num_axes > _VECTOR:
        return "Softmax over a part of a record's values: use Sigmoid"
    return None


def _why_no_code(model: Model, node: Node, made: Mapping[str, Node]) -> str | None:
    """Return why the whole numbers that a node makes of features are not their bytes."""
    factor = _factor_of_code(model, node, made)
    if factor in (None, _BYTE):
        return None
    return f"whole numbers of features times {factor:g}: write (x * 256).long(), which gives their bytes"


def find_code_factors(model: Model) -> set[float]:
    """Return the numbers that features are multiplied by before the graph makes whole numbers of them."""
    made = {name: node for node in model.nodes for name in node.outputs}
    found = (_factor_of_code(model, node, made) for node in model.nodes)
    return {factor for factor in found if factor is not None}


def _factor_of_code(model: Model, node: Node, made: Mapping[str, Node]) -> float | None:
    """Return the factor of features of which a node makes whole numbers; None of any other node."""
    if node.operator != "Cast" or node.attributes["to"] not in _WHOLE:
        return None
    return _factor_of_features(model, made, node.inputs[0])


def _factor_of_features(model: Model, made: Mapping[str, Node], name: str) -> float | None:
    """Return what chosen features are multiplied by in a value; None where it is made in another way."""
    factor = 1.0
    while name != model.input_name:
        node = made.get(name)
        if node is None:
            return None
        constants = [model.constants[one] for one in node.inputs if one in model.constants]
        if node.operator == "Mul" and constants and np.size(constants[0]) == 1:
            factor *= float(np.reshape(constants[0], ()))
            name = next((one for one in node.inputs if one not in model.constants), "")
        elif node.operator in _CHOOSING:
            name = node.inputs[0]
        else:
            return None
    return factor
