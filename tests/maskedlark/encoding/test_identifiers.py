"""Words that name people one by one are told from words that many share."""

from collections import Counter
from collections.abc import Iterable

import pytest

from maskedlark.encoding.identifiers import identifiers, why_codes, why_identifiers


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("ann.lee+x@mail.example", "e-mail addresses"),
        ("123e4567-e89b-12d3-a456-426614174000", "UUIDs"),
        ("192.168.0.17", "IP addresses"),
        ("2001:db8:0:0:1:0:0:1", "IP addresses"),
        ("d41d8cd98f00b204e9800998ecf8427e", "hexadecimal ids"),
        ("+49 (170) 123-4567", "telephone numbers"),
        ("DE89 3704 0044 0532 0130 00", "account numbers"),
        ("https://shop.example/?user=17", "web addresses with a query"),
    ],
)
def test_kinds(word: str, kind: str) -> None:
    assert identifiers([word] * 2 + ["other", None] * 50) == kind


@pytest.mark.parametrize(
    "cells",
    [
        ["phone", "desktop", None] * 30,
        [f"{row}.5" for row in range(100)],
        [f"word {row}" for row in range(19)],
        ["12:30", "1.2.3", "deadbeefdeadbeef", "https://shop.example/", "2026-11-28"] * 10,
        [f"campaign {row % 49}" for row in range(100)],
        [],
    ],
)
def test_words_that_are_shared_numbers_and_few_rows_are_no_identifiers(cells: list[str | None]) -> None:
    assert identifiers(cells) is None


def test_nearly_unique_words_are() -> None:
    assert identifiers([f"name {row % 50}" for row in range(100)]) == "50 different words in 100 filled cells"


@pytest.mark.parametrize(
    ("column", "cells", "why"),
    [
        ("campaign_id", ["31", "7", "31"], "numbers that name things, by the column's name"),
        ("campaignId", ["31", "7"], "numbers that name things, by the column's name"),
        ("region", ["07", "11"], "codes: numbers do not begin with 0 as 07"),
        ("campaign_id", ["31", "7.5"], ""),
        ("pages", ["31", "7", "0"], ""),
        ("bid", ["31"], ""),
    ],
)
def test_numbers_name_things_by_their_columns_name_or_a_leading_zero(
    column: str, cells: list[str], why: str
) -> None:
    assert why_codes(column, cells) == why


@pytest.mark.parametrize(
    ("column", "numbers", "why"),
    [
        ("line", range(1, 101), "row numbers: 100 different values in 100 filled cells"),
        ("phone", range(10**9, 10**9 + 10**5, 1_000), "an identifier: 100 different values in 100"),
        ("order_id", [*range(0, 6_000, 100), *range(0, 4_000, 100)], "an identifier: 60 different values"),
        ("seen_at", range(1_790_000_000, 1_790_100_000, 1_000), ""),
        ("price", range(0, 100_000, 1_000), ""),
        ("order_id", [*range(0, 4_000, 100)] * 3, ""),
        ("line", range(19), ""),
        ("line", [one + 0.5 for one in range(100)], ""),
    ],
)  # fmt: skip
def test_whole_numbers_name_rows_if_they_are_dense_long_or_of_such_a_name(
    column: str, numbers: Iterable[float], why: str
) -> None:
    found = why_identifiers(column, Counter(map(str, numbers)))
    assert found.startswith(why)
    assert bool(found) == bool(why)
