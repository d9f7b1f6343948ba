"""Columns of any language get names that a task takes."""

import re

import pytest

from adserver.records.plain_names import (
    declared_name,
    distinct_names,
    filled_name,
    order_of,
    plain_name,
    split_names,
    word_name_of,
)
from maskedlark.reports.measurement import Value


def flags(*names: str) -> tuple[Value, ...]:
    """Declared values that a report has or not."""
    return tuple(Value(name=name, low=0, high=1) for name in names)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("Campaña", "campana"),
        ("Búsqueda genérica", "busqueda_generica"),
        ("Straße", "strasse"),
        ("STRAẞE", "strasse"),
        ("Ærø / Łódź", "aero_lodz"),
        ("İstanbul", "istanbul"),
        ("m²", "m2"),
        ("2024", "column_2024"),
        ("Кампания", "column"),
        ("__", "column"),
        ("a" * 60, "a" * 44),
        ("1" + "a" * 60, "column_1" + "a" * 36),
    ],
)
def test_a_name_keeps_its_letters_without_accents(column: str, name: str) -> None:
    assert plain_name(column) == name
    assert re.fullmatch(r"[a-z][a-z0-9_]{0,43}", name)


def test_a_column_is_meant_by_its_own_name_if_it_is_the_only_one() -> None:
    assert declared_name("Campaña", ["campana", "month"]) == "campana"
    assert declared_name("Campaña", ["campana", "campana_2"]) == "Campaña"
    assert declared_name("campana", ["campana", "campana_2"]) == "campana"
    assert declared_name("Campaña (id)", ["campana_id"]) == "campana_id"


@pytest.mark.parametrize(
    "said",
    ["campana!", "campana<", "campana >", "!campana", "campana==", "place==campana", "place!==campana"],
)
def test_a_name_with_an_operator_is_no_other_name(said: str) -> None:
    assert declared_name(said, ["campana"]) == said
    assert declared_name("Año", ["month"]) == "Año"


def test_a_value_is_meant_by_its_title_its_name_or_the_plain_name_of_the_only_title() -> None:
    declared = ["spend", "yes", "spend_filled"]
    titles = {"Ad spend €": "spend", "bought==yes": "yes", "rows with Ad spend €": "spend_filled"}
    meant = {said: declared_name(said, declared, titles) for said in ("spend", *titles, "ad spend", "yes")}
    assert meant == {**titles, "spend": "spend", "ad spend": "spend", "yes": "yes"}
    assert declared_name("bought=yes", declared, titles) == "bought=yes"
    assert declared_name("cost", ["a", "b"], {"Cost €": "a", "Cost $": "b"}) == "cost"


def test_a_name_that_an_earlier_one_has_gets_a_number_and_the_others_stay() -> None:
    assert distinct_names(["a", "b", "a", "a_2", "a"]) == ["a", "b", "a_2", "a_2_2", "a_3"]


def test_what_counts_the_reports_with_a_value_is_known_by_the_whole_name_of_a_declared_value() -> None:
    declared = flags("spent", "spend", "spend_filled", "bought")
    assert filled_name("spend", declared) == "spend_filled"
    assert filled_name("spent", declared) is None
    assert filled_name("spend", flags("spend_filled")) is None
    assert filled_name("bought", declared) is None
    assert filled_name("spend_filled", declared) is None


def test_groups_are_ordered_by_number_and_then_by_the_alphabet() -> None:
    words = ["10", "Zypern", "9", "Österreich", "oman", "1 a"]
    assert sorted(words, key=order_of) == ["9", "10", "1 a", "oman", "Österreich", "Zypern"]


def test_words_of_a_column_are_counted_by_what_counts_its_cells() -> None:
    words = [word_name_of("spend", word) for word in ("none", "3 €", "€")]
    assert words == ["spend__none", "spend__3", "spend__column"]
    declared = flags("spend", "spend_filled", *words)
    assert {filled_name(one, declared) for one in ("spend", *words)} == {"spend_filled"}
    assert filled_name("spend__none", flags("spend__none", "spend_filled_2")) is None
    amount = Value(name="spend__net", low=0, high=100)
    assert filled_name("spend__net", (*declared, amount)) is None
    assert filled_name("spend__net", (amount, *flags("spend__net_filled"))) == "spend__net_filled"
    # Its own count comes first
    assert filled_name("a__b", flags("a__b", "a_filled", "a__b_filled")) == "a__b_filled"
    # No column's name has what stands between a column's and a word's
    assert "__" not in plain_name("spend__none")
    assert len(word_name_of("s" * 48, "w" * 99)) == 60


def test_a_name_that_two_are_meant_by_is_left_as_it_is_said() -> None:
    titles = {"Total spend": "a", "Other": "total_spend"}
    assert declared_name("Total  Spend", ("a", "total_spend"), titles) == "Total  Spend"
    assert declared_name("Total spend", ("a", "total_spend"), titles) == "a"
    assert declared_name("TOTAL SPEND", ("a", "b"), titles) == "a"
    assert declared_name("Total spend!", ("total_spend", "total_spend_2")) == "Total spend!"
    assert declared_name("Total Spend", ("total_spend", "total_spend_2")) == "Total Spend"


@pytest.mark.parametrize(
    ("typed", "separator", "names"),
    [
        ("Gerät, Typ", ",", ["Gerät, Typ"]),
        ("shop, Gerät, Typ ,x", ",", ["shop", "Gerät, Typ", "x"]),
        ("Gerät,Typ", ",", ["Gerät", "Typ"]),
        ("Gerät, Typ, Art", ",", ["Gerät, Typ, Art"]),
        ("a=b=c", "=", ["a=b", "c"]),
        ("a=c=b", "=", ["a", "c", "b"]),
        ("", ",", [""]),
    ],
)
def test_a_name_may_hold_what_separates_names(typed: str, separator: str, names: list[str]) -> None:
    known = {"Gerät", "Gerät, Typ", "Gerät, Typ, Art", "a=b", "a"}
    assert split_names(typed, separator, known) == names
