"""The browser's half of a proof: share a secret, commit to both shares, open it blinded at hashed points.

    elements = secret_elements(shape, vectors, bits, randomness)
    proof = prove(shape, binding, elements, randomness)

The browser derives the challenge itself, from commitments to both shares, and opens what two verifiers would
have opened to each other. What is left for a helper is linear in its own share (`check`), so the
helpers need not talk. The whole argument is in docs/explanation/proofs.md.

Source: a silently verifiable proof, after Rathee, Zhang, Corrigan-Gibbs, Popa: "Whisper" (IEEE S&P 2024),
over the one-hot sketch of Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai (IEEE S&P 2021) and the fully linear
proofs of the same authors (CRYPTO 2019).
"""

from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np

from maskedlark.canonical import digest
from maskedlark.frozen import frozen
from maskedlark.numbers.field import MODULUS, FieldVector, random_vector, subtract, to_bytes
from maskedlark.randomness import Randomness
from maskedlark.reports.proofs.polynomials import evaluate, extended, range_tables
from maskedlark.reports.proofs.shape import BLIND_BYTES, POINTS, ProofShape
from maskedlark.reports.share_seed import SEED_BYTES, expand_share


class Binding(NamedTuple):
    """What a proof belongs to; one is made for every report that a helper opens.

    Attributes:
        task_id: 32 bytes.
        report_id: 16 bytes.
        view: What both helpers read alike: version, nonce, features, labels, keys.
    """

    task_id: bytes
    report_id: bytes
    view: bytes

    def __repr__(self) -> str:
        """Without the view, which holds features."""
        return f"Binding(task_id={self.task_id!r}, report_id={self.report_id!r})"


@frozen
class Proof:
    """What a report holds behind its view.

    Attributes:
        openings: Read by both helpers: for each vector its three values, then for each polynomial.
        commitments: By role; a helper reads the other one's and computes its own.
        blinds: By role; a helper reads its own.
        seed: Role 0's share.
        share_1: Role 1's share.
    """

    openings: tuple[int, ...] = field(repr=False)
    commitments: tuple[bytes, bytes]
    blinds: tuple[bytes, bytes] = field(repr=False)
    seed: bytes = field(repr=False)
    share_1: FieldVector = field(repr=False)


def secret_elements(
    shape: ProofShape, vectors: Sequence[Sequence[int]], bits: Sequence[int], randomness: Randomness
) -> FieldVector:
    """All elements that the helpers share: vectors, bits, rho, rho squared; phi and quotients.

    Blinds are fresh for each vector, each polynomial and each point. Nothing is checked: what does not hold
    is proven as well as it can be, and the helpers find it.
    """
    count = sum(vectors[0]) % MODULUS
    rho = random_vector(POINTS * len(shape.vectors), randomness).tolist()
    elements = [entry for vector in vectors for entry in vector] + [*bits, *rho, *(one * one for one in rho)]
    start = 0
    for num_bits in shape.polynomials:
        phi = random_vector(POINTS, randomness).tolist()
        values = _values_of_f(bits[start : start + num_bits], count, phi)
        elements += phi + _quotient(num_bits, values, count)
        start += num_bits
    return np.array([element % MODULUS for element in elements], np.uint64)


def prove(shape: ProofShape, binding: Binding, elements: FieldVector, randomness: Randomness) -> Proof:
    """Share the elements, commit to both shares, and open. Called by the browser, with fresh randomness.

    Draws the seed of share 0, then a blind of role 0 and one of role 1; again both if points repeat or lie at
    a bit.
    """
    seed = randomness(SEED_BYTES)
    share_0 = expand_share(seed, binding.task_id, binding.report_id, 0, shape.num_elements)
    shares = share_0, subtract(elements, share_0)
    while True:
        blinds = randomness(BLIND_BYTES), randomness(BLIND_BYTES)
        first, second = (commit(binding, role, blinds[role], to_bytes(shares[role])) for role in (0, 1))
        points = challenge_points(challenge(first, second))
        if is_usable(points, shape):
            break
    openings = open_at(shape, elements, points)
    return Proof(openings=openings, commitments=(first, second), blinds=blinds, seed=seed, share_1=shares[1])


def open_at(shape: ProofShape, elements: FieldVector, points: Sequence[int]) -> tuple[int, ...]:
    """At each point t: for each vector the sum of x_c t^c, c from 1, plus rho; for each polynomial f(t)."""
    places, known = shape.places, elements.tolist()
    rho = known[places.rho]
    openings = []
    for index, place in enumerate(places.vectors):
        blinds = rho[POINTS * index : POINTS * (index + 1)]
        openings += [
            (_power_sum(known[place], t) + blind) % MODULUS for t, blind in zip(points, blinds, strict=True)
        ]
    count = sum(known[places.vectors[0]]) % MODULUS
    for bits, phi in zip(places.polynomial_bits, places.phi, strict=True):
        values = _values_of_f(known[bits], count, known[phi])
        weights = range_tables(bits.stop - bits.start).weights_f.tolist()
        openings += [evaluate(values, 1, weights, t) for t in points]
    return tuple(openings)


def commit(binding: Binding, role: int, blind: bytes, share: bytes) -> bytes:
    """Bind one role's share to the report, and hide it. Called by the browser and that role's helper.

    Without the blind a helper could try every mask: its own share and the openings fix the rest of the other
    share.
    """
    return digest("proof part", binding.task_id, binding.report_id, bytes([role]), blind, binding.view, share)


def challenge(commitment_0: bytes, commitment_1: bytes) -> bytes:
    """The 32 bytes that both commitments fix. Called by the browser and by both helpers."""
    return digest("proof points", commitment_0, commitment_1)


def challenge_points(seed: bytes) -> list[int]:
    """The challenge's first three little-endian words, mod p. A residue has probability at most 2 / 2^64."""
    return [int.from_bytes(seed[at : at + 8], "little") % MODULUS for at in range(0, 8 * POINTS, 8)]


def is_usable(points: Sequence[int], shape: ProofShape) -> bool:
    """Whether openings at these points hide everything: they differ, and none is the node of a bit."""
    return len(set(points)) == POINTS and not any(1 <= point <= shape.max_polynomial_bits for point in points)


def _values_of_f(bits: Sequence[int], count: int, phi: Sequence[int]) -> list[int]:
    """The values of f at 1..m+3: 2 b - n, then the blinds."""
    return [(2 * bit - count) % MODULUS for bit in bits] + list(phi)


def _quotient(num_bits: int, values: list[int], count: int) -> list[int]:
    """H = (f^2 - n) / Z at m+1..2m+5."""
    tables = range_tables(num_bits)
    from_blinds = values[num_bits:] + extended(tables, values)
    return [
        (at * at - count) * inverse % MODULUS
        for at, inverse in zip(from_blinds, tables.inverse_z, strict=True)
    ]


def _power_sum(vector: Sequence[int], point: int) -> int:
    """The sum of vector[c - 1] point^c. With powers from 0, a wrong q could cancel a wrong vector."""
    total = 0
    for entry in reversed(vector):
        total = (total + entry) * point % MODULUS
    return total
