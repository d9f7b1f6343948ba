"""What a task's reports prove, and where each field element of a proof stands.

It is equal for the browser and both helpers.

    shape = proof_shape(task.num_candidates, task.measurement)
    shape.num_elements, shape.num_openings              # of one report
    shape.bits_of(values)                               # the browser: measured values as bits

A report proves that its mask, and each of its histograms, is a *vector* that is all zeros or has a single 1,
and that its values lie in their ranges. A value in low..high is replaced by bits: v = n low + w_1 b_1 + w_2
b_2 + ..., where n is the report's count (1, or 0 in a fake report) and the weights w are 1, 2, 4, ..., the
last one such that all weights add to high - low. So bits cannot spell a value outside the range, and all
zeros with n = 0 spell 0.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from maskedlark.frozen import frozen
from maskedlark.numbers.field import ELEMENT_BYTES
from maskedlark.reports.measurement import Measurement
from maskedlark.reports.share_seed import SEED_BYTES

POINTS: Final = 3
"""Challenge points of a report. A browser can try challenges offline, so two of 64 bits are too few."""
MAX_POLYNOMIAL_BITS: Final = 64
"""Values share a polynomial up to this many bits: the work grows with the square of its bits."""
COMMITMENT_BYTES: Final = 32
BLIND_BYTES: Final = 32
EXTRA_NODES: Final = 2 * POINTS - 1
"""The quotient of a polynomial of m bits has degree m + 4, so it is given by m + 5 values."""


@frozen
class _Places:
    """Where the parts of the shared elements stand. Polynomials follow one another.

    Attributes:
        vectors: The mask, then each histogram.
        bits: Of all values.
        rho: Blinds of the vectors' openings, three for each vector.
        square: rho squared, in the same order.
        polynomial_bits: For each polynomial, which of the bits it holds.
        phi: For each polynomial, the three blinds of its openings.
        quotient: For each polynomial of m bits, the m + 5 values of its quotient.
    """

    vectors: tuple[slice, ...]
    bits: slice
    rho: slice
    square: slice
    polynomial_bits: tuple[slice, ...]
    phi: tuple[slice, ...]
    quotient: tuple[slice, ...]


@frozen
class ProofShape:
    """What the reports of a task prove.

    Attributes:
        vectors: The length of the mask, then of each histogram.
        lows: The least that each value can be.
        weights: For each value, the weights of its bits; together they add to high - low.
        polynomials: How many bits each polynomial holds.
        places: Where the elements stand.
        num_elements: Elements of one report's share.
        num_openings: Elements that both helpers read in clear.
    """

    vectors: tuple[int, ...]
    lows: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    polynomials: tuple[int, ...]
    places: _Places
    num_elements: int
    num_openings: int

    @property
    def max_polynomial_bits(self) -> int:
        """The bits of the largest polynomial; 0 if no value is proven."""
        return max(self.polynomials, default=0)

    def length(self, role: int) -> int:
        """Return the bytes of a role's plaintext behind its view: openings, commitment, blind, share."""
        share = SEED_BYTES if role == 0 else ELEMENT_BYTES * self.num_elements
        return ELEMENT_BYTES * self.num_openings + COMMITMENT_BYTES + BLIND_BYTES + share

    def bits_of(self, values: Sequence[int]) -> list[int]:
        """Return each value's bits for each range. Called by the browser for values within their ranges."""
        bits: list[int] = []
        for low, weights, value in zip(self.lows, self.weights, values, strict=True):
            rest, last = value - low, 0
            if rest >= 1 << (len(weights) - 1):  # more than the powers of two before the last weight add to
                rest, last = rest - weights[-1], 1
            bits += [rest >> place & 1 for place in range(len(weights) - 1)] + [last]
        return bits


def _bit_weights(size: int) -> tuple[int, ...]:
    """Return the weights of the bits of a number in 0..size: powers of two, then the remainder to size."""
    # The last weight fills up what is left to `size`: no bits spell more.
    bits = size.bit_length()
    return (*(1 << place for place in range(bits - 1)), size - (1 << (bits - 1)) + 1)


@lru_cache(maxsize=64)
def proof_shape(candidates: int, measurement: Measurement | None) -> ProofShape:
    """Return the shape of reports with so many candidate labels and this measurement."""
    values = measurement.values if measurement else ()
    vectors = (candidates, *(len(value.bucket_starts) for value in values if value.bucket_starts))
    weights = tuple(_bit_weights(value.high - value.low) for value in values)
    polynomials = _pack([len(one) for one in weights])
    places = _places(vectors, polynomials)
    return ProofShape(
        vectors=vectors,
        lows=tuple(value.low for value in values),
        weights=weights,
        polynomials=polynomials,
        places=places,
        num_elements=places.quotient[-1].stop if polynomials else places.square.stop,
        num_openings=POINTS * (len(vectors) + len(polynomials)),
    )


def _pack(bits: Sequence[int]) -> tuple[int, ...]:
    """Return how many bits each polynomial holds: values in their order, as long as they fit into one."""
    polynomials: list[int] = []
    for count in bits:
        # Each polynomial costs 8 elements and 3 openings besides its bits, so small values share one.
        if polynomials and polynomials[-1] + count <= MAX_POLYNOMIAL_BITS:
            polynomials[-1] += count
        else:
            polynomials.append(count)
    return tuple(polynomials)


def _places(vectors: Sequence[int], polynomials: Sequence[int]) -> _Places:
    blinds = POINTS * len(vectors)
    *vector_places, bits, rho, square = _slices([*vectors, sum(polynomials), blinds, blinds], start=0)
    proofs = _slices([size for m in polynomials for size in (POINTS, m + EXTRA_NODES)], start=square.stop)
    return _Places(
        vectors=tuple(vector_places),
        bits=bits,
        rho=rho,
        square=square,
        polynomial_bits=tuple(_slices(polynomials, start=bits.start)),
        phi=tuple(proofs[0::2]),
        quotient=tuple(proofs[1::2]),
    )


def _slices(sizes: Sequence[int], *, start: int) -> list[slice]:
    """Return consecutive slices of these sizes."""
    return [slice(first, last) for first, last in pairwise(accumulate(sizes, initial=start))]
