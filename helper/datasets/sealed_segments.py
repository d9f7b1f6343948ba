"""The one form in which datasets are at rest: two sealed byte strings for each segment, records and ranks.

    sealer = SegmentSealer(shape, key_for, randomness)
    records = sealer.seal(rows, number)                                # while shares are opened
    ranks = sealer.seal_ranks(ranks_of_it, number, tail, name)   # once the dataset is committed
    segment = describe_segment(ranks, number, tail, name, key_for=..., read=...)
    rows = open_segment(segment.shape, segment.place, segment.key, segment.read())
    piece = rows.chosen(segment.ranks)

Both begin with magic, the dataset's random salt, the shape of a record, the segment's number and how many
records it has: all of it is associated data. Records have a ChaCha20-Poly1305 frame for each column, under a
key of the salt; ranks are one frame under a key of the salt and the dataset's name, with the dataset's tail,
its numbers of records, as associated data too. So neither opens in another place, attempt or dataset. The
name is the dataset's id, and of updates also the id of their round.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from helper.datasets.frames import (
    SALT_BYTES,
    TAG_BYTES,
    KeyFor,
    Ranks,
    SealedPlace,
    SealedSegment,
    nonce,
    seal_frames,
)
from helper.datasets.segments import SHAPE_BYTES, RowShape, SegmentRows
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness

SEGMENT_MAGIC: Final = b"MLSG\x01\0\0\0"
RANKS_MAGIC: Final = b"MLSR\x01\0\0\0"
_MAGIC_BYTES: Final = 8
_PLACE_BYTES: Final = 2 * 8
HEADER_BYTES: Final = _MAGIC_BYTES + SALT_BYTES + SHAPE_BYTES + _PLACE_BYTES


@frozen
class Tail:
    """How many records a dataset's segments have, and how many of them are in the dataset."""

    count: int
    records: int

    @property
    def encoded(self) -> bytes:
        """16 bytes."""
        return np.array([self.count, self.records], "<u8").tobytes()


class SegmentSealer:
    """Seals the segments of one preparation, under a salt that no other preparation has."""

    def __init__(self, shape: RowShape, key_for: KeyFor, randomness: Randomness) -> None:
        self._salt = randomness(SALT_BYTES)
        self._shape = shape.encoded
        self._key_for = key_for
        self._cipher = ChaCha20Poly1305(key_for(b"segments" + self._salt))

    def seal(self, rows: SegmentRows, number: int) -> bytes:
        """Seal the segment of a number; a number is never reused for other records."""
        header = self._header(SEGMENT_MAGIC, number, len(rows))
        return b"".join([header, *seal_frames(self._cipher, rows, number, header)])

    def seal_ranks(self, ranks: Ranks, number: int, tail: Tail, name: bytes) -> bytes:
        """Seal the ranks of a segment's records in a dataset."""
        header = self._header(RANKS_MAGIC, number, len(ranks))
        # By the name: what is stored anew after a withdrawal has other ranks, and needs another key.
        cipher = ChaCha20Poly1305(self._key_for(b"ranks" + name + self._salt))
        frame = ranks.astype("<u4").tobytes()
        return header + cipher.encrypt(nonce(number, 0), frame, header + tail.encoded)

    def _header(self, magic: bytes, number: int, records: int) -> bytes:
        return magic + self._salt + self._shape + np.array([number, records], "<u8").tobytes()


def describe_segment(
    sealed_ranks: bytes,
    number: int,
    tail: Tail,
    name: bytes,
    *,
    key_for: KeyFor,
    read: Callable[[], bytes],
) -> SealedSegment:
    """Open the ranks of a segment, and describe its records, which stay sealed and may leave the process.

    Args:
        sealed_ranks: The ranks.
        number: The segment's.
        tail: The dataset's.
        name: The dataset's.
        key_for: See `HelperKeys.vault_key`.
        read: Reads the sealed records. Those of another attempt or place than the ranks do not open.

    Raises:
        ValueError, InvalidTag: the bytes are cut, altered, or of another segment or dataset.
    """
    header, records = _check(sealed_ranks, number)
    cipher = ChaCha20Poly1305(key_for(b"ranks" + name + _salt(header)))
    ranks = np.frombuffer(
        cipher.decrypt(nonce(number, 0), sealed_ranks[HEADER_BYTES:], header + tail.encoded), "<u4"
    )
    if len(ranks) != records:
        raise ValueError("not as many ranks as it says")
    # The records of a segment begin like its ranks, but for the magic.
    header = SEGMENT_MAGIC + header[_MAGIC_BYTES:]
    return SealedSegment(
        place=SealedPlace(header=header, number=number, records=records),
        shape=_shape(header),
        ranks=ranks,
        key=key_for(b"segments" + _salt(header)),
        read=lambda: bytes(frames_in(read(), header)),
    )


def frames_in(sealed: bytes, header: bytes) -> memoryview:
    """Return the frames of sealed records that begin with a header.

    Raises:
        ValueError: they begin with another one.
    """
    if not sealed.startswith(header):
        raise ValueError("records of another attempt or place than their ranks")
    return memoryview(sealed)[HEADER_BYTES:]


def features_of(segment: SealedSegment) -> slice:
    """Return where the frame of features is in the sealed records of a segment."""
    ids, features, *_ = (segment.place.records * width + TAG_BYTES for width in segment.shape.widths)
    return slice(HEADER_BYTES + ids, HEADER_BYTES + ids + features)


def estimate_bytes(shape: RowShape, records: int, segment_records: int) -> int:
    """Estimate the length of the segments and ranks of so many records, to a few bytes."""
    segments = -(-records // segment_records)
    return records * (sum(shape.widths) + 4) + segments * (
        2 * HEADER_BYTES + (len(shape.widths) + 1) * TAG_BYTES
    )


def _check(sealed_ranks: bytes, number: int) -> tuple[bytes, int]:
    """Return the header and the number of records."""
    header = sealed_ranks[:HEADER_BYTES]
    if len(header) != HEADER_BYTES or not header.startswith(RANKS_MAGIC):
        raise ValueError("not the ranks of a segment")
    found, records = np.frombuffer(header[-_PLACE_BYTES:], "<u8").tolist()
    if found != number:
        raise ValueError("another segment")
    return header, records


def _salt(header: bytes) -> bytes:
    return header[_MAGIC_BYTES : _MAGIC_BYTES + SALT_BYTES]


def _shape(header: bytes) -> RowShape:
    return RowShape.decode(header[_MAGIC_BYTES + SALT_BYTES : -_PLACE_BYTES])
