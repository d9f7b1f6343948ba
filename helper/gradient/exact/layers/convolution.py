"""Convolutions: dense layers applied at every position, on the patch of the input that the position sees.

forward   z[c, p] = (q_W[c] . q_patch[p]) * 2^-(e_W + e_a) + b[c]
backward  d_a[i] = (sum over the patch entries that are i of q_d . q_W) * 2^-(e_d + e_W)
gradient  G[c, k] = (sum over p of q_d[c, p] q_patch[p, k]) * 2^-(e_d + e_a)
          for the bias the sum of q_d[c, p] * 2^-e_d

A record's whole input is one row, and so are its whole deltas. All sums are exact: 15 + 15 bits and at most
2^20 positions.
"""

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.rows import Real, RowBlock, Value, from_bytes, power, power_of, quantise
from helper.gradient.exact.kernels.windows import Windows
from helper.gradient.exact.layers.layer import Affine, RoundSetup, Whole
from maskedlark.frozen import frozen

Patches = NDArray[np.int16]


@frozen
class Convolution(Affine):
    """A Conv of one group; `weight` is (outputs, channels, *kernel).

    Attributes:
        windows: Where each output position looks in a channel.
    """

    windows: Windows


class _RunningConvolution(Whole):
    def __init__(self, layer: Convolution, setup: RoundSetup) -> None:
        weight = setup.weights[layer.weight.index]
        matrix = weight.values.reshape(len(weight.values), -1)  # (outputs, channels * kernel)
        self._layer, self._setup, self._exponent = layer, setup, weight.exponent
        self._forward = setup.backend.factor(np.ascontiguousarray(matrix.T))
        self._back = setup.backend.factor(matrix) if layer.passes_back else None
        self._bias = (
            np.zeros(len(matrix)) if layer.bias is None else setup.weights[layer.bias.index].to_float()
        )
        self._collect(layer.number, setup, layer.weight, layer.bias)
        self._operand: RowBlock
        self._patches: Patches

    @property
    def _channels(self) -> int:
        return self._layer.weight.shape[1]

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        norm = self._setup.norm
        self._operand = from_bytes(inputs[0], norm) if self._layer.reads_bytes else quantise(inputs[0], norm)
        places = self._layer.windows.places
        records, positions = len(inputs[0]), len(places)
        self._patches = np.empty(
            (records, positions, self._channels * places.shape[1]), self._operand.q.dtype
        )
        _cut_patches(self._operand.q, places, self._channels, self._patches)
        sums = self._forward.product(self._patches.reshape(records * positions, -1))
        result = np.empty((records, sums.shape[1] * positions))
        _finish(sums, self._operand.exponent, self._exponent, self._bias, result)
        return result

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        seeds, records, size = deltas.shape
        positions = len(self._layer.windows.places)
        rows = quantise(deltas.reshape(seeds * records, size), self._setup.norm)
        if self._trained:
            self._gradient.take(self._gradients(rows, seeds))
        if self._back is None:
            return (None,)
        by_position = rows.q.reshape(seeds * records, -1, positions).transpose(
            0, 2, 1
        )  # (seeds * records, positions, outputs)
        sums = self._back.product(by_position.reshape(seeds * records * positions, -1))
        result = np.zeros((seeds * records, self._channels * int(np.prod(self._layer.windows.space))))
        _paste_patches(
            sums, self._layer.windows.places, self._channels, rows.exponent + self._exponent, result
        )
        return (result.reshape(seeds, records, -1),)

    def _gradients(self, deltas: RowBlock, seeds: int) -> Real:
        """Return each record's and seed's gradient, weights then bias: (seeds * records, width)."""
        records, positions, _ = self._patches.shape
        outputs, size = len(self._bias), self._layer.weight.size
        left = deltas.q.reshape(seeds, records, outputs, positions).swapaxes(0, 1).astype(np.float64)
        sums = left.reshape(records, seeds * outputs, positions) @ self._patches.astype(
            np.float64
        )  # exact: integers below 2^53
        result = np.empty((seeds, records, self._gradient.total.size))
        scale = power_of(-deltas.exponent).reshape(seeds, records, 1)
        result[:, :, :size] = sums.reshape(records, seeds, size).swapaxes(0, 1)
        result[:, :, :size] *= scale * power_of(-self._operand.exponent)[:, None]
        if self._layer.bias is not None:
            result[:, :, size:] = left.sum(3).swapaxes(0, 1) * scale
        return result.reshape(seeds * records, -1)


Convolution.running = _RunningConvolution


@kernel
def _cut_patches(
    source: NDArray[np.int16], places: NDArray[np.int32], channels: int, patches: Patches
) -> None:
    """Cut rows (R, channels * space) into patches (R, positions, channels * window).

    Zeros where a window looks outside.
    """
    records, positions, _ = patches.shape
    window, space = places.shape[1], source.shape[1] // channels
    for r in range(records):
        for p in range(positions):
            for c in range(channels):
                for k in range(window):
                    # Where windows look is public: a branch on it shows nothing of records.
                    place = places[p, k]
                    patches[r, p, c * window + k] = source[r, c * space + place] if place >= 0 else 0


@kernel
def _paste_patches(
    sums: Real, places: NDArray[np.int32], channels: int, exponent: NDArray[np.int64], result: Real
) -> None:
    """Transpose `_cut_patches` on integers (R * positions, channels * window), scaled at the end."""
    records, positions, window = len(result), places.shape[0], places.shape[1]
    space = result.shape[1] // channels
    for r in range(records):
        for p in range(positions):
            for c in range(channels):
                for k in range(window):
                    place = places[p, k]
                    if place >= 0:
                        result[r, c * space + place] += sums[r * positions + p, c * window + k]
        scale = power(-exponent[r])
        for i in range(result.shape[1]):
            result[r, i] *= scale


@kernel
def _finish(sums: Real, exponent: NDArray[np.int64], weight_exponent: int, bias: Real, result: Real) -> None:
    """Convert integers (R * positions, outputs) to reals (R, outputs * positions) with their bias."""
    records, outputs = len(result), len(bias)
    positions = result.shape[1] // outputs
    for r in range(records):
        scale = power(-(exponent[r] + weight_exponent))
        for p in range(positions):
            for c in range(outputs):
                result[r, c * positions + p] = sums[r * positions + p, c] * scale + bias[c]
