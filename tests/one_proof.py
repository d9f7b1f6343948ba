"""The browser's half of a proof for one report, of any elements: the product proves many at once."""

from collections.abc import Sequence

import numpy as np

from maskedlark.numbers.field import MODULUS, FieldVector
from maskedlark.randomness import Randomness
from maskedlark.reports.proofs import proving
from maskedlark.reports.proofs.proving import Binding, Proof
from maskedlark.reports.proofs.shape import ProofShape


def secret_elements(
    shape: ProofShape, vectors: Sequence[Sequence[int]], bits: Sequence[int], randomness: Randomness
) -> FieldVector:
    """The elements of a report of these vectors and bits, whatever integers they are."""
    joined = [entry for vector in vectors for entry in vector]
    elements: FieldVector = proving.secret_elements(shape, _row(joined), _row(bits), [randomness])[0]
    return elements


def prove(shape: ProofShape, binding: Binding, elements: FieldVector, randomness: Randomness) -> Proof:
    """The proof of one report."""
    [proof] = proving.prove(shape, [binding], elements[None, :], [randomness])
    return proof


def challenge_points(challenge: bytes) -> list[int]:
    """The points of one challenge."""
    points: list[int] = proving.challenge_points(proving.challenge_words([challenge]))[0].tolist()
    return points


def _row(integers: Sequence[int]) -> FieldVector:
    return np.array([[one % MODULUS for one in integers]], np.uint64)
