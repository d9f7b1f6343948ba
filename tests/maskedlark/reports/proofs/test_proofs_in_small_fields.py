"""The relations of a proof, searched exhaustively in a field of 13 elements with the reference's
arithmetic."""

from itertools import product

import pytest

from maskedlark.reports.proofs.shape import MAX_POLYNOMIAL_BITS, POINTS
from maskedlark.reports.task import MAX_CANDIDATES
from tests import reference_proof

SMALL = 13
C = 3


def points_that_accept(mask: list[int], error_of_square: int, rho: int) -> list[int]:
    """Where both residues of a vector can be equal, whatever the browser tells as its opening."""
    square = (rho * rho + error_of_square) % SMALL
    return [
        t
        for t in range(SMALL)
        if any(
            residues_are_equal(mask, rho, square, opened, t)
            for opened in [(reference_proof.power_sum(mask, t, SMALL) + rho) % SMALL]
        )
    ]


def residues_are_equal(mask: list[int], rho: int, square: int, opened: int, t: int) -> bool:
    """With share 0 all zeros: the residues differ by what the whole secret fails the relation."""
    secret = reference_proof.Secret(
        vectors=[mask], bits=[], rho=[[rho]], square=[[square]], phi=[], quotient=[]
    )
    zeros = reference_proof.Secret(
        vectors=[[0] * len(mask)], bits=[], rho=[[0]], square=[[0]], phi=[], quotient=[]
    )
    first = reference_proof.residues(0, zeros, [opened], [t], SMALL)
    return first == reference_proof.residues(1, secret, [opened], [t], SMALL)


def valid_masks_of_a_small_field() -> list[tuple[int, ...]]:
    """All masks of three entries that hold at every point with some q: by trying all masks, all q and all
    points."""
    everywhere = []
    for mask in product(range(SMALL), repeat=C):
        for error in range(SMALL):
            accepted = len(points_that_accept(list(mask), error, rho=5))
            if accepted == SMALL:
                assert error == 0
                everywhere.append(mask)
            else:
                assert accepted <= 2 * C
    return sorted(everywhere)


def test_only_the_four_valid_masks_hold_at_every_point_of_a_small_field() -> None:
    assert valid_masks_of_a_small_field() == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]


@pytest.mark.parametrize("mask", [(2, 0, 0), (1, 1, 0), (0, 0, 0), (0, 1, 0), (7, 6, 1)])
def test_another_opening_than_the_true_one_never_fits(mask: tuple[int, ...]) -> None:
    for rho, error, t in product(range(SMALL), repeat=3):
        true = (reference_proof.power_sum(list(mask), t, SMALL) + rho) % SMALL
        fits = [
            opened
            for opened in range(SMALL)
            if residues_are_equal(list(mask), rho, (rho * rho + error) % SMALL, opened, t)
        ]
        assert set(fits) <= {true}


@pytest.mark.parametrize("bits", list(product(range(SMALL), repeat=2)))
def test_only_bits_make_a_quotient_in_a_small_field(bits: tuple[int, int]) -> None:
    """(f^2 - n) / Z is a polynomial of degree m + 4 only if the bits are bits: else its values contradict one
    another."""
    for n in (0, 1):
        held, phi = list(bits), [3, 0, 11]
        f = reference_proof.f_values(held, phi, n, SMALL)
        quotient = reference_proof.quotient(held, phi, n, SMALL)
        wrong = sum(
            (reference_proof.lagrange(f, 1, t, SMALL) ** 2 - n) % SMALL
            != reference_proof.z_at(2, t, SMALL) * reference_proof.lagrange(quotient, 3, t, SMALL) % SMALL
            for t in range(SMALL)
        )
        is_valid = set(bits) <= ({0, 1} if n else {0})
        assert (wrong == 0) == is_valid
        assert is_valid or SMALL - wrong <= 2 * (2 + 2)


def test_cheating_stays_under_one_in_2_to_the_60_after_2_to_the_90_hashes() -> None:
    """The bound of docs/explanation/proofs.md at its worst: the most candidates or buckets, or the largest
    polynomial."""
    e = 4 * max(MAX_CANDIDATES, MAX_POLYNOMIAL_BITS + 2) / 2**64
    hashes, reports = 2.0**90, 2.0**30
    assert (hashes + reports) * e**POINTS + hashes**2 / 2**256 + reports / 2**128 < 2**-60
