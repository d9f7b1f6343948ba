"""Networks over an encoder's columns: a trained table for each column, and each number next to its table.

For `adserver model create --encoder` and quickstart. A column's bytes pick a row of its table, so that words
need no order and numbers no straight line. The rows, the centred numbers and the bytes of images feed dense
layers, or directly the outputs: then the network is linear in what the tables say.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import log, sqrt
from typing import Final, assert_never

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from maskedlark.encoding.encoder import (
    TOP,
    CategoryColumn,
    Column,
    Encoder,
    HashColumn,
    IdColumn,
    ImageColumn,
    NumberColumn,
)
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.dense import constant_bytes, encode_network, float_tensor
from maskedlark.randomness import Randomness, seeded, uniform

WIDTH: Final = 8
"""Entries in a table's row."""
# Numbers centred on 128 lie in [-1, 1).
_NUMBER_SCALE: Final = 2.0
# Entries begin in +-1/sqrt(width). Larger ones make the next layer's gradient most of each record's, so
# that the clip bound leaves little for the rows, and noise is long next to what they learn.
_TABLE_SCALE: Final = 1.0
_BYTE: Final = 256.0


def table_network(
    encoder: Encoder,
    *,
    hidden: Sequence[int],
    outputs: int,
    seed: int,
    are_numbers_in_tables: bool = True,
    base_rate: float | None = None,
    centres: Sequence[int] | None = None,
) -> bytes:
    """Build an ONNX file of a network over an encoder's features. Called by the ad server.

    Args:
        encoder: The columns, in the order of a report's bytes.
        hidden: Widths of the ReLU layers; empty for a network that is linear in the tables' entries.
        outputs: Width of the last, linear layer.
        seed: Of the initial weights.
        are_numbers_in_tables: Whether a number also picks a row of a table of 256 rows, so that its effect
            need not be a straight line; it takes thousands of records to learn one.
        base_rate: The share of label 1, if it is known: the last bias begins at its logit, so that no rounds
            are spent on it.
        centres: A byte for each feature, such as its mean's: what numbers are centred on; None: on 128.

    Guarantees: the same arguments give the same bytes with one version of onnx, `parse` accepts the file, and
        helpers train it on the exact path.

    Raises:
        InvalidModel(WRONG_SHAPE): a width below 1, or centres that are not one a feature.
        ValueError: a base rate that is not between 0 and 1.
    """
    if min([*hidden, outputs]) < 1:
        raise InvalidModel(ModelReason.WRONG_SHAPE, f"widths must be positive, not {[*hidden, outputs]}")
    if centres is not None and len(centres) != encoder.num_features:
        raise InvalidModel(
            ModelReason.WRONG_SHAPE,
            f"centres must be {encoder.num_features}, one a feature, not {len(centres)}",
        )
    if base_rate is not None and not 0 < base_rate < 1:
        raise ValueError(f"base_rate must be between 0 and 1, not {base_rate}")
    graph = _Graph(seed)
    starts = [0, *accumulate(column.num_bytes for column in encoder.columns)]
    numbers = [
        at for at, column in zip(starts, encoder.columns, strict=False) if isinstance(column, NumberColumn)
    ]
    parts = [
        graph.row_of_table(place, range(start, end), rows)
        for place, (column, (start, end)) in enumerate(zip(encoder.columns, pairwise(starts), strict=True))
        if (rows := _table_rows(column, are_numbers_in_tables=are_numbers_in_tables))
    ]
    # Not in tables: a histogram's entry is an amount and no code.
    pictured = [
        at
        for column, (start, end) in zip(encoder.columns, pairwise(starts), strict=True)
        if isinstance(column, ImageColumn)
        for at in range(start, end)
    ]
    width = WIDTH * len(parts) + len(numbers) + len(pictured)
    if pictured:
        parts.append(graph.columns(pictured, "images"))
    if numbers:
        middles = [int(_BYTE) // 2 if centres is None else centres[at] for at in numbers]
        parts.append(graph.centre_columns(numbers, middles))
    value = graph.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    for layer, (fan_in, fan_out) in enumerate(pairwise([width, *hidden, outputs])):
        first = log(base_rate / (1 - base_rate)) if base_rate is not None and layer == len(hidden) else None
        value = graph.dense(value, layer, fan_in, fan_out, first)
        if layer < len(hidden):
            value = graph.node("Relu", value)
    return graph.encode(encoder.num_features, value, outputs)


def _table_rows(column: Column, *, are_numbers_in_tables: bool) -> int:
    """Return how many rows a column's table has; 0 for none."""
    match column:
        case CategoryColumn():
            # The highest byte that the column gives: a row for each, none for bytes that never come.
            return max(column.other, column.missing) + 1
        case NumberColumn():
            return TOP + 1 if are_numbers_in_tables else 0
        case IdColumn() | HashColumn():
            return column.rows
        case ImageColumn():
            return 0
        case _:
            assert_never(column)


class _Graph:
    """A graph in the making; its values are named by their nodes' numbers."""

    def __init__(self, seed: int) -> None:
        self._randomness: Randomness = seeded(seed, "table_network")
        self._nodes: list[onnx.NodeProto] = []
        # Of rank 0: `parse` takes such initializers for constants, not for weights.
        self._initializers: list[onnx.TensorProto] = [
            float_tensor("scale", np.float32(_BYTE)),
            float_tensor("unit", np.float32(_NUMBER_SCALE)),
        ]

    def node(self, operator: str, *inputs: str, **attributes: int) -> str:
        """Add a node with one output; return the output's name."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], None, None, None, None, **attributes))
        return name

    def row_of_table(self, column: int, features: range, rows: int) -> str:
        """Return the row that a column's bytes, lowest first, pick of a table, (records, WIDTH)."""
        # Horner's rule, from the highest byte down.
        index = self._byte(features[-1])
        for feature in reversed(features[:-1]):
            index = self.node("Add", self.node("Mul", index, self._base()), self._byte(feature))
        table = self._parameter(f"table.{column}", (rows, WIDTH), _TABLE_SCALE / sqrt(WIDTH))
        return self.node("Flatten", self.node("Gather", table, index), axis=1)

    def _byte(self, feature: int) -> str:
        """Return a feature's byte as an integer, (records, 1)."""
        byte = self.node("Mul", self.columns([feature]), "scale")
        return self.node("Cast", byte, to=onnx.TensorProto.INT64)

    def _base(self) -> str:
        """Return the name of the integer 256."""
        return self._integers("base", [int(_BYTE)])

    def centre_columns(self, columns: list[int], centres: list[int]) -> str:
        """Return columns of numbers around 0, in (-2, 2), (records, columns)."""
        self._nodes.append(constant_bytes("centres", centres))
        return self.node("Mul", self.node("Sub", self.columns(columns), "centres"), "unit")

    def dense(self, value: str, layer: int, fan_in: int, fan_out: int, bias_at: float | None) -> str:
        """Return a layer's sums, (records, fan_out); its bias begins at a number, or at random."""
        most = 1.0 / sqrt(fan_in)
        weight = self._parameter(f"{layer}.weight", (fan_out, fan_in), most)
        bias = f"{layer}.bias"
        if bias_at is None:
            self._parameter(bias, (fan_out,), most)
        else:
            self._initializers.append(float_tensor(bias, np.full(fan_out, bias_at, np.float32)))
        return self.node("Gemm", value, weight, bias, transB=1)

    def encode(self, features: int, value: str, outputs: int) -> bytes:
        """Return the ONNX file."""
        return encode_network(
            "tables", self._nodes, self._initializers, features=features, output=value, outputs=outputs
        )

    def columns(self, columns: list[int], named: str | None = None) -> str:
        """Return some features, (records, columns)."""
        name = self._integers(named or f"columns.{'.'.join(map(str, columns))}", columns)
        return self.node("Gather", "features", name, axis=1)

    def _integers(self, name: str, values: list[int]) -> str:
        """Add a constant unless it is there; return its name."""
        if name not in {one.name for one in self._initializers}:
            self._initializers.append(helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values))
        return name

    def _parameter(self, name: str, shape: tuple[int, ...], most: float) -> str:
        count = int(np.prod(shape))
        values: NDArray[np.float64] = (2.0 * uniform(count, self._randomness) - 1.0) * most
        self._initializers.append(float_tensor(name, values.astype(np.float32).reshape(shape)))
        return name
