"""Clipped, truncated, masked values.

The step from a layer's deltas to field elements, and the hash of the values on the way.

For one record and delta d of seed s, label l contributes share(l) * trunc(factor(l) * d * 2^shift) to the
field element; shift makes the product with the layer's operand an integer in units of 2^-frac_bits.

Specification: docs/explanation/numerics.md, sections "Masked values" and "Digest".
"""

from enum import IntEnum, unique
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.clipping import Masking
from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.field import add, from_signed, multiply, shift_32, signed_limbs
from helper.gradient.exact.kernels.rows import Rows, power
from maskedlark.numbers.field import FieldVector

Keys = NDArray[np.uint64]

_MASK_64: Final = 2**64 - 1
_KEPT_KEYS: Final = 1 << 12
_GOLDEN: Final = 0x9E3779B97F4A7C15


@unique
class Hashed(IntEnum):
    """What of a layer a key multiplies."""

    VALUES = 0
    BIAS_VALUES = 1
    OPERAND = 2


def hash_keys(layer: int, part: Hashed, rows: int, width: int) -> Keys:
    """(rows, width) public odd multipliers for one part of a layer.

    SplitMix64 from the state 2^40 (3 layer + part), lowest bit set. Few are kept, for each round asks for
    the same ones; nobody changes them.
    """
    return (_kept_keys if rows * width <= _KEPT_KEYS else _made_keys)(layer, part, rows, width)


def _made_keys(layer: int, part: Hashed, rows: int, width: int) -> Keys:
    """`hash_keys`."""
    counter = np.arange(1, rows * width + 1, dtype=np.uint64) + np.uint64((3 * layer + part) << 40)
    keys = mix(counter * np.uint64(_GOLDEN)) | np.uint64(1)
    return keys.reshape(rows, width)


_kept_keys: Final = lru_cache(maxsize=256)(_made_keys)


def hash_operand(operand: NDArray[Any], keys: Keys, hashes: Keys) -> None:
    """Add the hash of each record's operand (records, width) to hashes (records,)."""
    _hash_operand(operand, keys[0], hashes)


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a permutation of 64-bit words that is far from linear."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class ValuesDigest:
    """Collects the hashes of records; the digest depends on no order."""

    __slots__ = ("records", "total")

    def __init__(self, total: int = 0, records: int = 0) -> None:
        self.total = total
        self.records = records

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add a block's records."""
        self.total = (self.total + int(mix(hashes).sum(dtype=np.uint64))) & _MASK_64
        self.records += len(hashes)

    def merge(self, other: "ValuesDigest") -> None:
        """Add what another thread collected."""
        self.total = (self.total + other.total) & _MASK_64
        self.records += other.records

    def digest(self) -> bytes:
        """32 bytes."""
        return sha256(
            b"maskedlark/v1 values\0" + self.records.to_bytes(8, "little") + self.total.to_bytes(8, "little")
        ).digest()


def mask_rows(
    deltas: Rows, operand: Rows, masking: Masking, keys: Keys, buffers: Buffers | None = None
) -> FieldVector:
    """Field elements (records, width) to be multiplied by the operand.

    Deltas have rows (seeds * records, width). Given buffers, the elements lie in them until the next call.
    """
    shape = len(masking.factors), deltas.q.shape[1]
    masked: FieldVector = (buffers or Buffers()).empty("masked", shape, np.uint64)
    _mask_rows(
        deltas.q,
        deltas.exponent,
        operand.exponent,
        operand.norm,
        masking.factors,
        masking.shares,
        masking.frac_bits,
        keys,
        masked,
        masking.hashes,
    )
    return masked


def mask_sum(deltas: Rows, masking: Masking, keys: Keys, total: FieldVector) -> None:
    """total (width,) += the field elements of a bias, whose operand is the number 1."""
    _mask_sum(
        deltas.q,
        deltas.exponent,
        masking.factors,
        masking.shares,
        masking.frac_bits,
        keys,
        total,
        masking.hashes,
    )


@kernel
def _hash_operand(operand: NDArray[Any], keys: Keys, hashes: Keys) -> None:
    """`hash_operand`."""
    for r in range(operand.shape[0]):
        digest = np.uint64(0)
        for j in range(operand.shape[1]):
            digest += keys[j] * np.uint64(np.int64(operand[r, j]))
        hashes[r] += digest


@kernel
def _mask_rows(
    q: NDArray[np.int16],
    exponent: NDArray[np.int64],
    operand_exponent: NDArray[np.int64],
    operand_norm: NDArray[np.int64],
    factors: NDArray[np.float64],
    shares: FieldVector,
    frac_bits: int,
    keys: Keys,
    masked: FieldVector,
    hashes: NDArray[np.uint64],
) -> None:
    """`mask_rows`; a record whose operand is zero contributes zeros."""
    records, labels = factors.shape
    stride = records if exponent.size > records else 0
    scales = np.empty(labels)
    for r in range(records):
        if operand_norm[r] == 0:
            masked[r, :] = 0
            continue
        for k in range(labels):
            scales[k] = factors[r, k] * power(frac_bits - exponent[r + stride * k] - operand_exponent[r])
        hashes[r] += _mask_record(q, r, stride, scales, shares[r], keys, masked[r])


@kernel
def _mask_sum(
    q: NDArray[np.int16],
    exponent: NDArray[np.int64],
    factors: NDArray[np.float64],
    shares: FieldVector,
    frac_bits: int,
    keys: Keys,
    total: FieldVector,
    hashes: NDArray[np.uint64],
) -> None:
    """`mask_sum`."""
    records, labels = factors.shape
    stride = records if exponent.size > records else 0
    scales, masked = np.empty(labels), np.empty(len(total), np.uint64)
    for r in range(records):
        for k in range(labels):
            scales[k] = factors[r, k] * power(frac_bits - exponent[r + stride * k])
        hashes[r] += _mask_record(q, r, stride, scales, shares[r], keys, masked)
        for j in range(len(total)):
            total[j] = add(total[j], masked[j])


@kernel
def _mask_record(
    q: NDArray[np.int16],
    record: int,
    stride: int,
    scales: NDArray[np.float64],
    shares: FieldVector,
    keys: Keys,
    masked: FieldVector,
) -> np.uint64:
    """masked (width,) = sum over labels of share * trunc(q * scale); gives the values' hash.

    Where the values of all labels together stay below 2^31, a share is two signed 32-bit limbs whose products
    add up in 63 bits; elsewhere each product is reduced.
    """
    bound = 0.0
    for scale in scales:
        bound += 32768.0 * abs(scale)
    digest = np.uint64(0)
    if bound >= 2147483648.0:
        masked[:] = 0
        for k in range(len(scales)):
            row, scale, share = record + stride * k, scales[k], shares[k]
            for j in range(len(masked)):
                value = np.int64(q[row, j] * scale)
                digest += keys[k, j] * np.uint64(value)
                masked[j] = add(masked[j], multiply(share, from_signed(value)))
        return digest
    low, high = np.zeros(len(masked), np.int64), np.zeros(len(masked), np.int64)
    for k in range(len(scales)):
        row, scale = record + stride * k, scales[k]
        share_low, share_high = signed_limbs(shares[k])
        for j in range(len(masked)):
            small = np.int32(q[row, j] * scale)
            digest += keys[k, j] * np.uint64(np.int64(small))
            low[j] += np.int64(small) * np.int64(share_low)
            high[j] += np.int64(small) * np.int64(share_high)
    for j in range(len(masked)):
        masked[j] = add(from_signed(low[j]), shift_32(high[j]))
    return digest
