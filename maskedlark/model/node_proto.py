"""One ONNX node, checked against the allow-list: nothing of it is read that the list does not name."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final, TypeAlias, TypeVar

import onnx

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen
from maskedlark.model.graph import AttributeValue, Constant
from maskedlark.model.limits import Limits
from maskedlark.model.operators.call import Attribute, Operator, Tensor
from maskedlark.model.operators.table import INSTEAD_OF_REFUSED, OPERATORS
from maskedlark.model.tensor_proto import to_array

RawAttribute: TypeAlias = AttributeValue | Constant
DEFAULT_DOMAINS: Final = ("", "ai.onnx")

_TYPES: Final = {
    onnx.AttributeProto.INT: Attribute(int),
    onnx.AttributeProto.FLOAT: Attribute(float),
    onnx.AttributeProto.STRING: Attribute(str),
    onnx.AttributeProto.TENSOR: Attribute(Tensor),
    onnx.AttributeProto.INTS: Attribute(int, is_list=True),
    onnx.AttributeProto.FLOATS: Attribute(float, is_list=True),
    onnx.AttributeProto.STRINGS: Attribute(str, is_list=True),
}
_MAX_LIST: Final = 1 << 16
Number = TypeVar("Number", int, float)


@frozen
class RawNode:
    """A node as the file has it, with the defaults of its attributes filled in.

    A list of texts is joined by commas.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, RawAttribute]

    @property
    def row(self) -> Operator:
        """The allow-list's entry for its operator."""
        return OPERATORS[self.operator]


def read_node(node: onnx.NodeProto, limits: Limits) -> RawNode:
    """Check one node's operator, attributes, and numbers of inputs and outputs.

    Raises:
        InvalidModel: UNKNOWN_OPERATOR, UNSUPPORTED_ATTRIBUTE, NOT_ONNX (a number of inputs that no version of
            the operator has), NOT_FINITE (an attribute), or what `to_array` raises.
    """
    # Cut, as all names in errors here: a hostile file may hold names of 64 KiB.
    operator = node.op_type[:80]
    row = OPERATORS.get(operator)
    if row is None or node.domain not in DEFAULT_DOMAINS or node.overload:
        named = f"{node.domain[:80]}.{operator}" if node.domain else operator
        raise InvalidModel(
            ModelReason.UNKNOWN_OPERATOR,
            f"operator {named!r} is not supported"
            + (f": write {instead}" if (instead := INSTEAD_OF_REFUSED.get(named)) else "")
            + " (docs/how-to/operators.md lists those that are)",
        )
    inputs, outputs = tuple(node.input), tuple(node.output)
    # Exporters write absent inputs at the end as empty names, or leave them out.
    present = len(inputs) - next((i for i, name in enumerate(reversed(inputs)) if name), len(inputs))
    if not row.min_inputs <= present <= row.max_inputs or "" in inputs[: row.min_inputs]:
        raise InvalidModel(ModelReason.NOT_ONNX, f"{operator} cannot have {present} inputs")
    if not any(outputs):
        raise InvalidModel(ModelReason.NOT_ONNX, f"a node of {operator} names no output")
    if len(outputs) > row.max_outputs:
        raise InvalidModel(
            ModelReason.UNSUPPORTED_ATTRIBUTE, f"{operator} gives at most {row.max_outputs} outputs here"
        )
    attributes: dict[str, RawAttribute] = {
        name: known.default for name, known in row.attributes.items() if known.default is not None
    }
    attributes.update(_given(node, row, limits))
    return RawNode(operator=operator, inputs=inputs[:present], outputs=outputs, attributes=attributes)


def _given(node: onnx.NodeProto, row: Operator, limits: Limits) -> dict[str, RawAttribute]:
    """Return the attributes that the node carries."""
    given: dict[str, RawAttribute] = {}
    for attribute in node.attribute:
        known = row.attributes.get(attribute.name)
        # A reference is to an attribute of a function, and functions are refused.
        if known is None or attribute.ref_attr_name or attribute.name in given:
            raise InvalidModel(
                ModelReason.UNSUPPORTED_ATTRIBUTE,
                f"{node.op_type[:80]}: attribute {attribute.name[:80]!r} is not supported",
            )
        given[attribute.name] = _value(attribute, known, limits)
    return given


def _value(attribute: onnx.AttributeProto, known: Attribute, limits: Limits) -> RawAttribute:
    found = _TYPES.get(attribute.type)
    if found is None or (found.type, found.is_list) != (known.type, known.is_list):
        raise InvalidModel(
            ModelReason.UNSUPPORTED_ATTRIBUTE, f"attribute {attribute.name[:80]!r} has the wrong type"
        )
    if known.type is Tensor:
        return to_array(attribute.t, limits)
    if known.type is int:
        return _short(attribute.ints) if known.is_list else int(attribute.i)
    if known.type is str:
        return _text(b",".join(attribute.strings) if known.is_list else attribute.s)
    numbers = _short(attribute.floats) if known.is_list else (float(attribute.f),)
    if not all(map(isfinite, numbers)):
        raise InvalidModel(ModelReason.NOT_FINITE, f"attribute {attribute.name[:80]!r} is not finite")
    return numbers if known.is_list else numbers[0]


def _short(values: Sequence[Number]) -> tuple[Number, ...]:
    if len(values) > _MAX_LIST:
        raise InvalidModel(
            ModelReason.TOO_LARGE, f"an attribute lists {len(values)} numbers, the limit is {_MAX_LIST}"
        )
    return tuple(values)


def _text(encoded: bytes) -> str:
    try:
        return encoded.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidModel(ModelReason.UNSUPPORTED_ATTRIBUTE, "a text attribute is not ASCII") from None
