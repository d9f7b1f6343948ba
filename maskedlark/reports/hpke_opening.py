"""HPKE base mode (RFC 9180), the receiver's side, for one key that opens many shares.

The key encapsulation is DHKEM(X25519, HKDF-SHA256).

    opening = HpkeOpening(private_key, Cipher.AES_128_GCM)
    plaintext = opening.open(ciphertext, info)

`cryptography`'s one-shot `Suite.decrypt` builds all of its objects for each share. Here what does not depend
on the share is made once: the labels, the recipient's public key, and the state of every HMAC whose salt is
empty. X25519 and the ciphers are `cryptography`'s.
"""

from enum import Enum, unique
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from maskedlark.hmac_sha256 import HmacKey, hmac_sha256

_ENCAPSULATED_BYTES: Final = 32
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_VERSION: Final = b"HPKE-v1"
# 0x0020 is the number of DHKEM(X25519, HKDF-SHA256) in RFC 9180, 7.1; labels are spelled as in its section 4.
_KEM: Final = b"KEM\x00\x20"
_BASE_MODE: Final = b"\0"
_EMPTY_SALT: Final = HmacKey(b"")
_EAE: Final = _EMPTY_SALT.after(_VERSION + _KEM + b"eae_prk")
_SHARED_SECRET: Final = b"\x00\x20" + _VERSION + _KEM + b"shared_secret"


@unique
class Cipher(Enum):
    """The AEADs of RFC 9180 that this protocol uses: the identifier, and the length of the key."""

    AES_128_GCM = (1, 16)
    CHACHA20_POLY1305 = (3, 32)


class HpkeOpening:
    """One private key, ready to open. Safe to call from many threads."""

    __slots__ = (
        "_cipher",
        "_context",
        "_expand_key",
        "_expand_nonce",
        "_info",
        "_key_bytes",
        "_private",
        "_public",
        "_secret",
    )

    def __init__(self, private: X25519PrivateKey, cipher: Cipher) -> None:
        identifier, self._key_bytes = cipher.value
        suite = b"HPKE\x00\x20\x00\x01" + identifier.to_bytes(2, "big")
        self._private = private
        self._public = private.public_key().public_bytes_raw()
        self._cipher = cipher
        self._context = _BASE_MODE + _EMPTY_SALT.tag(_VERSION + suite + b"psk_id_hash")
        self._info = _EMPTY_SALT.after(_VERSION + suite + b"info_hash")
        self._secret = _VERSION + suite + b"secret"
        self._expand_key = self._key_bytes.to_bytes(2, "big") + _VERSION + suite + b"key"
        self._expand_nonce = _NONCE_BYTES.to_bytes(2, "big") + _VERSION + suite + b"base_nonce"

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Decrypt an encapsulated key with a ciphertext behind it.

        Raises:
            InvalidTag: tampered, or sealed to another key or with another `info`.
            ValueError: too short, or the encapsulated key is of low order.
        """
        if len(sealed) < _ENCAPSULATED_BYTES + _TAG_BYTES:
            raise InvalidTag
        encapsulated = sealed[:_ENCAPSULATED_BYTES]
        # Raises if the result is all zeros, as RFC 9180, 7.1.4, requires.
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(encapsulated))
        # The one block of HKDF-Expand that 32 bytes take; its counter, 1, comes last. So it is below.
        secret = hmac_sha256(_EAE.tag(shared), _SHARED_SECRET + encapsulated + self._public + b"\x01")
        return self._decrypt(secret, sealed[_ENCAPSULATED_BYTES:], info)

    def _decrypt(self, shared_secret: bytes, ciphertext: bytes, info: bytes) -> bytes:
        """Decrypt by RFC 9180, sections 5.1 and 5.2: the key schedule, and the first message."""
        context = self._context + self._info.tag(info) + b"\x01"
        secret = hmac_sha256(shared_secret, self._secret)
        key = hmac_sha256(secret, self._expand_key + context)
        nonce = hmac_sha256(secret, self._expand_nonce + context)
        cipher = AESGCM if self._cipher is Cipher.AES_128_GCM else ChaCha20Poly1305
        # Of the first message the nonce is the base nonce itself: its sequence number is 0.
        return cipher(key[: self._key_bytes]).decrypt(nonce[:_NONCE_BYTES], ciphertext, None)

    def __repr__(self) -> str:
        return "HpkeOpening(<redacted>)"
