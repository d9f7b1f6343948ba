"""Lowering of the operators that move, join or rescale values, and of categorical features.

Mul by 256, Cast, Gather.
"""

from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.layers.elementwise import Join
from helper.gradient.exact.layers.embedding import Embedding
from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.layers.layout import Concatenate, Fixed
from helper.gradient.exact.lowering.lowered import LoweredBuilder, LoweredValue, Shape, attribute, integers
from maskedlark.model.graph import Constant, Node

_BYTE_RANGE = 256.0


def arithmetic(builder: LoweredBuilder, node: Node) -> None:
    """Lower a residual sum; or a value and a constant."""
    constants = [builder.constant(name) for name in node.inputs]
    if constants[0] is None and constants[1] is None:
        _join(builder, node)
        return
    position = 0 if constants[0] is None else 1
    given = constants[1 - position]
    if given is None or given.dtype.kind != "f":
        raise NotExact(f"{node.operator} of integers has no exact form")
    source = builder.stored(node.inputs[position])
    if node.operator == "Mul" and source.is_bytes and not source.is_index and given.size == 1:
        builder.alias(node.outputs[0], replace(source, scale=source.scale * float(given.reshape(()))))
        return
    source = builder.value(node.inputs[position])
    factor, offset = _factor_and_offset(node.operator, given.astype(np.float64), is_second=position == 0)
    layer = Fixed(factor=_broadcast(factor, source.shape), offset=_broadcast(offset, source.shape))
    builder.add(node.outputs[0], layer, (source,), source.shape)


def _join(builder: LoweredBuilder, node: Node) -> None:
    left, right = (builder.value(name) for name in node.inputs)
    if node.operator != "Add" or left.shape != right.shape:
        raise NotExact(
            f"{node.operator} of two computed values of shapes {left.shape} and {right.shape} has no exact "
            "form"
        )
    builder.add(node.outputs[0], Join(), (left, right), left.shape)


def _factor_and_offset(operator: str, constant: Constant, *, is_second: bool) -> tuple[Constant, Constant]:
    """Return (factor, offset) of x op constant, or of constant op x."""
    zero, one = np.array(0.0), np.array(1.0)
    if operator == "Add":
        return one, constant
    if operator == "Mul":
        return constant, zero
    if operator == "Sub":
        return (one, -constant) if is_second else (-one, constant)
    if not is_second or not constant.all():
        raise NotExact("Div by a computed value or by zero has no exact form")
    return 1.0 / constant, zero


def _broadcast(constant: NDArray[np.float64], shape: Shape) -> NDArray[np.float64]:
    """Broadcast a constant to one record's entries."""
    if constant.ndim > len(shape) + 1:
        raise NotExact("a constant has more axes than the value that it is joined with")
    try:
        return np.broadcast_to(constant, (1, *shape)).reshape(prod(shape)).copy()
    except ValueError:
        raise NotExact("a constant changes the shape of the value that it is joined with") from None


def cast(builder: LoweredBuilder, node: Node) -> None:
    """Lower features times 256 as integers: categorical bytes."""
    source = builder.stored(node.inputs[0])
    if not source.is_bytes or source.is_index or source.scale != _BYTE_RANGE:
        raise NotExact("Cast is exact only of features times 256, which are the bytes themselves")
    builder.alias(node.outputs[0], replace(source, scale=1.0, is_index=True))


def gather(builder: LoweredBuilder, node: Node) -> None:
    """Lower rows of a trained table by categorical bytes, or a fixed choice of entries."""
    axis = int(attribute(node, "axis"))
    chosen = builder.constant(node.inputs[1])
    if chosen is not None:
        _choose(builder, node, axis, chosen)
        return
    table, indices = builder.parameter(node.inputs[0], "Gather"), builder.stored(node.inputs[1])
    if axis != 0 or len(table.shape) != 2 or not indices.is_index:
        raise NotExact("Gather is exact only of the rows of a matrix by categorical features")
    layer = Embedding(table=table, number=builder.next_number)
    builder.add(node.outputs[0], layer, (indices,), (*indices.shape, table.shape[1]), has_parameters=True)


def _choose(builder: LoweredBuilder, node: Node, axis: int, chosen: Constant) -> None:
    source = builder.stored(node.inputs[0])
    if axis == 0 or len(np.unique(chosen % source.shape[axis - 1])) != chosen.size:
        raise NotExact("Gather by constants is exact only along a record's axes, and of each entry once")
    builder.rearrange(node.outputs[0], source, np.take(_number_entries(source), chosen, axis=axis - 1))


def _number_entries(source: LoweredValue) -> NDArray[np.int64]:
    """Number the entries of a value in C order."""
    return np.arange(source.size).reshape(source.shape)


def reshape(builder: LoweredBuilder, node: Node) -> None:
    """Lower another shape of the same entries."""
    shape = integers(node, "shape")
    source = builder.stored(node.inputs[0])
    if shape[:1] != (1,):
        raise NotExact("Reshape moves entries across the record axis")
    builder.alias(node.outputs[0], replace(source, shape=shape[1:]))


def transpose(builder: LoweredBuilder, node: Node) -> None:
    """Lower another order of a record's axes; for a matrix parameter, note it for its layer."""
    perm = integers(node, "perm")
    if builder.is_parameter(node.inputs[0]):
        if perm != (1, 0):
            raise NotExact("a parameter is transposed that is not a matrix")
        builder.transposed[node.outputs[0]] = node.inputs[0]
        return
    source = builder.stored(node.inputs[0])
    if perm[0] != 0:
        raise NotExact("Transpose moves the record axis")
    builder.rearrange(
        node.outputs[0], source, _number_entries(source).transpose([axis - 1 for axis in perm[1:]])
    )


def cut(builder: LoweredBuilder, node: Node) -> None:
    """Lower a part of a value (Slice)."""
    source = builder.stored(node.inputs[0])
    cuts = [slice(None)] * len(source.shape)
    for axis, start, end, step in zip(
        *(integers(node, name) for name in ("axes", "starts", "ends", "steps")), strict=True
    ):
        if axis == 0:
            raise NotExact("Slice cuts the record axis")
        cuts[axis - 1] = slice(start, end, step)
    builder.rearrange(node.outputs[0], source, _number_entries(source)[tuple(cuts)])


def split(builder: LoweredBuilder, node: Node) -> None:
    """Lower several parts along one axis."""
    source, axis = builder.stored(node.inputs[0]), int(attribute(node, "axis"))
    # never the axis of records: a model's parts add up to one number, and shapes are tried for two batches
    parts = np.split(_number_entries(source), np.cumsum(integers(node, "split"))[:-1], axis=axis - 1)
    for name, part in zip(node.outputs, parts, strict=False):
        if name:
            builder.rearrange(name, source, part)


def concat(builder: LoweredBuilder, node: Node) -> None:
    """Lower a concatenation along an axis."""
    sources = [builder.value(name) for name in node.inputs]
    axis = int(attribute(node, "axis"))
    if axis == 0:
        raise NotExact("Concat joins the record axis")
    starts = np.cumsum([0, *(source.size for source in sources)])
    order = np.concatenate(
        [_number_entries(source) + start for source, start in zip(sources, starts, strict=False)],
        axis=axis - 1,
    )
    joined = Concatenate(sizes=tuple(source.size for source in sources))
    builder.add(node.outputs[0], joined, sources, order.shape)
    if (order.reshape(-1) != np.arange(order.size)).any():
        builder.rearrange(node.outputs[0], builder.value(node.outputs[0]), order)
