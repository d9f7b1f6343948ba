"""Each part of the construction is needed: an attack that fails, and succeeds once that part is left out.

Each test runs its attack against the code as it is, and again with one function replaced by its mutant. The
first half fails if somebody makes that change to the code.
"""

from collections.abc import Callable

import numpy as np
import pytest

from maskedlark.numbers.field import MODULUS, FieldVector, add
from maskedlark.randomness import Randomness, seeded
from maskedlark.reports.proofs import check, proving
from maskedlark.reports.proofs.check import ProofTable, residues
from maskedlark.reports.proofs.proving import Binding
from maskedlark.reports.proofs.shape import POINTS, ProofShape, proof_shape
from maskedlark.reports.share_seed import expand_share
from tests.maskedlark.reports import malicious
from tests.maskedlark.reports.malicious import TASK_ID, Sent, is_accepted, one_hot, send, told_commitments
from tests.maskedlark.reports.shapes import MEASURED, TWO
from tests.one_proof import challenge_points, prove, secret_elements

Attack = Callable[[ProofShape, Randomness], Sent]


def is_let_through(attack: Attack, shape: ProofShape = TWO) -> bool:
    return any(is_accepted(shape, [attack(shape, seeded(seed)) for seed in range(5)]))


def test_powers_from_0_let_q_cancel_a_weight_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_let_through(malicious.weight_two_fitted_to_powers_from_0)

    def power_sum(vector: list[int], point: int) -> int:
        return sum(entry * pow(point, power, MODULUS) for power, entry in enumerate(vector)) % MODULUS

    def power_sums(vectors: FieldVector, points: FieldVector) -> FieldVector:
        rows = [
            [power_sum(row, t) for t in ts] for row, ts in zip(vectors.tolist(), points.tolist(), strict=True)
        ]
        return np.array(rows, np.uint64)

    monkeypatch.setattr(proving, "_power_sum", power_sum)
    monkeypatch.setattr(check, "_power_sums", power_sums)
    assert is_let_through(malicious.weight_two_fitted_to_powers_from_0)


def test_openings_outside_the_tag_can_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_let_through(malicious.weight_two_with_openings_told_apart)
    monkeypatch.setattr(
        check, "_concatenate_covered", lambda seeds, _openings, found: np.concatenate([seeds, found], axis=1)
    )
    assert is_let_through(malicious.weight_two_with_openings_told_apart)


def weight_two(shape: ProofShape, randomness: Randomness) -> Sent:
    """Its second residues differ at every point, all others are equal."""
    vectors = [[0] * length for length in shape.vectors]
    vectors[0][0] = 2
    return send(shape, secret_elements(shape, vectors, [0] * sum(shape.polynomials), randomness), randomness)


def no_bucket_in_a_real_report(shape: ProofShape, randomness: Randomness) -> Sent:
    """Only the residue of the histogram's sum differs."""
    vectors = [one_hot(length, length) for length in shape.vectors]
    vectors[0][1] = 1
    vectors[2][0] = 1
    return send(shape, secret_elements(shape, vectors, shape.bits_of([0, 0, 0]), randomness), randomness)


def bit_of_two(shape: ProofShape, randomness: Randomness) -> Sent:
    """Only the second residues of the polynomial differ."""
    vectors = [one_hot(length, 0) for length in shape.vectors]
    bits = [2, *shape.bits_of([0, 0, 0])[1:]]
    return send(shape, secret_elements(shape, vectors, bits, randomness), randomness)


@pytest.mark.parametrize(
    ("attack", "shape", "differing"),
    [
        (weight_two, TWO, [1, 3, 5]),
        (no_bucket_in_a_real_report, MEASURED, [6 * len(MEASURED.vectors)]),
        (bit_of_two, MEASURED, [6 * len(MEASURED.vectors) + 2 + k for k in (1, 3, 5)]),
    ],
    ids=["squares of a vector", "sum of a histogram", "squares of a polynomial"],
)
def test_a_residue_that_is_dropped_lets_a_report_through(
    attack: Attack, shape: ProofShape, differing: list[int]
) -> None:
    def without(kept_out: list[int]) -> Callable[[ProofShape, int, ProofTable, FieldVector], FieldVector]:
        def fewer(shape: ProofShape, role: int, table: ProofTable, points: FieldVector) -> FieldVector:
            return np.delete(residues(shape, role, table, points), kept_out, axis=1)

        return fewer

    sent = [attack(shape, seeded(3))]
    assert is_accepted(shape, sent, without([])) == [False]
    assert is_accepted(shape, sent, without(differing)) == [True]
    if len(differing) == POINTS:
        assert is_accepted(shape, sent, without(differing[:2])) == [False]


def test_first_residues_are_needed_too() -> None:
    """Without them an opening could be any square root that the second residues ask for."""
    sent = next(one for seed in range(1_000) if (one := fitted_to_roots(seed)) is not None)
    assert is_accepted(TWO, [sent]) == [False]
    assert is_accepted(TWO, [sent], lambda *given: residues(*given)[:, 1::2]) == [True]


def fitted_to_roots(seed: int) -> Sent | None:
    """Weight 2, and openings A = rho + the root of X(t^2): one report in eight has all three roots."""
    sent = weight_two(TWO, seeded(seed))
    secret = malicious.whole(TWO, sent).tolist()
    for j, t in enumerate(challenge_points(proving.challenge(*told_commitments(sent)))):
        root = square_root(2 * t * t % MODULUS)
        if root is None:
            return None
        for part in sent:
            part.openings[j] = (secret[TWO.places.rho.start + j] + root) % MODULUS
    return sent


def square_root(square: int) -> int | None:
    """A root mod p by Tonelli and Shanks' method, or None."""
    if pow(square, (MODULUS - 1) // 2, MODULUS) != 1:
        return None
    odd, twos = (MODULUS - 1) >> 32, 32
    generator = pow(7, odd, MODULUS)
    root, rest = pow(square, (odd + 1) // 2, MODULUS), pow(square, odd, MODULUS)
    while rest != 1:
        order = next(k for k in range(1, twos) if pow(rest, 1 << k, MODULUS) == 1)
        factor = pow(generator, 1 << (twos - order - 1), MODULUS)
        root, generator, twos = root * factor % MODULUS, factor * factor % MODULUS, order
        rest = rest * generator % MODULUS
    return root


def test_a_commitment_that_is_believed_lets_a_mask_be_fitted_to_the_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not is_let_through(malicious.fitted_after_the_points)
    told: dict[tuple[bytes, int], bytes] = {}

    def attack(shape: ProofShape, randomness: Randomness) -> Sent:
        sent = malicious.fitted_after_the_points(shape, randomness)
        for role, commitment in enumerate(told_commitments(sent)):
            told[sent[role].report_id, role] = commitment
        return sent

    def believed(binding: Binding, role: int, blind: bytes, share: bytes) -> bytes:
        return told.get((binding.report_id, role)) or commit(binding, role, blind, share)

    commit = Binding.commit
    monkeypatch.setattr(Binding, "commit", believed)
    assert is_let_through(attack)


def guessed_label(sent: Sent) -> int | None:
    """What helper 1 finds if it can try the C + 1 masks: for each, its own share and the openings fix all of
    share 0."""
    share_1 = np.frombuffer(sent[1].share, "<u8").tolist()
    points = challenge_points(proving.challenge(sent[1].other, malicious.recommitted(TWO, sent)))
    binding = Binding(task_id=TASK_ID, report_id=sent[1].report_id, view=sent[1].view)
    for label in range(3):
        mask = one_hot(2, label)
        rho = [
            (a - sum(m * pow(t, c, MODULUS) for c, m in enumerate(mask, 1))) % MODULUS
            for a, t in zip(sent[1].openings, points, strict=True)
        ]
        secret = [*mask, *rho, *(one * one % MODULUS for one in rho)]
        share_0 = np.array([(a - b) % MODULUS for a, b in zip(secret, share_1, strict=True)], "<u8").tobytes()
        if binding.commit(0, bytes(32), share_0) == sent[1].other:
            return label
    return None


def test_without_a_blind_helper_1_finds_the_label_by_trying_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    randomness = seeded(9)
    sent = [
        send(TWO, secret_elements(TWO, [one_hot(2, label)], [], randomness), randomness)
        for label in (0, 1, 2)
    ]
    assert [guessed_label(one) for one in sent] == [None, None, None]
    monkeypatch.setattr(proving, "BLIND_BYTES", 0)
    commit = Binding.commit
    monkeypatch.setattr(
        Binding,
        "commit",
        lambda binding, role, blind, share: commit(binding, role, blind.ljust(32, b"\0"), share),
    )
    sent = [send_unblinded(label, randomness) for label in (0, 1, 2)]
    assert [guessed_label(one) for one in sent] == [0, 1, 2]


def send_unblinded(label: int, randomness: Randomness) -> Sent:
    """A report whose commitments have no blind, as a mutant of the browser would make it."""
    binding = Binding(task_id=TASK_ID, report_id=randomness(16), view=b"\2" + randomness(40))
    proof = prove(TWO, binding, secret_elements(TWO, [one_hot(2, label)], [], randomness), randomness)
    part = malicious.Part(
        report_id=binding.report_id,
        view=binding.view,
        openings=proof.openings.tolist(),
        other=proof.commitments[0],
        blind=bytes(32),
        share=proof.share_1,
    )
    return part, part


def test_two_points_are_too_few_against_a_browser_that_tries_challenges() -> None:
    e, hashes = 4 * proof_shape(1024, None).vectors[0] / 2**64, 2.0**90
    assert hashes * e**POINTS < 2**-60
    assert hashes * e ** (POINTS - 1) > 2**-60


def test_shares_of_one_report_under_two_seeds_have_nothing_in_common() -> None:
    """A seed is drawn once for each sealing: helper 1 would read the difference of two secrets off its shares
    otherwise."""
    elements = secret_elements(TWO, [[1, 0]], [], seeded(1))
    first, second = (send(TWO, elements, seeded(seed)) for seed in (10, 11))
    assert first[0].share != second[0].share
    share_0 = expand_share(first[0].share, TASK_ID, first[0].report_id, 0, TWO.num_elements)
    assert (add(share_0, np.frombuffer(first[1].share, "<u8").astype(np.uint64)) == elements).all()
