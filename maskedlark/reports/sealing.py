"""Step 3: seal an input share to one helper, so that the ad server stores what it cannot read.

HPKE (RFC 9180) base mode, one shot, from `cryptography`. Its one-shot API takes no associated data, so
everything that a report share must not be moved away from is bound in `info`: the task, the report, its time
bucket, the helper's role and the key. Keys are published in a list that the helper's long-term Ed25519 key
signs.

>>> opening = OpeningKey.generate(key_id=1, suite=HpkeSuite.X25519_CHACHA20POLY1305)
>>> sealed = SealingKey(opening.public()).seal(b"share", b"info")
>>> opening.open(sealed, b"info")
b'share'
"""

from functools import partial
from typing import Annotated, Any, Final, TypeAlias

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from pydantic import Field

from maskedlark.canonical import Bytes32, Bytes64, canonical, encode
from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.never_pickled import NeverPickled
from maskedlark.reports.hpke_opening import Cipher, HpkeOpening
from maskedlark.reports.hpke_suite import HpkeSuite

_PublicKey: TypeAlias = X25519PublicKey | MLKEM768X25519PublicKey
_PrivateKey: TypeAlias = X25519PrivateKey | MLKEM768X25519PrivateKey

_X25519_BYTES: Final = 32
_MLKEM_PUBLIC_BYTES: Final = 1184
_MLKEM_SEED_BYTES: Final = 64


def _hpke(suite: HpkeSuite) -> Suite:
    kem = KEM.MLKEM768_X25519 if suite.is_hybrid else KEM.X25519
    aead = AEAD.CHACHA20_POLY1305 if suite.value.endswith("chacha20poly1305") else AEAD.AES_128_GCM
    return Suite(kem, KDF.HKDF_SHA256, aead)


_CHACHA: Final = HpkeSuite.X25519_CHACHA20POLY1305
_SUITES: Final = {suite: _hpke(suite) for suite in HpkeSuite}


@canonical
class HpkeKey:
    """A helper's public HPKE key. The browser seals to it; `key_id` says which private key opens."""

    key_id: Annotated[int, Field(ge=0, le=255)]
    suite: HpkeSuite
    public_key: Annotated[bytes, Field(max_length=_MLKEM_PUBLIC_BYTES + _X25519_BYTES)]


@canonical
class KeyList:
    """The HPKE keys that one helper opens now, newest first, signed by its long-term key (`verify_key`).

    Attributes:
        verify_key: The helper's.
        keys: The newest first.
        not_after: The last Unix second at which to seal by this list. Lists of version 0.1 said none: 0, long
            ago.
    """

    verify_key: Bytes32
    keys: Annotated[tuple[HpkeKey, ...], Field(min_length=1, max_length=16)]
    not_after: Annotated[int, Field(ge=0, le=1 << 40, exclude_if=lambda moment: moment == 0)] = 0


@canonical
class SignedKeyList:
    """A key list with the Ed25519 signature over its canonical bytes."""

    key_list: KeyList
    signature: Bytes64

    @classmethod
    def sign(
        cls, signing_key: Ed25519PrivateKey, keys: tuple[HpkeKey, ...], *, not_after: int
    ) -> "SignedKeyList":
        """Publish HPKE keys, to be sealed to until `not_after` (Unix seconds). Called by a helper."""
        key_list = KeyList(
            verify_key=signing_key.public_key().public_bytes_raw(), keys=keys, not_after=not_after
        )
        return cls(key_list=key_list, signature=signing_key.sign(_KEYS_DOMAIN + encode(key_list)))

    def verify(self, verify_key: bytes) -> HpkeKey:
        """Return the key to seal to. Called by the browser.

        Raises:
            InvalidTask: the list is not signed by `verify_key`, the helper that the task names.
        """
        if self.key_list.verify_key != verify_key:
            raise InvalidTask("the key list is of another helper than the task names")
        verify(verify_key, _KEYS_DOMAIN + encode(self.key_list), self.signature)
        # The newest: the older ones are for reports that are under way.
        return self.key_list.keys[0]

    def check_fresh(self, now: float) -> None:
        """Refuse a key list that has expired. Called by the browser, with the time of its clock.

        Raises:
            InvalidTask: it has expired; the task's bundle has a newer one.
        """
        if now > self.key_list.not_after:
            raise InvalidTask("the helper's list of HPKE keys is over: fetch the task's bundle again")


_KEYS_DOMAIN: Final = b"maskedlark/v1 hpke keys\0"


def verify(verify_key: bytes, message: bytes, signature: bytes) -> None:
    """Check an Ed25519 signature, or raise InvalidTask."""
    try:
        Ed25519PublicKey.from_public_bytes(verify_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise InvalidTask("a signature does not verify under the helper's long-term key") from None


class OpeningKey(NeverPickled):
    """A helper's private HPKE key. Its repr shows the id and the suite only."""

    __slots__ = ("_opening", "_private", "_secret", "key_id", "suite")

    def __init__(self, *, key_id: int, suite: HpkeSuite, secret: bytes) -> None:
        self.key_id = key_id
        self.suite = suite
        self._secret = secret
        self._private: _PrivateKey
        self._opening: HpkeOpening | None
        if suite.is_hybrid:
            mlkem = MLKEM768PrivateKey.from_seed_bytes(secret[:_MLKEM_SEED_BYTES])
            self._private = MLKEM768X25519PrivateKey(
                mlkem, X25519PrivateKey.from_private_bytes(secret[_MLKEM_SEED_BYTES:])
            )
            self._opening = None
        else:
            self._private = X25519PrivateKey.from_private_bytes(secret)
            cipher = Cipher.CHACHA20_POLY1305 if suite is _CHACHA else Cipher.AES_128_GCM
            self._opening = HpkeOpening(self._private, cipher)

    @classmethod
    def generate(cls, *, key_id: int, suite: HpkeSuite = HpkeSuite.X25519_AES128GCM) -> "OpeningKey":
        """Generate a fresh key pair. Called by a helper's operator."""
        secret = X25519PrivateKey.generate().private_bytes_raw()
        if suite.is_hybrid:
            secret = MLKEM768PrivateKey.generate().private_bytes_raw() + secret
        return cls(key_id=key_id, suite=suite, secret=secret)

    def secret_bytes(self) -> bytes:
        """Return the private key, for the helper's own key file and nowhere else."""
        return self._secret

    def public(self) -> HpkeKey:
        """Return the key that browsers seal to."""
        public = (
            X25519PrivateKey.from_private_bytes(self._secret[-_X25519_BYTES:]).public_key().public_bytes_raw()
        )
        if self.suite.is_hybrid:
            public = (
                MLKEM768PrivateKey.from_seed_bytes(self._secret[:_MLKEM_SEED_BYTES])
                .public_key()
                .public_bytes_raw()
                + public
            )
        return HpkeKey(key_id=self.key_id, suite=self.suite, public_key=public)

    def open(self, ciphertext: bytes, info: bytes) -> bytes:
        """Decrypt one report share. Called by a helper.

        Raises:
            ReportRejected(NOT_OPENED): tampered, sealed to another key, or bound to another report, task,
            bucket or role.
        """
        try:
            if self._opening is not None:
                return self._opening.open(ciphertext, info)
            return _SUITES[self.suite].decrypt(ciphertext, self._private, info)
        # One reason for whatever fails: how far a forged share came is nobody's to know.
        except (InvalidTag, ValueError, TypeError):
            raise ReportRejected(
                ReportReason.NOT_OPENED, "a report share does not open under its key and binding"
            ) from None

    def for_own_process(self) -> tuple[Any, ...]:
        """Pickle the key for the helper's own process pool."""
        return partial(OpeningKey, key_id=self.key_id, suite=self.suite, secret=self._secret), ()

    def __repr__(self) -> str:
        return f"OpeningKey(key_id={self.key_id}, suite={self.suite.value!r}, secret=<redacted>)"


class SealingKey:
    """A checked public key, ready to seal many shares."""

    __slots__ = ("_public", "key_id", "suite")

    def __init__(self, key: HpkeKey) -> None:
        self.key_id = key.key_id
        self.suite = key.suite
        self._public: _PublicKey
        try:
            if key.suite.is_hybrid:
                mlkem = MLKEM768PublicKey.from_public_bytes(key.public_key[:_MLKEM_PUBLIC_BYTES])
                self._public = MLKEM768X25519PublicKey(
                    mlkem, X25519PublicKey.from_public_bytes(key.public_key[_MLKEM_PUBLIC_BYTES:])
                )
            else:
                self._public = X25519PublicKey.from_public_bytes(key.public_key)
        except ValueError:
            raise InvalidTask(f"HPKE key {key.key_id} is not a {key.suite.value} public key") from None

    def seal(self, plaintext: bytes, info: bytes) -> bytes:
        """Seal an input share: encapsulated key and ciphertext; InvalidTag for a key of low order.

        Called by the browser.
        """
        try:
            return _SUITES[self.suite].encrypt(plaintext, self._public, info)
        except ValueError:
            raise InvalidTask(f"HPKE key {self.key_id} is of low order: it protects nothing") from None

    def __repr__(self) -> str:
        return f"SealingKey(key_id={self.key_id}, suite={self.suite.value!r})"


OVERHEADS: Final = tuple(sorted({suite.overhead for suite in HpkeSuite}))
"""The numbers of bytes that a suite adds to a plaintext, the least first."""


def share_info(*, task_id: bytes, report_id: bytes, time_bucket: int, role: int, key_id: int) -> bytes:
    """Build the HPKE `info` that binds a report share. Used by both the browser and the helper."""
    # Every part has one length, so that no two bindings run together to the same bytes.
    tail = time_bucket.to_bytes(8, "little") + bytes((role, key_id))
    return b"maskedlark/v1 input share\0" + task_id + report_id + tail
