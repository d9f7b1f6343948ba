"""Opened update shares at rest: one encrypted file for a round's dataset, one share after the other.

    spool = vault.begin(round_id, payload_bytes, owner)      # while shares are opened
    spool.add(report_id, payload)
    vault.commit(spool, dataset_id, chosen)                  # the chosen ones are the dataset, durably
    for one in vault.shares(dataset_id, round_id): ...       # one at a time, never all in memory

The layout: header | segment | segment | ... | index. The header is magic, the tag of the ad server, a random
salt, the round's id and the length of a payload. A segment is one share, under a key of the salt (HKDF of the
helper's storage key), with its number as nonce and the header as associated data. The index says which
segments are in the dataset, under a key of the salt and the dataset's id, so no file can be cut, extended or
renamed unnoticed.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from helper.datasets.frames import KeyFor
from helper.datasets.storage_quota import TAG_BYTES as OWNER_BYTES
from helper.datasets.storage_quota import Claim, StorageQuota
from helper.datasets.vault import StoredFile, clean_folder, count_files, damage_told, files_of
from helper.trust.floors import MOST_HELD_BYTES
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.reports.task import REPORT_ID_BYTES
from maskedlark.reports.updates import ROUND_ID_BYTES
from maskedlark.runtime.durable_file import private, put_in_place

_MAGIC: Final = b"MLUP\x02\0\0\0"
_SALT_BYTES: Final = 32
_HEADER_BYTES: Final = len(_MAGIC) + OWNER_BYTES + _SALT_BYTES + ROUND_ID_BYTES + 8
_COUNT_BYTES: Final = 8
_TAG_BYTES: Final = 16
_NAME_BYTES: Final = 16
_UNFINISHED: Final = ".preparing"
_SUFFIX: Final = ".updates"


class StoredUpdate(NamedTuple):
    """One share of a dataset."""

    report_id: bytes
    payload: bytes


@frozen(eq=False)
class SealedUpdates:
    """Some shares of a dataset that may leave the helper's process: ciphertext, and what opens it.

    Attributes:
        header: Of their file, which they are bound to.
        rows: Their places in it.
        key: Whoever has it reads every share of the same preparation.
        read: Reads them, sealed, one behind the other.
    """

    header: bytes
    rows: Sequence[int] = field(repr=False)
    key: bytes = field(repr=False)
    read: Callable[[], bytes] = field(repr=False)


def open_updates(header: bytes, rows: Sequence[int], key: bytes, frames: bytes) -> Iterator[StoredUpdate]:
    """Yield the shares of `SealedUpdates` that left their file; called wherever their key is.

    Raises:
        InvalidTag, ValueError: the frames are cut, altered, or of other places; perhaps after some shares.
    """
    cipher, length, view = ChaCha20Poly1305(key), _segment_bytes(header), memoryview(frames)
    if len(frames) != length * len(rows):
        raise ValueError("not as long as it says")
    for place, row in enumerate(rows):
        yield _open(cipher, header, row, view[place * length : (place + 1) * length])


class UpdateWriter:
    """Shares on their way to a dataset. Used by one thread at a time; removed unless it is committed."""

    def __init__(self, path: Path, header: bytes, key_for: KeyFor, claim: Claim) -> None:
        self.header = header
        self._claim = claim
        self._path = path
        self._cipher = ChaCha20Poly1305(key_for(_salt(header)))
        self._count = 0
        self._read_header: Path | None = None
        claim.resize(_file_bytes(header, 0))
        self._stream: BinaryIO | None = open(path, "xb", opener=private)  # noqa: SIM115 # closed by `finish`
        self._stream.write(header)

    @property
    def is_lost(self) -> bool:
        """True if the file of a stored, uncommitted dataset was swept for its age."""
        return self._read_header is not None and not self._read_header.exists()

    def add(self, report_id: bytes, payload: bytes) -> None:
        """Write one share behind the others.

        Raises:
            JobRefused(QUOTA_EXCEEDED): the file has no room in the ad server's quota.
        """
        if self._stream is None:
            raise AssertionError("nothing is added to a spool that is finished")
        self._claim.resize(_file_bytes(self.header, self._count + 1))
        self._stream.write(self._cipher.encrypt(_nonce(self._count), report_id + payload, self.header))
        self._count += 1

    def finish(self) -> None:
        """Write no more; the file waits for its commit."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def remove(self) -> None:
        """Remove what was written; nothing to remove of a committed one."""
        self.finish()
        self._path.unlink(missing_ok=True)
        if self._read_header is None:
            self._claim.end()

    def takes(self, final: Path) -> bool:
        """Return whether it may be stored under a name: not while its file is another dataset's."""
        return self._read_header is None or self._read_header == final

    def store(self, final: Path, key: bytes, chosen: NDArray[np.bool_]) -> None:
        """Append which shares are the dataset, and give the file its name, durably.

        Again for the same dataset changes nothing: it may have been committed, though the ledger did not say
        so.
        """
        if self._read_header == final and final.exists():
            return
        self.finish()
        tail = self._count.to_bytes(_COUNT_BYTES, "little")
        bits = np.packbits(chosen, bitorder="little").tobytes()
        with self._path.open("r+b") as stream:
            stream.seek(_index_start(self.header, self._count))
            stream.truncate()  # what an attempt to commit that failed has appended
            stream.write(ChaCha20Poly1305(key).encrypt(_nonce(0), bits, self.header + tail) + tail)
            put_in_place(stream, self._path, final)
        self._read_header = final
        self._claim.rename(final.name)


class UpdateVault:
    """A folder of encrypted datasets of updates, which one process writes to."""

    def __init__(
        self,
        folder: Path,
        key_for: KeyFor,
        randomness: Randomness = system_randomness,
        quota: StorageQuota | None = None,
    ) -> None:
        """Open the folder, or make it; what was being prepared when a process died is removed.

        Args:
            folder: Of files.
            key_for: See `HelperKeys.vault_key`.
            randomness: Of names and salts.
            quota: Counts the files that are there and those to come; by default one of its own.
        """
        self._folder = clean_folder(folder, _UNFINISHED)
        self._key_for = key_for
        self._randomness = randomness
        self._quota = quota or StorageQuota(MOST_HELD_BYTES, key_for)
        count_files(folder, _SUFFIX, len(_MAGIC), self._quota)

    def begin(self, round_id: bytes, payload_bytes: int, owner: str) -> UpdateWriter:
        """Return a spool of an ad server for the shares of a round, each of so many bytes.

        Raises:
            JobRefused(QUOTA_EXCEEDED): the ad server has no room left.
        """
        path = self._folder / f"{self._randomness(_NAME_BYTES).hex()}{_UNFINISHED}"
        claim = self._quota.claim(owner, path.name)
        salt, length = self._randomness(_SALT_BYTES), payload_bytes.to_bytes(8, "little")
        return UpdateWriter(path, _MAGIC + claim.tag + salt + round_id + length, self._key_for, claim)

    def takes(self, spool: UpdateWriter, dataset_id: bytes) -> bool:
        """Return whether a spool may become a dataset: its file is not gone, and of no other one."""
        return not spool.is_lost and spool.takes(self._path(dataset_id))

    def commit(self, spool: UpdateWriter, dataset_id: bytes, chosen: NDArray[np.bool_]) -> None:
        """Make the chosen shares of a spool a dataset, durably.

        Writing it again replaces the file as a whole.
        """
        spool.store(self._path(dataset_id), self._key_for(dataset_id + _salt(spool.header)), chosen)

    def remove_file(self, dataset_id: bytes) -> None:
        """Forget a dataset that was not committed after all, or has expired."""
        self._path(dataset_id).unlink(missing_ok=True)
        self._quota.drop([self._path(dataset_id).name])

    def shares(self, dataset_id: bytes, round_id: bytes) -> Iterator[StoredUpdate]:
        """Yield the shares of a dataset, in the order in which they came.

        Raises:
            VaultDamaged: the file is missing, cut, altered, or of another dataset or round.
            HelperUnavailable: it cannot be read at the moment.
        """
        with damage_told(), self._path(dataset_id).open("rb") as stream:
            yield from self._read(stream, dataset_id, round_id)

    def sealed(self, dataset_id: bytes, round_id: bytes, most_shares: int) -> list[SealedUpdates]:
        """Return the shares of a dataset, still sealed, in groups that are read when needed.

        Args:
            dataset_id: The dataset.
            round_id: Its round.
            most_shares: So many are together at most.

        Raises:
            VaultDamaged, HelperUnavailable: as of `shares`; `read` raises an OSError that is not told yet.
        """
        path = self._path(dataset_id)
        with damage_told(), path.open("rb") as stream:
            stored = self._read_header(stream, dataset_id, round_id)
        length = _segment_bytes(stored.header)
        return [
            SealedUpdates(
                header=stored.header,
                rows=rows,
                key=self._key_for(_salt(stored.header)),
                read=partial(_read_at, path, length, rows),
            )
            for rows in (stored.rows[at : at + most_shares] for at in range(0, len(stored.rows), most_shares))
        ]

    def files(self) -> Iterator[StoredFile]:
        """Yield the datasets that are files, committed or not."""
        return files_of(self._folder, _SUFFIX)

    def _read(self, stream: BinaryIO, dataset_id: bytes, round_id: bytes) -> Iterator[StoredUpdate]:
        header, rows = self._read_header(stream, dataset_id, round_id)
        cipher = ChaCha20Poly1305(self._key_for(_salt(header)))
        length = _segment_bytes(header)
        for row in rows:
            stream.seek(_HEADER_BYTES + row * length)
            yield _open(cipher, header, row, stream.read(length))

    def _read_header(self, stream: BinaryIO, dataset_id: bytes, round_id: bytes) -> "_Stored":
        """Read a file's header."""
        header = stream.read(_HEADER_BYTES)
        if len(header) != _HEADER_BYTES or not header.startswith(_MAGIC) or _round(header) != round_id:
            raise ValueError("not a dataset of the round")
        stream.seek(-_COUNT_BYTES, os.SEEK_END)
        tail = stream.read(_COUNT_BYTES)
        count = int.from_bytes(tail, "little")
        if os.fstat(stream.fileno()).st_size != _file_bytes(header, count):
            raise ValueError("not as long as it says")
        stream.seek(_index_start(header, count))
        index_cipher = ChaCha20Poly1305(self._key_for(dataset_id + _salt(header)))
        bits = index_cipher.decrypt(_nonce(0), stream.read(-(-count // 8) + _TAG_BYTES), header + tail)
        chosen = np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little").astype(np.bool_)
        return _Stored(header, np.flatnonzero(chosen).tolist())

    def _path(self, dataset_id: bytes) -> Path:
        return self._folder / f"{dataset_id.hex()}{_SUFFIX}"


class _Stored(NamedTuple):
    """A file's header, and the places of the shares that are in the dataset."""

    header: bytes
    rows: list[int]


def _open(cipher: ChaCha20Poly1305, header: bytes, row: int, frame: bytes | memoryview) -> StoredUpdate:
    opened = cipher.decrypt(_nonce(row), frame, header)
    return StoredUpdate(opened[:REPORT_ID_BYTES], opened[REPORT_ID_BYTES:])


def _read_at(path: Path, length: int, rows: Sequence[int]) -> bytes:
    """Read the frames at some positions of a file."""
    frames = []
    with path.open("rb") as stream:
        for row in rows:
            stream.seek(_HEADER_BYTES + row * length)
            frames.append(stream.read(length))
    return b"".join(frames)


def _salt(header: bytes) -> bytes:
    start = len(_MAGIC) + OWNER_BYTES
    return header[start : start + _SALT_BYTES]


def _round(header: bytes) -> bytes:
    return header[len(_MAGIC) + OWNER_BYTES + _SALT_BYTES : -8]


def _segment_bytes(header: bytes) -> int:
    return REPORT_ID_BYTES + int.from_bytes(header[-8:], "little") + _TAG_BYTES


def _index_start(header: bytes, count: int) -> int:
    return _HEADER_BYTES + count * _segment_bytes(header)


def _file_bytes(header: bytes, count: int) -> int:
    """Return the length of a file of so many shares."""
    return _index_start(header, count) + -(-count // 8) + _TAG_BYTES + _COUNT_BYTES


def _nonce(index: int) -> bytes:
    return index.to_bytes(12, "little")
