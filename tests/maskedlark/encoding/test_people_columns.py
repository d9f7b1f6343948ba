"""Columns that name people are found by their names, and asked about by their words."""

import pytest

from maskedlark.encoding.identifiers import FEWEST_ROWS
from maskedlark.encoding.people_columns import find_people_columns, why_private
from maskedlark.encoding.table import parse_table

LINES = "".join(f"{10_000 + row % 30},K-{row % 40},{row % 9},{row % 25} EUR\n" for row in range(100))
TABLE = parse_table(f"Kundennr,order,pages,user_value\n{LINES}".encode(), "ads.csv")


def test_a_name_says_people_and_words_are_asked_about() -> None:
    found = find_people_columns(TABLE, TABLE.columns.keys())
    assert [*found.named] == ["Kundennr"]
    assert [*found.asked] == ["order"]
    assert len(found.named["Kundennr"]) == 30
    assert found.asked["order"].total() == 100


def cross(first: str, last: str) -> list[str]:
    return [f"{one} {other}" for one in first.split() for other in last.split()]


FULL = cross("Anna Ben Xu Mira", "Lang Abel Jung Ott Roth")
PLACES = [
    "New York", "Los Angeles", "San Diego", "San Jose", "Fort Worth", "El Paso", "Las Vegas",
    "Kansas City", "Long Beach", "Virginia Beach", "Colorado Springs", "Saint Paul", "Santa Ana",
    "Corpus Christi", "Jersey City", "North Las Vegas", "Baton Rouge", "Des Moines", "Salt Lake City",
    "Little Rock",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "are_people"),
    [
        *dict.fromkeys(("Full Name", "name", "firstName", "last_name", "Vorname", "Nachname"), True).items(),
        *dict.fromkeys(("Prénom", "nom", "customer name", "Kundenname", "username", "surname"), True).items(),
        *dict.fromkeys(("Policyholder", "account_holder", "Owner", "insured", "Kontoinhaber"), True).items(),
        *dict.fromkeys(("client", "user_id", "Kundennr"), True).items(),
        *dict.fromkeys(
            ("product name", "campaign_name", "name_length", "shop", "placeholder"), False
        ).items(),
    ],
)
def test_a_column_of_people_is_known_by_its_name(name: str, *, are_people: bool) -> None:
    cells = [f"word {row % 20}" for row in range(100)]
    assert (why_private(name, cells) is not None) is are_people
    # Kinds of people
    assert why_private(name, [f"word {row % 5}" for row in range(100)]) is None


@pytest.mark.parametrize(
    ("words", "are_people"),
    [
        (FULL, True),
        ([f"{name}, Dr. {given}" for given, name in (one.split() for one in FULL)], True),
        ([one.lower() for one in FULL], True),
        ([*FULL, *(f"{one} Shop" for one in "ABCDEFGHIJ")], True),
        ([one.partition(" ")[0] + str(place) for place, one in enumerate(FULL)], False),
        ([*FULL[:10], *(f"Brand{letter}" for letter in "ABCDEFGHIJ")], False),
        (PLACES, False),
        (cross("Spring Black Summer May April", "Sale Friday Deal Launch"), False),
        (cross("Red Blue Green Amber", "Shirt Shoe Hat Coat Bag"), False),
    ],
)
def test_full_names_with_frequent_given_names_are_people_and_places_and_products_are_none(
    words: list[str], *, are_people: bool
) -> None:
    assert len({*words}) >= FEWEST_ROWS
    assert why_private("contact", words * 10) == ("names of people" if are_people else None)


def test_only_the_columns_asked_for_are_looked_at() -> None:
    found = find_people_columns(TABLE, {"pages", "order"})
    assert not found.named
    assert [*found.asked] == ["order"]
