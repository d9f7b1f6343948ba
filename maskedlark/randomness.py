"""Where random bytes come from: always an argument, so that every protocol step can be replayed.

Production code passes `system_randomness`. Tests, simulations and everything that two parties must draw alike
pass a `Stream`: AES-256 in counter mode under a 32-byte key, the extendable-output function of this protocol.

>>> dice = seeded(7, "dice")
>>> bool((below(6, 100, dice) < 6).all())
True
"""

from collections.abc import Callable, MutableSequence, Sequence
from functools import lru_cache
from os import urandom
from struct import unpack
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from maskedlark.hmac_sha256 import HmacKey, hmac_sha256

Randomness = Callable[[int], bytes]
"""A source of random bytes: called with a count, returns that many fresh bytes."""

system_randomness: Randomness = urandom

STREAM_KEY_BYTES = 32
# RFC 5869: an absent salt is zeros, as many as a hash has bytes.
_NO_SALT = HmacKey(bytes(STREAM_KEY_BYTES))
# No nonce: each key has one stream, and two parties with the key are to draw the same.
_FROM_ZERO = modes.CTR(bytes(16))


class Stream:
    """A deterministic stream of pseudorandom bytes under one key.

    Any party; both helpers draw the same bytes from the same key.

    Guarantees: the concatenation of all returned bytes is the AES-256-CTR key stream with a zero initial
        counter block, however the calls are sized.
    """

    __slots__ = ("_encrypt",)

    def __init__(self, key: bytes) -> None:
        if len(key) != STREAM_KEY_BYTES:
            raise ValueError(f"a stream key has {STREAM_KEY_BYTES} bytes, not {len(key)}")
        self._encrypt = Cipher(algorithms.AES256(key), _FROM_ZERO).encryptor()

    def __call__(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        # The key stream is what zeros encrypt to.
        return self._encrypt.update(bytes(count))

    def __repr__(self) -> str:
        return "Stream(<redacted>)"


def derive_key(secret: bytes, purpose: bytes, context: bytes = b"") -> bytes:
    """Derive a 32-byte key for a purpose and context by HKDF-SHA256 (RFC 5869), with both as info."""
    # Extract with no salt, then the first block of Expand, which is all that 32 bytes take.
    return hmac_sha256(_NO_SALT.tag(secret), _info(purpose, context))


def _info(purpose: bytes, context: bytes) -> bytes:
    # The zero ends the purpose, which is text; the last byte is Expand's counter of its first block.
    return b"maskedlark/v1 " + purpose + b"\0" + context + b"\1"


def seeded(seed: int, purpose: str = "") -> Stream:
    """Return the stream of an integer seed: for simulations and tests, never for secrets."""
    return Stream(_of_seed(seed).tag(_info(b"seed", purpose.encode())))


@lru_cache(maxsize=16)
def _of_seed(seed: int) -> HmacKey:
    """Return the key from which a seed's streams expand; a simulation uses many of one seed."""
    return HmacKey(_NO_SALT.tag(seed.to_bytes(16, "little", signed=True)))


def below(bound: int, count: int, randomness: Randomness) -> NDArray[np.uint64]:
    """`count` independent uniform integers in [0, bound), bound <= 2^63, by rejection (no modulo bias)."""
    if not 1 <= bound <= 1 << 63:
        raise ValueError(f"bound must be in 1..2^63, not {bound}")
    # Half of the masked words or more are below the bound, on average.
    bits = np.uint64((1 << (bound - 1).bit_length()) - 1)
    kept: list[NDArray[np.uint64]] = []
    missing = count
    while missing:
        # Little-endian on every machine: parties that share a key must draw the same numbers.
        words = np.frombuffer(randomness(8 * missing), dtype="<u8").astype(np.uint64) & bits
        words = words[words < np.uint64(bound)]
        kept.append(words)
        missing -= len(words)
    return np.concatenate(kept) if kept else np.empty(0, np.uint64)


def each_below(bounds: Sequence[int], randomness: Randomness) -> list[int]:
    """Draw one uniform integer below each bound, from the bytes that `below` would take in turn.

    In as few calls of the source as can be: for callers that draw a few numbers at a time.
    """
    if not bounds:
        return []
    largest, pairs = _with_bits(bounds if isinstance(bounds, range) else tuple(bounds))
    rest, drawn = iter(pairs), list[int]()
    bound, bits = next(rest)
    while missing := len(bounds) - len(drawn):
        words = randomness(8 * missing)
        # of a bound of at most 256 a word's first byte decides
        for word in words[::8] if largest <= 1 << 8 else unpack(f"<{missing}Q", words):
            if (found := word & bits) < bound:
                drawn.append(found)
                bound, bits = next(rest)
    return drawn


@lru_cache(maxsize=64)
def _with_bits(bounds: range | tuple[int, ...]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return the largest bound, and each with a mask of the bits of numbers below it."""
    largest = max(bounds)
    if not 1 <= min(bounds) <= largest <= 1 << 63:
        raise ValueError("a bound must be in 1..2^63")
    # A last pair, which is taken after the last bound and never used.
    return largest, (*((bound, (1 << (bound - 1).bit_length()) - 1) for bound in bounds), (0, 0))


def uniform(count: int, randomness: Randomness) -> NDArray[np.float64]:
    """`count` uniform multiples of 2^-53 in [0, 1): for simulated behaviour, never for privacy noise."""
    words = np.frombuffer(randomness(8 * count), dtype="<u8").astype(np.uint64)
    # The upper 53 bits, as many as a float64 holds: of all 64 the largest would round up to 1.
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shuffle(items: MutableSequence[Any], randomness: Randomness) -> None:
    """Put `items` in a uniformly random order, in place (Fisher and Yates)."""
    lasts = range(len(items) - 1, 0, -1)
    for last, chosen in zip(lasts, each_below(range(len(items), 1, -1), randomness), strict=True):
        items[last], items[chosen] = items[chosen], items[last]
