"""The identity of a graph: one hash of everything that makes it a function of (weights, features)."""

import json
from hashlib import sha256
from typing import Any

import numpy as np

from maskedlark.canonical import digest
from maskedlark.model.graph import Constant, Model, Node


def graph_digest(model: Model) -> bytes:
    """Return the 32 bytes that both helpers and the ad server compute alike; ignores `model.digest`.

    The canonical form is JSON of plain lists: attributes and constants in the order of their names, floats as
    Python's shortest exact decimals (an int and a float of one value differ), each constant by the hash of
    its little-endian bytes.
    """
    structure: list[Any] = [
        [model.input_name, model.input_width, model.output_name, model.output_width],
        [_node(node) for node in model.nodes],
        [[parameter.name, parameter.shape] for parameter in model.parameters],
        [[name, *_array(model.constants[name])] for name in sorted(model.constants)],
    ]
    if len(model.outputs) > 1:
        structure.append([list(one) for one in model.outputs])
    if model.frozen:  # their values are among the constants
        structure.append({"frozen": model.frozen})
    return digest(
        "model",
        json.dumps(structure, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii"),
    )


def _node(node: Node) -> list[Any]:
    return [node.operator, node.inputs, node.outputs, sorted(node.attributes.items())]


def _array(value: Constant) -> list[Any]:
    little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return [little.dtype.str, value.shape, sha256(little.data).hexdigest()]
