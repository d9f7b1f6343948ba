"""Clipped, truncated, masked values: the step from a layer's deltas to field elements, and the hash of the values on the way.

For one record and delta d of seed s, label l contributes share(l) * trunc(factor(l) * d * 2^shift) to the field element; shift
makes the product with the layer's operand an integer in units of 2^-frac_bits.

Specification: docs/explanation/numerics.md, sections "Masked values" and "Digest".
"""

from hashlib import sha256
from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from helper.gradient.exact.clipping import Masking
from helper.gradient.exact.field_kernels import add, from_signed, multiply
from helper.gradient.exact.rows import Rows, power
from maskedlark.field import FieldVector

_MASK_64: Final = 2**64 - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def hash_keys(layer: int, labels: int, width: int) -> NDArray[np.uint64]:
    """(labels, width) public odd multipliers of one layer: SplitMix64 from the state 2^40 * layer, with the lowest bit set."""
    counter = np.arange(1, labels * width + 1, dtype=np.uint64) + np.uint64(layer << 40)
    keys = mix(counter * np.uint64(_GOLDEN)) | np.uint64(1)
    return keys.reshape(labels, width)


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a permutation of 64-bit words that is far from linear."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class ValuesDigest:
    """Collects the hashes of records; the digest depends on no order."""

    __slots__ = ("records", "total")

    def __init__(self) -> None:
        self.total = 0
        self.records = 0

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
        return sha256(b"maskedlark/v1 values\0" + self.records.to_bytes(8, "little") + self.total.to_bytes(8, "little")).digest()


def mask_rows(deltas: Rows, operand: Rows, masking: Masking, keys: NDArray[np.uint64]) -> FieldVector:
    """Field elements (records, width) to be multiplied by the operand; deltas have rows (seeds * records, width)."""
    records, width = len(masking.factors), deltas.q.shape[1]
    masked = np.empty((records, width), np.uint64)
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


def mask_sum(deltas: Rows, masking: Masking, keys: NDArray[np.uint64], total: FieldVector) -> None:
    """total (width,) += the field elements of a bias, whose operand is the number 1."""
    _mask_sum(deltas.q, deltas.exponent, masking.factors, masking.shares, masking.frac_bits, keys, total, masking.hashes)


@njit(cache=True, nogil=True)
def _mask_rows(
    q: NDArray[np.int16],
    exponent: NDArray[np.int64],
    operand_exponent: NDArray[np.int64],
    operand_norm: NDArray[np.int64],
    factors: NDArray[np.float64],
    shares: FieldVector,
    frac_bits: int,
    keys: NDArray[np.uint64],
    masked: FieldVector,
    hashes: NDArray[np.uint64],
) -> None:
    """`mask_rows`; a record whose operand is zero contributes zeros."""
    records, labels = factors.shape
    seeds = exponent.size // records
    for r in range(records):
        masked[r, :] = 0
        if operand_norm[r] == 0:
            continue
        digest = np.uint64(0)
        for k in range(labels):
            row = r + records * k if seeds > 1 else r
            scale = factors[r, k] * power(frac_bits - exponent[row] - operand_exponent[r])
            share = shares[r, k]
            for j in range(q.shape[1]):
                value = np.int64(q[row, j] * scale)
                digest += keys[k, j] * np.uint64(value)
                masked[r, j] = add(masked[r, j], multiply(share, from_signed(value)))
        hashes[r] += digest


@njit(cache=True, nogil=True)
def _mask_sum(
    q: NDArray[np.int16],
    exponent: NDArray[np.int64],
    factors: NDArray[np.float64],
    shares: FieldVector,
    frac_bits: int,
    keys: NDArray[np.uint64],
    total: FieldVector,
    hashes: NDArray[np.uint64],
) -> None:
    """`mask_sum`."""
    records, labels = factors.shape
    seeds = exponent.size // records
    for r in range(records):
        digest = np.uint64(0)
        for k in range(labels):
            row = r + records * k if seeds > 1 else r
            scale = factors[r, k] * power(frac_bits - exponent[row])
            share = shares[r, k]
            for j in range(q.shape[1]):
                value = np.int64(q[row, j] * scale)
                digest += keys[k, j] * np.uint64(value)
                total[j] = add(total[j], multiply(share, from_signed(value)))
        hashes[r] += digest
