"""Normalisation: of a batch with running statistics, and of each record's own values.

Batch normalisation: X~ = (x - mean) / sqrt(variance + epsilon), z = x~ * scale + bias, channel by channel.

The statistics are constants of the graph; scale and bias are trained. A record's gradient for a channel is
the sum over its positions of q_d q_x~, and of q_d, exact integers.

Layer normalisation has the same form with each record's own mean and variance, which are sums in the order of
the entries: single operations on float64 numbers, as a softmax's.
"""

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.rows import Real, RowBlock, Value, power_of, quantise, to_real
from helper.gradient.exact.layers.layer import DescribedLayer, RoundSetup, Trainable, Whole
from maskedlark.frozen import frozen


class _Affine(Whole):
    """A layer at work that ends in a scale and a bias of its normal values."""

    def __init__(self, setup: RoundSetup, number: int, scale: Trainable, bias: Trainable | None) -> None:
        self._norm, self._scale_of, self._bias_of = setup.norm, scale, bias
        self._collect(number, setup, scale, bias)

    def _take(self, deltas: Real, normal: RowBlock, shape: tuple[int, int], over: int) -> None:
        """Collect the records' gradients of what is trained.

        Args:
            deltas: (seeds, records, size).
            normal: The normal values, a row a record.
            shape: What a record's size splits into.
            over: The axis of (seeds, records, *shape) that the sum of a parameter's entry runs over.
        """
        if not self._trained:
            return
        seeds, records, size = deltas.shape
        rows = quantise(deltas.reshape(seeds * records, size), self._norm)
        # In int64, where sums of products of 15 bits are exact in any order.
        left = rows.q.astype(np.int64).reshape(seeds, records, *shape)
        exponents = rows.exponent.reshape(seeds, records, 1)
        parts = []
        if self._scale_of in self._trained:
            right = normal.q.astype(np.int64).reshape(records, *shape)
            scale = power_of(-(exponents + normal.exponent[:, None]))
            parts.append((left * right).sum(over).astype(np.float64) * scale)
        if self._bias_of in self._trained:
            parts.append(left.sum(over).astype(np.float64) * power_of(-exponents))
        self._gradient.take(np.concatenate(parts, axis=2).reshape(seeds * records, -1))


@frozen
class BatchNormalization(DescribedLayer):
    """One scale and bias a channel.

    Attributes:
        scale: (channels,).
        bias: (channels,).
        mean: float64 (channels,).
        inverse: float64 (channels,): 1 / sqrt(variance + epsilon), each of the three one rounded operation.
        number: Of the trained layers, for the digest.
    """

    scale: Trainable
    bias: Trainable
    mean: NDArray[np.float64]
    inverse: NDArray[np.float64]
    number: int


class _RunningBatchNormalization(_Affine):
    def __init__(self, layer: BatchNormalization, setup: RoundSetup) -> None:
        super().__init__(setup, layer.number, layer.scale, layer.bias)
        self._layer = layer
        self._scale = setup.weights[layer.scale.index].to_float()[:, None]
        self._bias = setup.weights[layer.bias.index].to_float()[:, None]
        self._normal: RowBlock

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        source = to_real(inputs[0])
        by_channel = source.reshape(len(source), len(self._layer.mean), -1)
        normal = (by_channel - self._layer.mean[:, None]) * self._layer.inverse[:, None]
        self._normal = quantise(normal.reshape(source.shape), self._norm)
        result: Real = (normal * self._scale + self._bias).reshape(source.shape)
        return result

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        seeds, records, size = deltas.shape
        channels = len(self._layer.mean)
        self._take(deltas, self._normal, (channels, size // channels), 3)
        back = deltas.reshape(seeds, records, channels, -1) * self._scale * self._layer.inverse[:, None]
        return (back.reshape(deltas.shape),)


BatchNormalization.running = _RunningBatchNormalization


@frozen
class LayerNormalization(DescribedLayer):
    """Each row of a record's last axes, by its own mean and variance.

    Attributes:
        scale: As many entries as a row.
        bias: The same, or None.
        epsilon: What is added to the variance.
        number: Of the trained layers, for the digest.
    """

    scale: Trainable
    bias: Trainable | None
    epsilon: float
    number: int


class _RunningLayerNormalization(_Affine):
    def __init__(self, layer: LayerNormalization, setup: RoundSetup) -> None:
        super().__init__(setup, layer.number, layer.scale, layer.bias)
        self._layer, self._width = layer, layer.scale.size
        self._scale = setup.weights[layer.scale.index].to_float().reshape(-1)
        self._bias = (
            np.zeros(self._width)
            if layer.bias is None
            else setup.weights[layer.bias.index].to_float().reshape(-1)
        )
        self._normal: Real
        self._inverse: Real
        self._rows: RowBlock

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        source = to_real(inputs[0])
        by_row = source.reshape(len(source), -1, self._width)
        self._normal, self._inverse = np.empty(by_row.shape), np.empty(by_row.shape[:2])
        _normalise(by_row, self._layer.epsilon, self._normal, self._inverse)
        self._rows = quantise(self._normal.reshape(source.shape), self._norm)
        result: Real = (self._normal * self._scale + self._bias).reshape(source.shape)
        return result

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        seeds, records, size = deltas.shape
        self._take(deltas, self._rows, (size // self._width, self._width), 2)
        back = deltas.reshape(seeds, records, -1, self._width) * self._scale
        _normalise_back(self._normal, self._inverse, back)
        return (back.reshape(deltas.shape),)


LayerNormalization.running = _RunningLayerNormalization


@kernel
def _normalise(source: Real, epsilon: float, normal: Real, inverse: Real) -> None:
    """Fill in (x - mean) / sqrt(variance + epsilon) of each row, and the factor of each row."""
    width = np.float64(source.shape[2])
    for r in range(source.shape[0]):
        for g in range(source.shape[1]):
            # One after the other and no numpy sum, whose order of adding differs between machines.
            total = 0.0
            for j in range(source.shape[2]):
                total += source[r, g, j]
            mean, squares = total / width, 0.0
            for j in range(source.shape[2]):
                away = source[r, g, j] - mean
                squares += away * away
            inverse[r, g] = 1.0 / np.sqrt(squares / width + epsilon)
            for j in range(source.shape[2]):
                normal[r, g, j] = (source[r, g, j] - mean) * inverse[r, g]


@kernel
def _normalise_back(normal: Real, inverse: Real, deltas: Real) -> None:
    """Turn deltas of the normal values (seeds, records, rows, width) into those of the source, in place."""
    width = np.float64(normal.shape[2])
    for s in range(deltas.shape[0]):
        for r in range(normal.shape[0]):
            for g in range(normal.shape[1]):
                # One after the other, for the same reason as on the way forward.
                total, along = 0.0, 0.0
                for j in range(normal.shape[2]):
                    total += deltas[s, r, g, j]
                    along += deltas[s, r, g, j] * normal[r, g, j]
                mean, part = total / width, along / width
                for j in range(normal.shape[2]):
                    rest = (deltas[s, r, g, j] - mean) - normal[r, g, j] * part
                    deltas[s, r, g, j] = rest * inverse[r, g]
