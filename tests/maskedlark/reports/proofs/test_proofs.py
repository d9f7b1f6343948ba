"""A proof is accepted if, and but for a negligible chance only if, a report has the form that the task asks
for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskedlark.numbers.field import MODULUS, add, to_signed
from maskedlark.randomness import seeded
from maskedlark.reports.proofs import proving
from maskedlark.reports.proofs.check import residues
from maskedlark.reports.proofs.proven_report import read_proofs, value_shares
from maskedlark.reports.proofs.proving import _are_usable
from maskedlark.reports.proofs.shape import (
    MAX_POLYNOMIAL_BITS,
    POINTS,
    ProofShape,
    _bit_weights,
    proof_shape,
)
from tests import reference_proof
from tests.maskedlark.reports.malicious import evidence, honest, is_accepted, malformed, send, whole
from tests.maskedlark.reports.shapes import ALL, MEASURED, SEVERAL, TWO, VALUES
from tests.one_proof import secret_elements


@pytest.mark.parametrize("shape", ALL.values(), ids=ALL)
def test_every_honest_report_is_accepted(shape: ProofShape) -> None:
    randomness = seeded(1)
    assert all(is_accepted(shape, [honest(shape, randomness) for _ in range(50)]))


@pytest.mark.parametrize("shape", ALL.values(), ids=ALL)
def test_no_malformed_report_is_accepted(shape: ProofShape) -> None:
    randomness = seeded(2)
    kinds = [kind for _ in range(3) for kind in malformed(shape, randomness)]
    accepted = is_accepted(shape, [sent for _, sent in kinds])
    assert [name for (name, _), is_wrong in zip(kinds, accepted, strict=True) if is_wrong] == []


def test_there_are_at_least_26_kinds_of_malformed_reports() -> None:
    assert len({name for name, _ in malformed(TWO, seeded(3))}) >= 26
    assert len({name for name, _ in malformed(MEASURED, seeded(3))}) >= 40


@pytest.mark.parametrize("shape", [TWO, MEASURED, SEVERAL])
def test_malformed_reports_among_honest_ones_are_refused_one_by_one(shape: ProofShape) -> None:
    randomness = seeded(4)
    wrong = [sent for _, sent in malformed(shape, randomness)]
    mixed = [one for sent in wrong for one in (honest(shape, randomness), sent)]
    assert is_accepted(shape, mixed) == [True, False] * len(wrong)


def test_sizes_of_the_smallest_proof_are_as_documented() -> None:
    assert (TWO.num_elements, TWO.num_openings) == (2 + 6, 3)
    assert TWO.length(0) == 8 * 3 + 32 + 32 + 32
    assert TWO.length(1) == 8 * 3 + 32 + 32 + 8 * 8


def test_values_share_a_polynomial_up_to_64_bits() -> None:
    assert SEVERAL.polynomials == (64, 32)
    assert MEASURED.polynomials == (4 + 1 + 3,)
    assert max(SEVERAL.polynomials) <= MAX_POLYNOMIAL_BITS


@given(st.integers(1, 2**32 - 2))
def test_the_weights_of_a_range_add_to_its_size_and_are_powers_of_two_but_the_last(size: int) -> None:
    weights = _bit_weights(size)
    assert sum(weights) == size
    assert list(weights[:-1]) == [1 << place for place in range(len(weights) - 1)]
    assert 1 <= weights[-1] <= 1 << (len(weights) - 1)
    assert list(weights) == reference_proof.range_weights(0, size)


def test_every_value_of_a_range_comes_out_of_its_shares_and_a_fake_report_gives_zeros() -> None:
    randomness = seeded(5)
    for signed in range(-3, 10):
        columns = [1, signed, *one_of(3, (signed >= 0) + (signed >= 5)), 1, 6, 0, 1]
        bits = MEASURED.bits_of([signed, 1, 6])
        for mask, vectors, held, expected in (
            ([0, 1, 0], [columns[2:5], [0, 1]], bits, columns),
            ([0, 0, 0], [[0] * 3, [0] * 2], [0] * len(bits), [0] * len(columns)),
        ):
            sent = send(MEASURED, secret_elements(MEASURED, [mask, *vectors], held, randomness), randomness)
            shares = []
            for role in (0, 1):
                tail = np.frombuffer(sent[role].tail(), np.uint8)[None, :]
                table, _ = read_proofs(MEASURED, b"t" * 32, [sent[role].report_id], role, tail)
                shares.append(value_shares(MEASURED, VALUES, table.elements))
            assert to_signed(add(*shares))[0].tolist() == expected
            assert is_accepted(MEASURED, [sent]) == [True]


def one_of(length: int, place: int) -> list[int]:
    return [int(index == place) for index in range(length)]


@pytest.mark.parametrize("shape", ALL.values(), ids=ALL)
def test_proofs_and_residues_are_those_of_the_reference(shape: ProofShape) -> None:
    randomness = seeded(6)
    for _ in range(3):
        sent = honest(shape, randomness)
        flat = whole(shape, sent).tolist()
        secret = parts_of(shape, flat)
        made = reference_proof.prepare(secret.vectors, secret.bits, secret.rho, secret.phi)
        assert made.flat() == flat
        share_1 = np.frombuffer(sent[1].share, "<u8").tolist()
        shares = [(a - b) % MODULUS for a, b in zip(flat, share_1, strict=True)], share_1
        commitments = [
            reference_proof.commitment(
                b"t" * 32, part.report_id, role=role, blind=part.blind, view=part.view, share=shares[role]
            )
            for role, part in enumerate(sent)
        ]
        assert [sent[1].other, sent[0].other] == commitments
        seed, points = reference_proof.points_of(commitments)
        assert sent[0].openings == sent[1].openings == reference_proof.openings(secret, points)
        for role in (0, 1):
            expected = reference_proof.residues(
                role, reference_proof.like(secret, shares[role]), sent[0].openings, points
            )
            covered = seed + reference_proof.words(sent[0].openings) + reference_proof.words(expected)
            assert evidence(shape, role, [sent[role]], residues)[0][0].tobytes() == covered


def parts_of(shape: ProofShape, flat: list[int]) -> reference_proof.Secret:
    places = shape.places

    def threes(place: slice) -> list[list[int]]:
        return [flat[at : at + POINTS] for at in range(place.start, place.stop, POINTS)]

    return reference_proof.Secret(
        vectors=[flat[place] for place in places.vectors],
        bits=[flat[place] for place in places.polynomial_bits],
        rho=threes(places.rho),
        square=threes(places.square),
        phi=[flat[place] for place in places.phi],
        quotient=[flat[place] for place in places.quotient],
    )


def test_blinds_are_fresh_for_each_vector_polynomial_and_point() -> None:
    elements = secret_elements(SEVERAL, [[1, 0]], [0] * sum(SEVERAL.polynomials), seeded(7))
    blinds = [
        *elements[SEVERAL.places.rho].tolist(),
        *(one for place in SEVERAL.places.phi for one in elements[place].tolist()),
    ]
    assert len(set(blinds)) == len(blinds) == POINTS * (1 + len(SEVERAL.polynomials))
    elements = secret_elements(
        MEASURED, [[1, 0, 0], [1, 0, 0], [1, 0]], MEASURED.bits_of([0, 0, 0]), seeded(7)
    )
    assert len(set(elements[MEASURED.places.rho].tolist())) == POINTS * len(MEASURED.vectors)


@pytest.mark.parametrize("label", [None, 0, 1])
def test_openings_are_uniform_whatever_the_label(label: int | None) -> None:
    randomness = seeded(8)
    mask = [int(label == place) for place in (0, 1)]
    sent = [send(TWO, secret_elements(TWO, [mask], [], randomness), randomness) for _ in range(3_000)]
    tops = np.array([one[0].openings for one in sent], np.uint64) >> np.uint64(60)
    counts = np.bincount(tops.ravel().astype(np.int64), minlength=16)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert chi_square < 45  # 15 degrees: one in ten thousand


def test_points_that_repeat_or_lie_at_a_bit_are_not_used() -> None:
    last = SEVERAL.max_polynomial_bits
    points = [
        [last + 1, 0, last + 2],
        [last, last + 1, last + 2],
        [1, last + 1, last + 2],
        [last + 1, last + 1, last + 2],
        [last + 2, last + 1, last + 2],
        [MODULUS - 1, last + 1, 0],
    ]
    usable = _are_usable(np.array(points, np.uint64), SEVERAL)
    assert usable.tolist() == [True, False, False, False, False, True]
    assert _are_usable(np.array([[1, 2, 3], [1, 2, 1]], np.uint64), TWO).tolist() == [True, False]


@settings(max_examples=30)
@given(st.sampled_from([TWO, MEASURED, SEVERAL]), st.sampled_from([0, 1]), st.data())
def test_proof_bytes_of_any_kind_never_raise(shape: ProofShape, role: int, data: st.DataObject) -> None:
    length = shape.length(role)
    tail = data.draw(
        st.binary(min_size=length, max_size=length) | st.sampled_from([bytes(length), b"\xff" * length])
    )
    table, is_canonical = read_proofs(
        shape, b"t" * 32, [b"r" * 16], role, np.frombuffer(tail, np.uint8)[None, :]
    )
    if is_canonical[0]:
        points = np.array([[1, 2, 3]], np.uint64)
        assert (residues(shape, role, table, points) < np.uint64(MODULUS)).all()


def test_a_shape_is_built_once_for_equal_tasks() -> None:
    assert proof_shape(3, VALUES) is MEASURED


def test_a_word_of_the_modulus_itself_is_the_point_zero() -> None:
    words = np.array([[MODULUS - 1, MODULUS, MODULUS + 1, 0]], np.uint64)
    assert proving.challenge_points(words).tolist() == [[MODULUS - 1, 0, 1]]
