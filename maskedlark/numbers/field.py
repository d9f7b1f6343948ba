"""Vectors over the prime field of the protocol, and additive sharing in it.

The prime is p = 2^64 - 2^32 + 1 (VDAF's Field64).

Masks, blinds and sums live here. A vector is a numpy array of uint64 whose every entry is canonical (below
p); the functions require that of their inputs and guarantee it of their results.

Source: draft-irtf-cfrg-vdaf, section "Finite Fields", for the modulus and the encoding (little-endian,
canonical) of an element.

>>> from maskedlark.randomness import system_randomness
>>> first, second = share(from_signed(np.array([5, -7])), system_randomness)
>>> to_signed(reconstruct(first, second)).tolist()
[5, -7]
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.randomness import Randomness

MODULUS: Final = 2**64 - 2**32 + 1
ELEMENT_BYTES: Final = 8
MAX_SIGNED: Final = (MODULUS - 1) // 2
"""The largest magnitude that the signed reading of an element can hold: 2^63 - 2^31."""

BLOCK: Final = 1 << 16
"""Long vectors are worked on in pieces of so many elements, which stay in a processor's cache."""

FieldVector: TypeAlias = NDArray[np.uint64]
SignedVector: TypeAlias = NDArray[np.int64]

_P = np.uint64(MODULUS)
_EPSILON = np.uint64(2**32 - 1)  # 2^64 mod p
_LOW = np.uint64(2**32 - 1)
_32 = np.uint64(32)


class _Shares(NamedTuple):
    """The two helpers' additive shares of one vector: share_0 + share_1 = secret."""

    share_0: FieldVector
    share_1: FieldVector


def is_canonical(vector: FieldVector) -> bool:
    """Return whether every entry is below the modulus."""
    return bool((vector < _P).all())


def add(left: FieldVector, right: FieldVector) -> FieldVector:
    """Return left + right, entry-wise."""
    total = left + right
    total = np.where(
        total < left, total + _EPSILON, total
    )  # wrapped past 2^64: 2^64 = epsilon, and cannot wrap again
    return np.where(total >= _P, total - _P, total)


def negate(vector: FieldVector) -> FieldVector:
    """Return -vector, entry-wise."""
    return np.where(vector == 0, vector, _P - vector)


def subtract(left: FieldVector, right: FieldVector) -> FieldVector:
    """Return left - right, entry-wise."""
    difference = left - right
    return np.where(left < right, difference - _EPSILON, difference)  # wrapped below 0: -2^64 = -epsilon


def multiply(left: FieldVector, right: FieldVector) -> FieldVector:
    """Return left * right entry-wise, from four 32-bit products: 2^64 = 2^32 - 1, 2^96 = -1 (mod p)."""
    left_low, left_high = left & _LOW, left >> _32
    right_low, right_high = right & _LOW, right >> _32
    low = left_low * right_low
    cross = left_low * right_high + (low >> _32)  # at most (2^32-1)^2 + 2^32 - 1: no wrap
    other = left_high * right_low + (cross & _LOW)
    high = left_high * right_high + (cross >> _32) + (other >> _32)
    low = (low & _LOW) | ((other & _LOW) << _32)
    # low + 2^64 * (high & LOW) + 2^96 * (high >> 32)
    # Canonical first, as `add` takes it: low is any 64 bits.
    result = np.where(low >= _P, low - _P, low)
    result = add(result, (high & _LOW) * _EPSILON)  # (2^32-1)^2 < p
    return subtract(result, high >> _32)


def total(vectors: FieldVector, axis: int = 0) -> FieldVector:
    """Return the sum along one axis of at most 2^31 entries; the empty sum is zero."""
    # Halves of 32 bits: 2^31 of them add up below 2^63, so no entry is reduced before the end.
    low = (vectors & _LOW).sum(axis=axis, dtype=np.uint64, keepdims=True)
    high = (vectors >> _32).sum(axis=axis, dtype=np.uint64, keepdims=True)
    return from_limbs(low, high).squeeze(axis)


def from_limbs(low: FieldVector, high: FieldVector) -> FieldVector:
    """Return low + 2^32 high entry-wise, for any low below 2^64 and high below the modulus."""
    carried = np.where(low >= _P, low - _P, low)
    return add(carried, multiply(high, np.full_like(high, 1 << 32)))


def from_signed(values: SignedVector) -> FieldVector:
    """Encode signed integers of magnitude at most `MAX_SIGNED` as field elements (-x as p - |x|)."""
    return np.where(values < 0, _P - np.abs(values).astype(np.uint64), values.astype(np.uint64))


def to_signed(vector: FieldVector) -> SignedVector:
    """Decode field elements as the signed integers of least magnitude: the inverse of `from_signed`."""
    return np.where(vector > np.uint64(MAX_SIGNED), -(_P - vector).astype(np.int64), vector.astype(np.int64))


def random_vector(count: int, randomness: Randomness) -> FieldVector:
    """`count` independent uniform elements.

    8 little-endian bytes each, those at or above p skipped (probability 2^-32).
    """
    vector, found = np.empty(count, np.uint64), 0
    while found < count:
        wanted = min(count - found, BLOCK)
        words = np.frombuffer(randomness(ELEMENT_BYTES * wanted), dtype="<u8")
        # Skipped and not reduced, which would favour small elements; one look for the whole block, as it
        # hardly ever occurs.
        if words.max() >= _P:
            words = words[words < _P]
        vector[found : found + len(words)] = words
        found += len(words)
    return vector


def random_rows(width: int, sources: Sequence[Randomness]) -> FieldVector:
    """Draw what `random_vector` draws from each source, a row each: uint64 (n, width)."""
    encoded = b"".join([source(ELEMENT_BYTES * width) for source in sources])
    table = np.frombuffer(encoded, "<u8").astype(np.uint64).reshape(len(sources), width)
    for row in np.flatnonzero((table >= _P).any(axis=1)).tolist():  # about one element in 2^32 is skipped
        kept = table[row][table[row] < _P]
        table[row] = np.concatenate([kept, random_vector(width - len(kept), sources[row])])
    return table


def share(secret: FieldVector, randomness: Randomness) -> _Shares:
    """Split a vector so that either share alone is uniform and tells nothing.

    Called by the browser (Algorithm 1 of the paper).
    """
    # Share 0 does not depend on the secret, and share 1 is as uniform as it: Algorithm 1 with a field for its
    # masks.
    share_0 = random_vector(secret.size, randomness).reshape(secret.shape)
    return _Shares(share_0, subtract(secret, share_0))


def share_rows(secrets: FieldVector, sources: Sequence[Randomness]) -> _Shares:
    """Share each row with its own source, as `share` does: uint64 (n, width), at least one column.

    Called by the browser, for the reports of many.
    """
    share_0 = random_rows(secrets.shape[1], sources)
    return _Shares(share_0, subtract(secrets, share_0))


def reconstruct(share_0: FieldVector, share_1: FieldVector) -> FieldVector:
    """Add the two shares. Called by the ad server."""
    return add(share_0, share_1)


def to_bytes(vector: FieldVector) -> bytes:
    """Encode little-endian, 8 bytes an element, in C order."""
    return np.ascontiguousarray(vector, dtype="<u8").tobytes()


def from_bytes(encoded: bytes, count: int) -> FieldVector:
    """Decode exactly `count` canonical elements, or raise ValueError for callers to turn into their own."""
    if len(encoded) != ELEMENT_BYTES * count:
        raise ValueError(
            f"a vector of {count} elements has {ELEMENT_BYTES * count} bytes, not {len(encoded)}"
        )
    vector = np.frombuffer(encoded, dtype="<u8").astype(np.uint64)
    if not is_canonical(vector):
        raise ValueError("an element is not below the modulus")
    return vector
