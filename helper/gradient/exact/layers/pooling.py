"""Pools: the largest value of each window, or the mean of its quantised values."""

from math import prod

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.rows import Real, Value, from_bytes, power, quantise, to_real
from helper.gradient.exact.kernels.windows import Windows
from helper.gradient.exact.layers.layer import DescribedLayer, RoundSetup, Running, Stateless
from maskedlark.frozen import frozen
from maskedlark.privacy.clip import Norm

Places = NDArray[np.int32]


@frozen
class MaxPool(DescribedLayer):
    """The largest value of each window; of equal ones the first, which alone gets the delta."""

    windows: Windows


class _RunningMaxPool(Running):
    def __init__(self, layer: MaxPool, _setup: RoundSetup) -> None:
        self._windows = layer.windows
        self._chosen: Places

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        source = to_real(inputs[0])
        channels = source.shape[1] // prod(self._windows.space)
        result = np.empty((len(source), channels * len(self._windows.places)))
        self._chosen = np.empty(result.shape, np.int32)
        _largest(source, self._windows.places, channels, result, self._chosen)
        return result

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        channels = deltas.shape[2] // len(self._windows.places)
        result = np.zeros((*deltas.shape[:2], channels * prod(self._windows.space)))
        _send_to_chosen(deltas, self._chosen, result)
        return (result,)


MaxPool.running = _RunningMaxPool


@frozen
class AveragePool(Stateless):
    """The exact sum of each window's quantised values over its count, in one division.

    With counts of 1 a sum.

    Attributes:
        windows: Where each output looks.
        counts: float64 (outputs,): how many values each mean is of; padding counts if the model says so.
    """

    windows: Windows
    counts: NDArray[np.float64]

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        # Any norm does: rows come with one, and nothing here uses it.
        rows = from_bytes(inputs[0], Norm.L1) if inputs[0].dtype == np.uint8 else quantise(inputs[0], Norm.L1)
        channels = rows.q.shape[1] // prod(self.windows.space)
        result = np.empty((len(rows.q), channels * len(self.counts)))
        _mean(rows.q, rows.exponent, self.windows.places, self.counts, channels, result)
        return result

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        seeds, records, size = deltas.shape
        channels = size // len(self.counts)
        shares = deltas.reshape(seeds * records, channels, -1) / self.counts
        rows = quantise(shares.reshape(seeds * records, size), Norm.L1)
        result = np.zeros((seeds * records, channels * prod(self.windows.space)))
        _spread(rows.q, rows.exponent, self.windows.places, channels, result)
        return (result.reshape(seeds, records, -1),)


@kernel
def _largest(source: Real, places: Places, channels: int, result: Real, chosen: Places) -> None:
    """Find each window's first largest value and its position in the record."""
    space, outputs = source.shape[1] // channels, places.shape[0]
    for r in range(source.shape[0]):
        for c in range(channels):
            for p in range(outputs):
                best, place = -np.inf, np.int32(0)
                for k in range(places.shape[1]):
                    here = places[p, k]
                    value = source[r, c * space + max(here, 0)]
                    is_better = (here >= 0) & (value > best)  # no branch: which is larger cannot be predicted
                    best = value if is_better else best
                    place = here if is_better else place
                result[r, c * outputs + p] = best
                chosen[r, c * outputs + p] = c * space + place


@kernel
def _send_to_chosen(deltas: Real, chosen: Places, result: Real) -> None:
    """Add each output's delta to the place that it was taken from, outputs in order."""
    for s in range(deltas.shape[0]):
        for r in range(deltas.shape[1]):
            for o in range(deltas.shape[2]):
                result[s, r, chosen[r, o]] += deltas[s, r, o]


@kernel
def _mean(
    q: NDArray[np.int16],
    exponent: NDArray[np.int64],
    places: Places,
    counts: NDArray[np.float64],
    channels: int,
    result: Real,
) -> None:
    """Divide window sums, exact integers, scaled, by counts."""
    space, outputs = q.shape[1] // channels, places.shape[0]
    for r in range(q.shape[0]):
        scale = power(-exponent[r])
        for c in range(channels):
            for p in range(outputs):
                total = np.int64(0)
                for k in range(places.shape[1]):
                    if places[p, k] >= 0:
                        total += np.int64(q[r, c * space + places[p, k]])
                # The scale is a power of two, so that the division alone rounds.
                result[r, c * outputs + p] = (np.float64(total) * scale) / counts[p]


@kernel
def _spread(
    q: NDArray[np.int16], exponent: NDArray[np.int64], places: Places, channels: int, result: Real
) -> None:
    """Give each position the exact sum of its windows' quantised deltas."""
    space, outputs = result.shape[1] // channels, places.shape[0]
    for r in range(q.shape[0]):
        for c in range(channels):
            for p in range(outputs):
                for k in range(places.shape[1]):
                    if places[p, k] >= 0:
                        # Exact in any order: whole numbers of 15 bits, and far fewer than 2^38 of them.
                        result[r, c * space + places[p, k]] += np.float64(q[r, c * outputs + p])
        scale = power(-exponent[r])
        for i in range(result.shape[1]):
            result[r, i] *= scale
