"""The exact form of a model: steps over numbered values, and the builder through which each operator's lowering adds its own.

Values are numbered from 0, the features. A step reads values and writes one; values are (records, size) in C order of their ONNX
shape without the record axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.layer import Layer, NotExact, Trainable
from helper.gradient.exact.product import MAX_WIDTH
from maskedlark.model.graph import Constant, Model, Node

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One layer with the numbers of the values that it reads and writes."""

    layer: Layer
    inputs: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model in exact form.

    Attributes:
        steps: In topological order.
        sizes: The size of each value.
        is_trained: Of each value, whether a parameter lies before it.
        output: The value that the loss reads.
        num_parameters: The length of the flat vector.
    """

    steps: tuple[Step, ...]
    sizes: tuple[int, ...]
    is_trained: tuple[bool, ...]
    output: int
    num_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What is known of a value while lowering.

    Attributes:
        number: The value that holds it.
        shape: Its ONNX shape without the record axis.
        is_bytes: Whether it holds bytes of the features.
        scale: For bytes, what 1/256 of each is multiplied by.
        is_index: Whether it is the bytes themselves, as integers.
    """

    number: int
    shape: Shape
    is_bytes: bool = False
    scale: float = 1.0
    is_index: bool = False

    @property
    def size(self) -> int:
        """Entries a record."""
        return prod(self.shape)


class PlanBuilder:
    """Collects steps; lowering functions see the model through it."""

    def __init__(self, model: Model) -> None:
        offsets = np.cumsum([0, *(parameter.size for parameter in model.parameters)])
        self._trainables = {
            parameter.name: Trainable(index=index, offset=int(offsets[index]), shape=parameter.shape)
            for index, parameter in enumerate(model.parameters)
        }
        self._model = model
        self._unused = set(self._trainables)
        self._values = {model.input_name: Value(number=0, shape=(model.input_width,), is_bytes=True)}
        self._steps: list[Step] = []
        self._sizes = [model.input_width]
        self._is_trained = [False]

    @property
    def next_key(self) -> int:
        """The number of the step to come, which its digest keys are made of."""
        return len(self._steps)

    def constant(self, name: str) -> Constant | None:
        """A constant by name."""
        return self._model.constants.get(name)

    def is_parameter(self, name: str) -> bool:
        """Whether the name is a parameter's."""
        return name in self._trainables

    def value(self, name: str) -> Value:
        """An input that must be data."""
        if name not in self._values:
            raise NotExact(f"{name!r} is a parameter or a constant where the exact path needs data")
        return self._values[name]

    def parameter(self, name: str, operator: str) -> Trainable:
        """An input that must be a parameter of no other node: a gradient that is a sum over two uses has no factored norm."""
        if name not in self._trainables:
            raise NotExact(f"{operator} has an input {name!r} that is not trained where the exact path needs a parameter")
        if name not in self._unused:
            raise NotExact(f"the parameter {name!r} is used more than once")
        self._unused.remove(name)
        return self._trainables[name]

    def is_trained(self, value: Value) -> bool:
        """Whether a parameter lies before a value."""
        return self._is_trained[value.number]

    def alias(self, name: str, value: Value, **changes: Any) -> None:
        """Give a value another name, and perhaps another shape."""
        self._values[name] = replace(value, **changes)

    def add(self, name: str, layer: Layer, inputs: Sequence[Value], shape: Shape, *, has_parameters: bool = False) -> None:
        """Add a step whose output has a name and a shape."""
        if prod(shape) > MAX_WIDTH**2:
            raise NotExact(f"the value {name!r} has more than {MAX_WIDTH**2} entries a record")
        number = len(self._sizes)
        self._steps.append(Step(layer=layer, inputs=tuple(value.number for value in inputs), output=number))
        self._sizes.append(prod(shape))
        self._is_trained.append(has_parameters or any(self.is_trained(value) for value in inputs))
        self._values[name] = Value(number=number, shape=shape)

    def rearrange(self, name: str, source: Value, order: NDArray[np.int64], layer: Layer) -> None:
        """Add a step that moves entries: bytes stay bytes."""
        self.add(name, layer, (source,), order.shape)
        self._values[name] = replace(source, number=self._values[name].number, shape=order.shape)

    def finish(self, output_name: str) -> Plan:
        """The plan that ends in a value."""
        if self._unused:
            raise NotExact(f"the parameter {min(self._unused)!r} is not reached by the exact path")
        return Plan(
            steps=tuple(self._steps),
            sizes=tuple(self._sizes),
            is_trained=tuple(self._is_trained),
            output=self.value(output_name).number,
            num_parameters=self._model.num_parameters,
        )


def attribute(node: Node, name: str) -> float:
    """A numeric attribute."""
    value = node.attributes[name]
    if not isinstance(value, int | float):
        raise NotExact(f"{node.operator} has an attribute {name} that is not a number")
    return value
