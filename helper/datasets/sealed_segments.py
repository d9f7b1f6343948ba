"""Sealed segments as byte strings of their own: what lies in object storage, one object each.

    sealer = SegmentSealer(shape, key_for, randomness)
    segment = sealer.seal(rows, number)                       # while shares are opened
    ranks = sealer.seal_ranks(ranks_of_it, number, tail, dataset_id)   # once the dataset is committed
    rows = opened_rows(segment, number, key_for)
    piece = chosen_of(rows, open_ranks(ranks, number, tail, dataset_id, key_for))

Both begin with magic, the dataset's random salt, the shape of a record, the segment's number and how many
records it has: all of it is associated data. A segment has a ChaCha20-Poly1305 frame for each column, under a
key of the salt; ranks are one frame under a key of the salt and the dataset's id, with the dataset's tail,
its numbers of records, as associated data too. So neither opens in another place, attempt or dataset.
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
    open_segment,
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
    """Seals the segments of one preparation, under a salt of its own."""

    def __init__(self, shape: RowShape, key_for: KeyFor, randomness: Randomness) -> None:
        self._salt = randomness(SALT_BYTES)
        self._shape = shape.encoded
        self._key_for = key_for
        self._cipher = ChaCha20Poly1305(key_for(b"segments" + self._salt))

    def seal(self, rows: SegmentRows, number: int) -> bytes:
        """Seal the segment of a number; a number is never reused for other records."""
        header = self._header(SEGMENT_MAGIC, number, len(rows))
        return b"".join([header, *seal_frames(self._cipher, rows, number, header)])

    def seal_ranks(self, ranks: Ranks, number: int, tail: Tail, dataset_id: bytes) -> bytes:
        """Seal the ranks of a segment's records in a dataset."""
        header = self._header(RANKS_MAGIC, number, len(ranks))
        cipher = ChaCha20Poly1305(self._key_for(b"ranks" + dataset_id + self._salt))
        frame = ranks.astype("<u4").tobytes()
        return header + cipher.encrypt(nonce(number, 0), frame, header + tail.encoded)

    def _header(self, magic: bytes, number: int, records: int) -> bytes:
        return magic + self._salt + self._shape + np.array([number, records], "<u8").tobytes()


def open_ranks(sealed: bytes, number: int, tail: Tail, dataset_id: bytes, key_for: KeyFor) -> Ranks:
    """Decrypt the ranks of a segment's records.

    Raises:
        ValueError, InvalidTag: the bytes are cut, altered, or of another segment or dataset.
    """
    header, records = _check(sealed, RANKS_MAGIC, number)
    cipher = ChaCha20Poly1305(key_for(b"ranks" + dataset_id + _salt(header)))
    ranks = np.frombuffer(
        cipher.decrypt(nonce(number, 0), sealed[HEADER_BYTES:], header + tail.encoded), "<u4"
    )
    if len(ranks) != records:
        raise ValueError("not as many ranks as it says")
    return ranks


def open_rows(sealed: bytes, number: int, key_for: KeyFor) -> SegmentRows:
    """Decrypt the records of a segment, in the order in which they came.

    Raises:
        ValueError, InvalidTag: the bytes are cut, altered, or of another segment.
    """
    header, records = _check(sealed, SEGMENT_MAGIC, number)
    place = SealedPlace(header=header, number=number, records=records)
    key = key_for(b"segments" + _salt(header))
    return open_segment(_shape(header), place, key, memoryview(sealed)[HEADER_BYTES:])


def seal_ranks(
    sealed_ranks: bytes, ranks: Ranks, number: int, key_for: KeyFor, read: Callable[[], bytes]
) -> SealedSegment:
    """Describe a segment that may leave the helper's process sealed, by its ranks and reader.

    Its frames do not open if they are of another attempt or place than the ranks.
    """
    header = SEGMENT_MAGIC + sealed_ranks[_MAGIC_BYTES:HEADER_BYTES]
    return SealedSegment(
        place=SealedPlace(header=header, number=number, records=len(ranks)),
        shape=_shape(header),
        ranks=ranks,
        key=key_for(b"segments" + _salt(header)),
        read=lambda: read()[HEADER_BYTES:],
    )


def is_of_one_attempt(segment: bytes, ranks: bytes) -> bool:
    """Return whether sealed records and sealed ranks have the same salt and number of records."""
    return segment[_MAGIC_BYTES:HEADER_BYTES] == ranks[_MAGIC_BYTES:HEADER_BYTES]


def estimate_bytes(shape: RowShape, records: int) -> int:
    """Estimate the length of the segments and ranks of so many records, to a few bytes."""
    segments = -(-records // shape.segment_records)
    return records * (sum(shape.widths) + 4) + segments * (
        2 * HEADER_BYTES + (len(shape.widths) + 1) * TAG_BYTES
    )


def _check(sealed: bytes, magic: bytes, number: int) -> tuple[bytes, int]:
    """Return the header and the number of records."""
    header = sealed[:HEADER_BYTES]
    if len(header) != HEADER_BYTES or not header.startswith(magic):
        raise ValueError("not a sealed segment")
    found, records = np.frombuffer(header[-_PLACE_BYTES:], "<u8").tolist()
    if found != number:
        raise ValueError("another segment")
    return header, records


def _salt(header: bytes) -> bytes:
    return header[_MAGIC_BYTES : _MAGIC_BYTES + SALT_BYTES]


def _shape(header: bytes) -> RowShape:
    return RowShape.decode(header[_MAGIC_BYTES + SALT_BYTES : -_PLACE_BYTES])
