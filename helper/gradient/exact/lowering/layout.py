"""Lowering of the operators that move, join or rescale values, and of categorical features.

Mul by 256, Cast, Gather.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.layers.elementwise import Join, Product
from helper.gradient.exact.layers.embedding import Embedding
from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.layers.layout import Concatenate, Fixed
from helper.gradient.exact.layers.offset import Offset, Scale
from helper.gradient.exact.lowering.indices import join_sums
from helper.gradient.exact.lowering.lowered import (
    LoweredBuilder,
    LoweredValue,
    Lowering,
    Shape,
    TurnedValue,
    attribute,
    integers,
)
from maskedlark.model.graph import Constant, Node


def _arithmetic(builder: LoweredBuilder, node: Node) -> None:
    """Lower a sum or product of two values, of a value and a parameter, or of a value and a constant."""
    constants = [builder.constant(name) for name in node.inputs]
    if constants[0] is None and constants[1] is None:
        parameter = next((name for name in node.inputs if builder.is_parameter(name)), None)
        if parameter is None:
            _join(builder, node)
        else:
            _with_parameter(builder, node, parameter)
        return
    position = 0 if constants[0] is None else 1
    given = constants[1 - position]
    if given is None or given.dtype.kind != "f":
        raise NotExact(f"{node.operator} of integers has no exact form")
    source = builder.data(node.inputs[position])
    # Bytes times 256 are an index's: they stay bytes until something reads them as numbers.
    if node.operator == "Mul" and source.is_bytes and given.size == 1:
        builder.alias(node.outputs[0], replace(source, scale=source.scale * float(given.reshape(()))))
        return
    source = builder.value(node.inputs[position])
    factor, offset = _factor_and_offset(node.operator, given.astype(np.float64), is_second=position == 0)
    layer = Fixed(factor=_broadcast(factor, source.shape), offset=_broadcast(offset, source.shape))
    builder.add(node.outputs[0], layer, (source,), source.shape)


def _join(builder: LoweredBuilder, node: Node) -> None:
    """Lower Add, Sub or Mul of two computed values; the smaller one is repeated as ONNX broadcasts it."""
    if node.operator == "Div":
        raise NotExact("Div by a computed value has no exact form")
    shape = _common_shape(node, *(builder.value(name).shape for name in node.inputs))
    left, right = (_repeat(builder, name, shape) for name in node.inputs)
    # A negation is exact, so a difference is a sum.
    if node.operator == "Sub":
        negated = f"{node.outputs[0]}/negated"
        builder.add(negated, Fixed(factor=np.array(-1.0), offset=np.array(0.0)), (right,), shape)
        right = builder.value(negated)
    builder.add(node.outputs[0], Product() if node.operator == "Mul" else Join(), (left, right), shape)


def _common_shape(node: Node, *shapes: Shape) -> Shape:
    """Return the shape that two values of these shapes broadcast to, the record axis left out of all."""
    try:
        shape = np.broadcast_shapes(*((1, *shape) for shape in shapes))
    except ValueError:
        shape = ()
    if min(map(len, shapes)) + 1 != len(shape):
        raise NotExact(f"{node.operator} of values of shapes {shapes[0]} and {shapes[1]} has no exact form")
    return shape[1:]


def _repeat(builder: LoweredBuilder, name: str, shape: Shape) -> LoweredValue:
    """Return a value in a larger shape."""
    source = builder.value(name)
    if source.shape == shape:
        return source
    whole = f"{name}/{'x'.join(map(str, shape))}"
    builder.rearrange(whole, source, np.broadcast_to(_number_entries(source), shape))
    return builder.value(whole)


def _with_parameter(builder: LoweredBuilder, node: Node, name: str) -> None:
    """Lower a parameter added to a value, subtracted from it, or multiplied with it."""
    is_first = node.inputs[0] == name
    other = node.inputs[1 if is_first else 0]
    if node.operator == "Div":
        raise NotExact("Div by a parameter, or of one, has no exact form")
    source, parameter = builder.value(other), builder.parameter(name, node.operator)
    try:
        shape = np.broadcast_shapes((1, *source.shape), parameter.shape)
    except ValueError:
        shape = ()
    if len(shape) != len(source.shape) + 1 or shape[0] != 1:
        raise NotExact(
            f"{node.operator} of a value of shape {source.shape} and the parameter {name!r} of shape "
            f"{parameter.shape} has no exact form"
        )
    output, shape = node.outputs[0], shape[1:]
    source = _repeat(builder, other, shape)
    homes = (
        np.broadcast_to(np.arange(parameter.size).reshape(parameter.shape), (1, *shape)).reshape(-1).copy()
    )
    if node.operator == "Mul":
        scale = Scale(parameter=parameter, homes=homes, number=builder.next_number)
        builder.add(output, scale, (source,), shape, parameters=(parameter,))
        return
    sign = 1.0
    if node.operator == "Sub" and is_first:
        negated = f"{output}/negated"
        builder.add(negated, Fixed(factor=np.array(-1.0), offset=np.array(0.0)), (source,), shape)
        source = builder.value(negated)
    elif node.operator == "Sub":
        sign = -1.0
    offset = Offset(parameter=parameter, homes=homes, sign=sign, number=builder.next_number)
    builder.add(output, offset, (source,), shape, parameters=(parameter,))


def _square(builder: LoweredBuilder, node: Node) -> None:
    """Lower Pow by the constant 2, as a product."""
    exponent = builder.constant(node.inputs[1])
    if exponent is None or exponent.size != 1 or float(exponent.reshape(())) != 2.0:
        raise NotExact("Pow is exact only with the constant exponent 2")
    source = builder.value(node.inputs[0])
    builder.add(node.outputs[0], Product(), (source, source), source.shape)


def _expand(builder: LoweredBuilder, node: Node) -> None:
    """Lower a value repeated along axes of size 1."""
    shape = integers(node, "shape")
    source = builder.data(node.inputs[0])
    if shape[:1] != (1,) or len(shape) != len(source.shape) + 1:
        raise NotExact("Expand changes the record axis or the number of axes")
    builder.rearrange(node.outputs[0], source, np.broadcast_to(_number_entries(source), shape[1:]))


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
    return 1.0 / constant, zero  # so is Div defined: the reciprocal is rounded once, and each product


def _broadcast(constant: NDArray[np.float64], shape: Shape) -> NDArray[np.float64]:
    """Broadcast a constant to one record's entries."""
    if constant.ndim > len(shape) + 1:
        raise NotExact("a constant has more axes than the value that it is joined with")
    try:
        return np.broadcast_to(constant, (1, *shape)).reshape(prod(shape)).copy()
    except ValueError:
        raise NotExact("a constant changes the shape of the value that it is joined with") from None


def _cast(_builder: LoweredBuilder, _node: Node) -> None:
    """Refuse integers that anything but a Gather reads."""
    raise NotExact("Cast is exact only of features times 256, on their way to the rows of a Gather")


def _gather(builder: LoweredBuilder, node: Node) -> None:
    """Lower rows of a trained table by indices that the record's bytes make, or a fixed choice of entries.

    All Gathers of one table are one layer: a record's gradient is summed over the places that read a row.
    """
    axis = int(attribute(node, "axis"))
    chosen = builder.constant(node.inputs[1])
    if chosen is not None:
        _choose(builder, node, axis, chosen)
        return
    lookups = builder.lookups(node.inputs[0])
    table = builder.parameter(node.inputs[0], "Gather")
    if axis != 0 or len(table.shape) != 2 or not lookups:
        raise NotExact(
            "Gather is exact only of the rows of a matrix that nothing else reads, by indices that features"
            " make"
        )
    shapes, sums = zip(*(builder.index(one.inputs[1]) for one in lookups), strict=True)
    layer = Embedding(table=table, indices=join_sums(sums), number=builder.next_number)
    width, places = table.shape[1], len(layer.indices.offsets)
    name = node.outputs[0] if len(lookups) == 1 else ""
    shape = (*shapes[0], width) if name else (places, width)
    rows = builder.add(name, layer, (builder.features,), shape, parameters=(table,))
    # Of several lookups the first makes the layer of all: the other outputs are parts of its value.
    start = 0
    for one, index_shape in zip(lookups, shapes, strict=True) if not name else ():
        order = start + np.arange(prod(index_shape) * width).reshape(*index_shape, width)
        builder.rearrange(one.outputs[0], rows, order)
        builder.taken_in.add(one.outputs[0])
        start += order.size


def _choose(builder: LoweredBuilder, node: Node, axis: int, chosen: Constant) -> None:
    turned = builder.turned.get(node.inputs[0])
    if turned is not None:
        if axis == turned.record_axis:
            raise NotExact("Gather by constants chooses among records")
        order = np.take(turned.order, chosen, axis=axis)
        record_axis = turned.record_axis + (chosen.ndim - 1 if axis < turned.record_axis else 0)
        builder.turned[node.outputs[0]] = replace(turned, order=order, record_axis=record_axis)
        return
    source = builder.data(node.inputs[0])
    if axis == 0:
        raise NotExact("Gather by constants chooses among records")
    builder.rearrange(node.outputs[0], source, np.take(_number_entries(source), chosen, axis=axis - 1))


def _gather_nd(builder: LoweredBuilder, node: Node) -> None:
    """Lower a fixed choice of entries by coordinates of the leading axes, as torch writes x[:, [0, 1]].

    There the axes are turned first, so that the record axis is not the leading one, and back afterwards.
    """
    chosen = builder.constant(node.inputs[1])
    turned = builder.turned.get(node.inputs[0])
    if chosen is None or turned is None or turned.record_axis < chosen.shape[-1]:
        raise NotExact("GatherND is exact only by constants, along a record's axes")
    order = turned.order[tuple(np.moveaxis(chosen, -1, 0))]
    record_axis = turned.record_axis + chosen.ndim - 1 - chosen.shape[-1]
    builder.turned[node.outputs[0]] = replace(turned, order=order, record_axis=record_axis)


def _number_entries(source: LoweredValue) -> NDArray[np.int64]:
    """Number the entries of a value in C order."""
    return np.arange(source.size).reshape(source.shape)


def _reshape(builder: LoweredBuilder, node: Node) -> None:
    """Lower another shape of the same entries."""
    shape = integers(node, "shape")
    source = builder.data(node.inputs[0])
    if shape[:1] != (1,):
        raise NotExact("Reshape moves entries across the record axis")
    builder.alias(node.outputs[0], replace(source, shape=shape[1:]))


def _transpose(builder: LoweredBuilder, node: Node) -> None:
    """Lower another order of a record's axes; for a matrix parameter, note it for its layer."""
    perm = integers(node, "perm")
    if builder.is_parameter(node.inputs[0]):
        if perm != (1, 0):
            raise NotExact("a parameter is transposed that is not a matrix")
        builder.transposed[node.outputs[0]] = node.inputs[0]
        return
    turned = builder.turned.get(node.inputs[0])
    if turned is None:
        source = builder.data(node.inputs[0])
        turned = TurnedValue(source=source, order=_number_entries(source)[None], record_axis=0)
    turned = replace(turned, order=turned.order.transpose(perm), record_axis=perm.index(turned.record_axis))
    if turned.record_axis == 0:
        builder.rearrange(node.outputs[0], turned.source, turned.order[0])
    else:
        builder.turned[node.outputs[0]] = turned


def _cut(builder: LoweredBuilder, node: Node) -> None:
    """Lower a part of a value (Slice)."""
    source = builder.data(node.inputs[0])
    cuts = [slice(None)] * len(source.shape)
    for axis, start, end, step in zip(
        *(integers(node, name) for name in ("axes", "starts", "ends", "steps")), strict=True
    ):
        if axis == 0:
            raise NotExact("Slice cuts the record axis")
        cuts[axis - 1] = slice(start, end, step)
    builder.rearrange(node.outputs[0], source, _number_entries(source)[tuple(cuts)])


def _split(builder: LoweredBuilder, node: Node) -> None:
    """Lower several parts along one axis."""
    source, axis = builder.data(node.inputs[0]), int(attribute(node, "axis"))
    # never the axis of records: a model's parts add up to one number, and shapes are tried for two batches
    parts = np.split(_number_entries(source), np.cumsum(integers(node, "split"))[:-1], axis=axis - 1)
    for name, part in zip(node.outputs, parts, strict=False):
        if name:
            builder.rearrange(name, source, part)


def _concat(builder: LoweredBuilder, node: Node) -> None:
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
    # Along a record's first axis the parts follow each other already.
    if (order.reshape(-1) != np.arange(order.size)).any():
        builder.rearrange(node.outputs[0], builder.value(node.outputs[0]), order)


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "Add": _arithmetic,
    "Sub": _arithmetic,
    "Mul": _arithmetic,
    "Div": _arithmetic,
    "Cast": _cast,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Expand": _expand,
    "Pow": _square,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Slice": _cut,
    "Split": _split,
    "Concat": _concat,
}
