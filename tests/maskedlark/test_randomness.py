"""Streams and draws: keys against another implementation of HKDF, single draws against many."""

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from maskedlark.randomness import below, derive_key, each_below, seeded, shuffle


@pytest.mark.parametrize("secret", [b"", b"s", bytes(32), b"x" * 100])
def test_a_key_is_hkdfs_of_its_purpose_and_context(secret: bytes) -> None:
    info = b"maskedlark/v1 purpose\0context"
    expected = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)
    assert derive_key(secret, b"purpose", b"context") == expected


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 1 << 20, (1 << 20) + 1, 1 << 63])
def test_numbers_below_bounds_are_what_many_calls_draw_from_the_same_bytes(bound: int) -> None:
    each, many = seeded(1), seeded(1)
    bounds = [bound, *range(1, 40), bound]
    drawn = [each_below(bounds, each) for _ in range(50)]
    assert drawn == [[int(below(one, 1, many)[0]) for one in bounds] for _ in range(50)]
    assert each(8) == many(8)


def test_no_bounds_draw_nothing() -> None:
    stream = seeded(1)
    assert each_below([], stream) == []
    assert stream(8) == seeded(1)(8)


@pytest.mark.parametrize("bound", [0, -1, (1 << 63) + 1])
def test_a_bound_outside_the_range_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match="bound"):
        each_below([2, bound], seeded(1))


def test_a_shuffle_reaches_every_order_about_equally_often() -> None:
    counts: dict[tuple[int, ...], int] = {}
    stream = seeded(2)
    for _ in range(6_000):
        items = [0, 1, 2]
        shuffle(items, stream)
        counts[tuple(items)] = counts.get(tuple(items), 0) + 1
    assert len(counts) == 6
    assert all(850 < count < 1_150 for count in counts.values())
