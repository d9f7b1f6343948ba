"""Rows of the allow-list, and what a row's rule is given about one use of an operator and says about it.

A rule turns the many spellings of ONNX (attributes that became inputs, implied defaults, shapes computed in
the graph) into one: every size is a number, and everything that is not data is an attribute. The gradient
engines read only that form.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from math import prod
from typing import Any, Final, NoReturn, TypeAlias, cast

import numpy as np

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen
from maskedlark.model.graph import AttributeValue, Constant

Shape = tuple[int, ...]
_MAX_LIST: Final = 256


class ValueKind(Enum):
    """What the entries of a value are."""

    FLOAT = auto()
    INTEGER = auto()
    BOOLEAN = auto()


KIND_OF_DTYPE = {"f": ValueKind.FLOAT, "i": ValueKind.INTEGER, "b": ValueKind.BOOLEAN}
"""By the `kind` of a numpy dtype."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """The kind and shape of a value, for the number of records that the check runs with."""

    kind: ValueKind
    shape: Shape

    @property
    def size(self) -> int:
        """The number of entries."""
        return prod(self.shape)


@frozen
class OperatorCall:
    """One use of an operator.

    Attributes:
        operator: As in the ONNX file.
        inputs: Value names; "" for an absent optional input.
        types: One an input; a placeholder for an absent one.
        constants: The values that are known, by name.
        attributes: Those given, and the defaults of the others that have one.
        num_outputs: Outputs that the node names.
        opset: The version of the default operator set.
    """

    operator: str
    inputs: tuple[str, ...]
    types: tuple[ValueType, ...]
    constants: Mapping[str, Constant]
    attributes: Mapping[str, AttributeValue]
    num_outputs: int
    opset: int

    def check(self, *outputs: ValueType, **more: Any) -> "CheckedCall":
        """Return the node in normal form: this operator and these inputs, unless `more` names others."""
        return CheckedCall(**{"operator": self.operator, "inputs": self.inputs, "outputs": outputs, **more})

    def refuse(self, why: str, reason: ModelReason = ModelReason.WRONG_SHAPE) -> NoReturn:
        """Raise InvalidModel about this node."""
        raise InvalidModel(reason, f"{self.operator}: {why}")

    def has(self, position: int) -> bool:
        """Return whether an optional input is present."""
        return position < len(self.inputs) and self.inputs[position] != ""

    def shape(self, position: int = 0) -> Shape:
        """Return the shape of an input."""
        return self.types[position].shape

    def require_kind(self, kind: ValueKind, *positions: int) -> None:
        """Refuse unless each of these inputs has this kind."""
        for position in positions:
            if self.types[position].kind is not kind:
                self.refuse(
                    f"input {position} must be {kind.name.lower()}, not "
                    f"{self.types[position].kind.name.lower()}"
                )

    def constant(self, position: int) -> Constant:
        """Return the known value of an input."""
        value = self.constants.get(self.inputs[position])
        if value is None:
            self.refuse(f"input {position} must be a constant")
        return value

    def integers(self, attribute: str, position: int) -> Shape | None:
        """Return integers that older operator sets give as an attribute and newer ones as an input.

        None if neither is there.
        """
        if not self.has(position):
            return self.integer_list(attribute)
        # Two sources of one shape: which of them holds would depend on the reader.
        if attribute in self.attributes:
            self.refuse(f"{attribute} is given twice", ModelReason.UNSUPPORTED_ATTRIBUTE)
        self.require_kind(ValueKind.INTEGER, position)
        values = self.constant(position)
        if values.ndim != 1 or values.size > _MAX_LIST:
            self.refuse(f"input {position} must be a list of at most {_MAX_LIST} integers")
        return tuple(int(value) for value in values)

    def scalar(self, position: int) -> float:
        """Return the known value of an input that must hold one number."""
        values = self.constant(position)
        if values.size != 1 or values.dtype.kind not in "fib":
            self.refuse(f"input {position} must be one number")
        return float(np.asarray(values).reshape(()))

    def integer(self, attribute: str) -> int:
        """Return an integer attribute that has a default, or whose presence the caller has checked."""
        return cast("int", self.attributes[attribute])  # node_proto checked the type

    def integer_list(self, attribute: str) -> Shape | None:
        """Return an attribute that lists integers; None if it is not given."""
        return cast("Shape | None", self.attributes.get(attribute))  # node_proto checked the type

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front."""
        if not -rank <= axis < rank:
            self.refuse(f"axis {axis} is outside a value of {rank} axes")
        # Python's remainder is not negative.
        return axis % rank


@frozen
class CheckedCall:
    """A node in normal form.

    Attributes:
        operator: The normal operator, which may differ from the file's (Flatten becomes Reshape).
        inputs: What it still reads.
        attributes: All that it needs to know, with no default left out.
        outputs: Their types, at least as many as the node names.
        is_identity: The only output is the only input: the node can be left out.
        multiplications: What it costs, for one record, where that is more than its entries.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[ValueType, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    is_identity: bool = False
    multiplications: int = 0


def broadcast(call: OperatorCall, *shapes: Shape) -> Shape:
    """Return the common shape of numpy's (and ONNX's) multidirectional broadcasting."""
    rank = max(map(len, shapes))
    result = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wanted = {size for size in sizes if size != 1}
        if len(wanted) > 1:
            call.refuse(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        result.append(wanted.pop() if wanted else 1)
    return tuple(result)


Rule: TypeAlias = Callable[[OperatorCall], CheckedCall]
Tensor: Final = np.ndarray
"""The type of an attribute that holds a tensor."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its type, its default if it has one, and whether it is a list.

    The type is that of its entries: `Tensor` for a tensor.
    """

    type: type
    default: AttributeValue | None = None
    is_list: bool = False


INTEGERS: Final = Attribute(int, is_list=True)


def defaults(**values: float | str) -> dict[str, Attribute]:
    """Declare attributes by their defaults, whose types are theirs."""
    return {name: Attribute(type(value), value) for name, value in values.items()}


@frozen
class Operator:
    """One row of the allow-list.

    A node may have `min_inputs` to `max_inputs` inputs and up to `max_outputs` outputs.

    Without a rule it never reaches an engine: `maskedlark.model.resolve` replaces it by a constant or by its
    input.

    Attributes:
        parameters: The inputs whose float32 initializers are trained.
        carries: The inputs that are only moved to the output, so that a weight which is transposed or
            reshaped on its way is still found.
    """

    rule: Rule | None
    min_inputs: int = 1
    max_inputs: int = 1
    max_outputs: int = 1
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    parameters: frozenset[int] = frozenset()
    carries: frozenset[int] = frozenset()
