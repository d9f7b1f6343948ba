"""Clipped, truncated, masked values.

The step from a layer's deltas to field elements, and the hash of the values on the way.

For one record and delta d of seed s, label l contributes share(l) * trunc(factor(l) * d * 2^shift) to the
field element; shift makes the product with the layer's operand an integer in units of 2^-frac_bits.

Specification: docs/spec/numerics.md, sections "Values" and "Digest".
"""

from enum import IntEnum, unique
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.clipping import Masking
from helper.gradient.exact.kernels.compiled import inline, kernel
from helper.gradient.exact.kernels.field import add, from_signed, multiply, shift, split_limbs
from helper.gradient.exact.kernels.rows import RowBlock, power
from maskedlark.numbers.field import FieldVector

Keys = NDArray[np.uint64]

_MASK_64: Final = 2**64 - 1
# With the 256 arrays that are kept, 8 MiB at most.
_KEPT_KEYS: Final = 1 << 12
# SplitMix64's increment: the odd integer nearest to 2^64 over the golden ratio.
_GOLDEN: Final = 0x9E3779B97F4A7C15
# Of a value in two limbs, those of the lower one.
_LOW_BITS: Final = 20
# What values whose products are added up may come to: times a limb of a share that stays below 2^62.
_ROOM: Final = 2**31 - 1
_UP: Final = 2.0**_LOW_BITS
_DOWN: Final = 2.0**-_LOW_BITS
_32: Final = np.uint64(32)
_EPSILON: Final = np.int64(2**32 - 1)  # 2^64 mod p


@unique
class Hashed(IntEnum):
    """What of a layer a key multiplies."""

    VALUES = 0
    BIAS_VALUES = 1
    OPERAND = 2


def hash_keys(layer: int, part: Hashed, rows: int, width: int) -> Keys:
    """Return (rows, width) public odd multipliers for one part of a layer.

    SplitMix64 from the state 2^40 (3 layer + part), lowest bit set. A few arrays are cached, because
    each round asks for the same ones. Callers must not change them.
    """
    return (_kept_keys if rows * width <= _KEPT_KEYS else _made_keys)(layer, part, rows, width)


def _made_keys(layer: int, part: Hashed, rows: int, width: int) -> Keys:
    """Make the keys of `hash_keys`."""
    counter = np.arange(1, rows * width + 1, dtype=np.uint64) + np.uint64((3 * layer + part) << 40)
    # Odd, so that each multiplication is a permutation: a changed value always changes its product.
    keys = _mix(counter * np.uint64(_GOLDEN)) | np.uint64(1)
    return keys.reshape(rows, width)


_kept_keys: Final = lru_cache(maxsize=256)(_made_keys)


def hash_operand(operand: NDArray[Any], keys: Keys, hashes: Keys) -> None:
    """Add the hash of each record's operand (records, width) to hashes (records,)."""
    _hash_operand(operand, keys[0], hashes)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finaliser: a permutation of 64-bit words that is far from linear."""
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
        self.total = (self.total + int(_mix(hashes).sum(dtype=np.uint64))) & _MASK_64
        self.records += len(hashes)

    def merge(self, other: "ValuesDigest") -> None:
        """Add what another thread collected."""
        self.total = (self.total + other.total) & _MASK_64
        self.records += other.records

    def digest(self) -> bytes:
        """Return 32 bytes."""
        return sha256(
            b"maskedlark/v1 values\0" + self.records.to_bytes(8, "little") + self.total.to_bytes(8, "little")
        ).digest()


def mask_rows(
    deltas: RowBlock,
    operand: RowBlock,
    masking: Masking,
    keys: Keys,
    largest: int,
    buffers: Buffers | None = None,
) -> FieldVector:
    """Return field elements (records, width) to be multiplied by the operand.

    Deltas have rows (seeds * records, width). No value's magnitude is above `largest`, whatever the records
    are. Given buffers, the elements lie in them until the next call.
    """
    records, labels = masking.factors.shape
    masked: FieldVector = (buffers or Buffers()).empty("masked", (records, deltas.q.shape[1]), np.uint64)
    _mask_rows(
        deltas.q,
        deltas.exponent,
        operand.exponent,
        operand.norm,
        masking.factors,
        masking.shares,
        masking.frac_bits,
        _count_limbs(largest, labels),
        keys,
        masked,
        masking.hashes,
    )
    return masked


def mask_sum(deltas: RowBlock, masking: Masking, keys: Keys, total: FieldVector) -> None:
    """Add to total (width,) the field elements of a bias, whose operand is the number 1."""
    labels, largest = masking.factors.shape[1], masking.sensitivity
    limbs = _count_limbs(largest, labels)
    _mask_sum(
        deltas.q,
        deltas.exponent,
        masking.factors,
        masking.shares,
        masking.frac_bits,
        limbs,
        _ROOM // (labels * (max(_limbs_of(largest)) if limbs == 2 else largest)) if limbs else 1,
        keys,
        total,
        masking.hashes,
    )


def _count_limbs(largest: int, labels: int) -> int:
    """Return how many limbs each value needs so that no sum over the labels leaves 63 bits.

    It follows from public figures alone: values that happen to be small are masked no faster. A limb of a
    share is at most 2^31.

    Args:
        largest: No value's magnitude is above it.
        labels: How many values have their products added up.

    Returns:
        1: the values of all labels together stay below 2^31.
        2: their lower limbs do, and so do their upper ones.
        0: a value is too large for limbs, and each product is reduced.
    """
    if labels * largest <= _ROOM:
        return 1
    return 2 if labels * max(_limbs_of(largest)) <= _ROOM else 0


def _limbs_of(largest: int) -> tuple[int, int]:
    """Return the largest magnitudes of a value's lower limb and of its upper one."""
    return (1 << _LOW_BITS) - 1, largest >> _LOW_BITS


@kernel
def _hash_operand(operand: NDArray[Any], keys: Keys, hashes: Keys) -> None:
    """Run the loop of `hash_operand`."""
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
    limbs: int,
    keys: Keys,
    masked: FieldVector,
    hashes: NDArray[np.uint64],
) -> None:
    """Run the loop of `mask_rows`; a record whose operand is zero contributes zeros."""
    records, labels = factors.shape
    stride = records if exponent.size > records else 0
    scales, sums = np.empty(labels), np.empty((4, q.shape[1]), np.int64)
    for r in range(records):
        for k in range(labels):
            scale = factors[r, k] * power(frac_bits - exponent[r + stride * k] - operand_exponent[r])
            # The clip bounds a value times the operand's largest entry, which is at least 1 unless all are 0:
            # then nothing would bound the value, which may leave its limbs.
            scales[k] = scale if operand_norm[r] != 0 else 0.0
        if limbs == 0:
            hashes[r] += _multiply_reduced(q, r, stride, scales, shares, keys, masked[r])
        else:
            sums[: 2 * limbs] = 0
            hashes[r] += _add_products(q, r, stride, scales, shares, keys, limbs, sums)
            for j in range(masked.shape[1]):
                masked[r, j] = _whole(sums[0, j], sums[1, j])
            if limbs == 2:
                for j in range(masked.shape[1]):
                    upper = shift(_whole(sums[2, j], sums[3, j]), _LOW_BITS)
                    masked[r, j] = add(masked[r, j], upper)


@kernel
def _mask_sum(
    q: NDArray[np.int16],
    exponent: NDArray[np.int64],
    factors: NDArray[np.float64],
    shares: FieldVector,
    frac_bits: int,
    limbs: int,
    together: int,
    keys: Keys,
    total: FieldVector,
    hashes: NDArray[np.uint64],
) -> None:
    """Run the loop of `mask_sum`; so many records' products add up before they are reduced."""
    records, labels = factors.shape
    stride = records if exponent.size > records else 0
    scales, masked = np.empty(labels), np.empty(len(total), np.uint64)
    sums = np.zeros((4, len(total)), np.int64)
    for r in range(records):
        for k in range(labels):
            scales[k] = factors[r, k] * power(frac_bits - exponent[r + stride * k])
        if limbs == 0:
            hashes[r] += _multiply_reduced(q, r, stride, scales, shares, keys, masked)
            for j in range(len(total)):
                total[j] = add(total[j], masked[j])
            continue
        hashes[r] += _add_products(q, r, stride, scales, shares, keys, limbs, sums)
        if (r + 1) % together == 0 or r + 1 == records:
            for j in range(len(total)):
                upper = shift(_whole(sums[2, j], sums[3, j]), _LOW_BITS)
                total[j] = add(total[j], add(_whole(sums[0, j], sums[1, j]), upper))
            sums[:] = 0


@inline
def _multiply_reduced(
    q: NDArray[np.int16],
    record: int,
    stride: int,
    scales: NDArray[np.float64],
    shares: FieldVector,
    keys: Keys,
    masked: FieldVector,
) -> np.uint64:
    """Fill masked (width,) with sums over labels of share * trunc(q * scale); return the values' hash."""
    digest = np.uint64(0)
    masked[:] = 0
    for k in range(len(scales)):
        row, scale, share = record + stride * k, scales[k], shares[record, k]
        for j in range(len(masked)):
            # The hash is defined modulo 2^64: its products and sums wrap.
            value = np.int64(q[row, j] * scale)
            digest += keys[k, j] * np.uint64(value)
            masked[j] = add(masked[j], multiply(share, from_signed(value)))
    return digest


@inline
def _add_products(
    q: NDArray[np.int16],
    record: int,
    stride: int,
    scales: NDArray[np.float64],
    shares: FieldVector,
    keys: Keys,
    limbs: int,
    sums: NDArray[np.int64],
) -> np.uint64:
    """Add limbs of shares times limbs of trunc(q * scale) to sums (4, width); gives the values' hash.

    The sums are of lower limbs times a share's low and high limb, then of upper limbs times the same.
    """
    width, digest = sums.shape[1], np.uint64(0)
    for k in range(len(scales)):
        row, scale = record + stride * k, scales[k]
        share_low, share_high = split_limbs(shares[record, k])
        if limbs == 1:
            for j in range(width):
                small = np.int32(q[row, j] * scale)
                digest += keys[k, j] * np.uint64(np.int64(small))
                sums[0, j] += np.int64(small) * np.int64(share_low)
                sums[1, j] += np.int64(small) * np.int64(share_high)
        else:
            for j in range(width):
                scaled = q[row, j] * scale
                upper = np.int32(scaled * _DOWN)
                lower = np.int32(scaled - np.float64(upper) * _UP)  # exact: both are multiples of one ulp
                digest += keys[k, j] * np.uint64((np.int64(upper) << _LOW_BITS) + np.int64(lower))
                sums[0, j] += np.int64(lower) * np.int64(share_low)
                sums[1, j] += np.int64(lower) * np.int64(share_high)
                sums[2, j] += np.int64(upper) * np.int64(share_low)
                sums[3, j] += np.int64(upper) * np.int64(share_high)
    return digest


@inline
def _whole(low: np.int64, high: np.int64) -> np.uint64:
    """Return the element low + 2^32 high, each of a magnitude below 2^62.

    With high = 2^32 a + b and 0 <= b < 2^32 it is low + (2^32 - 1) a + 2^32 b, because 2^64 = 2^32 - 1.
    """
    # The second summand, a multiple of 2^32, is at most 2^64 - 2^32 = p - 1: canonical as `add` takes it.
    below = low + (high >> np.int64(32)) * _EPSILON  # of a magnitude below 2^63
    return add(from_signed(below), np.uint64(high) << _32)
