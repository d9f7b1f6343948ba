"""Opened datasets at rest.

    spool = vault.begin(shape)                          # while shares are opened
    vault.add(spool, rows)
    vault.commit(spool, dataset_id, ranks)              # the file is the dataset, durably
    for piece in vault.pieces(dataset_id): ...          # one segment at a time, never all in memory

One encrypted file each (`helper.datasets.spool`), so that a restart costs no re-opening and a stolen disk
shows no feature. Files of earlier versions are read as they are (`helper.datasets.whole_file`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from cryptography.exceptions import InvalidTag

from helper.datasets import whole_file
from helper.datasets.segments import Piece, Rows, RowShape, put_together, whole, without_features
from helper.datasets.spool import KeyFor, Ranks, Spool, StoredSegments
from maskedlark.errors import HelperUnavailable
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.runtime.disk import LEAST_FREE_BYTES, check_room

_NAME_BYTES: Final = 16
_UNFINISHED: Final = ".unfinished"


class VaultDamaged(Exception):
    """A stored dataset is missing or is not what this helper wrote.

    Local: the peer is told that the dataset is unknown.
    """


def emptied_of(folder: Path, suffix: str) -> Path:
    """A private folder, made if need be, without the files that a process that was killed left behind.

    Args:
        folder: Which.
        suffix: What the names of unfinished files end in.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for unfinished in folder.glob(f"*{suffix}"):
        unfinished.unlink(missing_ok=True)
    return folder


class Vault:
    """A folder of encrypted datasets, which one process writes to."""

    def __init__(self, folder: Path, key_for: KeyFor, randomness: Randomness = system_randomness) -> None:
        """Open the folder, or make it; what a process that was killed did not finish is removed."""
        self._folder = emptied_of(folder, _UNFINISHED)
        self._key_for = key_for
        self._randomness = randomness
        self._lacked_bytes = 0

    def begin(self, shape: RowShape) -> Spool:
        """A spool for records of a shape."""
        path = self._folder / f"{self._randomness(_NAME_BYTES).hex()}{_UNFINISHED}"
        return Spool(path, shape, self._key_for, self._randomness)

    def add(self, spool: Spool, rows: Rows) -> None:
        """Take records into a spool.

        Raises:
            HelperUnavailable: the disk is full or cannot be written.
        """
        with self._written(spool):
            spool.add(rows)

    def commit(self, spool: Spool, dataset_id: bytes, ranks: Ranks) -> None:
        """Make the records of a spool that have a rank a dataset, durably, before it is committed.

        Storing a dataset again replaces its file as a whole.

        Raises:
            HelperUnavailable: the disk is full or cannot be written.
        """
        with self._written(spool):
            spool.store(self._path(dataset_id), dataset_id, ranks)
        self._lacked_bytes = 0

    def withdraw(self, spool: Spool, dataset_id: bytes) -> None:
        """Take back a dataset that was not committed after all; its spool may be another one."""
        spool.withdraw(self._path(dataset_id))

    @contextmanager
    def _written(self, spool: Spool) -> Iterator[None]:
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
        """How long the file of a dataset is.

        Raises:
            VaultDamaged: it is missing.
        """
        with _damage_told():
            return self._path(dataset_id).stat().st_size

    def read(self, dataset_id: bytes) -> OpenedDataset:
        """The dataset of an id, all of it.

        Raises:
            VaultDamaged: the file is missing, cut, altered, or another dataset's.
        """
        with _damage_told(), self._path(dataset_id).open("rb") as stream:
            if _is_whole(stream):
                return whole_file.read_whole(stream, dataset_id, self._key_for)
            stored = StoredSegments(stream, dataset_id, self._key_for)
            return put_together(dataset_id, stored.pieces(), stored.records)

    def read_without_features(self, dataset_id: bytes) -> OpenedDataset:
        """The dataset of an id but for its features, which are of no width.

        Raises:
            VaultDamaged: as of `read`.
        """
        narrow = [without_features(piece) for piece in self.pieces(dataset_id)]
        with _damage_told():
            return put_together(dataset_id, narrow, sum(len(piece.ranks) for piece in narrow))

    def pieces(self, dataset_id: bytes) -> Iterator[Piece]:
        """The dataset of an id, one segment after the other; an old file in one piece.

        Raises:
            VaultDamaged: the file is missing, cut, altered, or another dataset's; perhaps only after some
                pieces.
        """
        with _damage_told(), self._path(dataset_id).open("rb") as stream:
            if _is_whole(stream):
                yield whole(whole_file.read_whole(stream, dataset_id, self._key_for))
            else:
                yield from StoredSegments(stream, dataset_id, self._key_for).pieces()

    def _path(self, dataset_id: bytes) -> Path:
        return self._folder / f"{dataset_id.hex()}.sealed"


@contextmanager
def _damage_told() -> Iterator[None]:
    try:
        yield
    except (OSError, InvalidTag, ValueError) as error:
        raise VaultDamaged(f"a stored dataset cannot be read: {type(error).__name__}") from None


def _is_whole(stream: BinaryIO) -> bool:
    """Whether a file is of an earlier version; it is looked at from its beginning either way."""
    magic = stream.read(len(whole_file.MAGIC))
    stream.seek(0)
    return magic == whole_file.MAGIC
