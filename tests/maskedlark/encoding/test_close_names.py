"""A misspelt column is answered with the one that was probably meant."""

from collections.abc import Callable

import pytest

from maskedlark.encoding.close_names import find_close, list_known, list_unknown
from maskedlark.encoding.column_kinds import ColumnKind
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.encoding.table import parse_table
from maskedlark.errors import InvalidTask

COLUMNS = ("pais", "Recompra", "Campaña", "importe total")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("recompra", "Recompra"),
        ("RECOMPRA", "Recompra"),
        ("campana", "Campaña"),
        ("Campan\u0303a", "Campaña"),
        ("importe  total", "importe total"),
        ("importetotal", "importe total"),
        ("País", "pais"),
        ("fecha", None),
        ("", None),
    ],
)
def test_case_accents_and_space_are_no_difference_and_letters_a_small_one(
    given: str, meant: str | None
) -> None:
    assert find_close(given, COLUMNS) == meant


def test_of_names_that_differ_in_case_only_the_first_is_meant() -> None:
    assert find_close("LABEL", ["Label", "label"]) == "Label"


@pytest.mark.parametrize(
    "look_up",
    [
        lambda table: table.cells("recompra"),
        lambda table: table.without("recompra"),
        lambda table: fit(table.columns, FitSettings(label="recompra")),
    ],
)
def test_a_column_that_is_looked_up_in_vain_is_named_with_the_close_one(
    look_up: Callable[[object], object],
) -> None:
    with pytest.raises(
        InvalidTask, match=r"no column 'recompra'; did you mean 'Recompra'\? It has a, Recompra$"
    ):
        look_up(parse_table(b"a,Recompra\n1,2\n", "a.csv"))


def test_all_columns_that_are_looked_up_in_vain_are_named_at_once() -> None:
    assert list_unknown(["x"], COLUMNS) == f"no column 'x'; {list_known('x', COLUMNS)}"
    assert list_unknown(["x", "campana", "x"], COLUMNS) == (
        "no columns 'x', 'campana' (did you mean 'Campaña'?); it has pais, Recompra, Campaña, importe total"
    )
    with pytest.raises(InvalidTask, match="no columns 'q', 'r'; it has a"):
        fit({"a": ["1"]}, FitSettings(label="r", kinds={"q": ColumnKind.NUMBER}))


def test_without_a_close_name_the_first_names_are_listed() -> None:
    assert list_known("x", COLUMNS) == "it has pais, Recompra, Campaña, importe total"
    assert list_known("x", []) == "it has none"
    many = [f"column {place}" for place in range(40)]
    assert list_known("x", many) == f"it has {', '.join(many[:30])} and 10 more"


def test_a_name_that_begins_with_what_was_said_is_meant_before_one_that_looks_like_it() -> None:
    assert find_close("amount", ["count", "amount_x100"]) == "amount_x100"
    assert find_close("amount", ["amount_x100", "amount_x100_filled"]) == "amount_x100"
