"""Reports of browsers that lie, kind by kind, and what the helpers' tags make of them. For tests, benches and
the audit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskedlark.numbers.field import MODULUS, FieldVector, random_vector, subtract, to_bytes
from maskedlark.randomness import Randomness, below
from maskedlark.reports.proofs.check import Residues, gather_evidence, residues
from maskedlark.reports.proofs.proven_report import read_proofs
from maskedlark.reports.proofs.proving import Binding, challenge
from maskedlark.reports.proofs.shape import POINTS, ProofShape
from maskedlark.reports.share_seed import expand_share
from tests.one_proof import challenge_points, prove, secret_elements

TASK_ID = b"t" * 32
HALF = pow(2, -1, MODULUS)


@dataclass(slots=True, kw_only=True)
class Part:
    """What one helper opens of a report, in pieces that a test can change."""

    report_id: bytes
    view: bytes
    openings: list[int]
    other: bytes
    blind: bytes
    share: bytes

    def tail(self) -> bytes:
        return np.array(self.openings, "<u8").tobytes() + self.other + self.blind + self.share


Sent = tuple[Part, Part]


def send(shape: ProofShape, elements: FieldVector, randomness: Randomness) -> Sent:
    """A report of any secret elements, committed to and opened as they are."""
    binding = Binding(task_id=TASK_ID, report_id=randomness(16), view=b"\2" + randomness(40))
    proof = prove(shape, binding, elements, randomness)
    first, second = (
        Part(
            report_id=binding.report_id,
            view=binding.view,
            openings=proof.openings.tolist(),
            other=proof.commitments[1 - role],
            blind=proof.blinds[role],
            share=proof.seed if role == 0 else proof.share_1,
        )
        for role in (0, 1)
    )
    assert binding.view + second.tail() == proof.encode(binding, 1)
    return first, second


def evidence(
    shape: ProofShape, role: int, parts: Sequence[Part], residues_of: Residues
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """What one helper's tags cover beside the views, and which rows it would admit."""
    tails = np.frombuffer(b"".join(part.tail() for part in parts), np.uint8).reshape(len(parts), -1)
    table, is_canonical = read_proofs(shape, TASK_ID, [part.report_id for part in parts], role, tails)
    bindings = [Binding(task_id=TASK_ID, report_id=part.report_id, view=part.view) for part in parts]
    return gather_evidence(shape, role, bindings, table, residues_of), is_canonical


def is_accepted(shape: ProofShape, sent: Sequence[Sent], residues_of: Residues = residues) -> list[bool]:
    """Whether both helpers admit each report with equal tags: over its id, the view and the evidence."""
    told = []
    for role in (0, 1):
        parts = [one[role] for one in sent]
        rows, is_canonical = evidence(shape, role, parts, residues_of)
        covered = [part.report_id + part.view + row.tobytes() for part, row in zip(parts, rows, strict=True)]
        told.append(
            [row if admitted else None for row, admitted in zip(covered, is_canonical.tolist(), strict=True)]
        )
    return [first is not None and first == second for first, second in zip(*told, strict=True)]


def whole(shape: ProofShape, sent: Sent) -> FieldVector:
    """The secret elements that a report's shares add to."""
    share_0 = expand_share(sent[0].share, TASK_ID, sent[0].report_id, 0, shape.num_elements)
    return np.array(
        [
            (a + b) % MODULUS
            for a, b in zip(share_0.tolist(), np.frombuffer(sent[1].share, "<u8").tolist(), strict=True)
        ],
        np.uint64,
    )


def honest_parts(shape: ProofShape, randomness: Randomness) -> tuple[list[list[int]], list[int]]:
    """Vectors and bits of an honest report; one in C + 1 is fake. Values are random or at an end of their
    range."""
    candidates, *histograms = shape.vectors
    real = int(below(candidates + 1, 1, randomness)[0])
    is_real = real < candidates
    vectors = [one_hot(candidates, real)]
    vectors += [
        one_hot(buckets, int(below(buckets, 1, randomness)[0]) if is_real else buckets)
        for buckets in histograms
    ]
    values = []
    for low, weights in zip(shape.lows, shape.weights, strict=True):
        pick = int(below(4, 1, randomness)[0])
        values.append(
            (low, low + sum(weights), low + int(below(sum(weights) + 1, 1, randomness)[0]))[min(pick, 2)]
        )
    return vectors, shape.bits_of(values) if is_real else [0] * sum(shape.polynomials)


def honest(shape: ProofShape, randomness: Randomness) -> Sent:
    """A report of an honest browser."""
    return send(shape, secret_elements(shape, *honest_parts(shape, randomness), randomness), randomness)


def one_hot(length: int, place: int) -> list[int]:
    """A one at a place; zeros only if the place is beyond the end."""
    return [int(index == place) for index in range(length)]


def malformed(shape: ProofShape, randomness: Randomness) -> Iterator[tuple[str, Sent]]:
    """One report of each kind that no honest browser sends."""
    yield from _wrong_masks(shape, randomness)
    yield from _wrong_elements(shape, randomness)
    yield from _tampered(shape, randomness)
    yield from _fitted(shape, randomness)
    if shape.polynomials:
        yield from _wrong_values(shape, randomness)
    if len(shape.vectors) > 1:
        yield from _wrong_histograms(shape, randomness)


def _wrong_masks(shape: ProofShape, randomness: Randomness) -> Iterator[tuple[str, Sent]]:
    length = shape.vectors[0]
    first = int(below(length, 1, randomness)[0])
    second = (first + 1 + int(below(length - 1, 1, randomness)[0])) % length
    random = random_vector(length, randomness).tolist()

    def mask(one: int, other: int = 0) -> list[int]:
        return [one if place == first else other if place == second else 0 for place in range(length)]

    kinds = {
        "weight 2": mask(2),
        "weight -1": mask(-1),
        "weight 1000": mask(1000),
        "two ones": mask(1, 1),
        "half and half": mask(HALF, HALF),
        "2 and -1, which add to 1": mask(2, -1),
        "1 and -1, which add to 0": mask(1, -1),
        "a random weight": mask(random[0] | 2),
        "all weights random": [weight | 2 for weight in random],
    }
    for name, wrong in kinds.items():
        (_, *histograms), bits = honest_parts(shape, randomness)
        yield name, send(shape, secret_elements(shape, [wrong, *histograms], bits, randomness), randomness)


def _wrong_elements(shape: ProofShape, randomness: Randomness) -> Iterator[tuple[str, Sent]]:
    """Proof elements that do not belong to an honest mask."""
    for name, place in (
        ("rho off by one", shape.places.rho.start),
        ("q off by one", shape.places.square.start),
    ):
        yield name, _bumped(shape, place, randomness)
    elements = secret_elements(shape, *honest_parts(shape, randomness), randomness)
    elements[shape.places.square] = random_vector(POINTS * len(shape.vectors), randomness)
    yield "q random", send(shape, elements, randomness)


def _bumped(shape: ProofShape, place: int, randomness: Randomness) -> Sent:
    elements = secret_elements(shape, *honest_parts(shape, randomness), randomness)
    elements[place] = (int(elements[place]) + 1) % MODULUS
    return send(shape, elements, randomness)


def _tampered(shape: ProofShape, randomness: Randomness) -> Iterator[tuple[str, Sent]]:
    """Reports that were honest before something was changed in what the helpers open."""
    other = honest(shape, randomness)

    def share_off_by_one(sent: Sent) -> None:
        elements = np.frombuffer(sent[1].share, "<u8").copy()
        elements[0] = (int(elements[0]) + 1) % MODULUS
        sent[1].share = elements.tobytes()

    def opening_off_by_one(*roles: int) -> Callable[[Sent], None]:
        def change(sent: Sent) -> None:
            for role in roles:
                sent[role].openings[-1] = (sent[role].openings[-1] + 1) % MODULUS

        return change

    def set_to(name: str, value: object, *roles: int) -> Callable[[Sent], None]:
        def change(sent: Sent) -> None:
            for role in roles:
                setattr(sent[role], name, value)

        return change

    def not_canonical_opening(sent: Sent) -> None:
        for role in (0, 1):
            sent[role].openings[0] = 2**64 - 1

    def not_canonical_share(sent: Sent) -> None:
        sent[1].share = b"\xff" * 8 + sent[1].share[8:]

    def shared_anew(sent: Sent) -> None:
        elements = whole(shape, sent)
        sent[0].share = randomness(32)
        share_0 = expand_share(sent[0].share, TASK_ID, sent[0].report_id, 0, shape.num_elements)
        sent[1].share = to_bytes(subtract(elements, share_0))

    changes: dict[str, Callable[[Sent], None]] = {
        "share 1 off by one": share_off_by_one,
        "another seed": set_to("share", randomness(32), 0),
        "opening off by one at both": opening_off_by_one(0, 1),
        "opening off by one at role 0": opening_off_by_one(0),
        "opening off by one at role 1": opening_off_by_one(1),
        "opening above p": not_canonical_opening,
        "share above p": not_canonical_share,
        "share 1 of another report": set_to("share", other[1].share, 1),
        "share 0 of another report": set_to("share", other[0].share, 0),
        "another report id": set_to("report_id", randomness(16), 0, 1),
        "another view at both": set_to("view", b"\2" + randomness(40), 0, 1),
        "another view at one": set_to("view", b"\2" + randomness(40), 1),
        "another commitment told to role 0": set_to("other", randomness(32), 0),
        "another commitment told to role 1": set_to("other", randomness(32), 1),
        "another blind": set_to("blind", randomness(32), 0),
        "shared anew, with the same sum": shared_anew,
        "share of random bytes": lambda sent: setattr(
            sent[1], "share", to_bytes(random_vector(shape.num_elements, randomness))
        ),
    }
    for name, change in changes.items():
        sent = honest(shape, randomness)
        change(sent)
        yield name, sent


def _fitted(shape: ProofShape, randomness: Randomness) -> Iterator[tuple[str, Sent]]:
    """Reports that would be accepted if one thing were done otherwise."""
    yield "weight 2, q fitted to powers from 0", weight_two_fitted_to_powers_from_0(shape, randomness)
    yield "weight 2, openings told apart", weight_two_with_openings_told_apart(shape, randomness)
    yield "weight 3, all fitted after the points", fitted_after_the_points(shape, randomness)


def _weight_two(shape: ProofShape, randomness: Randomness) -> FieldVector:
    """Elements of a report of weight 2 that is honest otherwise: the values of a fake one."""
    vectors = [[0] * length for length in shape.vectors]
    vectors[0][0] = 2
    return secret_elements(shape, vectors, [0] * sum(shape.polynomials), randomness)


def weight_two_fitted_to_powers_from_0(shape: ProofShape, randomness: Randomness) -> Sent:
    """Its q is off by the constant by which 2^2 differs from 2: no proof if powers begin at 1."""
    elements = _weight_two(shape, randomness)
    for place in range(shape.places.square.start, shape.places.square.start + POINTS):
        elements[place] = (int(elements[place]) - 2) % MODULUS
    return send(shape, elements, randomness)


def weight_two_with_openings_told_apart(shape: ProofShape, randomness: Randomness) -> Sent:
    """Helper 1 is told another A, such that the second residue fits there: 2 A rho_1 + X_1(t^2) - q_1 = A_0^2
    - ..."""
    elements = _weight_two(shape, randomness)
    sent = send(shape, elements, randomness)
    share_1 = np.frombuffer(sent[1].share, "<u8").tolist()
    points = _points_of(sent)
    for j, t in enumerate(points):
        missing = (2 * t * t - (2 * t) ** 2) % MODULUS  # X(t^2) - X(t)^2, by which the residues differ
        rho_1 = share_1[shape.places.rho.start + j]
        sent[1].openings[j] = (sent[1].openings[j] - missing * pow(2 * rho_1, -1, MODULUS)) % MODULUS
    return sent


def fitted_after_the_points(shape: ProofShape, randomness: Randomness) -> Sent:
    """Its mask, openings and q fit the points of the commitments that it tells; it cannot have committed to
    them."""
    sent = honest(shape, randomness)
    elements, points = whole(shape, sent).tolist(), _points_of(sent)
    mask, rho, square = shape.places.vectors[0], shape.places.rho.start, shape.places.square.start
    elements[mask] = [3] + [0] * (shape.vectors[0] - 1)
    for j, t in enumerate(points):
        opened = (3 * t + elements[rho + j]) % MODULUS
        sent[0].openings[j] = sent[1].openings[j] = opened
        elements[square + j] = (3 * t * t + 2 * opened * elements[rho + j] - opened * opened) % MODULUS
    share_0 = expand_share(sent[0].share, TASK_ID, sent[0].report_id, 0, shape.num_elements)
    sent[1].share = to_bytes(subtract(np.array(elements, np.uint64), share_0))
    return sent


def told_commitments(sent: Sent) -> tuple[bytes, bytes]:
    """What each helper is told that the other one would compute, by the role it is of."""
    return sent[1].other, sent[0].other


def _points_of(sent: Sent) -> list[int]:
    return challenge_points(challenge(*told_commitments(sent)))


def recommitted(shape: ProofShape, sent: Sent) -> bytes:
    """Helper 1's commitment, of what it holds: for tests that look at commitments."""
    binding = Binding(task_id=TASK_ID, report_id=sent[1].report_id, view=sent[1].view)
    return binding.commit(1, sent[1].blind, sent[1].share)


def _wrong_values(shape: ProofShape, randomness: Randomness) -> Iterator[tuple[str, Sent]]:
    """Real reports with one bit that is none, and bits that a fake report may not have."""
    bits = shape.places.bits
    random = int(random_vector(1, randomness)[0]) | 2
    for name, bit in (
        ("a bit of 2", 2),
        ("a bit of -1", -1),
        ("a bit of 1000", 1000),
        ("a bit of one half", HALF),
        ("a random bit", random),
    ):
        place = int(below(bits.stop - bits.start, 1, randomness)[0])
        vectors, held = _real(shape, randomness)
        held[place] = bit
        yield name, send(shape, secret_elements(shape, vectors, held, randomness), randomness)
    fake = [[0] * length for length in shape.vectors]
    for name, held in (
        ("a bit in a fake report", one_hot(sum(shape.polynomials), 0)),
        ("all bits in a fake report", [1] * sum(shape.polynomials)),
    ):
        yield name, send(shape, secret_elements(shape, fake, held, randomness), randomness)
    for name, place in (
        ("phi off by one", shape.places.phi[0].start),
        ("H off by one", shape.places.quotient[-1].start),
    ):
        yield name, _bumped(shape, place, randomness)


def _wrong_histograms(shape: ProofShape, randomness: Randomness) -> Iterator[tuple[str, Sent]]:
    buckets = shape.vectors[1]
    for name, histogram in (
        ("no bucket in a real report", [0] * buckets),
        ("two buckets", [1, 1] + [0] * (buckets - 2)),
        ("a bucket of 2", [2] + [0] * (buckets - 1)),
        ("buckets 2 and -1", [2, -1] + [0] * (buckets - 2)),
    ):
        vectors, bits = _real(shape, randomness)
        vectors[1] = histogram
        yield name, send(shape, secret_elements(shape, vectors, bits, randomness), randomness)
    fake = [[0] * length for length in shape.vectors]
    fake[1][0] = 1
    yield (
        "a bucket in a fake report",
        send(shape, secret_elements(shape, fake, [0] * sum(shape.polynomials), randomness), randomness),
    )


def _real(shape: ProofShape, randomness: Randomness) -> tuple[list[list[int]], list[int]]:
    """Parts of an honest report that is not fake."""
    while True:
        vectors, bits = honest_parts(shape, randomness)
        if sum(vectors[0]):
            return vectors, bits
