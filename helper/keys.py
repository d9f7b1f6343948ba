"""A helper's secrets, on its disk and in its memory: nothing else in this package touches key material.

One file, `keys.json`, holds the long-term signing key (who this helper is), the agreement key (what it shares with the other helper of
a task), the HPKE keys that open report shares, and the storage key that its datasets are encrypted under at rest.
"""

import os
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import Field

from maskedlark.canonical import Bytes32, build, canonical, decode, encode
from maskedlark.errors import InvalidTask
from maskedlark.pair import PairKey, pair_key
from maskedlark.randomness import Randomness, derive_key, system_randomness
from maskedlark.sealing import HpkeSuite, OpeningKey, SignedKeyList, sign_keys
from maskedlark.task import HelperIdentity, Task, signing_bytes

FILE_NAME: Final = "keys.json"
STORAGE_KEY_BYTES: Final = 32
_PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700


@canonical
class _StoredOpeningKey:
    """One HPKE key in the file."""

    key_id: Annotated[int, Field(ge=0, le=255)]
    suite: HpkeSuite
    secret: bytes = Field(min_length=32, max_length=96, repr=False)


@canonical
class _KeyFile:
    """The file, as canonical JSON."""

    version: Literal[1] = 1
    name: Annotated[str, Field(min_length=1, max_length=200)]
    signing_key: Bytes32 = Field(repr=False)
    agreement_key: Bytes32 = Field(repr=False)
    storage_key: Bytes32 = Field(repr=False)
    opening_keys: Annotated[tuple[_StoredOpeningKey, ...], Field(min_length=1, max_length=16)]


class HelperKeys:
    """One helper's secrets. Its repr shows the operator's name only; its methods are the only use of the long-term keys."""

    __slots__ = ("_agreement", "_signing", "_storage_key", "name", "opening_keys")

    def __init__(
        self,
        *,
        name: str,
        signing: Ed25519PrivateKey,
        agreement: X25519PrivateKey,
        storage_key: bytes,
        opening_keys: tuple[OpeningKey, ...],
    ) -> None:
        self.name = name
        self.opening_keys = opening_keys
        self._signing = signing
        self._agreement = agreement
        self._storage_key = storage_key

    @classmethod
    def generate(cls, *, name: str, suite: HpkeSuite, randomness: Randomness = system_randomness) -> "HelperKeys":
        """Fresh secrets. Called by the operator, once."""
        return cls(
            name=name,
            signing=Ed25519PrivateKey.generate(),
            agreement=X25519PrivateKey.generate(),
            storage_key=randomness(STORAGE_KEY_BYTES),
            opening_keys=(OpeningKey.generate(key_id=1, suite=suite),),
        )

    @classmethod
    def read(cls, folder: Path) -> "HelperKeys":
        """The secrets of a data folder.

        Raises:
            InvalidTask: there is no key file, others may read it, or it is damaged.
        """
        path = folder / FILE_NAME
        try:
            mode = path.stat().st_mode
            encoded = path.read_bytes()
        except OSError as error:
            raise InvalidTask(f"cannot read {path}: {error.strerror}; make one with `helper keygen`") from None
        if mode & 0o077:
            raise InvalidTask(f"{path} may be read by others: chmod 600 it")
        file = decode(_KeyFile, encoded)
        return cls(
            name=file.name,
            signing=Ed25519PrivateKey.from_private_bytes(file.signing_key),
            agreement=X25519PrivateKey.from_private_bytes(file.agreement_key),
            storage_key=file.storage_key,
            opening_keys=tuple(OpeningKey(key_id=key.key_id, suite=key.suite, secret=key.secret) for key in file.opening_keys),
        )

    def write(self, folder: Path) -> Path:
        """Keep the secrets in a data folder, readable by this user only; returns the file.

        Raises:
            InvalidTask: the folder has a key file already, or cannot be written.
        """
        path = folder / FILE_NAME
        encoded = encode(self._as_file())
        try:
            folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            folder.chmod(_PRIVATE_FOLDER)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
        except FileExistsError:
            raise InvalidTask(f"{path} exists already: keys are never overwritten; choose another folder") from None
        except OSError as error:
            raise InvalidTask(f"cannot write {path}: {error.strerror}") from None
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(encoded)
            stream.flush()
            os.fsync(stream.fileno())
        return path

    @property
    def identity(self) -> HelperIdentity:
        """The public half of the long-term keys, as tasks name it."""
        return HelperIdentity(
            name=self.name,
            verify_key=self._signing.public_key().public_bytes_raw(),
            agreement_key=self._agreement.public_key().public_bytes_raw(),
        )

    def key_list(self) -> SignedKeyList:
        """The HPKE keys that browsers seal to, signed."""
        return sign_keys(self._signing, tuple(key.public() for key in self.opening_keys))

    def sign_task(self, task: Task) -> bytes:
        """This helper's acceptance of a task."""
        return self._signing.sign(signing_bytes(task))

    def pair(self, task: Task, role: int) -> PairKey:
        """The key that only the two helpers of a task share, or InvalidTask."""
        return pair_key(self._agreement, task, role)

    def vault_key(self, context: bytes) -> bytes:
        """A 32-byte key for one file at rest."""
        return derive_key(self._storage_key, b"dataset at rest", context)

    def _as_file(self) -> _KeyFile:
        return build(
            _KeyFile,
            {
                "name": self.name,
                "signing_key": self._signing.private_bytes_raw(),
                "agreement_key": self._agreement.private_bytes_raw(),
                "storage_key": self._storage_key,
                "opening_keys": tuple(
                    _StoredOpeningKey(key_id=key.key_id, suite=key.suite, secret=key.secret_bytes()) for key in self.opening_keys
                ),
            },
        )

    def __repr__(self) -> str:
        return f"HelperKeys(name={self.name!r}, secrets=<redacted>)"
