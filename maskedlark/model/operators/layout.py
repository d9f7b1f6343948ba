"""Rules of operators that only move entries.

Reshape and its relatives, Transpose, Slice, Split, Concat, Gather, Expand.
"""

from collections.abc import Mapping
from math import prod
from typing import Final

import numpy as np

from maskedlark.errors import ModelReason
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

_MAX_DIMENSION: Final = 1 << 31


def _flatten(call: OperatorCall) -> CheckedCall:
    """Check Flatten, as Reshape."""
    shape = call.shape()
    axis = call.integer("axis")
    if not -len(shape) <= axis <= len(shape):
        call.refuse(f"axis {axis} is outside a value of {len(shape)} axes")
    split = axis if axis >= 0 else axis + len(shape)
    return _into_shape(call, (prod(shape[:split]), prod(shape[split:])))


def _reshape(call: OperatorCall) -> CheckedCall:
    """Check Reshape to a known shape; 0 copies a dimension (unless allowzero), one -1 is inferred."""
    wanted = call.integers("shape", 1)
    if wanted is None:
        call.refuse("the shape is missing")
    # Bounded before products are formed: Python's integers grow, and time with them.
    if any(not -1 <= size < _MAX_DIMENSION for size in wanted) or wanted.count(-1) > 1:
        call.refuse(f"cannot reshape to {wanted}")
    source = call.shape()
    if not call.integer("allowzero"):
        if any(size == 0 and position >= len(source) for position, size in enumerate(wanted)):
            call.refuse(f"cannot copy a dimension of {source} to {wanted}")
        wanted = tuple(source[position] if size == 0 else size for position, size in enumerate(wanted))
    known = prod(size for size in wanted if size != -1)
    if -1 in wanted:
        if known == 0 or prod(source) % known:
            call.refuse(f"cannot reshape {source} to {wanted}")
        wanted = tuple(prod(source) // known if size == -1 else size for size in wanted)
    return _into_shape(call, wanted)


def _squeeze(call: OperatorCall) -> CheckedCall:
    """Check Squeeze, as Reshape."""
    shape = call.shape()
    axes = call.integers("axes", 1)
    gone = (
        {call.axis(axis, len(shape)) for axis in axes}
        if axes is not None
        else {i for i, size in enumerate(shape) if size == 1}
    )
    if any(shape[axis] != 1 for axis in gone):
        call.refuse(f"cannot remove axes {sorted(gone)} of {shape}")
    return _into_shape(call, tuple(size for axis, size in enumerate(shape) if axis not in gone))


def _unsqueeze(call: OperatorCall) -> CheckedCall:
    """Check Unsqueeze, as Reshape."""
    axes = call.integers("axes", 1)
    # An early bound: the limit on axes is checked on the shape that this makes.
    if axes is None or len(axes) > len(call.shape()) + 8:
        call.refuse("the axes are missing or too many")
    rank = len(call.shape()) + len(axes)
    added = {call.axis(axis, rank) for axis in axes}
    if len(added) != len(axes):
        call.refuse(f"axes {axes} repeat")
    kept = iter(call.shape())
    return _into_shape(call, tuple(1 if axis in added else next(kept) for axis in range(rank)))


def _transpose(call: OperatorCall) -> CheckedCall:
    """Check Transpose; without `perm` the axes are reversed."""
    shape = call.shape()
    axes = call.integer_list("perm") or tuple(reversed(range(len(shape))))
    if sorted(axes) != list(range(len(shape))):
        call.refuse(f"perm {axes} is not an order of {len(shape)} axes")
    return call.check(
        ValueType(call.types[0].kind, tuple(shape[axis] for axis in axes)),
        attributes={"perm": axes},
        is_identity=axes == tuple(range(len(shape))),
    )


def _expand(call: OperatorCall) -> CheckedCall:
    """Check Expand: broadcast to a known shape."""
    wanted = call.integers("shape", 1)
    if wanted is None or any(not 0 < size < _MAX_DIMENSION for size in wanted):
        call.refuse(f"cannot expand to {wanted}")
    return _of_shape(call, "Expand", broadcast(call, call.shape(), wanted))


def _concat(call: OperatorCall) -> CheckedCall:
    """Check Concat along one axis."""
    first = call.types[0]
    rank = len(first.shape)
    axis = call.axis(call.integer("axis"), rank)
    for other in call.types[1:]:
        if other.kind is not first.kind or len(other.shape) != rank:
            call.refuse("inputs differ in kind or number of axes")
        if any(other.shape[i] != first.shape[i] for i in range(rank) if i != axis):
            call.refuse(f"shapes {first.shape} and {other.shape} differ beside axis {axis}")
    total = sum(kind.shape[axis] for kind in call.types)
    return call.check(
        ValueType(first.kind, _with_axis(first.shape, axis, total)),
        attributes={"axis": axis},
        is_identity=len(call.inputs) == 1,
    )


def _slice(call: OperatorCall) -> CheckedCall:
    """Check Slice with known bounds and positive steps; the bounds become in-range attributes."""
    starts, ends = call.integers("starts", 1), call.integers("ends", 2)
    if starts is None or ends is None:
        call.refuse("starts or ends are missing")
    axes = call.integers("axes", 3) or tuple(range(len(starts)))
    steps = call.integers("steps", 4) or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        call.refuse("starts, ends, axes and steps differ in length")
    if any(step < 1 for step in steps):
        call.refuse("steps must be positive", ModelReason.UNSUPPORTED_ATTRIBUTE)
    shape = call.shape()
    positive = tuple(call.axis(axis, len(shape)) for axis in axes)
    if len(set(positive)) != len(positive):
        call.refuse(f"axes {axes} repeat")
    # Python clamps bounds outside the axis, and counts negative ones from its end, as ONNX does.
    ranges = [
        range(*slice(*cut).indices(shape[axis]))
        for axis, *cut in zip(positive, starts, ends, steps, strict=True)
    ]
    for axis, kept in zip(positive, ranges, strict=True):
        shape = _with_axis(shape, axis, len(kept))
    return call.check(
        ValueType(call.types[0].kind, shape),
        inputs=call.inputs[:1],
        attributes={
            "starts": tuple(kept.start for kept in ranges),
            "ends": tuple(kept.stop for kept in ranges),
            "axes": positive,
            "steps": tuple(kept.step for kept in ranges),
        },
        is_identity=shape == call.shape(),  # steps are positive: an axis as long as before is whole
    )


def _split(call: OperatorCall) -> CheckedCall:
    """Check Split into known sizes.

    Without any, into equal parts (the last may be smaller where `num_outputs` says so).
    """
    shape = call.shape()
    axis = call.axis(call.integer("axis"), len(shape))
    sizes = call.integers("split", 1)
    if sizes is None:
        part = -(-shape[axis] // call.num_outputs)
        if shape[axis] % call.num_outputs and "num_outputs" not in call.attributes:
            call.refuse(f"axis {axis} of {shape} has no {call.num_outputs} equal parts")
        sizes = (part,) * (call.num_outputs - 1) + (shape[axis] - part * (call.num_outputs - 1),)
    if call.attributes.get("num_outputs", len(sizes)) != len(sizes) or len(sizes) != call.num_outputs:
        call.refuse("the number of parts differs from the number of outputs")
    if any(size < 1 for size in sizes) or sum(sizes) != shape[axis]:
        call.refuse(f"parts {sizes} do not add up to axis {axis} of {shape}")
    return call.check(
        *(ValueType(call.types[0].kind, _with_axis(shape, axis, size)) for size in sizes),
        inputs=call.inputs[:1],
        attributes={"axis": axis, "split": sizes},
    )


def _gather(call: OperatorCall) -> CheckedCall:
    """Check Gather.

    Known indices are checked here, those that depend on the record by the engine (only for float tables).
    """
    call.require_kind(ValueKind.INTEGER, 1)
    shape = call.shape()
    axis = call.axis(call.integer("axis"), len(shape))
    indices = call.constants.get(call.inputs[1])
    if indices is None:
        call.require_kind(ValueKind.FLOAT, 0)
    elif indices.size and not (-shape[axis] <= indices.min() and indices.max() < shape[axis]):
        call.refuse(f"an index is outside axis {axis} of {shape}")
    return call.check(
        ValueType(call.types[0].kind, shape[:axis] + call.shape(1) + shape[axis + 1 :]),
        attributes={"axis": axis},
    )


def _gather_nd(call: OperatorCall) -> CheckedCall:
    """Check GatherND by known coordinates of the leading axes."""
    if call.integer("batch_dims"):
        call.refuse("batch_dims must be 0", ModelReason.UNSUPPORTED_ATTRIBUTE)
    call.require_kind(ValueKind.INTEGER, 1)
    shape, indices = call.shape(), call.constant(1)
    axes = indices.shape[-1] if indices.ndim else 0
    if not 1 <= axes <= len(shape) or not indices.size:
        call.refuse(f"the indices of shape {indices.shape} choose nothing of {shape}")
    sizes = np.array(shape[:axes])
    if (indices < -sizes).any() or (indices >= sizes).any():
        call.refuse(f"an index is outside the first axes of {shape}")
    return call.check(ValueType(call.types[0].kind, indices.shape[:-1] + shape[axes:]))


def _into_shape(call: OperatorCall, shape: Shape) -> CheckedCall:
    if prod(shape) != call.types[0].size:
        call.refuse(f"cannot reshape {call.shape()} to {shape}")
    return _of_shape(call, "Reshape", shape)


def _of_shape(call: OperatorCall, operator: str, shape: Shape) -> CheckedCall:
    """Return the first input in another shape, which the operator takes as an attribute."""
    return call.check(
        ValueType(call.types[0].kind, shape),
        operator=operator,
        inputs=call.inputs[:1],
        attributes={"shape": shape},
        is_identity=shape == call.shape(),
    )


def _with_axis(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


_FIRST: Final = frozenset({0})
_MOST_INPUTS: Final = 256
_AXES: Final = {"axes": INTEGERS}

OPERATORS: Final[Mapping[str, Operator]] = {
    "Reshape": Operator(
        rule=_reshape,
        max_inputs=2,
        attributes={"shape": INTEGERS, **defaults(allowzero=0)},
        carries=_FIRST,
    ),
    "Flatten": Operator(rule=_flatten, attributes=defaults(axis=1), carries=_FIRST),
    "Squeeze": Operator(rule=_squeeze, max_inputs=2, attributes=_AXES, carries=_FIRST),
    "Unsqueeze": Operator(rule=_unsqueeze, max_inputs=2, attributes=_AXES, carries=_FIRST),
    "Transpose": Operator(rule=_transpose, attributes={"perm": INTEGERS}, carries=_FIRST),
    "Expand": Operator(rule=_expand, min_inputs=2, max_inputs=2, carries=_FIRST),
    "Concat": Operator(
        rule=_concat,
        max_inputs=_MOST_INPUTS,
        attributes=defaults(axis=0),
        carries=frozenset(range(_MOST_INPUTS)),
    ),
    # Opset 9, older than any that is read, was the last with `starts`, `ends` and `axes` as attributes.
    "Slice": Operator(rule=_slice, min_inputs=3, max_inputs=5, carries=_FIRST),
    "Split": Operator(
        rule=_split,
        max_inputs=2,
        max_outputs=_MOST_INPUTS,
        attributes={**defaults(axis=0), "split": INTEGERS, "num_outputs": Attribute(int)},
        carries=_FIRST,
    ),
    "Gather": Operator(
        rule=_gather, min_inputs=2, max_inputs=2, attributes=defaults(axis=0), parameters=_FIRST
    ),
    "GatherND": Operator(
        rule=_gather_nd,
        min_inputs=2,
        max_inputs=2,
        attributes=defaults(batch_dims=0),
        carries=_FIRST,
    ),
}
