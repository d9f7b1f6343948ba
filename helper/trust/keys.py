"""A helper's secrets, on its disk and in its memory. No other module of this package handles key material.

One file, `keys.json`, holds the long-term signing key (the helper's identity), the agreement key (from which
the secret of a pair of helpers is derived), the HPKE keys that open report shares, and the storage key that
encrypts its datasets at rest.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Annotated, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import Field

from helper.ledger.ledger import Ledger
from helper.trust.key_ring import MAX_KEY_ID, Ring, RingKey
from maskedlark.audit_log import Actor, AuditAct
from maskedlark.canonical import Bytes32, build, canonical, decode, digest, encode
from maskedlark.errors import InvalidSetting, InvalidTask
from maskedlark.never_pickled import NeverPickled
from maskedlark.randomness import Randomness, derive_key, system_randomness
from maskedlark.releases.statement import ReleaseStatement, SignedStatement
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.sealing import OpeningKey, SignedKeyList
from maskedlark.reports.task import HelperIdentity, Task
from maskedlark.runtime.durable_file import private, replacing
from maskedlark.runtime.key_envelope import keeper_of, read_secret, seal_by, wrap_file
from maskedlark.runtime.ownership import check_is_folder, check_secret_file, keep_owner, make_folder

FILE_NAME: Final = "keys.json"
STORAGE_KEY_BYTES: Final = 32
_LOCK_NAME: Final = "keys.lock"
_LOG: Final = logging.getLogger(__name__)
_PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700


@canonical
class _KeyFile:
    """The file, as canonical JSON."""

    version: Literal[1] = 1
    name: Annotated[str, Field(min_length=1, max_length=200)]
    signing_key: Bytes32 = Field(repr=False)
    agreement_key: Bytes32 = Field(repr=False)
    storage_key: Bytes32 = Field(repr=False)
    opening_keys: Annotated[tuple[RingKey, ...], Field(min_length=1, max_length=MAX_KEY_ID + 1)]


class HelperKeys(NeverPickled):
    """One helper's secrets.

    Its repr shows the operator's name only; its methods are the only use of the long-term keys.
    """

    __slots__ = ("_agreement", "_lock", "_path", "_ring", "_signing", "_stamp", "_storage_key", "name")

    def __init__(
        self,
        *,
        name: str,
        signing: Ed25519PrivateKey,
        agreement: X25519PrivateKey,
        storage_key: bytes,
        ring: Ring,
        path: Path | None = None,
    ) -> None:
        """Hold the secrets of the file at `path`, whose HPKE keys are reread when it changes.

        Or of no file.
        """
        self.name = name
        self._ring = ring
        self._path = path
        self._stamp = _stamp(path)
        self._lock = Lock()
        self._signing = signing
        self._agreement = agreement
        self._storage_key = storage_key

    @classmethod
    def generate(
        cls, *, name: str, suite: HpkeSuite, randomness: Randomness = system_randomness
    ) -> "HelperKeys":
        """Generate fresh secrets. Called by the operator, once."""
        return cls(
            name=name,
            signing=Ed25519PrivateKey.generate(),
            agreement=X25519PrivateKey.generate(),
            storage_key=randomness(STORAGE_KEY_BYTES),
            ring=Ring.first(suite),
        )

    @classmethod
    def read(cls, folder: Path) -> "HelperKeys":
        """Read the secrets of a data folder.

        Raises:
            InvalidSetting: there is no key file, others may read it, or it is damaged.
        """
        path = folder / FILE_NAME
        try:
            encoded = read_secret(path)
        except OSError as error:
            raise _unread(path, error) from None
        check_secret_file(path)
        try:
            file = decode(_KeyFile, encoded)
        except InvalidTask:  # whose words are of a program, and may have some of the content
            raise InvalidSetting(f"{path} is damaged: restore it from the backup of the keys") from None
        ring = Ring(file.opening_keys)
        _check_ring(path, ring)
        return cls(
            name=file.name,
            signing=Ed25519PrivateKey.from_private_bytes(file.signing_key),
            agreement=X25519PrivateKey.from_private_bytes(file.agreement_key),
            storage_key=file.storage_key,
            ring=ring,
            path=path,
        )

    def write(self, folder: Path) -> Path:
        """Keep the secrets in a data folder, readable by this user only; returns the file.

        Raises:
            InvalidSetting: the folder has a key file already, or cannot be written.
        """
        path = folder / FILE_NAME
        encoded = encode(self._as_file())
        try:
            make_folder(folder)
            folder.chmod(_PRIVATE_FOLDER)
            # O_EXCL: existing keys are never overwritten, and the file is private from its first moment.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
        except FileExistsError:
            raise InvalidSetting(
                f"{path} exists already, and keys are never overwritten: choose another folder"
            ) from None
        except OSError as error:
            raise InvalidSetting(f"cannot write {path}: {error.strerror}") from None
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(encoded)
            # Durable before its public half is shown: tasks that name a lost key could not be served.
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

    def ring(self) -> Ring:
        """Return the HPKE keys in the file; while it cannot be read, those read before."""
        with self._lock:
            stamp = _stamp(self._path)
            if self._path is not None and stamp is not None and stamp != self._stamp:
                try:
                    self._ring, self._stamp = HelperKeys.read(self._path.parent)._ring, stamp
                except InvalidSetting as error:  # the stamp stays: the next call tries again
                    _LOG.warning("cannot use the new key file; the previous keys stay in use: %s", error)
            return self._ring

    def opening_keys(self, now: float) -> tuple[OpeningKey, ...]:
        """Return the HPKE keys that open report shares now."""
        return self.ring().opening_keys(now)

    def key_list(self, now: float) -> SignedKeyList:
        """Return the signed HPKE keys that browsers seal to now, valid for three days."""
        ring = self.ring()
        keys, not_after = ring.keys_to_publish(now), ring.list_ends_at(now)
        return SignedKeyList.sign(self._signing, keys, not_after=not_after)

    def sign_task(self, task: Task) -> bytes:
        """Sign this helper's acceptance of a task."""
        return self._signing.sign(task.signing_bytes())

    def sign_statement(self, statement: ReleaseStatement) -> SignedStatement:
        """Sign what this helper says of a release, in a separate signature domain: never a task."""
        signature = self._signing.sign(statement.signing_bytes())
        return SignedStatement(statement=statement, signature=signature)

    def pair(self, task: Task, role: int) -> PairKey:
        """Return the key that only the two helpers of a task share, or raise InvalidSetting."""
        return PairKey.agree(self._agreement, task, role)

    def vault_key(self, context: bytes) -> bytes:
        """Return a 32-byte key for one file at rest."""
        # A key for each purpose: a receipt or a sealed seed can never be opened as a dataset.
        return derive_key(self._storage_key, b"dataset at rest", context)

    def noise_key(self, job_digest: bytes) -> bytes:
        """Return this helper's 32-byte key that seals the seeds of a job's correlated noise."""
        return derive_key(self._storage_key, b"correlated noise", job_digest)

    def witness_key(self) -> bytes:
        """Return the 32-byte key of the receipts that show whether the ledger was rolled back."""
        return derive_key(self._storage_key, b"ledger receipt", b"")

    def _as_file(self) -> _KeyFile:
        return build(
            _KeyFile,
            {
                "name": self.name,
                "signing_key": self._signing.private_bytes_raw(),
                "agreement_key": self._agreement.private_bytes_raw(),
                "storage_key": self._storage_key,
                "opening_keys": tuple(self._ring),
            },
        )

    def __repr__(self) -> str:
        return f"HelperKeys(name={self.name!r}, secrets=<redacted>)"


def rotate(folder: Path, *, now: float, suite: HpkeSuite | None, active_in_s: int, overlap_s: int) -> Ring:
    """Add a new HPKE key to a data folder.

    Called by the operator; a helper that serves from it goes on, and sees the key. Arguments as of
    `Ring.rotate`.

    Guarantees: a reader finds the file as it was or as it is, whatever happens; two rotations at once are two
        rotations.

    Raises:
        InvalidSetting: the keys cannot be read or written, or all ids are used up.
    """
    with _locked(folder):
        # Read under the lock: what another rotation has just added must not be lost.
        keys = HelperKeys.read(folder)
        keys._ring = keys._ring.rotate(now=now, suite=suite, active_in_s=active_in_s, overlap_s=overlap_s)
        path = folder / FILE_NAME
        _replace(path, seal_by(keeper_of(path), encode(keys._as_file())))
        return keys._ring


def wrap(folder: Path, keeper: str) -> None:
    """Put the secrets into the form that a keeper asks for. A helper that serves goes on.

    Raises:
        InvalidSetting: see `maskedlark.runtime.key_envelope.wrap_file`.
    """
    with _locked(folder):  # no rotation goes on meanwhile
        wrap_file(folder / FILE_NAME, keeper)


def _unread(path: Path, error: OSError) -> InvalidSetting:
    """Return the error of a key file that cannot be read; of a data folder that is none, raise it."""
    check_is_folder(path.parent)
    if not isinstance(error, FileNotFoundError):
        return InvalidSetting(f"cannot read {path}: {error.strerror}; run this as the user of the helper")
    return InvalidSetting(
        f"{path.parent} contains no {path.name}: give as --data the folder that has it, restore it from the "
        "backup of the keys, or create keys in a new folder with `lark-helper keygen`"
    )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Change the keys of a data folder within, one process at a time.

    Raises:
        InvalidSetting: there are no keys.
    """
    try:
        (folder / FILE_NAME).stat()
    except OSError as error:
        raise _unread(folder / FILE_NAME, error) from None
    with open(folder / _LOCK_NAME, "wb", opener=private) as lock:
        os.fchmod(lock.fileno(), _PRIVATE_FILE)
        # Root may change them for the helper's user, who must be able to take this lock afterwards.
        keep_owner(lock.fileno(), folder / FILE_NAME)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def log_keys(ledger: Ledger, ring: Ring, actor: Actor) -> None:
    """Log which HPKE keys a helper has from now on, unless the log says so already."""
    keys = "\n".join(f"{key.key_id} {key.suite} {key.active_from} {key.expires_at}" for key in ring)
    newest = max(ring, key=lambda key: key.key_id)
    about = {
        "newest_key": str(newest.key_id),
        "suite": newest.suite.value,
        "active_from": str(newest.active_from),
        "keys": str(len(ring)),
        "digest": digest("key ring", keys.encode()).hex(),
    }
    ledger.log_change(AuditAct.SET_KEYS, about, actor)


def _check_ring(path: Path, ring: Ring) -> None:
    """Refuse secrets that are no keys now, and not when the first report comes."""
    for key in ring:
        try:
            if key.secret:
                OpeningKey(key_id=key.key_id, suite=key.suite, secret=key.secret)
        except ValueError:
            raise InvalidSetting(
                f"{path} is damaged: the secret of HPKE key {key.key_id} does not fit its suite"
            ) from None


def _replace(path: Path, encoded: bytes) -> None:
    """Put a new file in another's place, durably and in one step; it belongs to the owner of the other."""
    with replacing(path, path.with_name(path.name + ".unfinished")) as stream:
        keep_owner(stream.fileno(), path)
        stream.write(encoded)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Return a value that changes when the file is replaced; None if there is no file."""
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    # The inode too: two rotations within the clock's resolution replace the file by one of the same size.
    return stat and (stat.st_mtime_ns, stat.st_ino, stat.st_size)
