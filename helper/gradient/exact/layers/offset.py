"""A parameter that is added to a value, or multiplied with it, entry by entry.

A parameter of fewer entries than the value is used at several of its entries, as ONNX broadcasts it; a
record's gradient for it is the sum over them, added in their order.
"""

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.rows import Real, Value, to_real
from helper.gradient.exact.layers.layer import DescribedLayer, RoundSetup, Trainable, Whole
from helper.gradient.exact.layers.layout import add_up
from maskedlark.frozen import frozen


@frozen
class Offset(DescribedLayer):
    """z = x + sign * parameter.

    Attributes:
        parameter: What is added.
        homes: (entries of x,) the entry of the parameter that each reads.
        sign: 1, or -1 where the parameter is subtracted.
        number: Of the trained layers, for the digest.
    """

    parameter: Trainable
    homes: NDArray[np.int64]
    sign: float
    number: int


@frozen
class Scale(DescribedLayer):
    """z = x * parameter.

    Attributes:
        parameter: What x is multiplied with.
        homes: (entries of x,) the entry of the parameter that each reads.
        number: Of the trained layers, for the digest.
    """

    parameter: Trainable
    homes: NDArray[np.int64]
    number: int


class _RunningEntries(Whole):
    """What both have in common: one gradient entry for each entry of the parameter."""

    def __init__(self, layer: Offset | Scale, setup: RoundSetup) -> None:
        self._parameter, self._homes = layer.parameter, layer.homes
        self._values = setup.weights[layer.parameter.index].to_float().reshape(-1)[layer.homes]
        self._collect(layer.number, setup, layer.parameter)

    def _take(self, gradients: Real) -> None:
        """Take the gradients of the entries of the value, (seeds, records, entries)."""
        if not self._trained:
            return
        seeds, records, _ = gradients.shape
        whole = np.zeros((seeds, records, self._parameter.size))
        add_up(gradients, self._homes, whole)
        self._gradient.take(whole.reshape(seeds * records, -1))


class _RunningOffset(_RunningEntries):
    def __init__(self, layer: Offset, setup: RoundSetup) -> None:
        super().__init__(layer, setup)
        self._sign = layer.sign

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        return to_real(inputs[0]) + self._sign * self._values

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        self._take(self._sign * deltas)
        return (deltas,)


class _RunningScale(_RunningEntries):
    _source: Real

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        self._source = to_real(inputs[0])
        return self._source * self._values

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        self._take(deltas * self._source)
        return (deltas * self._values,)


Offset.running = _RunningOffset
Scale.running = _RunningScale
