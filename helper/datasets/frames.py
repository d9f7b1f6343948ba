"""A segment's sealed frames, one for each column: they are alike in a file, in an object, and on their way.

    frames = sealed_frames(ChaCha20Poly1305(key), rows, number, header)
    rows = open_segment(shape, SealedPlace(header=header, number=number, records=n), key, b"".join(frames))

A frame is ChaCha20-Poly1305 with the segment's number and the column's as nonce, and with the header of its
file or object as associated data: it opens in no other place. A worker that gets a `SealedSegment` reads it
as the helper does itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from helper.datasets.segments import NOT_CHOSEN, RowShape, SegmentRows
from maskedlark.canonical import digest
from maskedlark.frozen import frozen

KeyFor: TypeAlias = Callable[[bytes], bytes]
"""The 32-byte key of a context; see `HelperKeys.vault_key`."""
Ranks: TypeAlias = NDArray[np.uint32]

SALT_BYTES: Final = 32
TAG_BYTES: Final = 16


@frozen
class SealedPlace:
    """Which segment some frames are of: they open in no other place.

    Attributes:
        header: What the frames are bound to, with the salt of their file or objects.
        number: The segment's among those of its dataset.
        records: How many it has, whether they are in the dataset or not.
    """

    header: bytes
    number: int
    records: int

    @property
    def name(self) -> bytes:
        """32 bytes that name it among the segments of all datasets."""
        return digest("segment", self.header, self.number.to_bytes(8, "little"))


@frozen(eq=False)
class SealedSegment:
    """A segment that may leave the helper's process: ciphertext, and what its holder has to be told.

    Attributes:
        place: Which it is.
        shape: Of its records.
        ranks: (n,) of each of its records, or `NOT_CHOSEN`.
        key: Whoever has it reads every segment of the same preparation.
        read: Reads its frames, sealed.
    """

    place: SealedPlace
    shape: RowShape
    ranks: Ranks = field(repr=False)
    key: bytes = field(repr=False)
    read: Callable[[], bytes] = field(repr=False)

    @property
    def is_chosen(self) -> NDArray[np.bool_]:
        """(n,) which of its records are in the dataset."""
        chosen: NDArray[np.bool_] = self.ranks != NOT_CHOSEN
        return chosen


def seal_frames(cipher: ChaCha20Poly1305, rows: SegmentRows, number: int, header: bytes) -> Iterator[bytes]:
    """Yield the frames of a segment; a number is never reused for other records under one key."""
    for place, column in enumerate(rows.columns):
        plain = np.ascontiguousarray(column).reshape(-1).view(np.uint8).data  # without a copy of it
        yield cipher.encrypt(nonce(number, place), plain, header)


def open_segment(
    shape: RowShape, segment: SealedPlace, key: bytes, frames: bytes | memoryview
) -> SegmentRows:
    """Decrypt the rows of a segment that left its file or object; called wherever its key is.

    Raises:
        InvalidTag, ValueError: the frames are cut, altered or another segment's.
    """
    if len(frames) != frames_bytes(shape, segment.records):
        raise ValueError("not as long as it says")  # before anything is allocated for it
    rows, cipher, view, at = shape.empty(segment.records), ChaCha20Poly1305(key), memoryview(frames), 0
    for place, column in enumerate(rows.columns):
        end = at + column.nbytes + TAG_BYTES
        opened = cipher.decrypt(nonce(segment.number, place), view[at:end], segment.header)
        if column.size:
            column.reshape(-1).data.cast("B")[:] = opened
        at = end
    return rows


def frames_bytes(shape: RowShape, records: int) -> int:
    """Return the total length of the frames of so many records."""
    return sum(records * width + TAG_BYTES for width in shape.widths)


def nonce(segment: int, column: int) -> bytes:
    """Return the nonce of a frame. Ranks are a frame of column 0, under a key of their own."""
    return segment.to_bytes(8, "little") + column.to_bytes(4, "little")
