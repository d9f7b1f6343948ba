"""How an encoder is fitted: bins, words and classes of one table."""

from bisect import bisect_right
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.encoding.column_kinds import Binning, ColumnKind
from maskedlark.encoding.encoder import ClassLabel, IdColumn, NumberColumn, ValueLabel, WrongCell
from maskedlark.encoding.fit import (
    FitSettings,
    PlannedTraining,
    _category_column,
    fit,
    number_column,
    order_classes,
)
from maskedlark.errors import InvalidTask

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def fitted(values: list[float], binning: Binning, bins: int, *, missing: bool = False) -> NumberColumn:
    return number_column("n", values, has_missing=missing, binning=binning, bins=bins)


def codes(column: NumberColumn, values: list[float]) -> list[int]:
    return [column.byte_of_bin(bisect_right(column.edges, value)) for value in values]


@given(
    values=st.lists(FINITE, min_size=1, max_size=60),
    binning=st.sampled_from(Binning),
    bins=st.integers(2, 256),
    missing=st.booleans(),
)
def test_bytes_ascend_with_the_value_and_gaps_keep_byte_zero(
    values: list[float], binning: Binning, bins: int, missing: bool
) -> None:
    column = fitted(values, binning, bins, missing=missing)
    found = codes(column, sorted(values))
    assert all(one <= other for one, other in pairwise(found))
    assert min(found) >= int(missing)
    assert max(found) <= 255
    assert len(set(found)) <= bins
    assert column.missing == 0 if missing else column.missing in found


@pytest.mark.parametrize("binning", Binning)
@pytest.mark.parametrize("bins", [2, 3, 100, 256])
def test_a_spread_column_fills_all_its_bins_from_lowest_to_highest_byte(binning: Binning, bins: int) -> None:
    values = [float(value) for value in range(10_000)]
    found = set(codes(fitted(values, binning, bins), values))
    assert len(found) == bins
    assert (min(found), max(found)) == (0, 255)


def test_an_outlier_does_not_squeeze_the_others() -> None:
    values = [*map(float, range(999)), 1e12]
    found = codes(fitted(values, Binning.RANGE, 256), values)
    assert len(set(found[:-1])) == 256
    assert found[-1] == 255


def test_quantile_bins_hold_even_shares() -> None:
    values = [2.0 ** (index / 128) for index in range(2560)]
    found = codes(fitted(values, Binning.QUANTILE, 256), values)
    assert [found.count(byte) for byte in range(256)] == [10] * 256


def test_a_rare_value_is_told_from_the_rest() -> None:
    values = [0.0] * 999 + [3.0]
    column = fitted(values, Binning.RANGE, 256)
    assert codes(column, [3.0, 0.0]) == [255, 0]


@pytest.mark.parametrize("binning", Binning)
def test_a_constant_column_is_all_lowest_bytes(binning: Binning) -> None:
    assert codes(fitted([4.5] * 9, binning, 256), [4.5, 1.0, 9.0]) == [0, 0, 0]


def test_edges_are_short_decimals() -> None:
    column = fitted([float(age) for age in range(17, 91)], Binning.RANGE, 256)
    assert max(len(repr(edge)) for edge in column.edges) <= 7


def test_a_column_without_gaps_gives_a_later_gap_the_median() -> None:
    column = fitted([0.0, 1.0, 2.0], Binning.RANGE, 256)
    assert column.byte(None) == column.byte("1")
    assert fitted([0.0, 1.0], Binning.RANGE, 256, missing=True).byte(None) == 0


def test_words_are_ranked_by_frequency_then_by_the_alphabet() -> None:
    column = _category_column("w", ["b", "a", "c", "c"])
    assert [column.byte(word) for word in ("b", "a", "c")] == [2, 1, 0]


def test_a_missing_word_takes_byte_zero_where_the_table_has_gaps() -> None:
    column = _category_column("w", ["b", None, "a", "b"])
    assert [column.byte(word) for word in ("b", None, "a", "new")] == [1, 0, 2, 3]
    whole = _category_column("w", ["b", "a"])
    assert whole.byte(None) == whole.byte("new") == 2


@pytest.mark.parametrize("gaps", [[], [None]])
def test_words_beyond_the_bytes_are_other(gaps: list[None]) -> None:
    column = _category_column("w", [*(f"{word:04}" for word in range(300)), *gaps])
    assert len(column.categories) == 255 - len(gaps)
    assert column.byte("0299") == column.byte("never seen") == 255


def test_a_word_that_is_too_long_to_list_is_other() -> None:
    column = _category_column("w", ["x" * 201, "y"])
    assert column.categories == ("y",)
    assert column.byte("x" * 201) == 1


def test_a_column_is_what_its_cells_are_unless_a_person_says_more() -> None:
    columns = {"code": ["1", "2", "2"], "y": ["no", "yes", "no"]}
    assert fit(columns, FitSettings(label="y")).columns[0].kind == "number"
    said = FitSettings(label="y", kinds={"code": ColumnKind.CATEGORY})
    assert fit(columns, said).columns == (_category_column("code", ["1", "2", "2"]),)


def test_a_word_among_numbers_is_told_with_its_row_if_numbers_were_said() -> None:
    columns = {"n": ["1", "x"]}
    assert fit(columns, FitSettings()).columns[0].kind == "category"
    with pytest.raises(WrongCell, match="column 'n', row 2") as wrong:
        fit(columns, FitSettings(kinds={"n": ColumnKind.NUMBER}))
    assert (wrong.value.column, wrong.value.row) == ("n", 1)


@pytest.mark.parametrize("rows", [(40, 60), (50, 50), (60, 40)])
def test_of_two_words_that_are_about_as_frequent_the_alphabet_decides(rows: tuple[int, int]) -> None:
    assert order_classes({"bought": rows[0], "left": rows[1]}) == ("bought", "left")
    assert order_classes({"left": rows[0], "bought": rows[1]}) == ("bought", "left")
    assert order_classes({"yes": rows[0], "zero": rows[1]}) == ("zero", "yes")
    assert order_classes({"bought": 39, "left": 61}) == ("left", "bought")
    assert order_classes({"bought": 61, "left": 39}) == ("bought", "left")


def test_of_two_words_the_rarer_is_class_1_and_yes_always() -> None:
    def classes(*cells: str) -> tuple[str, ...]:
        label = fit({"x": ["0"] * len(cells), "y": cells}, FitSettings(label="y")).label
        assert isinstance(label, ClassLabel)
        return label.classes

    assert classes("left", "bought", "left") == ("left", "bought")
    assert classes("bought", "bought", "left") == ("bought", "left")
    assert classes("no", "yes", "yes") == ("no", "yes")
    assert classes("Oui", "non", "Oui") == ("non", "Oui")
    assert classes("1", "1", "0") == ("0", "1")
    assert classes("c", "b", "b", "a") == ("a", "b", "c")


def test_classes_are_in_the_order_given_or_ascend_as_numbers_or_by_the_alphabet() -> None:
    numbers = fit({"x": ["0"] * 4, "y": ["10", "9", "9.0", "2.5"]}, FitSettings(label="y"))
    assert numbers.label == ClassLabel(name="y", classes=("2.5", "9", "10"))
    words = fit({"x": ["0"] * 2, "y": ["b", "a"]}, FitSettings(label="y"))
    assert words.label == ClassLabel(name="y", classes=("a", "b"))
    ordered = fit({"x": ["0"] * 3, "y": ["b", "a", "c"]}, FitSettings(label="y", classes=("z", "b")))
    assert ordered.label == ClassLabel(name="y", classes=("b", "a", "c"))
    counted = fit({"x": ["0"] * 2, "y": ["1", "0.0"]}, FitSettings(label="y", classes=("1.0", "0", "no")))
    assert counted.label == ClassLabel(name="y", classes=("1", "0"))
    values = fit({"x": ["0"], "y": ["0.5"]}, FitSettings(label="y", is_label_a_value=True))
    assert values.label == ValueLabel(name="y")


def test_the_order_of_rows_does_not_matter() -> None:
    rows: list[tuple[str | None, str]] = [("1", "b"), ("7", "a"), ("3", "b"), (None, "c")]
    one: dict[str, list[str | None]] = {"n": [row[0] for row in rows], "w": [row[1] for row in rows]}
    other: dict[str, list[str | None]] = {
        "n": [row[0] for row in reversed(rows)],
        "w": [row[1] for row in reversed(rows)],
    }
    assert fit(one, FitSettings()) == fit(other, FitSettings())


@pytest.mark.parametrize(
    ("columns", "settings", "why"),
    [
        ({"x": ["1"]}, FitSettings(label="y"), "no column 'y'"),
        ({"x": ["1"]}, FitSettings(kinds={"z": ColumnKind.NUMBER}), "no column 'z'"),
        ({"y": ["1"]}, FitSettings(label="y"), "not the label"),
        ({"x": ["1"], "y": [None]}, FitSettings(label="y"), "the label is missing"),
        (
            {"x": ["1"], "": ["0"]},
            FitSettings(),
            "column 2 needs a name.* or is left out .--ignore ''; .* index=False",
        ),
        ({"x" * 201: ["1"], "y": ["0"]}, FitSettings(label="y"), "column 1 needs a name"),
        ({"x": ["1"], "y": ["w" * 201]}, FitSettings(label="y"), "at most 200 characters"),
    ],
)
def test_a_table_that_cannot_be_fitted_is_refused(
    columns: dict[str, list[str | None]], settings: FitSettings, why: str
) -> None:
    with pytest.raises(InvalidTask, match=why):
        fit(columns, settings)


WORDS: Final[list[str | None]] = ["a"] * 40 + ["b"] * 20 + ["c"] * 5 + [None] * 10 + ["d" * 201] * 25


@pytest.mark.parametrize(
    ("most", "training", "words"),
    [
        (None, None, ("a", "b", "c")),
        (2, None, ("a", "b")),
        (0, None, ()),
        (None, PlannedTraining(reports=100, epsilon=3.0), ("a", "b")),
        (None, PlannedTraining(reports=1_000, epsilon=3.0), ("a", "b", "c")),
        (None, PlannedTraining(reports=100, epsilon=0.5), ("a",)),
        (1, PlannedTraining(reports=1_000, epsilon=3.0), ("a",)),
    ],
)
def test_a_vocabulary_has_the_words_that_reports_carry(
    most: int | None, training: PlannedTraining | None, words: tuple[str, ...]
) -> None:
    cells: dict[str, list[str | None]] = {"w": WORDS, "n": ["1"] * 100}
    encoder = fit(cells, FitSettings(words={"w": most}, training=training))
    column = encoder.columns[0]
    assert isinstance(column, IdColumn)
    assert column.words == words
    rows = encoder.features(cells)[:, 0]
    assert set(rows[65:75]) == {0}  # missing
    assert set(rows[75:]) == {1}  # too long for a word: the rest


@pytest.mark.parametrize(
    "settings",
    [FitSettings(words={"x": 3}), FitSettings(hashed={"x": 3})],
    ids=["words", "hashed"],
)
def test_a_column_of_ids_that_is_not_there_is_refused(settings: FitSettings) -> None:
    with pytest.raises(InvalidTask, match="no column 'x'"):
        fit({"w": ["a"]}, settings)
