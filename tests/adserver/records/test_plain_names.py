"""Columns of any language get names that a task takes."""

import re

import pytest

from adserver.records.plain_names import (
    declared_name,
    distinct_names,
    filled_name,
    parts_of_unit,
    plain_name,
)


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


def test_a_number_in_parts_of_its_unit_is_not_meant_by_its_columns_name_alone() -> None:
    """It would be read as the whole."""
    assert declared_name("spend", ["spend_x100"]) == "spend"
    assert [parts_of_unit(one) for one in ("spend_x100", "spend_x1000", "spend_x20", "spend")] == [
        100,
        1_000,
        1,
        1,
    ]


def test_a_name_that_an_earlier_one_has_gets_a_number_and_the_others_stay() -> None:
    assert distinct_names(["a", "b", "a", "a_2", "a"]) == ["a", "b", "a_2", "a_2_2", "a_3"]


def test_what_counts_the_reports_with_a_value_is_known_by_the_whole_name_of_a_declared_value() -> None:
    declared = ["spend_x10", "spend_x100", "spend_x100_filled", "bought"]
    assert filled_name("spend_x100", declared) == "spend_x100_filled"
    assert filled_name("spend_x10", declared) is None
    assert filled_name("spend", declared) is None
    assert filled_name("spend", ["spend_filled"]) is None
    assert filled_name("bought", declared) is None
    assert filled_name("spend_x100_filled", declared) is None
