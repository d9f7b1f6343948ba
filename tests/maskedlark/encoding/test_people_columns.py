"""Columns that name people are found by their names, and asked about by their words."""

import pytest

from maskedlark.encoding.people_columns import find_people_columns, holds_names_of_people
from maskedlark.encoding.table import parse_table

LINES = "".join(f"{10_000 + row % 30},K-{row % 40},{row % 9},{row % 25} EUR\n" for row in range(100))
TABLE = parse_table(f"Kundennr,order,pages,user_value\n{LINES}".encode(), "ads.csv")


def test_a_name_says_people_and_words_are_asked_about() -> None:
    found = find_people_columns(TABLE, TABLE.columns.keys())
    assert [*found.named] == ["Kundennr"]
    assert [*found.asked] == ["order"]
    assert len(found.named["Kundennr"]) == 30
    assert found.asked["order"].total() == 100


@pytest.mark.parametrize(
    ("name", "are_people"),
    [
        *dict.fromkeys(("Full Name", "name", "firstName", "last_name", "Vorname", "Nachname"), True).items(),
        *dict.fromkeys(("Prénom", "nom", "customer name", "Kundenname", "username", "surname"), True).items(),
        *dict.fromkeys(("product name", "campaign_name", "name_length", "shop", "client"), False).items(),
    ],
)
def test_a_column_of_names_of_people_is_known_by_its_name(name: str, *, are_people: bool) -> None:
    assert holds_names_of_people(name) is are_people


def test_only_the_columns_asked_for_are_looked_at() -> None:
    found = find_people_columns(TABLE, {"pages", "order"})
    assert not found.named
    assert [*found.asked] == ["order"]
