"""Roll-ups against the textbook: least squares of all cells at once, by numpy's solver."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adserver.measuring.consistency import consistent


def design(sizes: list[int], first_level: int) -> NDArray[np.float64]:
    """Which leaves each cell adds up: (cells of all levels, leaves).

    A leaf is a rest or a cell of the last level.
    """
    depth = len(sizes)
    leaves: list[tuple[int, ...]] = []
    for level in range(max(1, first_level), depth + 1):
        above = [()] if level == 1 else list(np.ndindex(*sizes[: level - 1]))
        lasts = range(sizes[level - 1] + 1) if level == depth else [sizes[level - 1]]
        leaves += [(*group, last) for group in above for last in lasts]
    rows = []
    for level in range(first_level, depth + 1):
        groups = np.ndindex(*sizes[: level - 1]) if level > 1 else [()]
        cells = (
            [(*group, last) for group in groups for last in range(sizes[level - 1] + 1)] if level else [()]
        )
        rows += [[float(leaf[: len(cell)] == cell) for leaf in leaves] for cell in cells]
    return np.array(rows)


def levels_of(
    values: NDArray[np.float64], sizes: list[int], first_level: int
) -> tuple[list[NDArray[np.float64]], list[int]]:
    widths = [1 if level == 0 else sizes[level - 1] + 1 for level in range(first_level, len(sizes) + 1)]
    counts = [
        1 if level == 0 else int(np.prod(sizes[: level - 1])) * (sizes[level - 1] + 1)
        for level in range(first_level, len(sizes) + 1)
    ]
    return np.split(values, np.cumsum(counts)[:-1]), widths


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data(), st.integers(0, 1000))
def test_consistent_cells_are_the_least_squares_estimates_with_their_variances(
    sizes: list[int], data: st.DataObject, seed: int
) -> None:
    first_level = data.draw(st.integers(0, len(sizes)))
    if first_level > 1:
        first_level = data.draw(st.sampled_from([0, 1]))
    matrix = design(sizes, first_level)
    observed = np.random.default_rng(seed).normal(0, 10, (len(matrix), 2))
    leaves = np.linalg.lstsq(matrix, observed, rcond=None)[0]
    levels, widths = levels_of(observed, sizes, first_level)
    found = consistent(levels, widths)
    np.testing.assert_allclose(np.concatenate([one.values for one in found]), matrix @ leaves, atol=1e-8)
    variances = np.diag(matrix @ np.linalg.inv(matrix.T @ matrix) @ matrix.T)
    np.testing.assert_allclose(np.concatenate([one.variances for one in found]), variances, atol=1e-10)


def test_parts_add_to_the_whole() -> None:
    draw = np.random.default_rng(1)
    total, campaigns, places = consistent(
        [draw.normal(size=(n, 1)) for n in (1, 4 + 1, 4 * (3 + 1))], [1, 5, 4]
    )
    assert total.values[0, 0] == pytest.approx(campaigns.values.sum())
    np.testing.assert_allclose(campaigns.values[:4, 0], places.values.reshape(4, 4).sum(axis=1))


def test_numbers_that_add_up_already_stay() -> None:
    places = np.arange(16.0).reshape(16, 1)
    campaigns = np.append(places.reshape(4, 4).sum(axis=1), 7.0).reshape(5, 1)
    levels = [campaigns.sum(axis=0, keepdims=True), campaigns, places]
    for before, after in zip(levels, consistent(levels, [1, 5, 4]), strict=True):
        np.testing.assert_allclose(after.values, before)


def test_every_level_gains_from_the_others() -> None:
    for estimate in consistent([np.zeros((n, 1)) for n in (1, 5, 16)], [1, 5, 4]):
        assert (estimate.variances < 1).all()
