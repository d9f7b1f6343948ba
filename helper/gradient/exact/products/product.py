"""The two products of the exact path.

Their results are integers, and therefore the same however they are computed.

- `Factor.product`: quantised rows times 14-bit weights, the work of a forward or backward step;
- `Accumulator`: sum over records of (quantised row) x (row of field elements), the masked gradient of a
  layer.

`int8` computes them with ONNX Runtime's MatMulInteger on 7- or 8-bit digits, `float64` with
float64 matrix products of limbs whose every partial sum is below 2^53. A helper checks the one against the
other before it serves.

Explained in docs/explanation/numerics.md, section "Masked sums".
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.field import add_transposed
from helper.gradient.exact.kernels.rows import Real
from maskedlark.frozen import frozen
from maskedlark.numbers.field import FieldVector

CHUNK_RECORDS: Final = 2048
"""The most rows that an accumulator takes between two flushes.

Keeps every digit sum below 2^31, every limb sum below 2^53.
"""
MAX_WIDTH: Final = 2**15
"""The most values that one linear layer may read or write: keeps every digit sum of a product below 2^31."""
MAX_POSITIONS: Final = 2**20
"""The most positions of a convolution or pool: keeps the sum of 15-bit products over them below 2^53."""

_PRODUCTS_BYTES: Final = 1 << 25
# Of products, which lie in a cache until they are put together.
_CACHED_BYTES: Final = 1 << 22
# So many at a time make little of what it takes to prepare the digits, whatever becomes of the cache.
_ENOUGH_INPUTS: Final = 256
# Fewer inputs at a time would spend more on preparing the digits than on multiplying by them.
_LEAST_INPUTS: Final = 64

Operand = NDArray[Any]
"""int16 rows, or the features themselves as uint8."""
Weights = NDArray[np.int16]


@cache
def use_one_blas_thread() -> None:
    """Set this process's BLAS to one thread, for good. Both backends call it.

    An engine is parallel over records; on a busy machine a narrow product would wait for its second thread
    longer than it takes.
    """
    ThreadpoolController().limit(limits=1, user_api="blas")


class Factor(Protocol):
    """A weight matrix (K, N) in the form that its backend multiplies by."""

    def product(self, operand: Operand) -> Real:
        """Return the exact integers operand @ weights, (rows, N), each below 2^53, as float64.

        They lie in the factor's buffers until the next call.
        """


class Accumulator(Protocol):
    """Sums outer products of one layer's operands and masked deltas, a chunk of records at a time."""

    def begin(self, records: int) -> None:
        """Start a chunk of at most CHUNK_RECORDS records."""

    def put(self, first: int, operand: Operand, masked: FieldVector) -> None:
        """Set the chunk's records from `first` on: operand (rows, K), masked (rows, N) field elements."""

    def flush(self) -> None:
        """End the chunk: add its operand^T masked to the sum that the accumulator was given."""


@frozen
class ProductBytes:
    """The bytes of a product with a weight matrix, and of a masked sum, each of (records, K) and (K, N).

    Attributes:
        weight: Of each weight, in the form that the backend multiplies by.
        entry: Of each entry of a record's operand, while it is multiplied and after.
        output: Of each output of a record, while they are put together.
        chunk_entry: Of each entry of the operand of a record in a chunk.
        chunk_output: Of each output of a record in a chunk.
        sum: Of each input and output, while the products of a block of inputs are put together.
    """

    weight: int
    entry: int
    output: int
    chunk_entry: int
    chunk_output: int
    sum: int


class Backend(Protocol):
    """One way of computing both products."""

    def bytes_taken(self, width: int, *, is_bytes: bool) -> ProductBytes:
        """Return what products of operands of K values take: features as bytes, or rows."""

    def factor(self, weights: Weights, buffers: Buffers | None = None) -> Factor:
        """Prepare a (K, N) matrix of magnitudes at most 8127 for multiplication."""

    def accumulator(
        self, total: FieldVector, *, is_bytes: bool, records: int, buffers: Buffers | None = None
    ) -> Accumulator:
        """Return an adder to a sum (K, N), in C order or transposed, for K operands and N deltas.

        It is all zeros at first. Chunks have at most `records`.
        """


class BlockedSum:
    """The sum that an accumulator adds to, some inputs at a time.

    So what is put together on the way follows the block, not the layer.
    """

    __slots__ = ("_buffers", "_is_zero", "_total", "shape")

    def __init__(self, total: FieldVector, buffers: Buffers) -> None:
        self._total, self._buffers, self.shape = total, buffers, total.shape
        self._is_zero = True

    def blocks(self, bytes_an_input: int) -> Iterator[tuple[slice, FieldVector]]:
        """Yield inputs in equal blocks, and where to add each block's sum, (inputs, N) in C order.

        Args:
            bytes_an_input: What an input's products take: a block's are to stay in a cache.
        """
        for inputs in _blocks(self.shape[0], bytes_an_input):
            if self._total.flags.c_contiguous:
                yield inputs, self._total[inputs]
                continue
            part = self._buffers.zeros("part", (inputs.stop - inputs.start, self.shape[1]), np.uint64)
            yield inputs, part
            # A transposed sum is slow to read, and all zeros before the first chunk: then it is only written.
            if self._is_zero:
                self._total[inputs] = part
            else:
                add_transposed(part, self._total.T, inputs.start)
        self._is_zero = False


def largest_block(width: int, bytes_an_input: int) -> int:
    """Return how many inputs of a layer are put together at a time, at most."""
    return -(-width // _count_blocks(width, bytes_an_input))


def _count_blocks(width: int, bytes_an_input: int) -> int:
    wanted = max(_ENOUGH_INPUTS, _CACHED_BYTES // bytes_an_input)
    size = max(_LEAST_INPUTS, min(wanted, _PRODUCTS_BYTES // bytes_an_input))
    return max(1, round(width / size))


def _blocks(width: int, bytes_an_input: int) -> Iterator[slice]:
    """Yield a layer's inputs in equal blocks whose products take about `_CACHED_BYTES`."""
    count = _count_blocks(width, bytes_an_input)
    return (slice(width * one // count, width * (one + 1) // count) for one in range(count))
