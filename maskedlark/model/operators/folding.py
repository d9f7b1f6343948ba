"""The operators that are computed while parsing when all they read is known.

Exporters build shapes and start states from them.

Only moves of entries and integer arithmetic are computed, so nothing is rounded here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.graph import Constant
from maskedlark.model.operators.call import CheckedCall

_Attributes = Mapping[str, Any]  # a rule of `layout` wrote them: their types are known here


def _slice(values: Sequence[Constant], attributes: _Attributes, _: CheckedCall) -> Constant:
    cuts = [slice(None)] * values[0].ndim
    for axis, start, end, step in zip(
        *(attributes[key] for key in ("axes", "starts", "ends", "steps")), strict=True
    ):
        cuts[axis] = slice(start, end, step)
    return values[0][tuple(cuts)]


def _divide(values: Sequence[Constant]) -> Constant:
    """Divide toward zero, as ONNX divides integers."""
    quotient = np.floor_divide(*_nonzero(values))
    # Rounded down is one too low where the quotient is negative and has a remainder.
    rounded: Constant = quotient + ((quotient < 0) & (quotient * values[1] != values[0]))
    return rounded


def _modulo(values: Sequence[Constant]) -> Constant:
    return np.mod(*_nonzero(values))


def _nonzero(values: Sequence[Constant]) -> Sequence[Constant]:
    if not values[1].all():
        raise InvalidModel(ModelReason.WRONG_SHAPE, "the graph divides integers by zero")
    return values


_MOVES: Final[Mapping[str, Callable[[Sequence[Constant], _Attributes, CheckedCall], Constant]]] = {
    "Reshape": lambda values, _, check: values[0].reshape(check.outputs[0].shape),
    "Expand": lambda values, _, check: np.broadcast_to(values[0], check.outputs[0].shape),
    "Transpose": lambda values, attributes, _: values[0].transpose(attributes["perm"]),
    "Concat": lambda values, attributes, _: np.concatenate(values, axis=attributes["axis"]),
    "Gather": lambda values, attributes, _: np.take(values[0], values[1], axis=attributes["axis"]),
    "GatherND": lambda values, _, __: values[0][tuple(np.moveaxis(values[1], -1, 0))],
    "Slice": _slice,
}
_ARITHMETIC: Final[Mapping[str, Callable[[Sequence[Constant]], Constant]]] = {
    "Add": lambda values: np.add(*values),
    "Sub": lambda values: np.subtract(*values),
    "Mul": lambda values: np.multiply(*values),
    "Div": _divide,
    "Mod": _modulo,
}


def fold(check: CheckedCall, values: Sequence[Constant]) -> Constant | None:
    """Compute a node whose inputs are known; None where it is left to the engines.

    Guarantees: the result has the checked kind and shape, and is a fresh array.

    Raises:
        InvalidModel(WRONG_SHAPE): a division by zero.
    """
    with np.errstate(all="ignore"):  # integer overflow wraps; a shape made of it is refused where it is used
        if check.operator in _MOVES:
            result = _MOVES[check.operator](values, check.attributes, check)
        elif check.operator in _ARITHMETIC and all(value.dtype.kind == "i" for value in values):
            result = _ARITHMETIC[check.operator](values)
        elif check.operator == "Cast" and values[0].dtype.kind in "ib":
            result = values[0].astype(np.float32)
        else:
            return None
    return np.array(result).reshape(check.outputs[0].shape)
