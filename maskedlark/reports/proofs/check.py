"""One helper's half of a proof check: the evidence that it computes from its share, and that its tag covers.

All functions take n reports at once.

    evidence = gather_evidence(shape, role, bindings, table)     # u8 (n, width), covered by the view tags

Each relation of a proof is linear in the shares once the openings are known. Role 1 takes its side of each
relation as a *residue*; role 0 takes what the two sides must add to, less its own side. The residues of an
honest report are equal at both roles. Each helper computes them alone, so they reveal nothing to it. The ad
server compares the tags that cover them.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen
from maskedlark.numbers.field import FieldVector, add, multiply, negate, subtract, total
from maskedlark.reports.proofs.polynomials import interpolate, range_tables, steps_to
from maskedlark.reports.proofs.proving import (
    Binding,
    challenge,
    challenge_points,
    challenge_words,
    rows_of,
    values_of_f,
)
from maskedlark.reports.proofs.shape import POINTS, ProofShape


@frozen
class ProofTable:
    """What one helper read of n proofs, one row each; all elements are canonical.

    Shapes: openings uint64 (n, num_openings); others and blinds u8 (n, 32); elements
    uint64 (n, num_elements).

    Attributes:
        openings: Read by both helpers.
        others: The other helper's commitments, as the browser tells them.
        blinds: Of this helper's commitments.
        elements: This helper's share.
    """

    openings: FieldVector = field(repr=False)
    others: NDArray[np.uint8]
    blinds: NDArray[np.uint8] = field(repr=False)
    elements: FieldVector = field(repr=False)

    def rows(self, chosen: NDArray[np.intp]) -> "ProofTable":
        """Return these rows."""
        return ProofTable(
            openings=self.openings[chosen],
            others=self.others[chosen],
            blinds=self.blinds[chosen],
            elements=self.elements[chosen],
        )


Residues: TypeAlias = Callable[[ProofShape, int, ProofTable, FieldVector], FieldVector]
"""Computes the residues of n reports: see `residues`. A helper may bring a compiled one."""


def gather_evidence(
    shape: ProofShape, role: int, bindings: Sequence[Binding], table: ProofTable, residues_of: Residues
) -> NDArray[np.uint8]:
    """Return what a helper's tags cover besides the views: challenge, openings, residues. u8 (n, width).

    A helper computes its own commitment from what it holds, so a challenge is equal at both helpers only if
    each holds the share that the browser committed to.
    """
    told = (rows_of(part) for part in (table.blinds, table.others, table.elements.astype("<u8", copy=False)))
    drawn = challenge_words(
        [
            _challenge(role, binding.commit(role, blind, share), other)
            for binding, blind, other, share in zip(bindings, *told, strict=True)
        ]
    )
    found = residues_of(shape, role, table, challenge_points(drawn))
    return np.ascontiguousarray(_concatenate_covered(drawn, table.openings, found), "<u8").view(np.uint8)


def residues(shape: ProofShape, role: int, table: ProofTable, points: FieldVector) -> FieldVector:
    """Return u64 (n, residues), equal at both helpers if and, but for chance, only if proofs hold.

    Order: for each vector and point, the opening's relation and its square's; for each histogram, that it
    adds to the count; for each polynomial and point, the opening's relation and its square's.
    """
    places, elements = shape.places, table.elements
    columns: list[FieldVector] = []
    for index, place in enumerate(places.vectors):
        opened = table.openings[:, POINTS * index : POINTS * (index + 1)]
        rho, square = (
            elements[:, part][:, POINTS * index : POINTS * (index + 1)]
            for part in (places.rho, places.square)
        )
        first = add(_power_sums(elements[:, place], points), rho)
        # s(t^2) = s(t)^2 holds at every t for zeros and for a single 1 only. With the opened F = s + rho it
        # is linear in the shares: F^2 = s(t^2) + 2 F rho - rho^2.
        second = _power_sums(elements[:, place], multiply(points, points))
        second = subtract(add(second, multiply(add(opened, opened), rho)), square)
        columns += _pairs(role, opened, first, second)
    # The mask adds to 1 in a real report and to 0 in a fake one, and each histogram must do the same.
    count = total(elements[:, places.vectors[0]], axis=1)
    for place in places.vectors[1:]:
        rest = subtract(total(elements[:, place], axis=1), count)
        columns.append(rest if role == 1 else negate(rest))
    for index in range(len(shape.polynomials)):
        start = POINTS * (len(shape.vectors) + index)
        opened = table.openings[:, start : start + POINTS]
        columns += _pairs(role, opened, *_range_sides(shape, index, elements, count, points))
    return np.stack(columns, axis=1)


def _concatenate_covered(challenges: FieldVector, openings: FieldVector, found: FieldVector) -> FieldVector:
    """Return all that must be equal, openings too: else a browser could send the helpers different ones."""
    return np.concatenate([challenges, openings, found], axis=1)


def _challenge(role: int, own: bytes, other: bytes) -> bytes:
    return challenge(own, other) if role == 0 else challenge(other, own)


def _pairs(role: int, opened: FieldVector, first: FieldVector, second: FieldVector) -> list[FieldVector]:
    """Return each point's two residues of an opening: the sides add to the opening, and to its square."""
    if role == 0:
        first, second = subtract(opened, first), subtract(multiply(opened, opened), second)
    return [side[:, point] for point in range(POINTS) for side in (first, second)]


def _power_sums(vectors: FieldVector, points: FieldVector) -> FieldVector:
    """Sum of vectors[:, c - 1] points^c, c from 1: (n, length) and (n, k) to (n, k)."""
    sums = np.zeros_like(points)
    for column in range(vectors.shape[1] - 1, -1, -1):
        sums = multiply(add(sums, vectors[:, column : column + 1]), points)
    return sums


def _range_sides(
    shape: ProofShape, index: int, elements: FieldVector, count: FieldVector, points: FieldVector
) -> tuple[FieldVector, FieldVector]:
    """Return a helper's sides of f(t) = F and n + Z(t) H(t) = F^2: (n, 3) each."""
    m, places = shape.polynomials[index], shape.places
    tables = range_tables(m)
    values, quotient = values_of_f(shape, index, elements, count), elements[:, places.quotient[index]]
    steps = steps_to(points, 2 * m + POINTS + 2)
    z = np.ones_like(points)
    for step in steps[:m]:
        z = multiply(z, step)
    f = interpolate(multiply(values, tables.weights_f[None, :]), steps[: m + POINTS])
    h = interpolate(multiply(quotient, tables.weights_h[None, :]), steps[m:])
    return f, add(count[:, None], multiply(z, h))
