"""The two products of the exact path.

Their results are integers, and therefore the same however they are computed.

- `Factor.product`: quantised rows times 14-bit weights, the work of a forward or backward step;
- `Accumulator`: sum over records of (quantised row) x (row of field elements), the masked gradient of a
  layer.

`product_int8` computes them with ONNX Runtime's MatMulInteger on 7- or 8-bit digits, `product_float64` with
float64 matrix products of limbs whose every partial sum is below 2^53. A helper checks the one against the
other before it serves.

Specification: docs/explanation/numerics.md, section "Products".
"""

from functools import cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.rows import Real
from maskedlark.numbers.field import FieldVector

CHUNK_RECORDS: Final = 2048
"""The most rows that an accumulator takes between two flushes.

Keeps every digit sum below 2^31, every limb sum below 2^53.
"""
MAX_WIDTH: Final = 2**15
"""The most values that one linear layer may read or write: keeps every digit sum of a product below 2^31."""
MAX_POSITIONS: Final = 2**20
"""The most positions of a convolution or pool: keeps the sum of 15-bit products over them below 2^53."""

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
        """The exact integers operand @ weights, (rows, N), each below 2^53, as float64.

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


class Backend(Protocol):
    """One way of computing both products."""

    def factor(self, weights: Weights, buffers: Buffers | None = None) -> Factor:
        """A (K, N) matrix of magnitudes at most 8127, ready to multiply by."""

    def accumulator(
        self, total: FieldVector, *, is_bytes: bool, records: int, buffers: Buffers | None = None
    ) -> Accumulator:
        """Adds to a sum (K, N), in C order: for operands of K values and deltas of N.

        Chunks have at most `records`.
        """
