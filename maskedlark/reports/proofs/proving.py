"""The browser's half of a proof: share a secret, commit to both shares, open it blinded at hashed points.

    elements = secret_elements(shape, vectors, bits, sources)     # of n reports, each from its own source
    proofs = prove(shape, bindings, elements, sources)

The browser derives the challenge itself, from commitments to both shares, and opens what two verifiers would
have opened to each other. What is left for a helper is linear in its own share (`check`), so the
helpers need not talk. The whole argument is in docs/explanation/proofs.md.

Source: a silently verifiable proof, after Rathee, Zhang, Corrigan-Gibbs, Popa: "Whisper" (IEEE S&P 2024),
over the one-hot sketch of Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai (IEEE S&P 2021) and the fully linear
proofs of the same authors (CRYPTO 2019).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskedlark.canonical import digest
from maskedlark.numbers.field import (
    MODULUS,
    FieldVector,
    add,
    multiply,
    random_rows,
    subtract,
    to_bytes,
    total,
)
from maskedlark.randomness import Randomness
from maskedlark.reports.proofs.polynomials import interpolate, range_tables, steps_to
from maskedlark.reports.proofs.shape import BLIND_BYTES, POINTS, ProofShape
from maskedlark.reports.share_seed import SEED_BYTES, expand_shares


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

    def commit(self, role: int, blind: bytes, share: bytes) -> bytes:
        """Bind one role's share to the report, and hide it. Called by the browser and that role's helper.

        Without the blind a helper could try every mask: its own share and the openings fix the rest of the
        other share.
        """
        return digest("proof part", self.task_id, self.report_id, bytes([role]), blind, self.view, share)

    def __repr__(self) -> str:
        """Represent the binding without the view, which holds features."""
        return f"Binding(task_id={self.task_id!r}, report_id={self.report_id!r})"


class Proof(NamedTuple):
    """What a report holds behind its view.

    Attributes:
        openings: uint64; read by both helpers: for each vector its three values, then for each polynomial.
        commitments: By role; a helper reads the other one's and computes its own.
        blinds: By role; a helper reads its own.
        seed: Role 0's share.
        share_1: Role 1's share.
    """

    openings: FieldVector
    commitments: tuple[bytes, bytes]
    blinds: tuple[bytes, bytes]
    seed: bytes
    share_1: bytes

    def encode(self, binding: Binding, role: int) -> bytes:
        """Encode one role's plaintext: the binding's view, and what stands behind it."""
        share = self.seed if role == 0 else self.share_1
        told = (to_bytes(self.openings), self.commitments[1 - role], self.blinds[role], share)
        return b"".join((binding.view, *told))

    def __repr__(self) -> str:
        """Represent the proof by its commitments alone."""
        return f"Proof(commitments={self.commitments!r})"


def secret_elements(
    shape: ProofShape, vectors: FieldVector, bits: FieldVector, sources: Sequence[Randomness]
) -> FieldVector:
    """Build all elements that the helpers share: vectors, bits, rho, rho squared; phi and quotients.

    Blinds are fresh for each vector, each polynomial and each point. Nothing is checked: what does not hold
    is proven as well as it can be, and the helpers find it.

    Shapes: vectors uint64 (n, all their lengths), bits uint64 (n, all bits); the result uint64
        (n, num_elements).
    """
    places = shape.places
    elements = np.empty((len(sources), shape.num_elements), np.uint64)
    elements[:, : places.bits.start], elements[:, places.bits] = vectors, bits
    for place in (places.rho, *places.phi):
        elements[:, place] = random_rows(place.stop - place.start, sources)
    # Helpers cannot square a shared number: the browser shares its square, and the residues hold it to that.
    elements[:, places.square] = multiply(elements[:, places.rho], elements[:, places.rho])
    count = total(elements[:, places.vectors[0]], axis=1)
    for index, place in enumerate(places.quotient):
        elements[:, place] = _quotient(shape, index, elements, count)
    return elements


def prove(
    shape: ProofShape,
    bindings: Sequence[Binding],
    elements: FieldVector,
    sources: Sequence[Randomness],
) -> list[Proof]:
    """Share the elements of n reports of one task, commit to both shares, and open. Called by the browser.

    Each report draws from its own source: the seed of share 0, then a blind of role 0 and one of role 1;
    again both if points repeat or lie at a bit.
    """
    seeds = [source(SEED_BYTES) for source in sources]
    report_ids = [binding.report_id for binding in bindings]
    share_0 = expand_shares(seeds, bindings[0].task_id, report_ids, 0, shape.num_elements)
    shares = list(zip(rows_of(share_0), rows_of(subtract(elements, share_0)), strict=True))
    blinds, commitments = ([(b"", b"")] * len(seeds) for _ in range(2))
    points, open_rows = np.zeros((len(seeds), POINTS), np.uint64), np.arange(len(seeds))
    while len(open_rows):
        for row in open_rows.tolist():
            first, second = blinds[row] = sources[row](BLIND_BYTES), sources[row](BLIND_BYTES)
            commitments[row] = (
                bindings[row].commit(0, first, shares[row][0]),
                bindings[row].commit(1, second, shares[row][1]),
            )
        drawn = challenge_words([challenge(*commitments[row]) for row in open_rows.tolist()])
        # Almost never a second time: a point is one of 2^64, and at most 64 of them are bits' nodes.
        points[open_rows] = challenge_points(drawn)
        open_rows = open_rows[~_are_usable(points[open_rows], shape)]
    openings = _open_at(shape, elements, points)
    return [
        Proof(opened, committed, blind, seed, share_1)
        for opened, committed, blind, seed, (_, share_1) in zip(
            openings, commitments, blinds, seeds, shares, strict=True
        )
    ]


def _open_at(shape: ProofShape, elements: FieldVector, points: FieldVector) -> FieldVector:
    """Open at each point t: for each vector the sum of x_c t^c, c from 1, plus rho; each polynomial's f(t).

    Shapes: elements uint64 (n, num_elements), points (n, 3); the result (n, num_openings).
    """
    openings = [
        np.array(
            [_open(shape, *row) for row in zip(elements.tolist(), points.tolist(), strict=True)], np.uint64
        )
    ]
    count = total(elements[:, shape.places.vectors[0]], axis=1)
    for index, num_bits in enumerate(shape.polynomials):
        weighted = multiply(values_of_f(shape, index, elements, count), range_tables(num_bits).weights_f)
        openings.append(interpolate(weighted, steps_to(points, num_bits + POINTS)))
    return np.concatenate(openings, axis=1)


def _open(shape: ProofShape, known: Sequence[int], points: Sequence[int]) -> list[int]:
    """Open one report's vectors in Python's integers, which are faster where a vector is short."""
    rho = known[shape.places.rho]
    return [
        (_power_sum(known[place], t) + blind) % MODULUS
        for index, place in enumerate(shape.places.vectors)
        for t, blind in zip(points, rho[POINTS * index : POINTS * (index + 1)], strict=True)
    ]


def _power_sum(vector: Sequence[int], point: int) -> int:
    """Sum vector[c - 1] point^c. With powers from 0, a wrong q could cancel a wrong vector."""
    total = 0
    for entry in reversed(vector):
        total = (total + entry) * point % MODULUS
    return total


def challenge(commitment_0: bytes, commitment_1: bytes) -> bytes:
    """Return the 32 bytes that both commitments fix. Called by the browser and by both helpers."""
    return digest("proof points", commitment_0, commitment_1)


def challenge_words(challenges: Sequence[bytes]) -> FieldVector:
    """Return the little-endian words of n challenges: uint64 (n, 4), any of 64 bits."""
    return np.frombuffer(b"".join(challenges), "<u8").astype(np.uint64).reshape(len(challenges), -1)


def challenge_points(words: FieldVector) -> FieldVector:
    """Reduce the first three words of each challenge mod p: (n, 3). A residue has at most 2 / 2^64."""
    first = words[:, :POINTS]
    return np.where(first >= np.uint64(MODULUS), first - np.uint64(MODULUS), first)


def _are_usable(points: FieldVector, shape: ProofShape) -> NDArray[np.bool_]:
    """Return whether each row's points hide everything: they differ, and none is a bit's node."""
    ordered = np.sort(points, axis=1)
    # At a bit's node f is 2 b - n, in clear. At the nodes beyond it is a random blind, which may be shown.
    is_free = (points < np.uint64(1)) | (points > np.uint64(shape.max_polynomial_bits))
    return np.asarray((ordered[:, 1:] != ordered[:, :-1]).all(axis=1) & is_free.all(axis=1), np.bool_)


def rows_of(table: NDArray[Any]) -> list[bytes]:
    """Return the bytes of each row, integers little-endian."""
    encoded = table.astype(table.dtype.newbyteorder("<"), copy=False).tobytes()
    width = table.itemsize * table.shape[1]
    return [encoded[start : start + width] for start in range(0, len(encoded), width)]


def values_of_f(shape: ProofShape, index: int, elements: FieldVector, count: FieldVector) -> FieldVector:
    """Return the values of f at 1..m+3: 2 b - n, then the blinds: (n, m + 3)."""
    bits, phi = (elements[:, part[index]] for part in (shape.places.polynomial_bits, shape.places.phi))
    return np.concatenate([subtract(add(bits, bits), count[:, None]), phi], axis=1)


def _quotient(shape: ProofShape, index: int, elements: FieldVector, count: FieldVector) -> FieldVector:
    """Return H = (f^2 - n) / Z at m+1..2m+5: (n, m + 5)."""
    num_bits = shape.polynomials[index]
    tables, values = range_tables(num_bits), values_of_f(shape, index, elements, count)
    # At the bits' nodes Z is 0 and H is no quotient of numbers: it is given at the nodes behind them.
    from_blinds = np.concatenate([values[:, num_bits:], tables.extend(values)], axis=1)
    return multiply(subtract(multiply(from_blinds, from_blinds), count[:, None]), tables.inverse_z)
