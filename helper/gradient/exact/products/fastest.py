"""The default backend: each kind of product by the faster of the two ways, as measured on this machine.

    backend = FastestBackend()

The faster way depends on the processor: with VNNI or AMX digits win everywhere, without them float64 wins the
masked sums. The results are exact integers, so the choice changes the speed and no bit. Each process chooses
once, by timing both ways on the shapes of a medium layer, which takes some tens of milliseconds.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from time import thread_time
from typing import Final

import numpy as np

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.rows import Real
from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.products.int8 import Int8Backend
from helper.gradient.exact.products.product import (
    Accumulator,
    Backend,
    Factor,
    Operand,
    ProductBytes,
    Weights,
)
from maskedlark.frozen import frozen
from maskedlark.numbers.field import FieldVector

_RECORDS, _WIDTH, _OUTPUTS = 512, 512, 128  # of the layer that is timed
_TURNS: Final = 3


@frozen
class BackendChoice:
    """Which backend takes which kind of product.

    Bytes are features; rows are quantised activations and deltas.
    """

    bytes_by_weights: str
    rows_by_weights: str
    sum_of_bytes: str
    sum_of_rows: str

    def __str__(self) -> str:
        return (
            f"features x weights by {self.bytes_by_weights}, rows x weights by {self.rows_by_weights}, "
            f"masked sums of features by {self.sum_of_bytes}, of rows by {self.sum_of_rows}"
        )


class FastestBackend:
    """Products by the faster way of each kind.

    Args:
        choice: By default what `measure` finds.
    """

    __slots__ = ("_backends", "_choice")

    def __init__(self, choice: BackendChoice | None = None) -> None:
        self._backends = _backends()
        self._choice = measure() if choice is None else choice

    def bytes_taken(self, width: int, *, is_bytes: bool) -> ProductBytes:
        """See `Backend`."""
        choice = self._choice
        product, masked_sum = (
            (choice.bytes_by_weights, choice.sum_of_bytes)
            if is_bytes
            else (choice.rows_by_weights, choice.sum_of_rows)
        )
        summed = self._backends[masked_sum].bytes_taken(width, is_bytes=is_bytes)
        return replace(
            self._backends[product].bytes_taken(width, is_bytes=is_bytes),
            chunk_entry=summed.chunk_entry,
            chunk_output=summed.chunk_output,
            sum=summed.sum,
        )

    def factor(self, weights: Weights, buffers: Buffers | None = None) -> Factor:
        """See `Backend`; each kind's form of the weights is made when it is first used."""
        return _ChosenFactor(self._backends, self._choice, weights, buffers or Buffers())

    def accumulator(
        self, total: FieldVector, *, is_bytes: bool, records: int, buffers: Buffers | None = None
    ) -> Accumulator:
        """See `Backend`."""
        chosen = self._choice.sum_of_bytes if is_bytes else self._choice.sum_of_rows
        return self._backends[chosen].accumulator(total, is_bytes=is_bytes, records=records, buffers=buffers)


class _ChosenFactor:
    """A weight matrix, ready for the kinds of operand that it has met."""

    __slots__ = ("_backends", "_buffers", "_choice", "_made", "_weights")

    def __init__(
        self, backends: dict[str, Backend], choice: BackendChoice, weights: Weights, buffers: Buffers
    ) -> None:
        self._backends, self._choice, self._weights, self._buffers = backends, choice, weights, buffers
        self._made: dict[str, Factor] = {}

    def product(self, operand: Operand) -> Real:
        """See `Factor`."""
        is_bytes = operand.dtype == np.uint8
        chosen = self._choice.bytes_by_weights if is_bytes else self._choice.rows_by_weights
        if chosen not in self._made:
            self._made[chosen] = self._backends[chosen].factor(self._weights, self._buffers.part(chosen))
        return self._made[chosen].product(operand)


def _backends() -> dict[str, Backend]:
    return {"int8": Int8Backend(), "float64": Float64Backend()}


@cache
def measure() -> BackendChoice:
    """Measure the faster way of each kind on this machine."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-8127, 8128, (_WIDTH, _OUTPUTS)).astype(np.int16)
    features = rng.integers(0, 256, (_RECORDS, _WIDTH)).astype(np.uint8)
    rows = rng.integers(-32767, 32768, (_RECORDS, _WIDTH)).astype(np.int16)
    masked = rng.integers(0, 2**63, (_RECORDS, _OUTPUTS)).astype(np.uint64)
    kept = Buffers()

    def product(operand: Operand) -> str:
        factors = {name: backend.factor(weights) for name, backend in _backends().items()}
        return _fastest({name: partial(of.product, operand) for name, of in factors.items()})

    def masked_sum(operand: Operand) -> str:
        def run(backend: Backend) -> None:
            is_bytes = operand.dtype == np.uint8
            total, buffers = np.zeros((_WIDTH, _OUTPUTS), np.uint64), kept.part(type(backend).__name__)
            accumulator = backend.accumulator(
                total, is_bytes=is_bytes, records=_RECORDS, buffers=buffers.part(operand.dtype.name)
            )
            accumulator.begin(_RECORDS)
            accumulator.put(0, operand, masked)
            accumulator.flush()

        return _fastest({name: partial(run, of) for name, of in _backends().items()})

    return BackendChoice(
        bytes_by_weights=product(features),
        rows_by_weights=product(rows),
        sum_of_bytes=masked_sum(features),
        sum_of_rows=masked_sum(rows),
    )


def _fastest(sides: dict[str, Callable[[], object]]) -> str:
    """Return which takes the least time of this thread, the best of a few turns."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(1 + _TURNS):  # the first one warms up
        for name, run in sides.items():
            # Of this thread and not the wall clock, which on a busy machine measures the others.
            started = thread_time()
            run()
            best[name] = min(best[name], thread_time() - started)
    return min(best, key=best.__getitem__)
