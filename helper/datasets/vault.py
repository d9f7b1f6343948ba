"""Opened datasets at rest.

    spool = vault.begin(shape, owner)                   # while shares are opened
    vault.add(spool, rows)
    manifest = vault.commit(spool, dataset_id, ranks)   # it lies there durably; the ledger is told what
    for piece in vault.pieces(dataset_id): ...          # one segment at a time, never all in memory

One encrypted file each (`helper.datasets.segment_writer`), so that a restart costs no re-opening and a
stolen disk shows no feature; or encrypted objects (`helper.datasets.object_segments`), where the operator has
a store.
Files are read also then, and those of earlier versions as they are (`helper.datasets.whole_file`).
"""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from cryptography.exceptions import InvalidTag

from helper.datasets import whole_file
from helper.datasets.frames import KeyFor, Ranks, SealedSegment
from helper.datasets.object_segments import ObjectSegments
from helper.datasets.object_spool import ObjectSpool
from helper.datasets.segment_writer import MAGIC, SegmentWriter, StoredSegments
from helper.datasets.segments import (
    RowShape,
    SegmentRows,
    SegmentSlice,
    put_together,
    whole,
    without_features,
)
from helper.datasets.storage_quota import TAG_BYTES as OWNER_BYTES
from helper.datasets.storage_quota import StorageQuota
from helper.ledger.records import Manifest
from helper.trust.floors import MOST_HELD_BYTES
from maskedlark.errors import HelperUnavailable
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.runtime.disk import LEAST_FREE_BYTES, check_room
from maskedlark.runtime.objects import RETRY_AFTER_S, ObjectLost

_NAME_BYTES: Final = 16
_UNFINISHED: Final = ".unfinished"
_SUFFIX: Final = ".sealed"
_ID_BYTES: Final = 32

AnySpool: TypeAlias = SegmentWriter | ObjectSpool
"""Where a preparation's records go."""


class VaultDamaged(Exception):
    """A stored dataset is missing or is not what this helper wrote.

    Local: the peer is told that the dataset is unknown.
    """


def clean_folder(folder: Path, suffix: str) -> Path:
    """Create a private folder if need be, and remove files that a killed process left.

    Args:
        folder: Which.
        suffix: What the names of unfinished files end in.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for unfinished in folder.glob(f"*{suffix}"):
        unfinished.unlink(missing_ok=True)
    return folder


@frozen
class StoredFile:
    """A file that holds a dataset.

    Attributes:
        dataset_id: The dataset's.
        modified_s: When it was written, in Unix seconds.
    """

    dataset_id: bytes
    modified_s: float


class Vault:
    """A folder of encrypted datasets, which one process writes to."""

    def __init__(
        self,
        folder: Path,
        key_for: KeyFor,
        randomness: Randomness = system_randomness,
        objects: ObjectSegments | None = None,
        quota: StorageQuota | None = None,
    ) -> None:
        """Open the folder, or make it; what a process that was killed did not finish is removed.

        Args:
            folder: Of files.
            key_for: See `HelperKeys.vault_key`.
            randomness: Of names and salts.
            objects: Where new datasets lie; None for files.
            quota: Counts the files that are there and those to come; by default one of its own.
        """
        self._folder = clean_folder(folder, _UNFINISHED)
        self._key_for = key_for
        self._randomness = randomness
        self._objects = objects
        self._lacked_bytes = 0
        self._quota = quota or StorageQuota(MOST_HELD_BYTES, key_for)
        count_files(folder, _SUFFIX, len(MAGIC), self._quota)

    def begin(self, shape: RowShape, owner: str) -> AnySpool:
        """Return a spool of an ad server for records of a shape.

        Raises:
            HelperUnavailable: the store cannot be read at the moment.
        """
        if self._objects is not None:
            return self._objects.begin(shape, owner)
        path = self._folder / f"{self._randomness(_NAME_BYTES).hex()}{_UNFINISHED}"
        claim = self._quota.claim(owner, path.name)
        return SegmentWriter(path, shape, self._key_for, self._randomness, claim)

    def add(self, spool: AnySpool, rows: SegmentRows) -> None:
        """Take records into a spool.

        Raises:
            JobRefused(QUOTA_EXCEEDED): they have no room in the ad server's quota.
            HelperUnavailable: the disk or the store is full or cannot be written.
        """
        with self._written(spool):
            spool.add(rows)

    def commit(self, spool: AnySpool, dataset_id: bytes, ranks: Ranks) -> Manifest:
        """Make the records of a spool that have a rank a dataset, durably, before it is committed.

        Storing a dataset again replaces its file as a whole.

        Returns:
            What the ledger is to name in the transaction that commits the dataset; nothing of a file.

        Raises:
            HelperUnavailable: the disk or the store is full or cannot be written.
        """
        if isinstance(spool, ObjectSpool):
            return spool.store(dataset_id, ranks)
        with self._written(spool):
            spool.store(self._path(dataset_id), dataset_id, ranks)
        self._lacked_bytes = 0
        return ()

    def committed(self, spool: AnySpool, dataset_id: bytes) -> None:
        """Count what a spool wrote as the dataset's, which the ledger names now."""
        if isinstance(spool, ObjectSpool):
            spool.committed(dataset_id)

    def withdraw(self, spool: AnySpool, dataset_id: bytes) -> None:
        """Take back a dataset that was not committed after all; its spool may be another one."""
        if isinstance(spool, ObjectSpool):
            spool.withdraw()
        else:
            spool.withdraw(self._path(dataset_id))

    @contextmanager
    def _written(self, spool: AnySpool) -> Iterator[None]:
        """Do what writes to the disk; if that fails, as much is lacking as the whole file takes."""
        try:
            yield
        except OSError as error:
            self._lacked_bytes = spool.num_bytes
            raise HelperUnavailable(
                f"this helper cannot store the dataset ({error.strerror}): its operator must make room; ask "
                "again"
            ) from None

    def check_room(self) -> None:
        """Return if the disk has room: a little, and as much as the last dataset lacked that did not fit.

        Raises:
            HelperUnavailable: it has not.
        """
        check_room(self._folder, max(LEAST_FREE_BYTES, self._lacked_bytes))

    def num_bytes(self, dataset_id: bytes) -> int:
        """Return how many bytes a dataset takes, sealed.

        Raises:
            VaultDamaged: it is missing.
            HelperUnavailable: it cannot be read at the moment.
        """
        with damage_told():
            if (objects := self._objects_of(dataset_id)) is not None:
                return objects.num_bytes(dataset_id)
            return self._path(dataset_id).stat().st_size

    def read(self, dataset_id: bytes) -> OpenedDataset:
        """Read all of a dataset.

        Raises:
            VaultDamaged: it is missing, cut, altered, or another dataset's.
            HelperUnavailable: it cannot be read at the moment.
        """
        if (objects := self._objects_of(dataset_id)) is not None:
            with damage_told():
                return put_together(dataset_id, objects.pieces(dataset_id), objects.records(dataset_id))
        with damage_told(), self._path(dataset_id).open("rb") as stream:
            if _is_whole(stream):
                return whole_file.read_whole(stream, dataset_id, self._key_for)
            stored = StoredSegments(stream, dataset_id, self._key_for)
            return put_together(dataset_id, stored.pieces(), stored.records)

    def read_without_features(self, dataset_id: bytes, interrupt: Interrupt = never) -> OpenedDataset:
        """Read a dataset without its features, which have zero width.

        `interrupt` is called while a segment is awaited.

        Raises:
            VaultDamaged, HelperUnavailable: as of `read`.
        """
        pieces = self.pieces(dataset_id, interrupt, has_features=False)
        narrow = [without_features(piece) for piece in pieces]
        with damage_told():
            return put_together(dataset_id, narrow, sum(len(piece.ranks) for piece in narrow))

    def pieces(
        self, dataset_id: bytes, interrupt: Interrupt = never, *, has_features: bool = True
    ) -> Generator[SegmentSlice, None, None]:
        """Yield a dataset segment by segment; an old file in one piece.

        Args:
            dataset_id: The dataset.
            interrupt: Called while a segment is awaited.
            has_features: False where features are not needed: those of a file are not read then.

        Raises:
            VaultDamaged: it is missing, cut, altered, or another dataset's; perhaps only after some pieces.
            HelperUnavailable: it cannot be read at the moment; perhaps only after some pieces.
        """
        if (objects := self._objects_of(dataset_id)) is not None:
            with damage_told(), closing(objects.pieces(dataset_id, interrupt)) as pieces:
                yield from pieces
            return
        with damage_told(), self._path(dataset_id).open("rb") as stream:
            if _is_whole(stream):
                yield whole(whole_file.read_whole(stream, dataset_id, self._key_for))
            else:
                stored = StoredSegments(stream, dataset_id, self._key_for)
                yield from stored.pieces(has_features=has_features)

    def sealed(self, dataset_id: bytes, interrupt: Interrupt = never) -> list[SealedSegment] | None:
        """Return the still sealed segments of a dataset; None for an old file, which has none.

        Args:
            dataset_id: The dataset.
            interrupt: Called while ranks are awaited.

        Raises:
            VaultDamaged: it is missing, cut, or another dataset's.
            HelperUnavailable: it cannot be read at the moment.
        """
        if (objects := self._objects_of(dataset_id)) is not None:
            with damage_told():
                return list(objects.sealed_segments(dataset_id, interrupt))
        path = self._path(dataset_id)
        with damage_told(), path.open("rb") as stream:
            if _is_whole(stream):
                return None
            return list(StoredSegments(stream, dataset_id, self._key_for).sealed(path))

    def files(self) -> Iterator[StoredFile]:
        """Yield the datasets that are files, committed or not."""
        return files_of(self._folder, _SUFFIX)

    def remove_file(self, dataset_id: bytes) -> None:
        """Remove the file of a dataset that expired or was never committed."""
        self._path(dataset_id).unlink(missing_ok=True)
        self._quota.drop([self._path(dataset_id).name])

    def _objects_of(self, dataset_id: bytes) -> ObjectSegments | None:
        """Return the store, if a dataset is not a file."""
        return None if self._path(dataset_id).exists() else self._objects

    def _path(self, dataset_id: bytes) -> Path:
        return self._folder / f"{dataset_id.hex()}{_SUFFIX}"


def files_of(folder: Path, suffix: str) -> Iterator[StoredFile]:
    """Yield the files of datasets in a folder."""
    for path in folder.glob(f"*{suffix}"):
        with suppress(ValueError, FileNotFoundError):  # not named for a dataset, or gone meanwhile
            dataset_id = bytes.fromhex(path.stem)
            if len(dataset_id) == _ID_BYTES:
                yield StoredFile(dataset_id=dataset_id, modified_s=path.stat().st_mtime)


def count_files(folder: Path, suffix: str, magic_bytes: int, quota: StorageQuota) -> None:
    """Count the datasets that are in a folder when a helper starts, committed or not.

    Args:
        folder: The folder, which nothing else writes to.
        suffix: What their names end in.
        magic_bytes: Where in a file the tag of its ad server is.
        quota: Counts them.
    """
    for path in folder.glob(f"*{suffix}"):
        with suppress(OSError), path.open("rb") as stream:
            stream.seek(magic_bytes)
            quota.count(path.name, stream.read(OWNER_BYTES), path.stat().st_size)


@contextmanager
def damage_told() -> Iterator[None]:
    """Tell what is damaged from what cannot be read at the moment.

    Raises:
        VaultDamaged: the file or an object is missing, cut, altered, or another dataset's.
        HelperUnavailable: the disk does not give it, or there are too many open files.
    """
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, InvalidTag, ObjectLost, ValueError) as error:
        raise VaultDamaged(f"a stored dataset cannot be read: {type(error).__name__}") from None
    except OSError as error:
        raise HelperUnavailable(
            f"this helper cannot read the dataset at the moment ({error.strerror}); ask again",
            retry_after_s=RETRY_AFTER_S,
        ) from None


def _is_whole(stream: BinaryIO) -> bool:
    """Return whether a file is of an earlier version; either way it is read from its beginning."""
    magic = stream.read(len(whole_file.MAGIC))
    stream.seek(0)
    return magic == whole_file.MAGIC
