"""The fast backend: unsigned bytes times signed digits with 32-bit sums, by ONNX Runtime's MatMulInteger.

Operands of 16 bits are two byte planes of q + 32768; weights are two balanced base-128 digits; field elements
are eight balanced base-256 digits where the machine's kernel adds without saturation (VNNI, AMX), and ten
base-128 digits where it does not (AVX2 adds two products in 16 bits: 2 * 255 * 64 < 2^15 still fits). Which
of the two changes the speed and no bit.
"""

from functools import cache
from typing import Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.compiled import inline, kernel
from helper.gradient.exact.kernels.field import add, from_signed, multiply
from helper.gradient.exact.kernels.rows import Bytes, Real
from helper.gradient.exact.products.product import (
    Accumulator,
    BlockedSum,
    Operand,
    ProductBytes,
    Weights,
    use_one_blas_thread,
)
from maskedlark.frozen import frozen
from maskedlark.numbers.field import MODULUS, FieldVector

Digits = NDArray[np.int8]
Sums = NDArray[np.int32]

# Up to this many inputs a float64 product is faster than four digit products, and as exact.
_NARROW: Final = 48
_OFFSET: Final = 32768

_EPSILON: Final = np.uint64(2**32 - 1)
_LARGEST_BALANCED: Final = np.uint64(0x7F7F7F7F7F7F7F7F)  # 127 * (256^8 - 1) / 255
# 128 in each of eight digits.
_BALANCE_256: Final = np.uint64(0x8080808080808080)
# 64 in each of eight digits: with it none is negative, and shifts cut them apart.
_BALANCE_128: Final = np.int64(64 * (128**8 - 1) // 127)
_HALF: Final = np.uint64(MODULUS // 2)
_P: Final = np.uint64(MODULUS)


@frozen
class _DigitWeights:
    """A (K, N) weight matrix as digits (K, 2N), low digit first.

    Its column sums times 32768; and as float64 if K is narrow.
    """

    digits: Digits
    offset: NDArray[np.int64]
    matrix: Real | None
    buffers: Buffers

    def product(self, operand: Operand) -> Real:
        """See `Factor`."""
        rows, outputs = len(operand), len(self.offset)
        result: Real = self.buffers.empty("result", (rows, outputs))
        # For a narrow layer float64 is exact too, and its product is faster than splitting the operand.
        if self.matrix is not None:
            wide: Real = self.buffers.empty("wide", operand.shape)
            wide[...] = operand
            return np.matmul(wide, self.matrix, out=result)
        if operand.dtype == np.uint8:
            _combine_bytes(multiply_digits(operand.astype(np.uint8, copy=False), self.digits), result)
        else:
            planes = self.buffers.empty("planes", (2 * rows, operand.shape[1]), np.uint8)
            _split_operand(operand, planes[:rows], planes[rows:])
            _combine_planes(multiply_digits(planes, self.digits), self.offset, result)
        return result


@cache
def _session(*, transposes: bool) -> onnxruntime.InferenceSession:
    """Create a graph of one product.

    A helper's parallelism is over records, so each product runs on the calling thread.
    """
    value = helper.make_tensor_value_info
    left = "A^T" if transposes else "A"
    product = helper.make_node("MatMulInteger", [left, "B"], ["Y"])
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["A"], [left], perm=[1, 0]), product] if transposes else [product],
        "product",
        [value("A", TensorProto.UINT8, [None, None]), value("B", TensorProto.INT8, [None, None])],
        [value("Y", TensorProto.INT32, [None, None])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    # onnx writes its newest version of the format, which an older onnxruntime refuses.
    model.ir_version = 9
    options = onnxruntime.SessionOptions()
    # Parts of a round have a thread each: onnxruntime's own pool would compete with them for the cores.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def multiply_digits(left: Bytes, right: Digits, *, transposes: bool = False) -> Sums:
    """Return left (M, K) @ right (K, N), or left (K, M) transposed first.

    Exact in 32 bits if the digits suit the machine.
    """
    sums: Sums = _session(transposes=transposes).run(None, {"A": left, "B": right})[0]
    return sums


@cache
def _is_saturating() -> bool:
    """Return whether this machine's kernel loses sums of full 8-bit digits.

    Found by multiplying the extremes at several shapes.
    """
    for rows, width, columns in ((1, 64, 16), (64, 256, 64), (127, 2048, 129)):
        for digit in (-128, 127):
            sums = multiply_digits(
                np.full((rows, width), 255, np.uint8), np.full((width, columns), digit, np.int8)
            )
            if (sums != 255 * digit * width).any():
                return True
    return False


class Int8Backend:
    """Products by MatMulInteger."""

    __slots__ = ("_base_bits",)

    def __init__(self, *, base_bits: int | None = None) -> None:
        use_one_blas_thread()
        # Without VNNI the kernel adds two products in 16 bits, which full 8-bit digits overflow: then 7 bits
        # a digit.
        self._base_bits = base_bits if base_bits is not None else (7 if _is_saturating() else 8)

    def bytes_taken(self, width: int, *, is_bytes: bool) -> ProductBytes:
        """See `Backend`."""
        planes, digits = (1 if is_bytes else 2), (8 if self._base_bits == 8 else 10)
        is_narrow = width <= _NARROW
        return ProductBytes(
            weight=10 if is_narrow else 2,
            entry=8 if is_narrow else planes,
            output=0 if is_narrow else 8 * planes,
            chunk_entry=planes,
            chunk_output=digits,
            sum=4 * planes * digits,
        )

    def factor(self, weights: Weights, buffers: Buffers | None = None) -> _DigitWeights:
        """Return a (K, N) matrix as digits."""
        width, outputs = weights.shape
        buffers = buffers or Buffers()
        digits = buffers.empty("digits", (width, 2 * outputs), np.int8)
        offset = buffers.zeros("offset", (outputs,), np.int64)
        _split_weights(weights, digits, offset)
        matrix = weights.astype(np.float64) if width <= _NARROW else None
        return _DigitWeights(digits=digits, offset=offset, matrix=matrix, buffers=buffers)

    def accumulator(
        self, total: FieldVector, *, is_bytes: bool, records: int, buffers: Buffers | None = None
    ) -> Accumulator:
        """Return an accumulator with the digits that suit this machine."""
        # 8 x 8 bits hold a field element of 64; 9 x 7 are 63 bits, so a tenth digit carries the sign.
        count = 8 if self._base_bits == 8 else 10
        return _DigitAccumulator(total, records, buffers or Buffers(), is_bytes=is_bytes, count=count)


class _DigitAccumulator:
    """Collects a chunk's operands as byte planes and its masked deltas as digits, multiplies once."""

    __slots__ = ("_buffers", "_column_sums", "_count", "_digits", "_operand", "_records", "_total")

    def __init__(
        self, total: FieldVector, records: int, buffers: Buffers, *, is_bytes: bool, count: int
    ) -> None:
        width, outputs = total.shape
        self._count, self._buffers = count, buffers
        self._total = BlockedSum(total, buffers)
        self._operand = buffers.empty("operand", (records, width if is_bytes else 2 * width), np.uint8)
        self._digits = buffers.empty("digits", (records, count * outputs), np.int8)
        self._column_sums = np.zeros(outputs, np.uint64)
        self._records = 0

    def begin(self, records: int) -> None:
        """See `Accumulator`."""
        self._records = records
        self._column_sums[:] = 0

    def put(self, first: int, operand: Operand, masked: FieldVector) -> None:
        """See `Accumulator`."""
        rows = slice(first, first + len(operand))
        if self._count == 8:
            _split_256(masked, self._digits[rows].view(np.uint64))
        else:
            _split_128(masked, self._digits[rows])
        if operand.dtype == np.uint8:
            self._operand[rows] = operand
        else:
            width = self._total.shape[0]
            _split_operand(operand, self._operand[rows, :width], self._operand[rows, width:])
            _add_columns(masked, self._column_sums)

    def flush(self) -> None:
        """See `Accumulator`."""
        width = self._total.shape[0]
        digits = self._digits[: self._records]
        planes = self._operand[: self._records].reshape(self._records, -1, width)
        for inputs, into in self._total.blocks(4 * planes.shape[1] * digits.shape[1]):
            operand = self._columns(planes, inputs)
            sums = multiply_digits(operand, digits, transposes=True)
            _recombine(sums, planes.shape[1], self._count, self._column_sums, into)

    def _columns(self, planes: Bytes, inputs: slice) -> Bytes:
        """Return some inputs of all planes, (records, planes * inputs)."""
        chosen = planes[:, :, inputs]
        if chosen.shape == planes.shape:
            return planes.reshape(self._records, -1)
        columns: Bytes = self._buffers.empty("columns", chosen.shape, np.uint8)
        columns[...] = chosen
        return columns.reshape(self._records, -1)


@kernel
def _split_weights(weights: Weights, digits: Digits, offset: NDArray[np.int64]) -> None:
    """Split w = low + 128 high with low in [-64, 63]; offset = 32768 * column sums."""
    width, outputs = weights.shape
    for i in range(width):
        for j in range(outputs):
            w = np.int32(weights[i, j])
            low = ((w + 64) & 127) - 64
            digits[i, j] = low
            digits[i, outputs + j] = (w - low) >> 7
            offset[j] += np.int64(w) * _OFFSET


@kernel
def _split_operand(operand: NDArray[np.int16], high: Bytes, low: Bytes) -> None:
    """Split q + 32768 into its two bytes, each (R, K)."""
    for r in range(operand.shape[0]):
        for j in range(operand.shape[1]):
            q = np.int32(operand[r, j]) + _OFFSET
            high[r, j] = q >> 8
            low[r, j] = q & 255


@kernel
def _combine_bytes(sums: Sums, result: Real) -> None:
    """Combine digit sums (R, 2N) of byte operands to integers (R, N)."""
    rows, outputs = result.shape
    for r in range(rows):
        for j in range(outputs):
            result[r, j] = np.int64(sums[r, j]) + (np.int64(sums[r, outputs + j]) << 7)


@kernel
def _combine_planes(sums: Sums, offset: NDArray[np.int64], result: Real) -> None:
    """Combine digit sums (2R, 2N) of two byte planes to integers (R, N)."""
    rows, outputs = result.shape
    for r in range(rows):
        for j in range(outputs):
            high = np.int64(sums[r, j]) + (np.int64(sums[r, outputs + j]) << 7)
            low = np.int64(sums[rows + r, j]) + (np.int64(sums[rows + r, outputs + j]) << 7)
            result[r, j] = (high << 8) + low - offset[j]


@kernel
def _split_256(masked: FieldVector, digits: NDArray[np.uint64]) -> None:
    """Split field elements (R, N) into eight balanced base-256 digits: the bytes of a word, lowest first.

    The bytes of s + 0x80...80, each with its top bit flipped. On a processor that stores the highest byte
    first the self-check fails, and the helper does not start.

    s is u or u - p, whichever eight digits can hold: they hold 2^64 consecutive integers, more than p.
    """
    for r in range(masked.shape[0]):
        for j in range(masked.shape[1]):
            u = masked[r, j]
            u += (_EPSILON if u > _LARGEST_BALANCED else np.uint64(0)) + _BALANCE_256
            digits[r, j] = u ^ _BALANCE_256


@kernel
def _split_128(masked: FieldVector, digits: Digits) -> None:
    """Split signed field elements (R, N) into ten balanced base-128 digits each, (R, 10N).

    The tenth is -1, 0 or 1.
    """
    for r in range(masked.shape[0]):
        for j in range(masked.shape[1]):
            u = masked[r, j]
            s = np.int64(u) if u <= _HALF else -np.int64(_P - u)
            first = ((s + 64) & 127) - 64
            digits[r, 10 * j] = first
            rest = ((s - first) >> 7) + _BALANCE_128
            for d in range(8):
                digits[r, 10 * j + d + 1] = ((rest >> (7 * d)) & 127) - 64
            digits[r, 10 * j + 9] = rest >> 56


@kernel
def _add_columns(masked: FieldVector, sums: FieldVector) -> None:
    """Add the columns' sums to sums (N,)."""
    for r in range(masked.shape[0]):
        for j in range(masked.shape[1]):
            sums[j] = add(sums[j], masked[r, j])


@kernel
def _recombine(sums: Sums, planes: int, count: int, column_sums: FieldVector, total: FieldVector) -> None:
    """Combine digit sums (planes * K, N * count) in the field, and add them to total (K, N).

    With two planes less 32768 * column sums.
    """
    width, outputs = total.shape
    # Half of the digits fit in 64 bits with their sums: a single product in the field joins the halves.
    half = count // 2
    bits = 8 if count == 8 else 7
    unit = np.uint64(1) << np.uint64(half * bits)
    low, high = np.empty(outputs, np.int64), np.empty(outputs, np.int64)
    minus = np.zeros(outputs, np.uint64)
    if planes == 2:
        # The planes hold q + 32768.
        for j in range(outputs):
            minus[j] = multiply(column_sums[j], _P - np.uint64(_OFFSET))
    for i in range(width):
        low[:] = 0
        high[:] = 0
        for plane in range(planes):
            row, up = plane * width + i, 8 * (planes - 1 - plane)
            if count == 8:
                for j in range(outputs):
                    low[j] += _join_four(sums, row, 8 * j) << up
                    high[j] += _join_four(sums, row, 8 * j + 4) << up
            else:
                for j in range(outputs):
                    low[j] += _join_five(sums, row, 10 * j) << up
                    high[j] += _join_five(sums, row, 10 * j + 5) << up
        for j in range(outputs):
            value = add(from_signed(low[j]), multiply(from_signed(high[j]), unit))
            total[i, j] = add(total[i, j], add(value, minus[j]))


@inline
def _join_four(sums: Sums, row: int, first: int) -> np.int64:
    """Return the integer of four base-256 digits, lowest first."""
    low = np.int64(sums[row, first]) + (np.int64(sums[row, first + 1]) << 8)
    return low + (np.int64(sums[row, first + 2]) << 16) + (np.int64(sums[row, first + 3]) << 24)


@inline
def _join_five(sums: Sums, row: int, first: int) -> np.int64:
    """Return the integer of five base-128 digits, lowest first."""
    low = np.int64(sums[row, first]) + (np.int64(sums[row, first + 1]) << 7)
    low += (np.int64(sums[row, first + 2]) << 14) + (np.int64(sums[row, first + 3]) << 21)
    return low + (np.int64(sums[row, first + 4]) << 28)
