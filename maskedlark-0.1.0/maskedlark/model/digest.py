"""The identity of a graph: one hash of everything that makes it a function of (weights, features)."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from maskedlark.canonical import digest
from maskedlark.model.graph import Constant, Node, Parameter


def graph_digest(
    *,
    input_name: str,
    input_width: int,
    output_name: str,
    output_width: int,
    nodes: Sequence[Node],
    parameters: Sequence[Parameter],
    constants: Mapping[str, Constant],
) -> bytes:
    """32 bytes that both helpers and the ad server compute alike.

    The canonical form is JSON of plain lists: attributes and constants in the order of their names, floats as
    Python's shortest exact decimals (an int and a float of one value differ), each constant by the hash of
    its little-endian bytes.
    """
    structure = [
        [input_name, input_width, output_name, output_width],
        [_node(node) for node in nodes],
        [[parameter.name, parameter.shape] for parameter in parameters],
        [[name, *_array(constants[name])] for name in sorted(constants)],
    ]
    return digest(
        "model",
        json.dumps(structure, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii"),
    )


def _node(node: Node) -> list[Any]:
    return [node.operator, node.inputs, node.outputs, sorted(node.attributes.items())]


def _array(value: Constant) -> list[Any]:
    little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return [little.dtype.str, value.shape, sha256(little.data).hexdigest()]
