import numpy as np
import pytest

from maskedlark.numbers.lengths import l2_norm, root_up


@pytest.mark.parametrize("count", [0, 1, 7, 25_450])
def test_a_length_is_numpys_up_to_rounding(count: int) -> None:
    vector = np.random.default_rng(1).normal(size=count) * 1e9
    assert l2_norm(vector) == pytest.approx(float(np.linalg.norm(vector)), rel=1e-13)


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_shows_in_the_length(wrong: float) -> None:
    assert not np.isfinite(l2_norm(np.array([1.0, wrong])))


@pytest.mark.parametrize("square", [*range(40), 2**62 - 1, 2**62, 2**62 + 1, 10**40])
def test_a_root_is_the_least_integer_that_is_no_shorter(square: int) -> None:
    root = root_up(square)
    assert root >= 0
    assert root**2 >= square
    assert root == 0 or (root - 1) ** 2 < square
