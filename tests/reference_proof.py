"""Proofs of reports, slow and obvious: Python integers only, any prime. The oracle of
`maskedlark.reports.proof*`.

Written from docs/spec/proofs.md; of the product it imports nothing. The modulus is an argument, so
that small fields can be searched exhaustively. A secret is what one report shares, a list of integers for
each part.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

P = 2**64 - 2**32 + 1
POINTS = 3

Vector = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """What a report shares, or one helper's share of it."""

    vectors: list[Vector]
    bits: list[Vector]  # one list for each polynomial
    rho: list[Vector]  # three for each vector
    square: list[Vector]
    phi: list[Vector]  # three for each polynomial
    quotient: list[Vector]

    def flat(self) -> Vector:
        """In the order in which shares travel."""
        vectors = [*self.vectors, *self.bits, *self.rho, *self.square]
        proofs = [part for pair in zip(self.phi, self.quotient, strict=True) for part in pair]
        return [element for part in [*vectors, *proofs] for element in part]


def prepare(
    vectors: list[Vector], bits: list[Vector], rho: list[Vector], phi: list[Vector], p: int = P
) -> Secret:
    """An honest browser's secret, from its vectors, bits and blinds."""
    n = sum(vectors[0])
    return Secret(
        vectors=vectors,
        bits=bits,
        rho=rho,
        square=[[one * one % p for one in blinds] for blinds in rho],
        phi=phi,
        quotient=[quotient(some, blinds, n, p) for some, blinds in zip(bits, phi, strict=True)],
    )


def like(secret: Secret, flat: Sequence[int]) -> Secret:
    """A flat share, cut into the parts of a secret."""
    rest = list(flat)

    def take(parts: list[Vector]) -> list[Vector]:
        return [[rest.pop(0) for _ in part] for part in parts]

    vectors, bits, rho, square = (
        take(secret.vectors),
        take(secret.bits),
        take(secret.rho),
        take(secret.square),
    )
    phi, quotients = [], []
    for blinds, values in zip(secret.phi, secret.quotient, strict=True):
        phi += take([blinds])
        quotients += take([values])
    assert not rest
    return Secret(vectors=vectors, bits=bits, rho=rho, square=square, phi=phi, quotient=quotients)


def quotient(bits: Vector, phi: Vector, n: int, p: int = P) -> Vector:
    """(f^2 - n) / Z at m + 1 .. 2m + 5, where Z is not zero."""
    m, values = len(bits), f_values(bits, phi, n, p)
    nodes = range(m + 1, 2 * m + 6)
    return [(lagrange(values, 1, x, p) ** 2 - n) * pow(z_at(m, x, p), -1, p) % p for x in nodes]


def f_values(bits: Vector, phi: Vector, n: int, p: int = P) -> Vector:
    """f at 1, 2, ...: 2 b - n at the bits, then the blinds."""
    return [(2 * bit - n) % p for bit in bits] + phi


def z_at(m: int, x: int, p: int = P) -> int:
    """(x - 1) (x - 2) .. (x - m)."""
    product = 1
    for node in range(1, m + 1):
        product = product * (x - node) % p
    return product


def lagrange(values: Vector, first: int, x: int, p: int = P) -> int:
    """The polynomial with these values at first, first + 1, ..., by Lagrange's formula."""
    total = 0
    for i, value in enumerate(values):
        above, below = 1, 1
        for k in range(len(values)):
            if k != i:
                above, below = above * (x - first - k) % p, below * (i - k) % p
        total += value * above * pow(below, -1, p)
    return total % p


def power_sum(vector: Vector, t: int, p: int = P) -> int:
    """vector[0] t + vector[1] t^2 + ..."""
    return sum(entry * pow(t, power, p) for power, entry in enumerate(vector, start=1)) % p


def openings(secret: Secret, points: Sequence[int], p: int = P) -> Vector:
    """What the browser tells both helpers."""
    opened = [
        (power_sum(vector, t, p) + blind) % p
        for vector, blinds in zip(secret.vectors, secret.rho, strict=True)
        for t, blind in zip(points, blinds, strict=True)
    ]
    n = sum(secret.vectors[0])
    for bits, phi in zip(secret.bits, secret.phi, strict=True):
        opened += [lagrange(f_values(bits, phi, n, p), 1, t, p) for t in points]
    return opened


def residues(role: int, share: Secret, opened: Sequence[int], points: Sequence[int], p: int = P) -> Vector:
    """What is equal at both helpers if, and but for chance only if, the proof holds."""
    told, out = list(opened), []
    n = sum(share.vectors[0]) % p

    def side(whole: int, own: int) -> None:
        out.append(own % p if role == 1 else (whole - own) % p)

    for vector, rho, square in zip(share.vectors, share.rho, share.square, strict=True):
        for t, blind, squared in zip(points, rho, square, strict=True):
            a = told.pop(0)
            side(a, power_sum(vector, t, p) + blind)
            side(a * a, power_sum(vector, t * t % p, p) + 2 * a * blind - squared)
    for vector in share.vectors[1:]:
        side(0, sum(vector) - n)
    for bits, phi, values in zip(share.bits, share.phi, share.quotient, strict=True):
        for t in points:
            opening = told.pop(0)
            side(opening, lagrange(f_values(bits, phi, n, p), 1, t, p))
            side(opening * opening, n + z_at(len(bits), t, p) * lagrange(values, len(bits) + 1, t, p))
    return out


def commitment(
    task_id: bytes, report_id: bytes, *, role: int, blind: bytes, view: bytes, share: Sequence[int]
) -> bytes:
    """Of one role's share."""
    return framed_hash("proof part", task_id, report_id, bytes([role]), blind, view, words(share))


def points_of(commitments: Sequence[bytes]) -> tuple[bytes, Vector]:
    """The challenge and its points."""
    seed = framed_hash("proof points", *commitments)
    return seed, [int.from_bytes(seed[8 * i : 8 * i + 8], "little") % P for i in range(POINTS)]


def words(elements: Sequence[int]) -> bytes:
    """Eight little-endian bytes each."""
    return b"".join(element.to_bytes(8, "little") for element in elements)


def framed_hash(purpose: str, *parts: bytes) -> bytes:
    """SHA-256 of a purpose and length-prefixed parts."""
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hashlib.sha256(b"maskedlark/v1 " + purpose.encode() + framed).digest()


def range_weights(low: int, high: int) -> Vector:
    """1, 2, 4, ..., and a last weight such that all add to high - low."""
    weights: Vector = []
    while 2 * sum(weights) + 1 < high - low:
        weights.append(1 << len(weights))
    return [*weights, high - low - sum(weights)]
