"""The compiled residues are those of the plain ones, bit for bit, whatever a share holds."""

from typing import Any

import numpy as np
import pytest

from helper.datasets import proofs
from helper.datasets.proofs import fast_residues
from maskedlark.numbers.field import MODULUS, FieldVector, random_vector
from maskedlark.randomness import seeded
from maskedlark.reports.proofs.check import ProofTable, residues
from maskedlark.reports.proofs.shape import POINTS, ProofShape, proof_shape
from tests.maskedlark.reports.malicious import honest, is_accepted, malformed
from tests.maskedlark.reports.shapes import ALL

SHAPES = {**ALL, "C = 300": proof_shape(300, None)}


def table_of(shape: ProofShape, elements: FieldVector, openings: FieldVector) -> ProofTable:
    digests = np.zeros((len(elements), 32), np.uint8)
    return ProofTable(openings=openings, others=digests, blinds=digests, elements=elements)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("role", [0, 1])
def test_compiled_residues_are_the_plain_ones_bit_for_bit(shape: ProofShape, role: int) -> None:
    randomness, count = seeded(1), 40
    elements = random_vector(count * shape.num_elements, randomness).reshape(count, -1)
    openings = random_vector(count * shape.num_openings, randomness).reshape(count, -1)
    points = random_vector(count * POINTS, randomness).reshape(count, -1)
    elements[0], openings[0], points[0] = MODULUS - 1, MODULUS - 1, MODULUS - 1
    elements[1], openings[1], points[1] = 0, 0, 0
    elements[2], openings[2], points[2] = 1, 1, [1, 2, 3]
    table = table_of(shape, elements, openings)
    assert (fast_residues(shape, role, table, points) == residues(shape, role, table, points)).all()


@pytest.mark.parametrize("shape", ALL.values(), ids=ALL)
def test_compiled_residues_accept_honest_reports_and_no_malformed_one(shape: ProofShape) -> None:
    randomness = seeded(2)
    wrong = [sent for _, sent in malformed(shape, randomness)]
    good = [honest(shape, randomness) for _ in range(20)]
    assert is_accepted(shape, [*wrong, *good], fast_residues) == [False] * len(wrong) + [True] * 20


@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_shape_number_of_rows_or_read_only_table_needs_another_compiled_loop(
    shape: ProofShape, rows: int
) -> None:
    elements, openings, points = (
        random_vector(rows * width, seeded(3)).reshape(rows, width)
        for width in (shape.num_elements, shape.num_openings, POINTS)
    )
    for array in (elements, openings, points):
        array.flags.writeable = False
    fast_residues(shape, 0, table_of(shape, elements, openings), points)
    loops: tuple[Any, ...] = (
        proofs._vector_residues,
        proofs._row_sums,
        proofs._sum_residues,
        proofs._range_residues,
    )
    assert all(len(loop.signatures) <= 1 for loop in loops)


def test_no_report_has_no_residues() -> None:
    shape = SHAPES["C = 2"]
    table = table_of(
        shape, np.empty((0, shape.num_elements), np.uint64), np.empty((0, shape.num_openings), np.uint64)
    )
    points = np.empty((0, POINTS), np.uint64)
    assert fast_residues(shape, 0, table, points).shape == residues(shape, 0, table, points).shape == (0, 6)
