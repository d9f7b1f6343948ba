"""Lowering of the operators that compute: products, convolutions, pools, normalisation, activations."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np

from helper.gradient.exact.kernels.windows import PADDING, Windows, positions, reduce_windows, slide
from helper.gradient.exact.layers.convolution import Convolution
from helper.gradient.exact.layers.dense import Dense
from helper.gradient.exact.layers.elementwise import Activation, Curve, Softmax
from helper.gradient.exact.layers.layer import NotExact, Trainable
from helper.gradient.exact.layers.normalisation import BatchNormalization, LayerNormalization
from helper.gradient.exact.layers.offset import Offset
from helper.gradient.exact.layers.pooling import AveragePool, MaxPool
from helper.gradient.exact.lowering.lowered import (
    LoweredBuilder,
    LoweredValue,
    Lowering,
    Shape,
    attribute,
    integers,
)
from helper.gradient.exact.products.product import MAX_POSITIONS, MAX_WIDTH
from maskedlark.model.graph import Node


def _gemm(builder: LoweredBuilder, node: Node) -> None:
    """Lower a dense layer with its bias."""
    if attribute(node, "alpha") != 1.0 or attribute(node, "beta") != 1.0 or node.attributes["transA"]:
        raise NotExact("Gemm has a factor or a transposed first input")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    _dense(builder, node, bias, is_transposed=bool(node.attributes["transB"]), output=node.outputs[0])


def _matmul(builder: LoweredBuilder, node: Node) -> None:
    """Lower a dense layer, including the Add of a bias that follows it."""
    follower = builder.only_reader(node.outputs[0], "Add")
    bias = next((name for name in follower.inputs if builder.is_parameter(name)), None) if follower else None
    if bias is not None and prod(builder.shape_of(bias) or ()) != _outputs(builder, node):
        bias = None  # one number for all outputs, for example: a layer of its own
    if follower is None or bias is None:
        _dense(builder, node, None, is_transposed=False, output=node.outputs[0])
        return
    builder.taken_in.add(follower.outputs[0])
    _dense(builder, node, bias, is_transposed=False, output=follower.outputs[0])


def _outputs(builder: LoweredBuilder, node: Node) -> int | None:
    """Return how many outputs a MatMul with a parameter has."""
    name = node.inputs[1]
    is_transposed = name in builder.transposed
    shape = builder.shape_of(builder.transposed.get(name, name))
    return None if shape is None or len(shape) != 2 else shape[0 if is_transposed else 1]


def _dense(
    builder: LoweredBuilder, node: Node, bias_name: str | None, *, is_transposed: bool, output: str
) -> None:
    name = node.inputs[1]
    if name in builder.transposed:
        name, is_transposed = builder.transposed[name], not is_transposed
    source, weight = builder.value(node.inputs[0]), builder.parameter(name, node.operator)
    if len(weight.shape) != 2 or len(source.shape) != 1:
        raise NotExact(
            f"{node.operator} multiplies a value of {len(source.shape) + 1} axes: the exact path takes one "
            "vector a record"
        )
    _require_width(node, *weight.shape)
    outputs = weight.shape[0 if is_transposed else 1]
    layer = Dense(
        weight=weight,
        bias=_bias(builder, node, bias_name, outputs),
        is_transposed=is_transposed,
        reads_bytes=source.is_bytes,
        passes_back=builder.is_trained(source),
        number=builder.next_number,
    )
    _affine(builder, output, layer, source, (outputs,))


def _conv(builder: LoweredBuilder, node: Node) -> None:
    """Lower a convolution."""
    source, weight = builder.value(node.inputs[0]), builder.parameter(node.inputs[1], "Conv")
    outputs, kernel = weight.shape[0], weight.shape[2:]
    _require_width(node, outputs, prod(weight.shape[1:]))
    windows = _windows(builder, source, kernel, node)
    layer = Convolution(
        weight=weight,
        bias=_bias(builder, node, node.inputs[2] if len(node.inputs) > 2 else None, outputs),
        windows=windows,
        reads_bytes=source.is_bytes,
        passes_back=builder.is_trained(source),
        number=builder.next_number,
    )
    _affine(builder, node.outputs[0], layer, source, (outputs, *windows.result))


def _affine(
    builder: LoweredBuilder, output: str, layer: Dense | Convolution, source: LoweredValue, shape: Shape
) -> None:
    """Add a dense layer or a convolution; a bias of which the weight is frozen, or the reverse, by itself."""
    weight, bias = layer.weight, layer.bias
    if bias is None or bias.is_frozen == weight.is_frozen:
        builder.add(output, layer, (source,), shape, parameters=(weight, bias))
        return
    made = builder.add("", replace(layer, bias=None), (source,), shape, parameters=(weight,))
    homes = np.repeat(np.arange(shape[0]), prod(shape[1:]))
    offset = Offset(parameter=bias, homes=homes, sign=1.0, number=builder.next_number)
    builder.add(output, offset, (made,), shape, parameters=(bias,))


def _bias(builder: LoweredBuilder, node: Node, name: str | None, outputs: int) -> Trainable | None:
    """Return a bias as a vector of one entry an output."""
    if name is None:
        return None
    bias = builder.parameter(name, node.operator)
    if bias.size != outputs:
        raise NotExact(f"{node.operator} has a bias of shape {bias.shape} for {outputs} outputs")
    return replace(bias, shape=(outputs,))


def _require_width(node: Node, *widths: int) -> None:
    if max(widths) > MAX_WIDTH:
        raise NotExact(f"{node.operator} sums {max(widths)} products: the exact path sums up to {MAX_WIDTH}")


def _windows(builder: LoweredBuilder, source: LoweredValue, kernel: tuple[int, ...], node: Node) -> Windows:
    """Return the windows of a Conv or pool on a value (channels, *space).

    Their places are counted before they are listed: a window as large as the image at each of a million
    positions would take the memory of the machine while a job starts.
    """
    space = source.shape[1:]
    sliding = {name: integers(node, name) for name in ("strides", "pads", "dilations")}
    count = prod(positions(space, kernel, **sliding))
    if count > MAX_POSITIONS:
        raise NotExact(f"{node.operator} has {count} positions: the exact path takes up to {MAX_POSITIONS}")
    builder.count_places(count * prod(kernel), node.operator)
    return slide(space, kernel, **sliding)


def _max_pool(builder: LoweredBuilder, node: Node) -> None:
    """Lower the largest value of each window."""
    source = builder.value(node.inputs[0])
    windows = _windows(builder, source, integers(node, "kernel_shape"), node)
    builder.add(node.outputs[0], MaxPool(windows=windows), (source,), (source.shape[0], *windows.result))


def _average_pool(builder: LoweredBuilder, node: Node) -> None:
    """Lower the mean of each window."""
    source = builder.value(node.inputs[0])
    windows = _windows(builder, source, integers(node, "kernel_shape"), node)
    inside = (
        (windows.places != PADDING).sum(1)
        if not node.attributes["count_include_pad"]
        else windows.places.shape[1]
    )
    # Copied: loops are compiled for arrays that are contiguous and writable, and a broadcast is neither.
    counts = np.broadcast_to(np.asarray(inside, np.float64), (len(windows.places),)).copy()
    builder.add(
        node.outputs[0],
        AveragePool(windows=windows, counts=counts),
        (source,),
        (source.shape[0], *windows.result),
    )


def _reduce(builder: LoweredBuilder, node: Node) -> None:
    """Lower ReduceMean or ReduceSum over some of a record's axes, as one pool.

    GlobalAveragePool becomes the first.
    """
    source = builder.value(node.inputs[0])
    # Axis 0 is that of the records, which no value has here.
    axes = tuple(axis - 1 for axis in integers(node, "axes"))
    if min(axes) < 0:
        raise NotExact(f"{node.operator} joins the record axis")
    windows = reduce_windows(source.shape, axes)
    counts = np.full(
        len(windows.places), windows.places.shape[1] if node.operator == "ReduceMean" else 1, np.float64
    )
    kept = tuple(
        1 if axis in axes else size
        for axis, size in enumerate(source.shape)
        if node.attributes["keepdims"] or axis not in axes
    )
    builder.add(node.outputs[0], AveragePool(windows=windows, counts=counts), (source,), kept)


def _batch_normalization(builder: LoweredBuilder, node: Node) -> None:
    """Lower normalisation with the graph's running statistics."""
    source = builder.value(node.inputs[0])
    mean, variance = (builder.constant(name) for name in node.inputs[3:5])
    if mean is None or variance is None:
        raise NotExact("BatchNormalization has statistics that are not constants")
    # ONNX stores float32: an epsilon of 1e-5 is the float32 next to it, as torch and numpy have it too.
    spread = variance.astype(np.float64) + float(np.float32(attribute(node, "epsilon")))
    if not (spread > 0).all():
        raise NotExact("BatchNormalization has a variance that is not positive")
    layer = BatchNormalization(
        scale=builder.parameter(node.inputs[1], node.operator),
        bias=builder.parameter(node.inputs[2], node.operator),
        mean=mean.astype(np.float64),
        inverse=1.0 / np.sqrt(spread),
        number=builder.next_number,
    )
    builder.add(node.outputs[0], layer, (source,), source.shape, parameters=(layer.scale, layer.bias))


def _layer_normalization(builder: LoweredBuilder, node: Node) -> None:
    """Lower normalisation of a record's last axes by their own mean and variance."""
    source, axis = builder.value(node.inputs[0]), int(attribute(node, "axis"))
    rank = len(source.shape) + 1
    if axis % rank == 0:
        raise NotExact("LayerNormalization joins the record axis")
    width = prod(source.shape[axis % rank - 1 :])
    scale = builder.parameter(node.inputs[1], node.operator)
    bias = (
        builder.parameter(node.inputs[2], node.operator) if len(node.inputs) > 2 and node.inputs[2] else None
    )
    if scale.size != width or (bias is not None and bias.size != width):
        raise NotExact(f"LayerNormalization has a scale or bias that is not of the {width} entries of a row")
    layer = LayerNormalization(
        scale=scale,
        bias=bias,
        # The float32 that ONNX stores, as of batch normalisation.
        epsilon=float(np.float32(attribute(node, "epsilon"))),
        number=builder.next_number,
    )
    builder.add(node.outputs[0], layer, (source,), source.shape, parameters=(scale, bias))


def _activation(curve: Curve) -> Lowering:
    """Return the lowering of one curve."""

    def lowering(builder: LoweredBuilder, node: Node) -> None:
        source = builder.value(node.inputs[0])
        alpha = attribute(node, "alpha") if curve in (Curve.LEAKY_RELU, Curve.ELU) else 0.0
        builder.add(
            node.outputs[0], Activation(curve=curve, alpha=float(np.float32(alpha))), (source,), source.shape
        )

    return lowering


def _softmax(builder: LoweredBuilder, node: Node) -> None:
    """Lower softmax over a vector."""
    source = builder.value(node.inputs[0])
    if len(source.shape) != 1:
        raise NotExact("Softmax is exact only over all of a record's values")
    builder.add(node.outputs[0], Softmax(), (source,), source.shape)


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _conv,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "Softmax": _softmax,
    "Relu": _activation(Curve.RELU),
    "LeakyRelu": _activation(Curve.LEAKY_RELU),
    "Elu": _activation(Curve.ELU),
    "Sigmoid": _activation(Curve.SIGMOID),
    "Tanh": _activation(Curve.TANH),
    "Softplus": _activation(Curve.SOFTPLUS),
}
