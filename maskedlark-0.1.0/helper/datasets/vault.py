"""Opened datasets at rest.

One encrypted file each, so that a restart costs no re-opening and a stolen disk shows no feature.

The layout: header | segment | segment | ...; the header is magic, a random salt and the shape of the dataset.
Each file has its own key (HKDF of the helper's storage key, the dataset id and the salt); segments are
ChaCha20-Poly1305 with their index as nonce and the header as associated data. How many segments there are
follows from the shape, so no file can be cut, extended or renamed unnoticed.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from maskedlark.errors import HelperUnavailable
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.reports.report import InputShares, MeasuredShares
from maskedlark.reports.task import REPORT_ID_BYTES
from maskedlark.runtime.disk import LEAST_FREE_BYTES, check_room
from maskedlark.runtime.durable_file import replacing

KeyFor: TypeAlias = Callable[[bytes], bytes]
"""The 32-byte key of a context; see `HelperKeys.vault_key`."""

SEGMENT_BYTES: Final = 8 << 20
_MAGIC: Final = b"MLDS\x02\0\0\0"
_SALT_BYTES: Final = 32
_SHAPE_BYTES: Final = 5 * 8
_HEADER_BYTES: Final = len(_MAGIC) + _SALT_BYTES + _SHAPE_BYTES
_TAG_BYTES: Final = 16
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

    def write(self, dataset: OpenedDataset) -> None:
        """Store a dataset, durably, before it is committed. Writing it again replaces the file as a whole.

        Raises:
            HelperUnavailable: the disk is full or cannot be written; nothing is left of the attempt.
        """
        try:
            self._write(dataset)
        except OSError as error:
            self._lacked_bytes = _file_bytes(_shape(dataset))
            raise HelperUnavailable(
                f"this helper cannot store the dataset ({error.strerror}): its operator must make room; ask "
                "again"
            ) from None
        self._lacked_bytes = 0

    def check_room(self) -> None:
        """Return if the disk has room: a little, and as much as the last dataset lacked that did not fit.

        Raises:
            HelperUnavailable: it has not.
        """
        check_room(self._folder, max(LEAST_FREE_BYTES, self._lacked_bytes))

    def _write(self, dataset: OpenedDataset) -> None:
        """Write a whole new file, and put it in its place."""
        header = _MAGIC + self._randomness(_SALT_BYTES) + np.array(_shape(dataset), "<u8").tobytes()
        cipher = self._cipher(dataset.dataset_id, header)
        path = self._path(dataset.dataset_id)
        with replacing(path, path.with_suffix(_UNFINISHED)) as stream:
            stream.write(header)
            for index, segment in enumerate(_segments(dataset)):
                stream.write(cipher.encrypt(_nonce(index), segment, header))

    def read(self, dataset_id: bytes) -> OpenedDataset:
        """The dataset of an id.

        Raises:
            VaultDamaged: the file is missing, cut, altered, or another dataset's.
        """
        try:
            with self._path(dataset_id).open("rb") as stream:
                header = stream.read(_HEADER_BYTES)
                dataset = _empty(dataset_id, header, os.fstat(stream.fileno()).st_size)
                cipher = self._cipher(dataset_id, header)
                for index, segment in enumerate(_segments(dataset)):
                    segment[:] = cipher.decrypt(_nonce(index), stream.read(len(segment) + _TAG_BYTES), header)
        except (OSError, InvalidTag, ValueError) as error:
            raise VaultDamaged(f"a stored dataset cannot be read: {type(error).__name__}") from None
        return dataset

    def remove(self, dataset_id: bytes) -> None:
        """Forget a dataset that was not committed."""
        self._path(dataset_id).unlink(missing_ok=True)

    def _path(self, dataset_id: bytes) -> Path:
        return self._folder / f"{dataset_id.hex()}.sealed"

    def _cipher(self, dataset_id: bytes, header: bytes) -> ChaCha20Poly1305:
        salt = header[len(_MAGIC) : len(_MAGIC) + _SALT_BYTES]
        return ChaCha20Poly1305(self._key_for(dataset_id + salt))


def _empty(dataset_id: bytes, header: bytes, file_bytes: int) -> OpenedDataset:
    """A dataset of the header's shape, to be filled in place.

    Nothing is allocated for a shape that the file does not have.
    """
    if len(header) != _HEADER_BYTES or not header.startswith(_MAGIC):
        raise VaultDamaged("a stored dataset does not begin as one")
    shape = np.frombuffer(header[-_SHAPE_BYTES:], "<u8").tolist()
    records, features, candidates, keys, columns = shape
    if file_bytes != _file_bytes(shape):
        raise VaultDamaged("a stored dataset is not as long as it says")
    return OpenedDataset(
        dataset_id=dataset_id,
        report_ids=np.empty((records, REPORT_ID_BYTES), np.uint8),
        shares=InputShares(
            features=np.empty((records, features), np.uint8),
            labels=np.empty((records, candidates), np.uint32),
            mask_shares=np.empty((records, candidates), np.uint64),
            measured=MeasuredShares(
                keys=np.empty((records, keys), np.uint32),
                value_shares=np.empty((records, columns), np.uint64),
            )
            if columns
            else None,
        ),
    )


def _file_bytes(shape: Sequence[int]) -> int:
    """How long the file of a dataset of a shape is."""
    records, features, candidates, keys, columns = shape
    array_bytes = [
        records * width
        for width in (REPORT_ID_BYTES, features, 4 * candidates, 8 * candidates, 4 * keys, 8 * columns)
    ]
    segments = sum(-(-length // SEGMENT_BYTES) for length in array_bytes)
    return _HEADER_BYTES + sum(array_bytes) + _TAG_BYTES * segments


def _shape(dataset: OpenedDataset) -> tuple[int, ...]:
    """Records, features, candidates, keys and value shares.

    There are value shares wherever there is a measurement.
    """
    shares = dataset.shares
    measured = (
        (shares.measured.keys.shape[1], shares.measured.value_shares.shape[1]) if shares.measured else (0, 0)
    )
    return (len(dataset), shares.features.shape[1], shares.labels.shape[1], *measured)


def _segments(dataset: OpenedDataset) -> Iterator[memoryview]:
    """The bytes of all arrays, in place, in pieces of at most `SEGMENT_BYTES`."""
    shares = dataset.shares
    arrays: list[NDArray[Any]] = [dataset.report_ids, shares.features, shares.labels, shares.mask_shares]
    if shares.measured is not None:
        arrays += [shares.measured.keys, shares.measured.value_shares]
    for array in arrays:
        if not array.size:
            continue  # a memory view of nothing cannot be cast
        flat = array.reshape(-1).data.cast("B")
        for start in range(0, len(flat), SEGMENT_BYTES):
            yield flat[start : start + SEGMENT_BYTES]


def _nonce(index: int) -> bytes:
    return index.to_bytes(12, "little")
