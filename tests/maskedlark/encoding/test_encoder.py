"""What an encoder makes of cells, to the bit, and what it refuses."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.canonical import encode
from maskedlark.encoding.cells import MISSING, number, said
from maskedlark.encoding.dates import DateOrder
from maskedlark.encoding.encoder import (
    CategoryColumn,
    ClassLabel,
    DateColumn,
    Encoder,
    HashColumn,
    IdColumn,
    NumberColumn,
    ValueLabel,
    WrongCell,
    _hash_word,
    read_encoder,
)
from maskedlark.errors import InvalidTask
from tests.vectors.encoder.generate import FILE, vectors

AGE = NumberColumn(name="age", edges=(30.0, 40.5), first=1, missing=0)
WORK = CategoryColumn(name="work", categories=("Private", "State"), first=1, missing=0)
ENCODER = Encoder(columns=(AGE, WORK), label=ClassLabel(name="income", classes=("<=50K", ">50K")))


def test_cells_become_the_bytes_of_their_bins_and_words() -> None:
    cells = {"work": ["Private", "State", "Abroad", None], "age": ["29.9", "30", "40.5", None], "more": []}
    assert ENCODER.features(cells).tolist() == [[1, 1], [128, 2], [255, 3], [0, 0]]
    assert ENCODER.features(cells).dtype == np.uint8
    assert ENCODER.labels({"income": [">50K", "<=50K"]}).tolist() == [1.0, 0.0]


def test_an_encoder_is_named_by_its_bytes() -> None:
    again = read_encoder(encode(ENCODER))
    assert again == ENCODER
    assert again.digest == ENCODER.digest
    other = Encoder(columns=(WORK, AGE), label=ENCODER.label)
    assert other.digest != ENCODER.digest


def test_a_class_is_known_by_its_text_or_as_a_number() -> None:
    label = ClassLabel(name="y", classes=("0", "1", "2.50"))
    assert [label.label(cell) for cell in ("1", "1.0", "2.5", "0e3")] == [1.0, 1.0, 2.0, 0.0]
    for cell in ("3", "one", None):
        with pytest.raises(ValueError, match="label"):
            label.label(cell)
    assert ValueLabel(name="y").label("-2e1") == -20.0


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"age": ["1", "secret"], "work": ["a", "b"]}, "column 'age', row 2: it holds a word"),
        ({"age": ["1e999"], "work": ["a"]}, "row 1.*not finite"),
        ({"age": ["1"]}, "reads column 'work'"),
    ],
)
def test_what_an_encoder_cannot_read_is_told_with_its_place(cells: dict[str, list[str]], why: str) -> None:
    with pytest.raises(InvalidTask, match=why) as refused:
        ENCODER.features(cells)
    assert "secret" not in str(refused.value)


def test_a_date_that_is_missing_is_named_as_the_table_names_it() -> None:
    day = CategoryColumn(name="visited@weekday", categories=("Mon",), first=1, missing=0)
    with pytest.raises(InvalidTask, match="reads the dates of column 'visited', and the table has none"):
        Encoder(columns=(day,), label=None).features({"age": ["1"]})


def test_an_encoder_without_an_order_of_dates_has_the_bytes_that_it_had() -> None:
    day = NumberColumn(name="seen@day", edges=(1.0,), first=1, missing=0)
    assert b"dates" not in encode(Encoder(columns=(day,)))
    dated = Encoder(columns=(day,), dates=(DateColumn(name="seen", order=DateOrder.DAY_FIRST),))
    assert b'"dates":[{"name":"seen","order":"dmy"}]' in encode(dated)
    assert read_encoder(encode(dated)).date_orders == {"seen": DateOrder.DAY_FIRST}
    with pytest.raises(ValueError, match="names of dates are distinct"):
        Encoder(columns=(day,), dates=dated.dates * 2)


def test_a_label_that_is_none_of_the_classes_is_told_with_its_place() -> None:
    with pytest.raises(WrongCell, match="column 'income', row 2") as wrong:
        ENCODER.labels({"income": [">50K", "?!"]})
    assert (wrong.value.column, wrong.value.row) == ("income", 1)
    with pytest.raises(InvalidTask, match="without a label"):
        Encoder(columns=(AGE,)).labels({})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"columns": []}, "columns"),
        ({"version": 2}, "version"),
        (
            {"columns": [{"kind": "number", "name": "a", "edges": [2.0, 1.0], "first": 0, "missing": 0}]},
            "ascend",
        ),
        ({"columns": [{"kind": "number", "name": "a", "edges": [1.0], "first": 2, "missing": 0}]}, "first"),
        (
            {"columns": [{"kind": "number", "name": "a", "edges": [1.0], "first": 0, "missing": 256}]},
            "missing",
        ),
        (
            {"columns": [{"kind": "number", "name": "income", "edges": [], "first": 0, "missing": 0}]},
            "distinct",
        ),
        (
            {
                "columns": [
                    {"kind": "category", "name": "a", "categories": ["x", "x"], "first": 0, "missing": 0}
                ]
            },
            "distinct",
        ),
        (
            {
                "columns": [
                    {
                        "kind": "category",
                        "name": "a",
                        "categories": [str(word) for word in range(255)],
                        "first": 1,
                        "missing": 0,
                    }
                ]
            },
            "a byte for each category",
        ),
        ({"more": 1}, "more"),
        ({"dates": []}, "canonical"),
        ({"dates": [{"name": "age", "order": "dmy"}]}, "a part of each date"),
        ({"dates": [{"name": "age", "order": "ymd"}]}, "order"),
        ({"dates": [{"name": "seen", "order": "dmy"}]}, "a part of each date"),
    ],
)
def test_an_encoder_that_is_not_sound_is_refused(change: dict[str, Any], why: str) -> None:
    settings = {**json.loads(encode(ENCODER)), **change}
    with pytest.raises(InvalidTask, match=why):
        read_encoder(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode())


def test_another_spelling_of_the_same_encoder_is_refused() -> None:
    with pytest.raises(InvalidTask, match="canonical"):
        read_encoder(encode(ENCODER).replace(b"30.0", b"30.00"))


@pytest.mark.parametrize(
    "cell", ["0x10", "1_000", "\u0661", "inf", "NaN", "1e", "--1", "1,5", "+", ".", "e5", "1e999"]
)
def test_what_other_languages_might_call_a_number_is_none(cell: str) -> None:
    assert number(cell) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_back_to_the_bit(value: float) -> None:
    assert number(repr(value)) == value


def test_a_cell_that_says_nothing_says_so_in_any_case_and_within_space() -> None:
    assert {said(f" \t{word.upper()}\n") for word in MISSING} == {None}
    assert said("\u00a0") == "\u00a0"
    assert [said(cell) for cell in ("---", "-1", "-.5", "..", "#", "#n", "<>")] == [
        *("---", "-1", "-.5", "..", "#", "#n", "<>")
    ]
    assert said("İ") == "İ"


def test_the_golden_vectors_are_what_the_encoders_give() -> None:
    """Which bytes every other implementation must give: tests/vectors/encoder/vectors.json."""
    assert json.loads(FILE.read_text()) == vectors()


@pytest.mark.parametrize(
    ("words", "spelt"), [(254, 1), (255, 2), (65_534, 2), (65_535, 3)], ids=["1", "2", "2 full", "3"]
)
def test_an_id_is_as_many_bytes_as_its_rows_need(words: int, spelt: int) -> None:
    column = IdColumn(name="w", words=tuple(map(str, range(words))))
    encoder = Encoder(columns=(NumberColumn(name="n", edges=(1.0,), first=0, missing=0), column))
    assert encoder.num_features == 1 + spelt
    assert encoder.feature_names == ("n", "w", "w byte 1", "w byte 2")[: 1 + spelt]
    cells = [None, "nobody", "0", str(words - 1)]
    found = encoder.features({"n": ["1"] * 4, "w": cells})
    rows = (found[:, 1:].astype(np.int64) * 256 ** np.arange(spelt)).sum(1)
    assert rows.tolist() == [0, 1, 2, words + 1]


def test_hashed_ids_spread_over_all_rows_but_that_of_missing_cells() -> None:
    column = HashColumn(name="w", rows=70_000)
    encoder = Encoder(columns=(column,))
    cells = [None, *(f"user {index}" for index in range(3_000))]
    rows = (encoder.features({"w": cells}).astype(np.int64) * [1, 256, 65536]).sum(1)
    assert rows[0] == 0
    assert rows[1:].min() > 0
    assert rows.max() < 70_000
    assert len(set(rows.tolist())) > 2_850  # 3,000 words into 69,999 rows: 64 collisions are expected
    assert _hash_word("") == 0xF52A15E9A9B5E89B


@pytest.mark.parametrize("column", [{"words": ["a", "a"]}, {"words": [""]}, {"words": ["a" * 201]}])
def test_ids_that_are_not_sound_are_refused(column: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="words"):
        IdColumn(name="w", words=tuple(column["words"]))
