import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser_sim.binning import Binning, category_bytes, numeric_bytes

FINITE = st.floats(allow_nan=False, allow_infinity=False)
COLUMNS = st.lists(st.one_of(FINITE, st.just(float("nan"))), max_size=60)


@given(column=COLUMNS, binning=st.sampled_from(Binning), bins=st.integers(2, 256))
def test_bytes_ascend_with_the_value_and_gaps_keep_byte_zero(
    column: list[float], binning: Binning, bins: int
) -> None:
    values = np.array(column, np.float64)
    codes = numeric_bytes(values, binning=binning, bins=bins)
    assert codes.dtype == np.uint8
    assert codes.shape == values.shape
    missing = np.isnan(values)
    assert (codes[missing] == 0).all()
    if missing.any():
        assert (codes[~missing] >= 1).all()
    order = np.argsort(values[~missing], kind="stable")
    assert (np.diff(codes[~missing][order].astype(int)) >= 0).all()
    assert len(np.unique(codes[~missing])) <= bins


@pytest.mark.parametrize("binning", Binning)
@pytest.mark.parametrize("bins", [2, 3, 100, 256])
def test_a_spread_column_fills_all_its_bins_from_lowest_to_highest_byte(binning: Binning, bins: int) -> None:
    codes = numeric_bytes(np.arange(10_000.0), binning=binning, bins=bins)
    assert len(np.unique(codes)) == bins
    assert (codes.min(), codes.max()) == (0, 255)


def test_an_outlier_does_not_squeeze_the_others() -> None:
    column = np.append(np.arange(999.0), 1e12)
    codes = numeric_bytes(column, binning=Binning.RANGE, bins=256)
    assert len(np.unique(codes[:-1])) == 256
    assert codes[-1] == 255


def test_quantile_bins_hold_even_shares() -> None:
    column = np.exp(np.linspace(0, 20, 2560))
    counts = np.bincount(numeric_bytes(column, binning=Binning.QUANTILE, bins=256), minlength=256)
    assert counts.tolist() == [10] * 256


def test_a_rare_value_is_told_from_the_rest() -> None:
    column = np.zeros(1_000)
    column[5] = 3.0
    codes = numeric_bytes(column, binning=Binning.RANGE, bins=256)
    assert (codes[5], codes[0]) == (255, 0)


@pytest.mark.parametrize("binning", Binning)
def test_a_constant_column_is_all_lowest_bytes(binning: Binning) -> None:
    assert set(numeric_bytes(np.full(9, 4.5), binning=binning, bins=256)) == {0}


def test_words_are_ranked_by_frequency_then_by_the_alphabet() -> None:
    assert category_bytes(["b", "a", "c", "c"]).tolist() == [2, 1, 0, 0]


def test_a_missing_word_takes_byte_zero() -> None:
    assert category_bytes(["b", None, "a", "b"]).tolist() == [1, 0, 2, 1]


def test_words_beyond_the_bytes_share_the_last() -> None:
    codes = category_bytes([f"{word:04}" for word in range(300)])
    assert codes[:255].tolist() == list(range(255))
    assert set(codes[255:].tolist()) == {255}
