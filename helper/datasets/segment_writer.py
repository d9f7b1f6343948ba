"""Opened shares on their way to a dataset: sealed to disk, segment by segment, as they come.

    spool = Spool(path, shape, key_for, randomness, quota.claim(owner, path.name))
    spool.add(rows)                                  # once a segment is full, it leaves memory
    spool.store(final, dataset_id, ranks)            # the file is the dataset, durably

The layout: header | segment | segment | ... | index | tail. The header is magic, the tag of the ad server, a
random salt and the shape of a record. A segment is a ChaCha20-Poly1305 frame for each column, under a key of
the salt (HKDF of the helper's storage key), with its number and the column's as nonce and the header as
associated data. The index gives each record's rank, one frame a segment, under a key of the salt and the
dataset's id, and the tail says how many records there are and how many are chosen: so no file can be cut,
extended or renamed unnoticed.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from helper.datasets.frames import (
    SALT_BYTES,
    TAG_BYTES,
    KeyFor,
    Ranks,
    SealedPlace,
    SealedSegment,
    frames_bytes,
    nonce,
    seal_frames,
)
from helper.datasets.segments import (
    NOT_CHOSEN,
    SHAPE_BYTES,
    RowShape,
    SegmentRows,
    SegmentSlice,
    chosen_of,
    join,
)
from helper.datasets.storage_quota import TAG_BYTES as OWNER_BYTES
from helper.datasets.storage_quota import Claim
from maskedlark.randomness import Randomness
from maskedlark.runtime.durable_file import private, put_in_place

MAGIC: Final = b"MLDS\x04\0\0\0"
_HEADER_BYTES: Final = len(MAGIC) + OWNER_BYTES + SALT_BYTES + SHAPE_BYTES
_TAIL_BYTES: Final = 2 * 8
_RANK_BYTES: Final = 4


class SegmentWriter:
    """A file of segments. Used by one thread at a time; removed unless it is stored.

    There is no file before a segment is full: what is smaller waits in memory until it is stored.
    """

    def __init__(
        self, path: Path, shape: RowShape, key_for: KeyFor, randomness: Randomness, claim: Claim
    ) -> None:
        self._header = MAGIC + claim.tag + randomness(SALT_BYTES) + shape.encoded
        self._claim = claim
        self._path = path
        self._shape = shape
        self._key_for = key_for
        self._cipher = ChaCha20Poly1305(key_for(_salt(self._header)))
        self._waiting: list[SegmentRows] = []
        self._num_waiting = 0
        self._written = 0
        self._has_file = False
        self._stored: Path | None = None
        self._stored_id = b""

    @property
    def waiting(self) -> int:
        """The number of records still in memory."""
        return self._num_waiting

    @property
    def num_bytes(self) -> int:
        """The length of the file of all records."""
        return _file_bytes(self._shape, self._written + self.waiting)

    @property
    def is_lost(self) -> bool:
        """True if the file of a stored, uncommitted dataset was swept for its age."""
        return self._stored is not None and not self._stored.exists()

    def takes(self, dataset_id: bytes) -> bool:
        """Return whether it may be stored as a dataset.

        Not while another one, stored and not withdrawn, may be committed: that one has the file.
        """
        return self._stored is None or self._stored_id == dataset_id

    def add(self, rows: SegmentRows) -> None:
        """Take records; what fills a segment is written, and leaves memory.

        Raises:
            JobRefused(QUOTA_EXCEEDED): the file of all records has no room in the ad server's quota.
        """
        if not len(rows):
            return  # or chunks of which nothing is admitted would pile up
        self._claim.resize(_file_bytes(self._shape, self._written + self.waiting + len(rows)))
        self._waiting.append(rows)
        self._num_waiting += len(rows)
        size = self._shape.segment_records
        if self._num_waiting < size:
            return
        together = join(self._waiting)
        with self._open() as stream:
            for start in range(0, len(together) - size + 1, size):
                self._write(stream, together.rows(slice(start, start + size)), self._written)
                self._written += size
        rest = together.rows(slice(len(together) // size * size, None))
        self._waiting, self._num_waiting = [rest] if len(rest) else [], len(rest)

    def store(self, final: Path, dataset_id: bytes, ranks: Ranks) -> None:
        """Write what waits and the ranks of all records, and give the file its name, durably.

        May be tried again, also if it is not known whether a dataset that was stored was committed: its file
        stays as it is. An attempt that fails leaves whole segments alone, and no file if there are none.

        Args:
            final: The file of the dataset; another one is replaced.
            dataset_id: The dataset's.
            ranks: (n,) of each record, in the order in which they came, or `NOT_CHOSEN`.
        """
        if self._stored == final and final.exists():
            return
        try:
            self._store(final, dataset_id, ranks)
        except OSError:
            if self._has_file and not self._path.exists():  # it has its name, but perhaps not for good
                with suppress(OSError):
                    final.replace(self._path)
            if not self._written:
                self._drop_file()
            raise
        self._stored, self._stored_id = final, dataset_id
        self._has_file = False
        self._claim.rename(final.name)

    def withdraw(self, final: Path) -> None:
        """Take back a file that was stored for a dataset that is refused: it may be stored as another one."""
        final.replace(self._path)
        self._claim.rename(self._path.name)
        self._stored = None
        if not self._written:
            self._drop_file()

    def remove(self) -> None:
        """Remove what was written; nothing to remove of a file that was stored."""
        self._waiting, self._num_waiting = [], 0
        self._drop_file()
        if self._stored is None:
            self._claim.end()

    def _store(self, final: Path, dataset_id: bytes, ranks: Ranks) -> None:
        if len(ranks) != self._written + self.waiting:
            raise AssertionError("a spool is stored with a rank for each of its records")
        tail = np.array([len(ranks), int((ranks != NOT_CHOSEN).sum())], "<u8").tobytes()
        cipher = ChaCha20Poly1305(self._key_for(dataset_id + _salt(self._header)))
        size = self._shape.segment_records
        with self._open() as stream:
            stream.seek(_index_start(self._shape, self._written))
            stream.truncate()  # what an attempt to store that failed has written
            if self._waiting:
                self._write(stream, join(self._waiting), self._written)
            for number, start in enumerate(range(0, len(ranks), size)):
                frame = ranks[start : start + size].astype("<u4").tobytes()
                stream.write(cipher.encrypt(nonce(number, 0), frame, self._header + tail))
            stream.write(tail)
            put_in_place(stream, self._path, final)

    def _write(self, stream: BinaryIO, rows: SegmentRows, before: int) -> None:
        """Write one segment behind so many records."""
        stream.seek(_index_start(self._shape, before))
        number = before // self._shape.segment_records
        stream.writelines(seal_frames(self._cipher, rows, number, self._header))

    def _open(self) -> BinaryIO:
        """Open the file; create it if missing, but not in place of one that was lost."""
        if self._has_file or self._written:
            return self._path.open("r+b")
        stream = open(self._path, "xb", opener=private)  # noqa: SIM115 # the caller closes it
        self._has_file = True
        stream.write(self._header)
        return stream

    def _drop_file(self) -> None:
        self._has_file = False
        self._path.unlink(missing_ok=True)


class StoredSegments:
    """The segments of a stored file, one at a time: `with path.open("rb") as stream: StoredSegments(...)`.

    Its methods raise `ValueError`, `InvalidTag` or `OSError` for a file that is cut, altered, or another
    dataset's.
    """

    def __init__(self, stream: BinaryIO, dataset_id: bytes, key_for: KeyFor) -> None:
        self._stream = stream
        self._header = stream.read(_HEADER_BYTES)
        if len(self._header) != _HEADER_BYTES or not self._header.startswith(MAGIC):
            raise ValueError("not a dataset")
        self._shape = RowShape.decode(self._header[-SHAPE_BYTES:])
        stream.seek(-_TAIL_BYTES, os.SEEK_END)
        self._tail = stream.read(_TAIL_BYTES)
        self._count, self.records = np.frombuffer(self._tail, "<u8").tolist()
        self._index = _index_start(self._shape, self._count)
        if os.fstat(stream.fileno()).st_size != _file_bytes(self._shape, self._count):
            raise ValueError("not as long as it says")
        self._ranks_cipher = ChaCha20Poly1305(key_for(dataset_id + _salt(self._header)))
        self._key = key_for(_salt(self._header))
        self._cipher = ChaCha20Poly1305(self._key)

    def pieces(self, *, has_features: bool = True) -> Iterator[SegmentSlice]:
        """Yield the chosen records of each segment; skip segments without any.

        Without features those are neither read nor checked, and have no width.
        """
        size, widths = self._shape.segment_records, self._shape.widths
        shape = self._shape if has_features else replace(self._shape, features=0)
        found = 0
        for number, start in enumerate(range(0, self._count, size)):
            ranks = self._ranks(number, min(size, self._count - start))
            chosen = int((ranks != NOT_CHOSEN).sum())
            found += chosen
            if chosen:
                self._stream.seek(_HEADER_BYTES + start * sum(widths) + number * TAG_BYTES * len(widths))
                rows = shape.empty(len(ranks))
                for place, (column, width) in enumerate(zip(rows.columns, widths, strict=True)):
                    if shape.widths[place] == width:
                        self._read_into(column, self._cipher, nonce(number, place), self._header)
                    else:
                        self._stream.seek(width * len(ranks) + TAG_BYTES, os.SEEK_CUR)
                yield chosen_of(rows, ranks)
        if found != self.records:
            raise ValueError("not as many records as it says")

    def sealed(self, path: Path) -> Iterator[SealedSegment]:
        """Yield each segment with a chosen record, still in its file; its frames are read later."""
        size, widths = self._shape.segment_records, self._shape.widths
        found = 0
        for number, start in enumerate(range(0, self._count, size)):
            ranks = self._ranks(number, min(size, self._count - start))
            chosen = int((ranks != NOT_CHOSEN).sum())
            found += chosen
            if chosen:
                at = _HEADER_BYTES + start * sum(widths) + number * TAG_BYTES * len(widths)
                yield SealedSegment(
                    place=SealedPlace(header=self._header, number=number, records=len(ranks)),
                    shape=self._shape,
                    ranks=ranks,
                    key=self._key,
                    read=partial(_read_at, path, at, frames_bytes(self._shape, len(ranks))),
                )
        if found != self.records:
            raise ValueError("not as many records as it says")

    def _ranks(self, number: int, count: int) -> Ranks:
        size = self._shape.segment_records
        self._stream.seek(self._index + number * (size * _RANK_BYTES + TAG_BYTES))
        ranks = np.empty(count, "<u4")
        self._read_into(ranks, self._ranks_cipher, nonce(number, 0), self._header + self._tail)
        return ranks

    def _read_into(self, column: NDArray[Any], cipher: ChaCha20Poly1305, nonce: bytes, about: bytes) -> None:
        sealed = self._stream.read(column.nbytes + TAG_BYTES)
        opened = cipher.decrypt(nonce, sealed, about)
        if column.size:
            column.reshape(-1).data.cast("B")[:] = opened


def _read_at(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(start)
        return stream.read(length)


def _salt(header: bytes) -> bytes:
    return header[len(MAGIC) + OWNER_BYTES : -SHAPE_BYTES]


def _index_start(shape: RowShape, count: int) -> int:
    """Return where the index of a file of so many records begins."""
    segments = -(-count // shape.segment_records)
    return _HEADER_BYTES + count * sum(shape.widths) + segments * len(shape.widths) * TAG_BYTES


def _file_bytes(shape: RowShape, count: int) -> int:
    """Return the length of a file of so many records."""
    segments = -(-count // shape.segment_records)
    return _index_start(shape, count) + _RANK_BYTES * count + TAG_BYTES * segments + _TAIL_BYTES
