"""Rules of operators that act on each entry: arithmetic, activations, comparisons, casts."""

from collections.abc import Mapping
from typing import Final

import onnx

from maskedlark.errors import ModelReason
from maskedlark.model.graph import AttributeValue
from maskedlark.model.operators.call import (
    Attribute,
    CheckedCall,
    Operator,
    OperatorCall,
    ValueKind,
    ValueType,
    broadcast,
    defaults,
)

_CAST_KINDS: Final[Mapping[int, ValueKind]] = {
    onnx.TensorProto.FLOAT: ValueKind.FLOAT,
    onnx.TensorProto.DOUBLE: ValueKind.FLOAT,
    onnx.TensorProto.FLOAT16: ValueKind.FLOAT,
    onnx.TensorProto.BFLOAT16: ValueKind.FLOAT,
    onnx.TensorProto.INT32: ValueKind.INTEGER,
    onnx.TensorProto.INT64: ValueKind.INTEGER,
}
_CANONICAL_CAST: Final = {
    ValueKind.FLOAT: int(onnx.TensorProto.FLOAT),
    ValueKind.INTEGER: int(onnx.TensorProto.INT64),
}


def _activation(call: OperatorCall) -> CheckedCall:
    """Check an activation: one float value in, one of the same shape out; the attributes stay."""
    call.require_kind(ValueKind.FLOAT, 0)
    return call.check(call.types[0], attributes=call.attributes)


def _gelu(call: OperatorCall) -> CheckedCall:
    """Check Gelu, exact or by tanh."""
    if call.attributes["approximate"] not in ("none", "tanh"):
        call.refuse("approximate must be none or tanh", ModelReason.UNSUPPORTED_ATTRIBUTE)
    return _activation(call)


def _arithmetic(call: OperatorCall) -> CheckedCall:
    """Check Add, Sub, Mul and Div of two values of one kind; integers divide only where both are known."""
    left, right = call.types
    if left.kind is not right.kind or left.kind is ValueKind.BOOLEAN:
        call.refuse(
            f"inputs must both be float or both integer, not {left.kind.name.lower()} and "
            f"{right.kind.name.lower()}"
        )
    # Folding computes them; an engine would have to round a quotient, and helpers must not differ.
    if call.operator == "Div" and left.kind is ValueKind.INTEGER:
        _require_known(call)
    return _binary(call, left.kind)


def _modulo(call: OperatorCall) -> CheckedCall:
    """Check Mod of known integers: exporters compute shapes with it."""
    if call.attributes["fmod"]:
        call.refuse("fmod must be 0", ModelReason.UNSUPPORTED_ATTRIBUTE)
    call.require_kind(ValueKind.INTEGER, 0, 1)
    _require_known(call)
    return _binary(call, ValueKind.INTEGER)


def _power(call: OperatorCall) -> CheckedCall:
    """Check Pow: a float base; the exponent may be an integer."""
    call.require_kind(ValueKind.FLOAT, 0)
    if call.types[1].kind is ValueKind.BOOLEAN:
        call.refuse("the exponent must be a number")
    return _binary(call, ValueKind.FLOAT)


def _greater(call: OperatorCall) -> CheckedCall:
    """Check Greater: two floats are compared; only Where and Cast read the result."""
    call.require_kind(ValueKind.FLOAT, 0, 1)
    return _binary(call, ValueKind.BOOLEAN)


def _prelu(call: OperatorCall) -> CheckedCall:
    """Check PRelu: the slope broadcasts to the data, not the other way."""
    call.require_kind(ValueKind.FLOAT, 0, 1)
    if broadcast(call, call.shape(0), call.shape(1)) != call.shape(0):
        call.refuse("the slope does not broadcast to the data")
    return _binary(call, ValueKind.FLOAT)


def _where(call: OperatorCall) -> CheckedCall:
    """Check Where: a boolean chooses between two values of one kind."""
    call.require_kind(ValueKind.BOOLEAN, 0)
    call.require_kind(call.types[1].kind, 2)
    shape = broadcast(call, *(kind.shape for kind in call.types))
    return call.check(ValueType(call.types[1].kind, shape))


def _cast(call: OperatorCall) -> CheckedCall:
    """Check Cast between float and integer.

    Within a kind it does nothing.
    """
    kind = _CAST_KINDS.get(call.integer("to")) if "to" in call.attributes else None
    if kind is None:
        call.refuse("can only cast to a float type, int32 or int64", ModelReason.UNSUPPORTED_ATTRIBUTE)
    return call.check(
        ValueType(kind, call.shape()),
        attributes={"to": _CANONICAL_CAST[kind]},
        # Both engines compute wider than any float type, so a cast between two of them rounds nothing.
        is_identity=kind is call.types[0].kind,
    )


def _clip(call: OperatorCall) -> CheckedCall:
    """Check Clip: known bounds become the attributes `min` and `max`, either of which may be absent."""
    if call.types[0].kind is not ValueKind.FLOAT:
        call.refuse(
            "cannot bound whole numbers: clamp before the cast, as in (x * 256).clamp(0, rows - 1).long()"
        )
    bounds: dict[str, AttributeValue] = {}
    for position, name in ((1, "min"), (2, "max")):
        if call.has(position):
            bounds[name] = call.scalar(position)
    return call.check(call.types[0], inputs=call.inputs[:1], attributes=bounds, is_identity=not bounds)


def _require_known(call: OperatorCall) -> None:
    for position in range(len(call.inputs)):
        call.constant(position)


def _binary(call: OperatorCall, kind: ValueKind) -> CheckedCall:
    shape = broadcast(call, call.shape(0), call.shape(1))
    return call.check(ValueType(kind, shape))


_ACTIVATION: Final = Operator(rule=_activation)
_ARITHMETIC: Final = Operator(rule=_arithmetic, min_inputs=2, max_inputs=2, parameters=frozenset({0, 1}))

OPERATORS: Final[Mapping[str, Operator]] = {
    "Add": _ARITHMETIC,
    "Sub": _ARITHMETIC,
    "Mul": _ARITHMETIC,
    "Div": _ARITHMETIC,
    "Pow": Operator(rule=_power, min_inputs=2, max_inputs=2, parameters=frozenset({0})),
    "Mod": Operator(rule=_modulo, min_inputs=2, max_inputs=2, attributes=defaults(fmod=0)),
    "Greater": Operator(rule=_greater, min_inputs=2, max_inputs=2),
    "Where": Operator(rule=_where, min_inputs=3, max_inputs=3, carries=frozenset({1, 2})),
    "Clip": Operator(rule=_clip, max_inputs=3),
    "Cast": Operator(
        rule=_cast,
        attributes={"to": Attribute(int), **defaults(saturate=1)},
        carries=frozenset({0}),
    ),
    "Relu": _ACTIVATION,
    "Sigmoid": _ACTIVATION,
    "Tanh": _ACTIVATION,
    "Softplus": _ACTIVATION,
    "Sqrt": _ACTIVATION,
    "Exp": _ACTIVATION,
    "Log": _ACTIVATION,
    "Erf": _ACTIVATION,
    "LeakyRelu": Operator(rule=_activation, attributes=defaults(alpha=0.01)),
    "Elu": Operator(rule=_activation, attributes=defaults(alpha=1.0)),
    "Gelu": Operator(rule=_gelu, attributes=defaults(approximate="none")),
    "PRelu": Operator(rule=_prelu, min_inputs=2, max_inputs=2, parameters=frozenset({1})),
}
