"""A segment's sealed frames, one for each column: they are alike at rest and on their way to a worker.

    frames = seal_frames(ChaCha20Poly1305(key), rows, number, header)
    rows = open_segment(shape, SealedPlace(header=header, number=number, records=n), key, b"".join(frames))

A frame is ChaCha20-Poly1305 with the segment's number and the column's as nonce, and with the header of its
object as associated data: it opens in no other place. A worker that gets a `SealedSegment` reads it
as the helper does itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import field, replace
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
# The place of features among the columns of a segment.
_FEATURES: Final = 1


@frozen
class SealedPlace:
    """Which segment some frames are of: they open in no other place.

    Attributes:
        header: What the frames are bound to, with the salt of their objects.
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
    """A segment that may leave the helper's process: ciphertext, and what its holder has to know.

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
    shape: RowShape,
    segment: SealedPlace,
    key: bytes,
    frames: bytes | memoryview,
    *,
    has_features: bool = True,
) -> SegmentRows:
    """Decrypt the rows of a segment; called wherever its key is.

    Args:
        shape: Of its records.
        segment: Which it is.
        key: Opens its frames.
        frames: All of them, one behind the other.
        has_features: False if the frame of features is not among them: features have no width then.

    Raises:
        InvalidTag, ValueError: the frames are cut, altered or another segment's.
    """
    columns = [place for place in range(len(shape.widths)) if has_features or place != _FEATURES]
    if len(frames) != sum(segment.records * shape.widths[place] + TAG_BYTES for place in columns):
        raise ValueError("not as long as it says")  # before anything is allocated for it
    rows = (shape if has_features else replace(shape, features=0)).empty(segment.records)
    arrays, cipher, view, at = rows.columns, ChaCha20Poly1305(key), memoryview(frames), 0
    for place in columns:
        column = arrays[place]
        end = at + column.nbytes + TAG_BYTES
        opened = cipher.decrypt(nonce(segment.number, place), view[at:end], segment.header)
        if column.size:  # a view with a zero in its shape cannot be cast
            column.reshape(-1).data.cast("B")[:] = opened
        at = end
    return rows


def nonce(segment: int, column: int) -> bytes:
    """Return the nonce of a frame. Ranks are a frame of column 0, under a key of their own."""
    return segment.to_bytes(8, "little") + column.to_bytes(4, "little")
