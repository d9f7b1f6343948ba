import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from maskedlark.numbers import field
from maskedlark.numbers.field import MAX_SIGNED, MODULUS
from maskedlark.randomness import Randomness, seeded

EXTREMES = [
    0,
    1,
    2,
    2**32 - 1,
    2**32,
    2**32 + 1,
    2**63 - 2**31,
    2**63 - 2**31 + 1,
    2**63,
    MODULUS - 2**32,
    MODULUS - 2,
    MODULUS - 1,
]
elements = st.integers(0, MODULUS - 1) | st.sampled_from(EXTREMES)
triples = st.lists(st.tuples(elements, elements, elements), min_size=1, max_size=40)


def vector(values: list[int]) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


def columns(rows: list[tuple[int, int, int]]) -> tuple[list[int], list[int], list[int]]:
    a, b, c = zip(*rows, strict=True)
    return list(a), list(b), list(c)


def test_the_modulus_is_the_published_prime_with_its_two_adicity() -> None:
    # draft-irtf-cfrg-vdaf, Field64: modulus 2^32 * 4294967295 + 1, and 7 generates the multiplicative group.
    assert MODULUS == 2**32 * 4294967295 + 1 == 18446744069414584321
    assert pow(7, MODULUS - 1, MODULUS) == 1
    for prime in (2, 3, 5, 17, 257, 65537):  # the factors of p - 1
        assert pow(7, (MODULUS - 1) // prime, MODULUS) != 1


@given(triples)
def test_operations_agree_with_big_integers(rows: list[tuple[int, int, int]]) -> None:
    a, b, _ = columns(rows)
    assert field.add(vector(a), vector(b)).tolist() == [(x + y) % MODULUS for x, y in zip(a, b, strict=True)]
    assert field.subtract(vector(a), vector(b)).tolist() == [
        (x - y) % MODULUS for x, y in zip(a, b, strict=True)
    ]
    assert field.multiply(vector(a), vector(b)).tolist() == [
        x * y % MODULUS for x, y in zip(a, b, strict=True)
    ]
    assert field.negate(vector(a)).tolist() == [-x % MODULUS for x in a]
    assert int(field.total(vector(a))) == sum(a) % MODULUS


@given(triples)
def test_field_laws(rows: list[tuple[int, int, int]]) -> None:
    a, b, c = (vector(column) for column in columns(rows))
    zero, one = np.zeros_like(a), np.ones_like(a)
    assert (field.add(a, b) == field.add(b, a)).all()
    assert (field.add(field.add(a, b), c) == field.add(a, field.add(b, c))).all()
    assert (field.multiply(a, b) == field.multiply(b, a)).all()
    assert (field.multiply(field.multiply(a, b), c) == field.multiply(a, field.multiply(b, c))).all()
    assert (field.multiply(a, field.add(b, c)) == field.add(field.multiply(a, b), field.multiply(a, c))).all()
    assert (field.add(a, zero) == a).all()
    assert (field.multiply(a, one) == a).all()
    assert (field.add(a, field.negate(a)) == zero).all()


def test_every_pair_of_extremes_multiplies_and_adds_exactly() -> None:
    a = vector([x for x in EXTREMES for _ in EXTREMES])
    b = vector([y for _ in EXTREMES for y in EXTREMES])
    assert field.multiply(a, b).tolist() == [x * y % MODULUS for x in EXTREMES for y in EXTREMES]
    assert field.add(a, b).tolist() == [(x + y) % MODULUS for x in EXTREMES for y in EXTREMES]


@given(st.lists(elements, min_size=1, max_size=60))
def test_results_are_canonical(values: list[int]) -> None:
    a = vector(values)
    for result in (field.add(a, a), field.multiply(a, a), field.negate(a), field.subtract(a, a[::-1])):
        assert field.is_canonical(result)


def test_the_total_of_nothing_is_zero_and_of_many_extremes_exact() -> None:
    assert int(field.total(np.empty(0, np.uint64))) == 0
    assert field.total(np.empty((0, 3), np.uint64)).tolist() == [0, 0, 0]
    most = np.full((50_000, 2), MODULUS - 1, np.uint64)
    assert field.total(most).tolist() == [50_000 * (MODULUS - 1) % MODULUS] * 2


@given(st.lists(st.integers(-MAX_SIGNED, MAX_SIGNED), max_size=40))
def test_signed_integers_come_back(values: list[int]) -> None:
    signed = np.array(values, np.int64)
    encoded = field.from_signed(signed)
    assert field.is_canonical(encoded)
    assert encoded.tolist() == [value % MODULUS for value in values]
    assert field.to_signed(encoded).tolist() == values


@given(st.lists(elements, min_size=1, max_size=40), st.integers(0, 2**32))
def test_shares_reconstruct_to_the_secret(values: list[int], seed: int) -> None:
    shares = field.share(vector(values), seeded(seed))
    assert field.reconstruct(*shares).tolist() == values


@given(st.lists(st.tuples(elements, elements, elements), min_size=1, max_size=5))
def test_rows_are_shared_as_each_is_with_its_own_source(rows: list[tuple[int, ...]]) -> None:
    secrets = np.array(rows, np.uint64)
    together, alone = ([seeded(row) for row in range(len(rows))] for _ in range(2))
    found = field.share_rows(secrets, together)
    expected = [field.share(secret, source) for secret, source in zip(secrets, alone, strict=True)]
    for role, shares in enumerate(found):
        assert shares.tolist() == [one[role].tolist() for one in expected]
    assert [source(8) for source in together] == [source(8) for source in alone]


@pytest.mark.parametrize("secret", [0, 1, MODULUS - 1])
def test_each_share_alone_is_uniform_whatever_the_secret(secret: int) -> None:
    shares = field.share(np.full(1 << 16, secret, np.uint64), seeded(3))
    for one in shares:
        counts = np.bincount(np.ascontiguousarray(one).view(np.uint8), minlength=256)
        expected = one.nbytes / 256
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert 255 - 6 * np.sqrt(510) < chi_square < 255 + 6 * np.sqrt(510)


def test_random_elements_skip_words_at_or_above_the_modulus() -> None:
    words = [MODULUS, 5, 2**64 - 1, MODULUS - 1, 7]
    stream = b"".join(word.to_bytes(8, "little") for word in words)
    position = 0

    def scripted(count: int) -> bytes:
        nonlocal position
        position += count
        return stream[position - count : position]

    assert field.random_vector(3, scripted).tolist() == [5, MODULUS - 1, 7]


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
def test_random_elements_in_blocks_are_the_streams_first_canonical_words(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_wrong(count: int) -> bytes:
        words = np.frombuffer(stream(count), "<u8").astype(np.uint64)
        return np.where(words % np.uint64(2) == 0, np.uint64(MODULUS), words).tobytes()

    monkeypatch.setattr(field, "BLOCK", block)
    stream = seeded(5)
    found = field.random_vector(50, half_wrong)
    words = np.frombuffer(seeded(5)(8 * 500), "<u8")
    assert found.tolist() == words[(words % np.uint64(2) == 1) & (words < MODULUS)][:50].tolist()


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_random_rows_are_what_each_source_gives_by_itself(wrong: int) -> None:
    def drawing(row: int) -> Randomness:
        """Of one word in four, in some rows, the modulus."""
        stream = seeded(row)

        def draw(count: int) -> bytes:
            words = np.frombuffer(stream(count), "<u8").astype(np.uint64)
            return np.where((words % np.uint64(4) == 0) & (row < wrong), np.uint64(MODULUS), words).tobytes()

        return draw

    together, alone = ([drawing(row) for row in range(3)] for _ in range(2))
    found = field.random_rows(20, together)
    assert found.tolist() == [field.random_vector(20, source).tolist() for source in alone]
    assert [source(8) for source in together] == [source(8) for source in alone]


def test_random_rows_of_no_sources_are_none() -> None:
    assert field.random_rows(3, []).shape == (0, 3)


@given(st.lists(elements, max_size=20))
def test_bytes_come_back(values: list[int]) -> None:
    encoded = field.to_bytes(vector(values))
    assert encoded == b"".join(value.to_bytes(8, "little") for value in values)
    assert field.from_bytes(encoded, len(values)).tolist() == values


@pytest.mark.parametrize(
    "encoded", [b"", bytes(7), bytes(9), bytes(16), MODULUS.to_bytes(8, "little"), b"\xff" * 8]
)
def test_bytes_of_another_length_or_above_the_modulus_are_refused(encoded: bytes) -> None:
    with pytest.raises(ValueError, match="element"):
        field.from_bytes(encoded, 1)
