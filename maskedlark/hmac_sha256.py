"""HMAC-SHA256 (RFC 2104, FIPS 198-1) from hashlib's SHA-256.

`hmac.digest` sets OpenSSL up anew at each call, which takes longer than the hashing of a short message, and
so does `sha256()`: states here are copies of one that was made once. A key that is used often keeps its two.

>>> hmac_sha256(b"key", b"message") == HmacKey(b"key").after(b"mess").tag(b"age")
True
"""

from hashlib import sha256
from typing import Final

_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
_BEGUN: Final = sha256()


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """Return the 32-byte tag of a message under a key of at most 64 bytes."""
    if len(key) > _BLOCK_BYTES:
        raise _too_long(key)
    padded = key.ljust(_BLOCK_BYTES, b"\0")
    inner, outer = _BEGUN.copy(), _BEGUN.copy()
    inner.update(padded.translate(_INNER) + message)
    outer.update(padded.translate(_OUTER) + inner.digest())
    return outer.digest()


class HmacKey:
    """One key of at most 64 bytes, for many messages. Safe to call from many threads; it is not pickled."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        if len(key) > _BLOCK_BYTES:
            raise _too_long(key)
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = sha256(padded.translate(_INNER))
        self._outer = sha256(padded.translate(_OUTER))

    def after(self, start: bytes) -> "HmacKey":
        """Precompute the tags of messages that all begin with `start`, from the rest of each."""
        # Not by its constructor, which would pad and hash the key again.
        other = object.__new__(HmacKey)
        other._inner, other._outer = self._inner.copy(), self._outer
        other._inner.update(start)
        return other

    def tag(self, message: bytes) -> bytes:
        """Return the 32 bytes that `hmac_sha256` gives for the key and the message."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()

    def __repr__(self) -> str:
        return "HmacKey(<redacted>)"


def _too_long(key: bytes) -> ValueError:
    """Build the error for a key that would have to be hashed first, as none here is."""
    return ValueError(f"a key has at most {_BLOCK_BYTES} bytes, not {len(key)}")
