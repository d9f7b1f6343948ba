"""Wide ids: what a record costs beside large tables, and what an advertiser's model gains by them.

python -m tests.bench.models_ids           prints JSON; a part of `make bench-models`
"""

from typing import Any

import numpy as np
import onnx

from tests.onnx_builders import encoded, node, tensor, weights


def bytes_of_rows(rows: int) -> int:
    """How many features spell the number of a row."""
    return max(1, -(-(rows - 1).bit_length() // 8))


def wide_network(*, tables: int, rows: int, width: int, hidden: int) -> bytes:
    """A table for each column of ids, and a Relu network on the rows that they name.

    Features: the bytes of each column's id, the lowest first.
    """
    spelt = bytes_of_rows(rows)
    powers = np.kron(np.eye(tables), 256.0 ** np.arange(1, spelt + 1)[:, None])
    nodes: list[onnx.NodeProto] = [
        node("Constant", [], ["powers"], value=tensor("", powers)),
        node("MatMul", ["x", "powers"], ["numbers"]),
        node("Cast", ["numbers"], ["ids"], to=7),
    ]
    held: list[Any] = []
    for place in range(tables):
        held += [tensor(f"at{place}", place, np.int64), weights(f"table{place}", rows, width)]
        nodes += [
            node("Gather", ["ids", f"at{place}"], [f"id{place}"], axis=1),
            node("Gather", [f"table{place}", f"id{place}"], [f"rows{place}"]),
        ]
    nodes += [
        node("Concat", [f"rows{place}" for place in range(tables)], ["joined"], axis=1),
        node("Gemm", ["joined", "w", "b"], ["h"]),
        node("Relu", ["h"], ["a"]),
        node("Gemm", ["a", "v", "c"], ["y"]),
    ]
    held += [
        weights("w", tables * width, hidden),
        weights("b", hidden),
        weights("v", hidden, 1),
        weights("c", 1),
    ]
    return encoded(nodes, held, width=tables * spelt)
