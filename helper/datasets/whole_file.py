"""Datasets as earlier versions stored them: all arrays of a dataset one after the other, in canonical order.

Read still, written no more. The layout: header | frame | frame | ...; the header is magic, a random salt and
the shape of the dataset. Each file has its own key (HKDF of the helper's storage key, the dataset id and the
salt); frames are ChaCha20-Poly1305 with their index as nonce and the header as associated data. How many
there are follows from the shape, so no file can be cut, extended or renamed unnoticed.
"""

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from helper.datasets.frames import SALT_BYTES, TAG_BYTES, KeyFor
from helper.datasets.segments import Column, RowShape
from maskedlark.reports.dataset import OpenedDataset

MAGIC: Final = b"MLDS\x02\0\0\0"
FRAME_BYTES: Final = 8 << 20
_SHAPE_BYTES: Final = 5 * 8
_HEADER_BYTES: Final = len(MAGIC) + SALT_BYTES + _SHAPE_BYTES


def read_whole(stream: BinaryIO, dataset_id: bytes, key_for: KeyFor) -> OpenedDataset:
    """Read the dataset of a file.

    Raises:
        ValueError, InvalidTag, OSError: the file is cut, altered, or another dataset's.
    """
    header = stream.read(_HEADER_BYTES)
    dataset = _empty(dataset_id, header, os.fstat(stream.fileno()).st_size)
    cipher = ChaCha20Poly1305(key_for(dataset_id + header[len(MAGIC) : len(MAGIC) + SALT_BYTES]))
    for index, frame in enumerate(_frames(dataset)):
        frame[:] = cipher.decrypt(index.to_bytes(12, "little"), stream.read(len(frame) + TAG_BYTES), header)
    return dataset


def _empty(dataset_id: bytes, header: bytes, file_bytes: int) -> OpenedDataset:
    """Allocate a dataset of the header's shape, to be filled in place.

    Nothing is allocated for a shape that the file does not have.
    """
    if len(header) != _HEADER_BYTES or not header.startswith(MAGIC):
        raise ValueError("a stored dataset does not begin as one")
    records, features, candidates, keys, columns = np.frombuffer(header[-_SHAPE_BYTES:], "<u8").tolist()
    shape = RowShape(features=features, candidates=candidates, keys=keys, columns=columns)
    if file_bytes != _file_bytes([records * width for width in shape.widths]):
        raise ValueError("a stored dataset is not as long as it says")
    rows = shape.empty(records)
    return OpenedDataset(dataset_id=dataset_id, report_ids=rows.report_ids, shares=rows.shares)


def _file_bytes(array_bytes: Sequence[int]) -> int:
    """Return the length of a file of these arrays."""
    frames = sum(-(-length // FRAME_BYTES) for length in array_bytes)
    return _HEADER_BYTES + sum(array_bytes) + TAG_BYTES * frames


def _frames(dataset: OpenedDataset) -> Iterator[memoryview]:
    """Yield the bytes of all arrays, in place, in pieces of at most `FRAME_BYTES`."""
    shares = dataset.shares
    arrays: list[Column] = [dataset.report_ids, shares.features, shares.labels, shares.mask_shares]
    if shares.measured is not None:
        arrays += [shares.measured.keys, shares.measured.value_shares]
    for array in arrays:
        if not array.size:
            continue  # a memory view of nothing cannot be cast
        flat = array.reshape(-1).data.cast("B")
        for start in range(0, len(flat), FRAME_BYTES):
            yield flat[start : start + FRAME_BYTES]
