"""The exact form of a model.

Steps over numbered values, and the builder through which each operator's lowering adds its own.

Values are numbered from 0, the features. A step reads values and writes one; values are (records, size) in C
order of their ONNX shape without the record axis.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.layers.embedding import ByteSums
from helper.gradient.exact.layers.layer import (
    Layer,
    NotExact,
    RoundSetup,
    Running,
    Trainable,
    select_trained,
)
from helper.gradient.exact.layers.layout import Fixed, Rearrange, Repeat
from maskedlark.frozen import frozen
from maskedlark.model.graph import Constant, Model, Node
from maskedlark.model.weights import QuantisedTensor, quantise

MAX_PLACES: Final = 1 << 24
"""The most places that the windows of all convolutions and pools of a model list: 64 MiB."""

Shape = tuple[int, ...]


@frozen
class Step:
    """One layer, the numbers of the values that it reads and writes, and whether it is trained."""

    layer: Layer
    inputs: tuple[int, ...]
    output: int
    has_parameters: bool


@frozen
class Lowered:
    """A model in exact form.

    Attributes:
        steps: In topological order.
        sizes: The size of each value.
        is_trained: Of each value, whether a trained parameter lies before it.
        output: The value that the loss reads.
        num_parameters: The length of the flat vector.
        frozen: The weights of frozen parameters.
    """

    steps: tuple[Step, ...]
    sizes: tuple[int, ...]
    is_trained: tuple[bool, ...]
    output: int
    num_parameters: int
    frozen: tuple[QuantisedTensor, ...]

    def start(self, setup: RoundSetup) -> list[Running]:
        """Start the layers, each with separate buffers."""
        return [
            step.layer.start(replace(setup, buffers=setup.buffers.part(f"step {index}")))
            for index, step in enumerate(self.steps)
        ]

    def block_entries(self, seeds: int) -> int:
        """Return how many numbers a record takes: each value, and its delta for each seed.

        The features are bytes, and have no deltas.
        """
        return self.sizes[0] // 8 + (1 + seeds) * sum(self.sizes[1:])


@frozen
class LoweredValue:
    """What is known of a value while lowering.

    Attributes:
        number: The value that holds it.
        shape: Its ONNX shape without the record axis.
        is_bytes: Whether it holds bytes of the features.
        scale: For bytes, what 1/256 of each is multiplied by.
    """

    number: int
    shape: Shape
    is_bytes: bool = False
    scale: float = 1.0

    @property
    def size(self) -> int:
        """Entries a record."""
        return prod(self.shape)


@frozen
class TurnedValue:
    """A value whose record axis is not its first: only a Transpose and a choice of entries read it.

    Attributes:
        source: The value that it moves the entries of.
        order: The entry of `source` at each place, in the turned shape; the record axis has size 1.
        record_axis: Where that axis is.
    """

    source: LoweredValue
    order: NDArray[np.int64]
    record_axis: int


class LoweredBuilder:
    """Collects steps; lowering functions see the model through it."""

    def __init__(
        self,
        model: Model,
        nodes: Sequence[Node],
        output_name: str,
        indices: Mapping[str, tuple[Shape, ByteSums]],
    ) -> None:
        offsets = np.cumsum([0, *(parameter.size for parameter in model.parameters)])
        self._trainables = {
            parameter.name: Trainable(index=index, offset=int(offsets[index]), shape=parameter.shape)
            for index, parameter in enumerate(model.parameters)
        }
        self._unused = set(self._trainables)
        for index, name in enumerate(model.frozen, len(model.parameters)):
            shape = model.constants[name].shape
            # In no gradient: the offset is never read.
            self._trainables[name] = Trainable(index=index, offset=0, shape=shape, is_frozen=True)
        # Quantised like trained weights: the same exact products take them.
        self._frozen = tuple(quantise(model.constants[name], name) for name in model.frozen)
        self._constants = {
            name: value for name, value in model.constants.items() if name not in self._trainables
        }
        self._indices = indices
        self._readers = _readers(nodes, output_name)
        self._output_name = output_name
        self._num_parameters = model.num_parameters
        self._steps: list[Step] = []
        self._num_trained = 0
        self._num_places = 0
        self._sizes = [model.input_width]
        self._values = {model.input_name: self.features}
        self._is_trained = [False]
        self.transposed: dict[str, str] = {}  # a matrix parameter's transpose to the parameter
        self.turned: dict[str, TurnedValue] = {}  # values whose record axis is not the first
        self.taken_in: set[str] = set()  # outputs that an earlier node's lowering has already defined

    @property
    def next_number(self) -> int:
        """The number of the next trained layer: how many there are already.

        Its digest keys are made of it.
        """
        return self._num_trained

    def count_places(self, count: int, operator: str) -> None:
        """Count the places that the windows of an operator list, of all operators together.

        Raises:
            NotExact: they are too many.
        """
        self._num_places += count
        if self._num_places > MAX_PLACES:
            raise NotExact(
                f"the windows up to this {operator} have {self._num_places} places: the exact path lists up"
                f" to {MAX_PLACES}"
            )

    def only_reader(self, name: str, operator: str) -> Node | None:
        """Return the only node that reads a value, if it is this operator."""
        readers = self._readers.get(name, ())
        return readers[0] if len(readers) == 1 and readers[0].operator == operator else None

    @property
    def features(self) -> LoweredValue:
        """The record's bytes."""
        return LoweredValue(number=0, shape=(self._sizes[0],), is_bytes=True)

    def lookups(self, table: str) -> tuple[Node, ...]:
        """Return every Gather of rows of a parameter, if nothing else reads it; else none."""
        readers = self._readers.get(table, ())
        rows = all(
            node.operator == "Gather"
            and node.inputs[0] == table
            and node.inputs[1] in self._indices
            and node.attributes["axis"] == 0
            for node in readers
        )
        return readers if rows else ()

    def index(self, name: str) -> tuple[Shape, ByteSums]:
        """Return the shape without the record axis, and the sums, of what a Gather reads as its index."""
        return self._indices[name]

    def constant(self, name: str) -> Constant | None:
        """Return a constant by name; None for anything else."""
        return self._constants.get(name)

    def is_parameter(self, name: str) -> bool:
        """Return whether the name is a parameter's."""
        return name in self._trainables

    def shape_of(self, name: str) -> Shape | None:
        """Return the shape of a parameter; None for anything else."""
        return self._trainables[name].shape if name in self._trainables else None

    def data(self, name: str) -> LoweredValue:
        """Return an input that must be data, as it is known: perhaps scaled bytes."""
        if name in self.turned:
            raise NotExact("Transpose moves the record axis")
        if name not in self._values:
            raise NotExact(f"{name!r} is a parameter or a constant where the exact path needs data")
        return self._values[name]

    def value(self, name: str) -> LoweredValue:
        """Return an input that must be data with a number for each entry."""
        value = self.data(name)
        if value.scale != 1.0:
            self.add(name, Fixed(factor=np.array(value.scale), offset=np.array(0.0)), (value,), value.shape)
        return self._values[name]

    def parameter(self, name: str, operator: str) -> Trainable:
        """Return an input that must be a parameter, of no other node unless it is frozen.

        A gradient that is a sum over two uses has no factored norm.
        """
        if name not in self._trainables:
            raise NotExact(
                f"{operator} has an input {name!r} that is not trained where the exact path needs a parameter"
            )
        parameter = self._trainables[name]
        if not parameter.is_frozen:
            if name not in self._unused:
                raise NotExact(f"the parameter {name!r} is used more than once")
            self._unused.remove(name)
        return parameter

    def is_trained(self, value: LoweredValue) -> bool:
        """Return whether a trained parameter lies before a value."""
        return self._is_trained[value.number]

    def alias(self, name: str, value: LoweredValue) -> None:
        """Give a value a name."""
        self._values[name] = value

    def add(
        self,
        name: str,
        layer: Layer,
        inputs: Sequence[LoweredValue],
        shape: Shape,
        *,
        parameters: Sequence[Trainable | None] = (),
    ) -> LoweredValue:
        """Add a step whose output has a shape and, unless it is empty, a name; return the output."""
        number, has_parameters = len(self._sizes), bool(select_trained(*parameters))
        self._num_trained += has_parameters
        read = tuple(value.number for value in inputs)
        self._steps.append(Step(layer=layer, inputs=read, output=number, has_parameters=has_parameters))
        self._sizes.append(prod(shape))
        self._is_trained.append(has_parameters or any(self.is_trained(value) for value in inputs))
        made = LoweredValue(number=number, shape=shape)
        if name:
            self._values[name] = made
        return made

    def rearrange(self, name: str, source: LoweredValue, order: NDArray[np.int64]) -> None:
        """Add a step that moves entries, order having the result's shape; some may be taken several times.

        Bytes stay bytes.
        """
        # With no entry twice, going back is an assignment; otherwise deltas are added, one by one.
        flat = np.ascontiguousarray(order.reshape(-1))
        is_each_once = len(np.unique(flat)) == flat.size
        self.add(name, (Rearrange if is_each_once else Repeat)(order=flat), (source,), order.shape)
        self._values[name] = replace(source, number=self._values[name].number, shape=order.shape)

    def finish(self) -> Lowered:
        """Return the plan that ends in the model's output."""
        # No step would write its part of the sum.
        if self._unused:
            raise NotExact(f"the parameter {min(self._unused)!r} is not reached by the exact path")
        output = self.value(self._output_name).number  # first: it may be a last step
        return Lowered(
            steps=tuple(self._steps),
            sizes=tuple(self._sizes),
            is_trained=tuple(self._is_trained),
            output=output,
            num_parameters=self._num_parameters,
            frozen=self._frozen,
        )


Lowering: TypeAlias = Callable[[LoweredBuilder, Node], None]
"""Adds the steps of one node."""

_OUTPUT: Final = Node(operator="", inputs=(), outputs=(), attributes={})


def _readers(nodes: Sequence[Node], output_name: str) -> dict[str, tuple[Node, ...]]:
    """Return the nodes that read each value; the caller that wants the output counts as one."""
    readers: dict[str, tuple[Node, ...]] = {output_name: (_OUTPUT,)}
    for node in nodes:
        for name in node.inputs:
            readers[name] = (*readers.get(name, ()), node)
    return readers


def attribute(node: Node, name: str) -> float:
    """Return a numeric attribute."""
    value = node.attributes[name]
    if not isinstance(value, int | float):
        raise NotExact(f"{node.operator} has an attribute {name} that is not a number")
    return value


def integers(node: Node, name: str) -> tuple[int, ...]:
    """Return an attribute that lists integers."""
    value = node.attributes[name]
    if not isinstance(value, tuple):
        raise NotExact(f"{node.operator} has an attribute {name} that is not a list")
    return tuple(int(entry) for entry in value)
