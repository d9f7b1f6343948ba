"""Batch normalisation with running statistics.

X~ = (x - mean) / sqrt(variance + epsilon), z = x~ * scale + bias, channel by channel.

The statistics are constants of the graph; scale and bias are trained. A record's gradient for a channel is
the sum over its positions of q_d q_x~, and of q_d, exact integers.
"""

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.rows import Real, RowBlock, Value, power_of, quantise, to_real
from helper.gradient.exact.kernels.whole_gradient import WholeGradient
from helper.gradient.exact.layers.layer import DescribedLayer, RoundSetup, Trainable, Whole
from maskedlark.frozen import frozen
from maskedlark.numbers.field import FieldVector


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
        self._gradient = WholeGradient(
            2 * len(layer.mean), labels=setup.labels, number=layer.number, norm=setup.norm
        )
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
        rows = quantise(deltas.reshape(seeds * records, size), self._setup.norm)
        left = rows.q.astype(np.int64).reshape(seeds, records, channels, -1)
        right = self._normal.q.astype(np.int64).reshape(records, channels, -1)
        exponents = rows.exponent.reshape(seeds, records, 1)
        scales = (left * right).sum(3).astype(np.float64) * power_of(
            -(exponents + self._normal.exponent[:, None])
        )
        biases = left.sum(3).astype(np.float64) * power_of(-exponents)
        self._gradient.take(np.concatenate([scales, biases], axis=2).reshape(seeds * records, -1))
        back = deltas.reshape(seeds, records, channels, -1) * self._scale * self._layer.inverse[:, None]
        return (back.reshape(deltas.shape),)

    def write(self, vector: FieldVector) -> None:
        """See `Running`."""
        channels = len(self._layer.mean)
        self._layer.scale.place(vector)[...] = self._gradient.total[:channels]
        self._layer.bias.place(vector)[...] = self._gradient.total[channels:]


BatchNormalization.running = _RunningBatchNormalization
