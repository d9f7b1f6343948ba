"""Dense layers: z = a W + b.

A record's gradient is the outer product of a and delta; it never exists as a matrix.

forward   z = (q_a . q_W) * 2^-(e_a + e_W) + b
backward  d_a = (q_d . q_W^T) * 2^-(e_d + e_W)
norm      |q_d|^2 (|q_a|^2 2^(-2 e_a) + 1) 2^(-2 e_d), the 1 for the bias
          for L1 the same with magnitudes and single exponents
masked    sum over records of q_a x u(d), see `masking`
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.clipping import Masking
from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.masking import Hashed, hash_keys, hash_operand, mask_rows, mask_sum
from helper.gradient.exact.kernels.rows import (
    BYTE_EXPONENT,
    Real,
    RowBlock,
    Value,
    from_bytes,
    power,
    quantise,
    row_norms,
)
from helper.gradient.exact.layers.layer import Affine, RoundSetup, Running
from helper.gradient.exact.products.product import Accumulator
from maskedlark.frozen import frozen
from maskedlark.numbers.field import FieldVector

# No None: a compiled loop takes arrays of one type.
_NO_BIAS = np.empty(0)
# The largest entry of a row has one bit more, but where all are so small that values are 0.
_ROW_BITS: Final = 14


@frozen
class Dense(Affine):
    """A Gemm, or a MatMul with the Add that follows it.

    Attributes:
        is_transposed: Whether `weight` is (outputs, inputs), as some files hold it, and not the reverse.
    """

    is_transposed: bool


class _RunningDense(Running):
    def __init__(self, layer: Dense, setup: RoundSetup) -> None:
        weight = setup.weights[layer.weight.index]
        matrix = weight.values.T if layer.is_transposed else weight.values
        inputs, outputs = matrix.shape
        buffers = setup.buffers
        self._layer, self._setup, self._exponent = layer, setup, weight.exponent
        self._weights = setup.backend.factor(np.ascontiguousarray(matrix), buffers.part("weights"))
        self._back = (
            setup.backend.factor(np.ascontiguousarray(matrix.T), buffers.part("back"))
            if layer.passes_back
            else None
        )
        self._bias = _NO_BIAS if layer.bias is None else setup.weights[layer.bias.index].to_float()
        self._keys = hash_keys(layer.number, Hashed.VALUES, setup.labels, outputs)
        self._bias_keys = hash_keys(layer.number, Hashed.BIAS_VALUES, setup.labels, outputs)
        self._operand_keys = hash_keys(layer.number, Hashed.OPERAND, 1, inputs)
        self._bias_total = np.zeros(outputs, np.uint64)
        self._accumulator: Accumulator | None = None
        self._operand: RowBlock
        self._deltas: RowBlock

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        (value,) = inputs
        self._operand = (
            from_bytes(value, self._setup.norm)
            if self._layer.reads_bytes
            else quantise(value, self._setup.norm, self._setup.buffers.part("operand"))
        )
        result = self._weights.product(self._operand.q)
        _scale_rows(result, self._operand.exponent, self._exponent, self._bias)
        return result

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        seeds, records, outputs = deltas.shape
        self._deltas = quantise(
            deltas.reshape(seeds * records, outputs), self._setup.norm, self._setup.buffers.part("deltas")
        )
        if self._back is None:
            return (None,)
        result = self._back.product(self._deltas.q)
        _scale_rows(result, self._deltas.exponent, self._exponent, _NO_BIAS)
        return (result.reshape(seeds, records, -1),)

    def add_norm(self, squares: Real) -> None:
        """See `Running`."""
        operand = row_norms(self._operand, self._setup.norm)
        if self._layer.bias is not None:
            operand += 1.0  # the operand of the bias
        squares += row_norms(self._deltas, self._setup.norm).reshape(squares.shape) * operand

    def begin(self, records: int) -> None:
        """See `Running`."""
        # Made with the first chunk, which only a layer that is trained gets to see.
        self._accumulator = self._accumulator or self._accumulating()
        self._accumulator.begin(records)

    def _accumulating(self) -> Accumulator:
        """Add into the flat sum itself."""
        layer, setup = self._layer, self._setup
        place = layer.weight.place(setup.vector)
        return setup.backend.accumulator(
            place.T if layer.is_transposed else place,
            is_bytes=layer.reads_bytes,
            records=setup.chunk_records,
            buffers=setup.buffers.part("accumulator"),
        )

    def mask(self, masking: Masking, first: int) -> None:
        """See `Running`."""
        hash_operand(self._operand.q, self._operand_keys, masking.hashes)
        masked = mask_rows(
            self._deltas,
            self._operand,
            masking,
            self._keys,
            self._largest(masking.sensitivity),
            self._setup.buffers,
        )
        self._begun.put(first, self._operand.q, masked)
        if self._layer.bias is not None:
            mask_sum(self._deltas, masking, self._bias_keys, self._bias_total)

    def _largest(self, sensitivity: int) -> int:
        """Bound a value; docs/explanation/numerics.md, "Why nothing overflows", has the proof.

        Without a bias a record's only entry may be a 1, and the value is then its whole gradient. With one
        the delta itself is within the bound, and the value is it in units of the operand.
        """
        if self._layer.bias is None:
            return sensitivity
        return sensitivity >> (BYTE_EXPONENT if self._layer.reads_bytes else _ROW_BITS)

    def flush(self) -> None:
        """See `Running`."""
        self._begun.flush()

    @property
    def _begun(self) -> Accumulator:
        """The accumulator of a chunk."""
        if self._accumulator is None:
            raise AssertionError("a chunk begins before it is masked")
        return self._accumulator

    def write(self, vector: FieldVector) -> None:
        """See `Running`."""
        if self._layer.bias is not None:
            self._layer.bias.place(vector)[...] = self._bias_total


Dense.running = _RunningDense


@kernel
def _scale_rows(
    values: Real, exponent: NDArray[np.int64], weight_exponent: int, bias: NDArray[np.float64]
) -> None:
    """Convert integers (rows, width) in place to integer * 2^-(row's + weights' exponent) + bias.

    The sum is rounded once.

    An empty bias means none.
    """
    rows, width = values.shape
    for r in range(rows):
        scale = power(-(exponent[r] + weight_exponent))
        if bias.size:
            for j in range(width):
                values[r, j] = values[r, j] * scale + bias[j]
        else:
            for j in range(width):
                values[r, j] = values[r, j] * scale
