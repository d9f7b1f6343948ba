"""ONNX files that devices train in tests: a dense network and a character model with an LSTM."""

import numpy as np

from maskedlark.model.dense import dense_network
from tests.onnx_builders import encoded, node, tensor, weights

CONTEXT = 8
CHARACTERS = 37


def dense_file(*widths: int) -> bytes:
    return dense_network(widths, "relu", seed=3)


def character_file(embedding: int = 4, hidden: int = 5, *, context: int = CONTEXT) -> bytes:
    """Characters in bytes -> embedding -> LSTM -> a score for each next character."""
    nodes = [
        node("Mul", ["x", "range"], ["scaled"]),
        node("Cast", ["scaled"], ["codes"], to=7),
        node("Gather", ["table", "codes"], ["embedded"]),
        node("Transpose", ["embedded"], ["steps"], perm=[1, 0, 2]),
        node("LSTM", ["steps", "w", "r", "b"], ["", "last"], hidden_size=hidden),
        node("Squeeze", ["last", "first"], ["state"]),
        node("Gemm", ["state", "out", "bias"], ["y"]),
    ]
    shapes = {
        "table": (CHARACTERS, embedding),
        "w": (1, 4 * hidden, embedding),
        "r": (1, 4 * hidden, hidden),
        "b": (1, 8 * hidden),
        "out": (hidden, CHARACTERS),
        "bias": (CHARACTERS,),
    }
    initializers = [tensor("range", 256.0), tensor("first", [0], np.int64)]
    initializers += [weights(name, *shape) for name, shape in shapes.items()]
    return encoded(nodes, initializers, width=context)
