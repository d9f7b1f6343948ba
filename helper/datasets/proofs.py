"""The residues of `maskedlark.reports.proofs.check`, compiled: what a helper runs for every report."""

import numpy as np

from helper.gradient.exact.kernels.compiled import inline, kernel
from helper.gradient.exact.kernels.field import add, multiply
from maskedlark.numbers.field import MODULUS, FieldVector
from maskedlark.reports.proofs.check import ProofTable
from maskedlark.reports.proofs.polynomials import range_tables
from maskedlark.reports.proofs.shape import POINTS, ProofShape

_P = np.uint64(MODULUS)
_ZERO = np.uint64(0)


def fast_residues(shape: ProofShape, role: int, table: ProofTable, points: FieldVector) -> FieldVector:
    """Compute `check.residues` bit for bit. Called by a helper's processes that open shares.

    Every array that a loop gets is contiguous and writable, whatever the shape and however many rows there
    are: so each loop is compiled once, in `warm_up`, and never while a dataset is prepared.
    """
    places, rows = shape.places, len(table.elements)

    def part(place: slice) -> FieldVector:
        return _whole(table.elements[:, place])

    columns: list[FieldVector] = []
    for index, place in enumerate(places.vectors):
        here = slice(POINTS * index, POINTS * (index + 1))
        rho, square = (_whole(table.elements[:, one][:, here]) for one in (places.rho, places.square))
        sides = np.empty((rows, 2 * POINTS), np.uint64)
        _vector_residues(
            role, part(place), rho, square, _whole(table.openings[:, here]), _whole(points), sides
        )
        columns.append(sides)
    count = np.empty(rows, np.uint64)
    _row_sums(part(places.vectors[0]), count)
    for place in places.vectors[1:]:
        rest = np.empty(rows, np.uint64)
        _sum_residues(role, part(place), count, rest)
        columns.append(rest[:, np.newaxis])
    for index, m in enumerate(shape.polynomials):
        start = POINTS * (len(shape.vectors) + index)
        tables, sides = range_tables(m), np.empty((rows, 2 * POINTS), np.uint64)
        _range_residues(
            role,
            count,
            part(places.polynomial_bits[index]),
            part(places.phi[index]),
            part(places.quotient[index]),
            _whole(table.openings[:, start : start + POINTS]),
            _whole(points),
            _whole(tables.weights_f),
            _whole(tables.weights_h),
            sides,
        )
        columns.append(sides)
    return np.concatenate(columns, axis=1)


def _whole(array: FieldVector) -> FieldVector:
    """Return the array itself, or a copy that is contiguous and writable."""
    return np.require(array, requirements=["C_CONTIGUOUS", "WRITEABLE"])


@inline
def _subtract(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return a - b."""
    return a - b + (_P if a < b else _ZERO)


@kernel
def _vector_residues(
    role: int,
    vectors: FieldVector,
    rho: FieldVector,
    square: FieldVector,
    opened: FieldVector,
    points: FieldVector,
    out: FieldVector,
) -> None:
    """Fill out (n, 6) with the sides of X(t) + rho = A and of X(t^2) + 2 A rho - rho^2 = A^2."""
    for i in range(len(vectors)):
        for j in range(points.shape[1]):
            t = points[i, j]
            tt = multiply(t, t)
            x, xx = np.uint64(0), np.uint64(0)
            # Horner's rule, at t and at t^2 in one pass.
            for c in range(vectors.shape[1] - 1, -1, -1):
                x = multiply(add(x, vectors[i, c]), t)
                xx = multiply(add(xx, vectors[i, c]), tt)
            a = opened[i, j]
            first = add(x, rho[i, j])
            second = _subtract(add(xx, multiply(add(a, a), rho[i, j])), square[i, j])
            out[i, 2 * j] = _subtract(a, first) if role == 0 else first
            out[i, 2 * j + 1] = _subtract(multiply(a, a), second) if role == 0 else second


@kernel
def _row_sums(rows: FieldVector, sums: FieldVector) -> None:
    """Fill sums (n,) with the sum of each row."""
    for i in range(len(rows)):
        total = np.uint64(0)
        for c in range(rows.shape[1]):
            total = add(total, rows[i, c])
        sums[i] = total


@kernel
def _sum_residues(role: int, rows: FieldVector, count: FieldVector, out: FieldVector) -> None:
    """Fill out (n,) with a helper's side of: each row adds to the count."""
    _row_sums(rows, out)
    # The role is public, here and below: a branch on it shows nothing of a report.
    for i in range(len(rows)):
        out[i] = _subtract(count[i], out[i]) if role == 0 else _subtract(out[i], count[i])


@kernel
def _range_residues(
    role: int,
    count: FieldVector,
    bits: FieldVector,
    phi: FieldVector,
    quotient: FieldVector,
    opened: FieldVector,
    points: FieldVector,
    weights_f: FieldVector,
    weights_h: FieldVector,
    out: FieldVector,
) -> None:
    """Fill out (n, 6) with the sides of f(t) = F and of n + Z(t) H(t) = F^2 for each point."""
    m = bits.shape[1]
    for i in range(len(bits)):
        for j in range(points.shape[1]):
            t, n, opening = points[i, j], count[i], opened[i, j]
            z, f, before = np.uint64(1), np.uint64(0), np.uint64(1)
            # Lagrange's form in one pass: `before` is the product of the steps so far, `z` of the first m.
            for k in range(m + phi.shape[1]):
                value = phi[i, k - m] if k >= m else _subtract(add(bits[i, k], bits[i, k]), n)
                step = _subtract(t, np.uint64(k + 1))
                f = add(multiply(f, step), multiply(multiply(value, weights_f[k]), before))
                before = multiply(before, step)
                if k == m - 1:
                    z = before
            h, before = np.uint64(0), np.uint64(1)
            for k in range(quotient.shape[1]):
                step = _subtract(t, np.uint64(m + k + 1))
                h = add(multiply(h, step), multiply(multiply(quotient[i, k], weights_h[k]), before))
                before = multiply(before, step)
            second = add(n, multiply(z, h))
            out[i, 2 * j] = _subtract(opening, f) if role == 0 else f
            out[i, 2 * j + 1] = _subtract(multiply(opening, opening), second) if role == 0 else second
