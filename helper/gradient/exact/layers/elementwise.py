"""Layers without parameters that act on each value, or join values.

Activations, softmax, residual sums, products of two values.

An activation computes its value and its slope at once; going back is one product by the slope. Every result
is one rounded operation on reals that are themselves exactly defined, or a table look-up (see `tables`).
"""

from enum import IntEnum, unique

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.rows import Real, Value, to_real
from helper.gradient.exact.kernels.tables import ONE, Table, exponential, look_up, softplus_tail
from helper.gradient.exact.layers.layer import DescribedLayer, RoundSetup, Running, Stateless
from maskedlark.frozen import frozen


@unique
class Curve(IntEnum):
    """The activations; numbers, so that compiled code can branch on them."""

    RELU = 0
    LEAKY_RELU = 1
    ELU = 2
    SIGMOID = 3
    TANH = 4
    SOFTPLUS = 5


@frozen
class Activation(DescribedLayer):
    """One curve on every value; alpha is the slope of LeakyRelu and the depth of Elu."""

    curve: Curve
    alpha: float

    @property
    def is_straight(self) -> bool:
        """Return whether it has two slopes, 1 and `alpha`."""
        return self.curve <= Curve.LEAKY_RELU


class _RunningActivation(Running):
    def __init__(self, layer: Activation, setup: RoundSetup) -> None:
        self._layer, self._buffers = layer, setup.buffers
        self._slope: Real

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        argument = to_real(inputs[0])
        value: Real
        value, self._slope = (self._buffers.empty(name, argument.shape) for name in ("value", "slope"))
        _activate(
            int(self._layer.curve),
            self._layer.alpha,
            exponential(),
            softplus_tail(),
            argument,
            value,
            self._slope,
        )
        return value

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        return (np.multiply(deltas, self._slope, out=self._buffers.empty("back", deltas.shape)),)


class _RunningRectifier(Running):
    """Relu (alpha = 0) and LeakyRelu; the slope at 0 is alpha, as in torch."""

    def __init__(self, layer: Activation, setup: RoundSetup) -> None:
        self._layer, self._buffers = layer, setup.buffers
        self._is_above: NDArray[np.bool_]

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        argument = to_real(inputs[0])
        value: Real = self._buffers.empty("value", argument.shape)
        self._is_above = self._buffers.empty("is_above", argument.shape, np.bool_)
        _rectify(argument, self._layer.alpha, value, self._is_above)
        return value

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        back: Real = self._buffers.empty("back", deltas.shape)
        _rectify_back(deltas, self._layer.alpha, self._is_above, back)
        return (back,)


def _start_activation(layer: Activation, setup: RoundSetup) -> Running:
    return _RunningRectifier(layer, setup) if layer.is_straight else _RunningActivation(layer, setup)


Activation.running = _start_activation


@kernel
def _rectify(argument: Real, alpha: float, value: Real, is_above: NDArray[np.bool_]) -> None:
    """Compute the values, and whether each argument is above 0."""
    for r in range(argument.shape[0]):
        for j in range(argument.shape[1]):
            z = argument[r, j]
            # A choice of the factor and not of the result: one multiplication, whichever it is.
            value[r, j] = z * (1.0 if z > 0.0 else alpha)
            is_above[r, j] = z > 0.0


@kernel
def _rectify_back(deltas: Real, alpha: float, is_above: NDArray[np.bool_], back: Real) -> None:
    """Multiply deltas (seeds, records, width) by the slopes."""
    for k in range(deltas.shape[0]):
        for r in range(deltas.shape[1]):
            for j in range(deltas.shape[2]):
                back[k, r, j] = deltas[k, r, j] * (1.0 if is_above[r, j] else alpha)


@kernel
def _activate(
    curve: int, alpha: float, exp: Table, tail: Table, argument: Real, value: Real, slope: Real
) -> None:
    """Compute the curves that need a table."""
    one = np.float64(ONE)
    for r in range(argument.shape[0]):
        for j in range(argument.shape[1]):
            z = argument[r, j]
            # Numbers of `Curve`, as compiled code knows no enum: ELU, TANH, the others. It is public.
            if curve == 2:
                e = np.float64(look_up(exp, abs(z))) / one
                below, slope_below = alpha * (e - 1.0), alpha * e
                value[r, j] = z if z > 0.0 else below
                slope[r, j] = 1.0 if z > 0.0 else slope_below
            elif curve == 4:
                e = np.float64(look_up(exp, 2.0 * abs(z)))
                y = (one - e) / (one + e)
                value[r, j] = y if z > 0.0 else -y
                slope[r, j] = 4.0 * (e * one) / ((one + e) * (one + e))
            else:
                e = np.float64(look_up(exp, abs(z)))
                y = (one if z > 0.0 else e) / (one + e)
                if curve == 3:
                    value[r, j] = y
                    slope[r, j] = (e * one) / ((one + e) * (one + e))
                else:
                    value[r, j] = max(z, 0.0) + np.float64(look_up(tail, abs(z))) / one
                    slope[r, j] = y


@frozen
class Softmax(DescribedLayer):
    """Softmax over all of a record's values."""


class _RunningSoftmax(Running):
    def __init__(self, _layer: Softmax, _setup: RoundSetup) -> None:
        self._value: Real

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        argument = to_real(inputs[0])
        weights = np.empty(argument.shape, np.int64)
        softmax_weights(argument, exponential(), weights)
        self._value = weights / weights.sum(1, keepdims=True).astype(np.float64)
        return self._value

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        result = np.empty(deltas.shape)
        _softmax_back(self._value, deltas, result)
        return (result,)


Softmax.running = _RunningSoftmax


@kernel
def softmax_weights(argument: Real, exp: Table, weights: NDArray[np.int64]) -> None:
    """Fill weights (records, classes) with e^(z_c - max z), in units of 2^-40."""
    for r in range(argument.shape[0]):
        top = argument[r, 0]
        for c in range(1, argument.shape[1]):
            top = max(top, argument[r, c])
        for c in range(argument.shape[1]):
            # Less the largest, so that none is above 1; beyond the table's 32 a weight is 0.
            weights[r, c] = look_up(exp, top - argument[r, c])


@kernel
def _softmax_back(value: Real, deltas: Real, result: Real) -> None:
    """Compute d_in = p (d - p . d), the dot product summed in the order of the classes."""
    seeds, records, classes = deltas.shape
    for s in range(seeds):
        for r in range(records):
            # One after the other and no BLAS product, whose order of adding differs between machines.
            dot = 0.0
            for c in range(classes):
                dot += value[r, c] * deltas[s, r, c]
            for c in range(classes):
                result[s, r, c] = value[r, c] * (deltas[s, r, c] - dot)


@frozen
class Join(Stateless):
    """A residual sum of two values of one shape."""

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        return to_real(inputs[0]) + to_real(inputs[1])

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        return deltas, deltas


@frozen
class Product(DescribedLayer):
    """The product of two values of one shape, entry by entry."""


class _RunningProduct(Running):
    def __init__(self, _layer: Product, _setup: RoundSetup) -> None:
        self._factors: tuple[Real, Real]

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        self._factors = (to_real(inputs[0]), to_real(inputs[1]))
        return self._factors[0] * self._factors[1]

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        left, right = self._factors
        return deltas * right, deltas * left


Product.running = _RunningProduct
