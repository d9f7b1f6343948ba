"""The constants of the range check's polynomials, and their evaluation, for the browser and both helpers.

A polynomial f of m bits has degree m + 2 and is given by its values at 1..m+3: 2 b_i - n at the bits' nodes
1..m, and random blinds at m+1..m+3. Z = (X - 1) .. (X - m). The quotient H = (f^2 - n) / Z has degree m + 4
and is given by its values at m+1..2m+5.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import lru_cache

import numpy as np

from maskedlark.frozen import frozen
from maskedlark.numbers.field import MODULUS, FieldVector, add, multiply, subtract, total
from maskedlark.reports.proofs.shape import EXTRA_NODES, POINTS


@frozen
class _RangeTables:
    """Constants of polynomials of m bits.

    Shapes:
        weights_f: uint64 (m + 3,): barycentric weights of the nodes 1..m+3.
        weights_h: uint64 (m + 5,): barycentric weights of the nodes m+1..2m+5.
        extension: uint64 (m + 2, m + 3): from f at 1..m+3 to f at m+4..2m+5.
        inverse_z: uint64 (m + 5,): 1 / Z at m+1..2m+5.
    """

    weights_f: FieldVector = field(repr=False)
    weights_h: FieldVector = field(repr=False)
    extension: FieldVector = field(repr=False)
    inverse_z: FieldVector = field(repr=False)

    def extend(self, values: FieldVector) -> FieldVector:
        """Extend f from 1..m+3, (n, m + 3), to m+4..2m+5, (n, m + 2). Called by the browser."""
        return np.stack([total(multiply(row, values), axis=1) for row in self.extension], axis=1)


@lru_cache(maxsize=64)
def range_tables(num_bits: int) -> _RangeTables:
    """Return the constants of polynomials of `num_bits` bits."""
    m, known = num_bits, num_bits + POINTS
    weights = _barycentric(1, known)
    z_nodes = range(m + 1, m + EXTRA_NODES + m + 1)
    return _RangeTables(
        weights_f=np.array(weights, np.uint64),
        weights_h=np.array(_barycentric(m + 1, m + EXTRA_NODES), np.uint64),
        extension=np.array(
            [_extension_row(at, weights) for at in range(known + 1, 2 * m + EXTRA_NODES + 1)], np.uint64
        ),
        inverse_z=np.array(
            [pow(_product(at - node for node in range(1, m + 1)), -1, MODULUS) for at in z_nodes], np.uint64
        ),
    )


def steps_to(points: FieldVector, nodes: int) -> list[FieldVector]:
    """Return the points less each of the nodes 1, 2, ..."""
    return [subtract(points, np.full_like(points, node)) for node in range(1, nodes + 1)]


def interpolate(weighted: FieldVector, steps: Sequence[FieldVector]) -> FieldVector:
    """Evaluate at points the polynomial of values at nodes, given times barycentric weights: (n, k).

    That is the sum over nodes of the weighted value, (n, nodes), times (t - node') over all other nodes;
    `steps` holds t - node.
    """
    result, all_before = np.zeros_like(steps[0]), np.ones_like(steps[0])
    for column, step in enumerate(steps):  # result = product of the nodes so far times the sum so far
        result = add(multiply(result, step), multiply(weighted[:, column : column + 1], all_before))
        all_before = multiply(all_before, step)
    return result


def _barycentric(first: int, count: int) -> list[int]:
    """Return 1 / product of (node - other) over all other nodes, for nodes first, first + 1, ..."""
    nodes = range(first, first + count)
    return [pow(_product(node - other for other in nodes if other != node), -1, MODULUS) for node in nodes]


def _extension_row(at: int, weights: Sequence[int]) -> list[int]:
    """Return the factors of f at 1, 2, ... in f at a further node."""
    whole = _product(at - node for node in range(1, len(weights) + 1))
    return [
        whole * weight * pow(at - node, -1, MODULUS) % MODULUS for node, weight in enumerate(weights, start=1)
    ]


def _product(factors: Iterable[int]) -> int:
    product = 1
    for factor in factors:
        product = product * factor % MODULUS
    return product
