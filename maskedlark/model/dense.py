"""Fully connected networks as ONNX files, written without torch.

For `adserver model create`, demos and tests.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.activations import FINAL_ACTIVATIONS, HIDDEN_ACTIVATIONS
from maskedlark.randomness import Randomness, seeded, uniform

# The first with Gelu, which is among the activations.
_OPSET: Final = 20
_IR_VERSION: Final = 10


def dense_network(
    layers: Sequence[int],
    activation: str,
    *,
    seed: int,
    final: str = "linear",
    centres: Sequence[int] | None = None,
) -> bytes:
    """Build an ONNX file of a fully connected network. Called by the ad server.

    Args:
        layers: Widths from the features to the outputs; at least two.
        activation: After every layer but the last: a name of `HIDDEN_ACTIVATIONS`.
        seed: Of the initial weights, which are uniform in +-1/sqrt(fan_in), as torch.nn.Linear's are.
        final: After the last layer: a name of `FINAL_ACTIVATIONS`.
        centres: A byte for each feature, such as its mean's, which is subtracted; the difference enters
            doubled, in (-2, 2). A direction that all records share would take most of each gradient. None:
            features enter as they are, in [0, 1).

    Guarantees: the same arguments give the same bytes with one version of onnx; the parameters are `0.weight`
        (outputs, inputs), `0.bias`, `1.weight` and so on, and `parse` accepts the file.

    Raises:
        InvalidModel: WRONG_SHAPE (a width, or how many centres) or UNKNOWN_OPERATOR (an activation).
    """
    if len(layers) < 2 or min(layers) < 1:
        raise InvalidModel(
            ModelReason.WRONG_SHAPE, f"layers must be at least two positive widths, not {list(layers)}"
        )
    if activation not in HIDDEN_ACTIVATIONS or final not in FINAL_ACTIVATIONS:
        raise InvalidModel(
            ModelReason.UNKNOWN_OPERATOR,
            f"activation must be one of {', '.join(HIDDEN_ACTIVATIONS)} and final one of "
            f"{', '.join(FINAL_ACTIVATIONS)}",
        )
    if centres is not None and len(centres) != layers[0]:
        raise InvalidModel(
            ModelReason.WRONG_SHAPE, f"centres must be {layers[0]}, one a feature, not {len(centres)}"
        )
    randomness = seeded(seed, "dense_network")
    nodes, initializers, value = [], [], "features"
    if centres is not None:
        # Of rank 0: `parse` takes such an initializer for a constant, not for a weight.
        initializers.append(float_tensor("unit", np.float32(2.0)))
        nodes += [
            constant_bytes("centres", centres),
            helper.make_node("Sub", ["features", "centres"], ["around_zero"]),
            helper.make_node("Mul", ["around_zero", "unit"], ["centred"]),
        ]
        value = "centred"
    last = len(layers) - 2
    for index, (fan_in, width) in enumerate(pairwise(layers)):
        initializers += _layer_parameters(index, fan_in, width, randomness)
        nodes.append(
            helper.make_node("Gemm", [value, f"{index}.weight", f"{index}.bias"], [f"{index}.sum"], transB=1)
        )
        value = f"{index}.sum"
        operator = HIDDEN_ACTIVATIONS[activation] if index < last else FINAL_ACTIVATIONS[final]
        if operator:
            nodes.append(helper.make_node(operator, [value], [f"{index}.activation"]))
            value = f"{index}.activation"
    return encode_network("dense", nodes, initializers, features=layers[0], output=value, outputs=layers[-1])


def encode_network(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto],
    *,
    features: int,
    output: str,
    outputs: int,
) -> bytes:
    """Return the ONNX file of a graph from `features` to one output, float32 (records, width) both."""
    graph = helper.make_graph(
        nodes,
        name,
        [_value_info("features", features)],
        [_value_info(output, outputs)],
        initializer=initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    return bytes(model.SerializeToString(deterministic=True))


def _layer_parameters(index: int, fan_in: int, width: int, randomness: Randomness) -> list[onnx.TensorProto]:
    weight = _initial(width * fan_in, fan_in, randomness).reshape(width, fan_in)
    return [
        float_tensor(f"{index}.weight", weight),
        float_tensor(f"{index}.bias", _initial(width, fan_in, randomness)),
    ]


def _initial(count: int, fan_in: int, randomness: Randomness) -> NDArray[np.float32]:
    return ((2.0 * uniform(count, randomness) - 1.0) / sqrt(fan_in)).astype(np.float32)


def constant_bytes(name: str, centres: Sequence[int]) -> onnx.NodeProto:
    """Return a node whose value is some bytes as features have them, over 256, and is not trained."""
    value = np.array(centres, np.float32) / np.float32(256)
    return helper.make_node("Constant", [], [name], value=float_tensor("", value))


def float_tensor(name: str, value: NDArray[np.float32] | np.float32) -> onnx.TensorProto:
    """Return a float32 initializer."""
    return helper.make_tensor(
        name, onnx.TensorProto.FLOAT, value.shape, value.astype("<f4").tobytes(), raw=True
    )


def _value_info(name: str, width: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["records", width])
