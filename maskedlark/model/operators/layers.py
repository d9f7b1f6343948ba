"""Rules of operators that sum: matrix products, convolution, pooling, normalisation, softmax, reductions."""

from collections.abc import Mapping
from math import prod
from typing import Final

from maskedlark.errors import ModelReason
from maskedlark.model.graph import AttributeValue
from maskedlark.model.operators.call import (
    INTEGERS,
    Attribute,
    CheckedCall,
    Operator,
    OperatorCall,
    Shape,
    ValueKind,
    ValueType,
    broadcast,
    defaults,
)

_FIRST_OPSET_OF_PLAIN_SOFTMAX: Final = 13


def _gemm(call: OperatorCall) -> CheckedCall:
    """Check Gemm: alpha A' B' + beta C, C broadcast to the product."""
    call.require_kind(ValueKind.FLOAT, *range(len(call.inputs)))
    left, right = call.shape(0), call.shape(1)
    if len(left) != 2 or len(right) != 2:
        call.refuse(f"{left} and {right} are not matrices")
    left = left[::-1] if call.integer("transA") else left
    right = right[::-1] if call.integer("transB") else right
    product = (left[0], right[1])
    if left[1] != right[0] or (call.has(2) and broadcast(call, product, call.shape(2)) != product):
        call.refuse(f"shapes {[kind.shape for kind in call.types]} do not fit")
    # Any number but 0 transposes: 0 and 1 alone remain, so that one function has one digest.
    attributes = {
        **call.attributes,
        "transA": int(bool(call.integer("transA"))),
        "transB": int(bool(call.integer("transB"))),
    }
    return call.check(
        ValueType(ValueKind.FLOAT, product),
        inputs=call.inputs if call.has(2) else call.inputs[:2],
        attributes=attributes,
        multiplications=prod(product) * left[1],
    )


def _matmul(call: OperatorCall) -> CheckedCall:
    """Check MatMul as numpy's: vectors get an axis for the product, leading axes broadcast."""
    call.require_kind(ValueKind.FLOAT, 0, 1)
    left, right = call.shape(0), call.shape(1)
    if not left or not right:
        call.refuse("a factor has no axes")
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        call.refuse(f"shapes {left} and {right} do not fit")
    shape = broadcast(call, left[:-2], right[:-2]) + rows + columns
    return call.check(ValueType(ValueKind.FLOAT, shape), multiplications=prod(shape) * inner)


def _batch_normalization(call: OperatorCall) -> CheckedCall:
    """Check BatchNormalization with the running mean and variance."""
    # A batch's own mean would make one record's gradient depend on others: no clip would bound a person.
    if call.integer("training_mode"):
        call.refuse(
            "training_mode mixes records: export the model in eval mode", ModelReason.UNSUPPORTED_ATTRIBUTE
        )
    call.require_kind(ValueKind.FLOAT, *range(5))
    if len(call.shape()) < 2 or any(call.shape(i) != call.shape()[1:2] for i in range(1, 5)):
        call.refuse("scale, bias, mean and variance must have one entry a channel")
    return call.check(call.types[0], attributes={"epsilon": call.attributes["epsilon"]})


def _layer_normalization(call: OperatorCall) -> CheckedCall:
    """Check LayerNormalization over the last axes, without mean and deviation as further outputs."""
    call.require_kind(ValueKind.FLOAT, *(i for i in range(len(call.inputs)) if call.has(i)))
    shape = call.shape()
    axis = call.axis(call.integer("axis"), len(shape))
    for position in range(1, len(call.inputs)):
        if call.has(position) and broadcast(call, shape, call.shape(position)) != shape:
            call.refuse("scale or bias does not broadcast to the data")
    return call.check(
        call.types[0],
        inputs=call.inputs if call.has(2) else call.inputs[:2],
        attributes={"axis": axis, "epsilon": call.attributes["epsilon"]},
    )


def _conv(call: OperatorCall) -> CheckedCall:
    """Check Conv in one or two dimensions with one group; make padding explicit."""
    call.require_kind(ValueKind.FLOAT, *(i for i in range(len(call.inputs)) if call.has(i)))
    source, weight = call.shape(0), call.shape(1)
    if len(source) not in (3, 4) or len(weight) != len(source) or source[1] != weight[1]:
        call.refuse(f"a kernel of {weight} does not fit data of {source} (1 or 2 dimensions, group 1)")
    if call.integer("group") != 1:
        call.refuse("only group 1 is supported", ModelReason.UNSUPPORTED_ATTRIBUTE)
    if call.has(2) and call.shape(2) != weight[:1]:
        call.refuse("the bias must have one entry a channel")
    if call.attributes.get("kernel_shape", weight[2:]) != weight[2:]:
        call.refuse("kernel_shape is not the weight's")
    window, shape = _window(call, weight[2:])
    result = (source[0], weight[0], *shape)
    return call.check(
        ValueType(ValueKind.FLOAT, result),
        inputs=call.inputs if call.has(2) else call.inputs[:2],
        attributes=window,
        multiplications=prod(result) * prod(weight[1:]),
    )


def _pool(call: OperatorCall) -> CheckedCall:
    """Check MaxPool and AveragePool in one or two dimensions, without ceil_mode; make padding explicit."""
    call.require_kind(ValueKind.FLOAT, 0)
    source = call.shape()
    kernel = call.integer_list("kernel_shape")
    if len(source) not in (3, 4) or kernel is None or len(kernel) != len(source) - 2:
        call.refuse(f"a kernel of {kernel} does not fit data of {source} (1 or 2 dimensions)")
    if call.integer("ceil_mode") or call.attributes.get("storage_order", 0):
        call.refuse("ceil_mode and storage_order must be 0", ModelReason.UNSUPPORTED_ATTRIBUTE)
    window, shape = _window(call, kernel)
    attributes: dict[str, AttributeValue] = {**window, "kernel_shape": kernel}
    if call.operator == "AveragePool":
        if any(step != 1 for step in window["dilations"]):
            call.refuse("dilations must be 1", ModelReason.UNSUPPORTED_ATTRIBUTE)
        attributes["count_include_pad"] = int(bool(call.integer("count_include_pad")))
    # A window that lies in the padding alone would have no largest entry, and no mean.
    if any(pad >= size for pad, size in zip(window["pads"], kernel * 2, strict=True)):
        call.refuse("the padding is as wide as the window")
    return call.check(
        ValueType(ValueKind.FLOAT, (*source[:2], *shape)),
        attributes=attributes,
        # A window's comparisons or additions, priced as multiplications: large windows are work, too.
        multiplications=prod(source[:2]) * prod(shape) * prod(kernel),
    )


def _global_average_pool(call: OperatorCall) -> CheckedCall:
    """Check GlobalAveragePool, as ReduceMean over the spatial axes."""
    rank = len(call.shape())
    if rank < 3:
        call.refuse("the data has no spatial axes")
    return _over_axes(call, "ReduceMean", tuple(range(2, rank)), keep=True)


def _reduce(call: OperatorCall) -> CheckedCall:
    """Check ReduceMean and ReduceSum over known axes."""
    axes = call.integers("axes", 1)
    if not axes and call.attributes.get("noop_with_empty_axes", 0):
        return call.check(call.types[0], inputs=call.inputs[:1], is_identity=True)
    rank = len(call.shape())
    positive = tuple(sorted({call.axis(axis, rank) for axis in axes})) if axes else tuple(range(rank))
    return _over_axes(call, call.operator, positive, keep=bool(call.integer("keepdims")))


def _softmax(call: OperatorCall) -> CheckedCall:
    """Check Softmax and LogSoftmax along one axis."""
    call.require_kind(ValueKind.FLOAT, 0)
    rank = len(call.shape())
    # Opset 13 made the default -1 in place of 1, and the axis one instead of the first of several.
    plain = call.opset >= _FIRST_OPSET_OF_PLAIN_SOFTMAX
    axis = call.axis(call.integer("axis") if "axis" in call.attributes else -1 if plain else 1, rank)
    # Joined, all axes from `axis` on are one axis only if it is the last.
    if not plain and axis != rank - 1:
        call.refuse("before opset 13 the axis must be the last", ModelReason.UNSUPPORTED_ATTRIBUTE)
    return call.check(call.types[0], attributes={"axis": axis})


def _over_axes(call: OperatorCall, operator: str, axes: Shape, *, keep: bool) -> CheckedCall:
    call.require_kind(ValueKind.FLOAT, 0)
    sizes = [(axis, size) for axis, size in enumerate(call.shape()) if keep or axis not in axes]
    shape = tuple(1 if axis in axes else size for axis, size in sizes)
    return call.check(
        ValueType(ValueKind.FLOAT, shape),
        operator=operator,
        inputs=call.inputs[:1],
        attributes={"axes": axes, "keepdims": int(keep)},
    )


def _window(call: OperatorCall, kernel: Shape) -> tuple[dict[str, Shape], Shape]:
    """Return strides, dilations and pads of a sliding window, and the spatial shape of its result."""
    space = call.shape()[2:]
    ones = (1,) * len(kernel)
    strides = call.integer_list("strides") or ones
    dilations = call.integer_list("dilations") or ones
    if len(strides) != len(kernel) or len(dilations) != len(kernel) or min(strides + dilations + kernel) < 1:
        call.refuse("strides, dilations or kernel do not fit the data")
    reach = tuple((size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True))
    pads = _pads(call, space, strides, reach)
    padded = tuple(
        size + before + after
        for size, before, after in zip(space, pads[: len(space)], pads[len(space) :], strict=True)
    )
    if min(pads) < 0 or any(size < needed for size, needed in zip(padded, reach, strict=True)):
        call.refuse(f"the window does not fit data of {call.shape()}")
    shape = tuple(
        (size - needed) // stride + 1 for size, needed, stride in zip(padded, reach, strides, strict=True)
    )
    return {"strides": strides, "dilations": dilations, "pads": pads}, shape


def _pads(call: OperatorCall, space: Shape, strides: Shape, reach: Shape) -> Shape:
    """Return the padding before each axis, then after each axis, as ONNX orders it."""
    auto = call.attributes["auto_pad"]
    given = call.integer_list("pads") or (0,) * (2 * len(space))
    if auto in ("NOTSET", "VALID"):
        if len(given) != 2 * len(space) or (auto == "VALID" and any(given)):
            call.refuse("pads do not fit the data")
        return given
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        call.refuse("auto_pad is unknown", ModelReason.UNSUPPORTED_ATTRIBUTE)
    totals = [
        max(0, (-(-size // step) - 1) * step + needed - size)
        for size, step, needed in zip(space, strides, reach, strict=True)
    ]
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return small + large if auto == "SAME_UPPER" else large + small


_SOFTMAX: Final = Operator(rule=_softmax, attributes={"axis": Attribute(int)})
_REDUCE: Final = Operator(
    rule=_reduce,
    max_inputs=2,
    attributes={"axes": INTEGERS, **defaults(keepdims=1, noop_with_empty_axes=0)},
)
_WINDOW: Final = {
    **defaults(auto_pad="NOTSET"),
    **dict.fromkeys(("kernel_shape", "strides", "pads", "dilations"), INTEGERS),
}
_POOL: Final = _WINDOW | defaults(ceil_mode=0)

OPERATORS: Final[Mapping[str, Operator]] = {
    "Gemm": Operator(
        rule=_gemm,
        min_inputs=2,
        max_inputs=3,
        attributes=defaults(alpha=1.0, beta=1.0, transA=0, transB=0),
        parameters=frozenset({0, 1, 2}),
    ),
    "MatMul": Operator(rule=_matmul, min_inputs=2, max_inputs=2, parameters=frozenset({0, 1})),
    "Conv": Operator(
        rule=_conv,
        min_inputs=2,
        max_inputs=3,
        attributes=_WINDOW | defaults(group=1),
        parameters=frozenset({1, 2}),
    ),
    "MaxPool": Operator(rule=_pool, attributes=_POOL | defaults(storage_order=0)),
    "AveragePool": Operator(rule=_pool, attributes=_POOL | defaults(count_include_pad=0)),
    "GlobalAveragePool": Operator(rule=_global_average_pool),
    "BatchNormalization": Operator(
        rule=_batch_normalization,
        min_inputs=5,
        max_inputs=5,
        attributes=defaults(epsilon=1e-5, momentum=0.9, training_mode=0),
        parameters=frozenset({1, 2}),
    ),
    "LayerNormalization": Operator(
        rule=_layer_normalization,
        min_inputs=2,
        max_inputs=3,
        attributes=defaults(axis=-1, epsilon=1e-5, stash_type=1),
        parameters=frozenset({1, 2}),
    ),
    "ReduceMean": _REDUCE,
    "ReduceSum": _REDUCE,
    "Softmax": _SOFTMAX,
    "LogSoftmax": _SOFTMAX,
}
