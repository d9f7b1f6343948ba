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


class _RunningBatchNormalization(Whole):
    def __init__(self, layer: BatchNormalization, setup: RoundSetup) -> None:
        self._layer, self._setup = layer, setup
        self._scale = setup.weights[layer.scale.index].to_float()[:, None]
        self._bias = setup.weights[layer.bias.index].to_float()[:, None]
        self._collect(layer.number, setup, layer.scale, layer.bias)
        self._normal: RowBlock

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        source = to_real(inputs[0])
        by_channel = source.reshape(len(source), len(self._layer.mean), -1)
        normal = (by_channel - self._layer.mean[:, None]) * self._layer.inverse[:, None]
        self._normal = quantise(normal.reshape(source.shape), self._setup.norm)
        result: Real = (normal * self._scale + self._bias).reshape(source.shape)
        return result

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        seeds, records, size = deltas.shape
        channels = len(self._layer.mean)
        if self._trained:
            rows = quantise(deltas.reshape(seeds * records, size), self._setup.norm)
            left = rows.q.astype(np.int64).reshape(seeds, records, channels, -1)
            right = self._normal.q.astype(np.int64).reshape(records, channels, -1)
            exponents = rows.exponent.reshape(seeds, records, 1)
            parts = []
            if self._layer.scale in self._trained:
                scale = power_of(-(exponents + self._normal.exponent[:, None]))
                parts.append((left * right).sum(3).astype(np.float64) * scale)
            if self._layer.bias in self._trained:
                parts.append(left.sum(3).astype(np.float64) * power_of(-exponents))
            self._gradient.take(np.concatenate(parts, axis=2).reshape(seeds * records, -1))
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


class _RunningLayerNormalization(Whole):
    def __init__(self, layer: LayerNormalization, setup: RoundSetup) -> None:
        self._layer, self._setup, self._width = layer, setup, layer.scale.size
        self._scale = setup.weights[layer.scale.index].to_float().reshape(-1)
        self._bias = (
            np.zeros(self._width)
            if layer.bias is None
            else setup.weights[layer.bias.index].to_float().reshape(-1)
        )
        self._collect(layer.number, setup, layer.scale, layer.bias)
        self._normal: Real
        self._inverse: Real
        self._rows: RowBlock

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        source = to_real(inputs[0])
        by_row = source.reshape(len(source), -1, self._width)
        self._normal, self._inverse = np.empty(by_row.shape), np.empty(by_row.shape[:2])
        _normalise(by_row, self._layer.epsilon, self._normal, self._inverse)
        self._rows = quantise(self._normal.reshape(source.shape), self._setup.norm)
        result: Real = (self._normal * self._scale + self._bias).reshape(source.shape)
        return result

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        seeds, records, size = deltas.shape
        if self._trained:
            rows = quantise(deltas.reshape(seeds * records, size), self._setup.norm)
            left = rows.q.astype(np.int64).reshape(seeds, records, -1, self._width)
            right = self._rows.q.astype(np.int64).reshape(records, -1, self._width)
            exponents = rows.exponent.reshape(seeds, records, 1)
            parts = []
            if self._layer.scale in self._trained:
                scale = power_of(-(exponents + self._rows.exponent[:, None]))
                parts.append((left * right).sum(2).astype(np.float64) * scale)
            if self._layer.bias in self._trained:
                parts.append(left.sum(2).astype(np.float64) * power_of(-exponents))
            self._gradient.take(np.concatenate(parts, axis=2).reshape(seeds * records, -1))
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
                total, along = 0.0, 0.0
                for j in range(normal.shape[2]):
                    total += deltas[s, r, g, j]
                    along += deltas[s, r, g, j] * normal[r, g, j]
                mean, part = total / width, along / width
                for j in range(normal.shape[2]):
                    rest = (deltas[s, r, g, j] - mean) - normal[r, g, j] * part
                    deltas[s, r, g, j] = rest * inverse[r, g]
