"""Layers that move entries.

Transposition, slices, repetition, concatenation, and constants added to or multiplied with values.
"""

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.rows import Real, Value, to_real
from helper.gradient.exact.layers.layer import DescribedLayer, RoundSetup, Running, Stateless
from maskedlark.frozen import frozen


@frozen
class Rearrange(DescribedLayer):
    """Output entry j is input entry order[j]; no input is taken twice."""

    order: NDArray[np.int64]


class _RunningRearrange(Running):
    def __init__(self, layer: Rearrange, _setup: RoundSetup) -> None:
        self._layer = layer
        self._size = 0

    def forward(self, *inputs: Value) -> Value:
        """See `Running`; bytes stay bytes."""
        self._size = inputs[0].shape[1]
        # Choosing columns does not keep C order, which loops are compiled for.
        return np.ascontiguousarray(inputs[0][:, self._layer.order])

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        result = np.zeros((*deltas.shape[:2], self._size))
        result[:, :, self._layer.order] = deltas
        return (result,)


Rearrange.running = _RunningRearrange


@frozen
class Repeat(DescribedLayer):
    """Output entry j is input entry order[j]; an input that is taken several times gets all their deltas."""

    order: NDArray[np.int64]


class _RunningRepeat(Running):
    def __init__(self, layer: Repeat, _setup: RoundSetup) -> None:
        self._order = layer.order
        self._size = 0

    def forward(self, *inputs: Value) -> Value:
        """See `Running`; bytes stay bytes."""
        self._size = inputs[0].shape[1]
        return np.ascontiguousarray(inputs[0][:, self._order])

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        result = np.zeros((*deltas.shape[:2], self._size))
        add_up(deltas, self._order, result)
        return (result,)


Repeat.running = _RunningRepeat


@kernel
def add_up(deltas: Real, homes: NDArray[np.int64], result: Real) -> None:
    """Add each entry's delta to the entry that is its home, in the order of the entries."""
    for s in range(deltas.shape[0]):
        for r in range(deltas.shape[1]):
            for j in range(deltas.shape[2]):
                result[s, r, homes[j]] += deltas[s, r, j]


@frozen
class Concatenate(Stateless):
    """The inputs one after the other, as reals."""

    sizes: tuple[int, ...]

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        return np.concatenate([to_real(value) for value in inputs], axis=1)

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        return tuple(np.split(deltas, np.cumsum(self.sizes)[:-1], axis=2))


@frozen
class Fixed(Stateless):
    """z = x * factor + offset with constants of the graph: one rounded product, then one rounded sum.

    Attributes:
        factor: float64, one number or one an entry.
        offset: The same.
    """

    factor: NDArray[np.float64]
    offset: NDArray[np.float64]

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        return to_real(inputs[0]) * self.factor + self.offset

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        return (deltas * self.factor,)
