"""A segment on the disk, byte by byte: a helper of the next version reads what this one wrote."""

from hashlib import sha256

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from helper.datasets.frames import SealedSegment, open_segment
from helper.datasets.sealed_segments import (
    HEADER_BYTES,
    SegmentSealer,
    Tail,
    describe_segment,
    estimate_bytes,
    features_of,
    frames_in,
)
from helper.datasets.segments import RowShape, SegmentRows
from maskedlark.canonical import digest
from maskedlark.randomness import seeded

PLAIN = RowShape(features=5, candidates=2, keys=0, columns=0)
MEASURED = RowShape(features=5, candidates=2, keys=3, columns=4)
SALT, NAME, NUMBER, RECORDS = seeded(4)(32), b"a dataset", 7, 9
RANKS = np.arange(RECORDS, dtype=np.uint32)[::-1].copy()
TAIL = Tail(count=40, records=31)


def key_for(context: bytes) -> bytes:
    return sha256(b"key" + context).digest()


def little(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def rows_of(shape: RowShape) -> SegmentRows:
    rows, draw = shape.empty(RECORDS), seeded(1)
    for column in rows.columns:
        column[...] = np.frombuffer(draw(column.nbytes), column.dtype).reshape(column.shape)
    return rows


def sealed(shape: RowShape) -> tuple[bytes, bytes]:
    """The records and the ranks."""
    sealer = SegmentSealer(shape, key_for, lambda count: SALT[:count])
    return sealer.seal(rows_of(shape), NUMBER), sealer.seal_ranks(RANKS, NUMBER, TAIL, NAME)


def described(shape: RowShape, **changes: object) -> SealedSegment:
    records, ranks = sealed(shape)
    given = {"sealed_ranks": ranks, "number": NUMBER, "tail": TAIL, "name": NAME, **changes}
    return describe_segment(**given, key_for=key_for, read=lambda: records)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "numbers"), [(PLAIN, (5, 2, 0, 0)), (MEASURED, (5, 2, 3, 4))], ids=["plain", "measured"]
)
def test_a_segment_is_these_bytes(shape: RowShape, numbers: tuple[int, ...]) -> None:
    records, ranks = sealed(shape)
    place = SALT + little(*numbers) + little(NUMBER, RECORDS)
    cipher, header = ChaCha20Poly1305(key_for(b"segments" + SALT)), b"MLSG\1\0\0\0" + place
    frames = [
        cipher.encrypt(little(NUMBER) + column.to_bytes(4, "little"), values.tobytes(), header)
        for column, values in enumerate(rows_of(shape).columns)
    ]
    assert records == header + b"".join(frames)
    cipher, header = ChaCha20Poly1305(key_for(b"ranks" + NAME + SALT)), b"MLSR\1\0\0\0" + place
    assert ranks == header + cipher.encrypt(
        little(NUMBER) + bytes(4), RANKS.tobytes(), header + little(40, 31)
    )
    assert len(header) == HEADER_BYTES
    assert estimate_bytes(shape, RECORDS, RECORDS) == len(records) + len(ranks)
    assert estimate_bytes(shape, RECORDS, 4) == len(records) + len(ranks) + 2 * (
        2 * HEADER_BYTES + 16 * (len(shape.widths) + 1)
    )


@pytest.mark.parametrize("shape", [PLAIN, MEASURED], ids=["plain", "measured"])
def test_it_opens_as_what_it_was_with_its_features_and_without(shape: RowShape) -> None:
    segment, (records, _), rows = described(shape), sealed(shape), rows_of(shape)
    assert segment.ranks.tolist() == RANKS.tolist()
    assert segment.shape == shape
    assert segment.place.name == digest("segment", records[:HEADER_BYTES], little(NUMBER))
    opened = open_segment(shape, segment.place, segment.key, segment.read())
    gap = features_of(segment)
    cut = frames_in(records[: gap.start] + records[gap.stop :], records[:HEADER_BYTES])
    without = open_segment(shape, segment.place, segment.key, cut, has_features=False)
    for place, column in enumerate(rows.columns):
        assert opened.columns[place].tolist() == column.tolist()
        assert without.columns[place].tolist() == (column.tolist() if place != 1 else [[]] * RECORDS)


def test_ranks_of_another_place_are_noticed() -> None:
    with pytest.raises(ValueError, match="another segment"):
        described(PLAIN, number=8)
    for cut in (b"", sealed(PLAIN)[1][: HEADER_BYTES - 1], sealed(PLAIN)[0]):
        with pytest.raises(ValueError, match="not the ranks of a segment"):
            described(PLAIN, sealed_ranks=cut)
    other = SegmentSealer(PLAIN, key_for, lambda count: SALT[:count])
    header = sealed(PLAIN)[1][:HEADER_BYTES]
    cipher = ChaCha20Poly1305(key_for(b"ranks" + NAME + SALT))
    short = cipher.encrypt(little(NUMBER) + bytes(4), RANKS[1:].tobytes(), header + TAIL.encoded)
    with pytest.raises(ValueError, match="not as many ranks"):
        described(PLAIN, sealed_ranks=header + short)
    with pytest.raises(ValueError, match="another attempt or place"):
        frames_in(other.seal(rows_of(PLAIN), NUMBER + 1), sealed(PLAIN)[0][:HEADER_BYTES])


@pytest.mark.parametrize("change", [-1, 1])
def test_frames_of_another_length_are_noticed_before_anything_is_made(change: int) -> None:
    segment = described(PLAIN)
    frames = segment.read()
    with pytest.raises(ValueError, match="not as long as it says"):
        open_segment(PLAIN, segment.place, segment.key, frames[:change] if change < 0 else frames + b"?")
