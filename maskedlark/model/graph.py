"""A model as both helpers and the ad server understand it.

A checked, topologically ordered graph with named parameters.

`maskedlark.model.onnx_file.parse` is the only maker of a `Model`; the gradient engines of the helper and the
ad server's job runner are its readers.
"""

from collections.abc import Mapping
from dataclasses import field
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen

AttributeValue: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...]
Constant: TypeAlias = NDArray[Any]


@frozen
class Node:
    """One operator. Inputs and outputs are value names; an absent optional input is the empty string."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]


@frozen
class Parameter:
    """A trainable tensor: an initializer, under the name that it has in the ONNX file."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of its entries."""
        return prod(self.shape)


@frozen
class GraphCost:
    """What one evaluation of a model for one record takes, counted before anything is computed.

    Attributes:
        multiplications: Of matrix products, convolutions and recurrences.
        entries: Of all values of the graph together.
    """

    multiplications: int
    entries: int


@frozen
class Model:
    """A checked graph.

    Attributes:
        input_name: The value that holds the features: float32 of shape (records, input_width), each byte b as
            b / 256.
        output_name: The value that the loss reads: shape (records, output_width).
        outputs: The file's outputs, each with its width; together, in this order, they are that value.
        nodes: In topological order; Constant, Identity and inference-time Dropout are already resolved.
        parameters: What a gradient is taken of, in the order in which the flat gradient vector holds them (C
            order each).
        initial_values: One float32 array a parameter.
        constants: Every other initializer, by name. Frozen parameters are among them, rounded as a round's
            weights are.
        frozen: The names of parameters that a job leaves as they are.
        work: What one evaluation takes; it follows from the rest.
        num_axes: How many axes each value has that nodes read, that of records included; it follows from the
            rest.
        digest: SHA-256 of everything above but the parameters' values: two models of one digest are the same
            function of (weights, features), and train the same parameters.
    """

    input_name: str
    input_width: int
    output_name: str
    output_width: int
    outputs: tuple[tuple[str, int], ...]
    nodes: tuple[Node, ...]
    parameters: tuple[Parameter, ...]
    initial_values: tuple[NDArray[np.float32], ...]
    constants: Mapping[str, Constant]
    work: GraphCost
    digest: bytes
    frozen: tuple[str, ...] = ()
    num_axes: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_parameters(self) -> int:
        """The length of the flat gradient vector."""
        return sum(parameter.size for parameter in self.parameters)
