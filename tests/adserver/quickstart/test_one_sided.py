"""A word, filled cells or gaps whose rows nearly all have one class are found, and ordinary words are not."""

from collections.abc import Sequence
from random import Random

import pytest

from adserver.quickstart.one_sided import find_one_sided
from adserver.quickstart.table_report import Use, read_report
from maskedlark.encoding.table import parse_table
from tests.adserver.quickstart.tables import HEADER, text, visits

ROWS = 9_000
"""Rows of the tables here, of which some 18.5 % are `ja`."""


def labels(share: float = 0.185, seed: int = 3) -> list[str]:
    chance = Random(seed)
    return ["ja" if chance.random() < share else "nein" for _ in range(ROWS)]


def of_class(
    label: str, share: float, said: Sequence[str], cell: str | None, other: str | None
) -> list[str | None]:
    """A column that has a cell in a share of a class's rows, and another one in all other rows."""
    chance = Random(4)
    return [cell if one == label and chance.random() < share else other for one in said]


@pytest.mark.parametrize(
    ("label", "cell", "other", "begin"),
    [
        ("ja", "2026-11-28", None, "is filled in"),
        ("ja", None, "2026-11-28", "is empty in"),
        ("ja", "won back", "none", "has 'won back' in"),
        ("ja", "1", "0", "has '1' in"),
        ("nein", "renewed", None, "is filled in"),
    ],
)
def test_what_only_one_class_has_is_found(
    label: str, cell: str | None, other: str | None, begin: str
) -> None:
    said = labels()
    cells = of_class(label, 0.75, said, cell, other)
    share = f"{100 * said.count(label) / ROWS:.3g} % of all rows are"
    rows = f"{cells.count(cell):,} rows"
    assert find_one_sided(cells, said) == f"{begin} {rows}, all of them {label!r} ({share})"


def test_a_few_rows_of_other_classes_hide_nothing_and_are_counted() -> None:
    said = labels()
    cells = of_class("ja", 0.75, said, "2026-11-28", None)
    for row in [row for row, one in enumerate(said) if one == "nein"][:9]:
        cells[row] = "2026-11-28"
    assert ", all but 9 of them 'ja' (" in find_one_sided(cells, said)


def test_of_several_words_the_most_frequent_is_named_and_the_others_are_counted() -> None:
    said = labels()
    cells = [
        (f"reason {row % 3}" if row % 8 else "reason 0") if one == "ja" and row % 5 else f"none {row % 2}"
        for row, one in enumerate(said)
    ]
    found = find_one_sided(cells, said)
    assert found.startswith("has 'reason 0' in ")
    assert found.endswith(", and 2 more of its words are like that")


@pytest.mark.parametrize("share", [0.5, 0.185, 0.05, 0.01])
@pytest.mark.parametrize("words", [3, 30, 300])
def test_words_without_relation_to_the_label_are_not_one_sided(words: int, share: float) -> None:
    for seed in range(5):
        chance, said = Random(seed), labels(share, seed)
        # Some frequent and most rare, and gaps
        cells = [f"shop {int(words * chance.random() ** 2)}" if chance.random() < 0.9 else None for _ in said]
        assert not find_one_sided(cells, said)


def test_words_that_are_rare_or_numbers_that_are_measured_are_passed_over() -> None:
    said = labels()
    rare = ["won back" if one == "ja" and row % 25 == 0 else "none" for row, one in enumerate(said)]
    assert not find_one_sided(rare, said)
    # A number above which all rows have one class, as Adult's capital gains
    gains = [str(15_024 if one == "ja" and row % 3 else row % 40) for row, one in enumerate(said)]
    assert not find_one_sided(gains, said)


def test_of_more_classes_each_is_compared_with_its_own_share() -> None:
    chance = Random(5)
    said = [chance.choice("abcde") for _ in range(2_000)]
    cells = [f"only {one}" if one == "c" and row % 2 else f"shop {row % 9}" for row, one in enumerate(said)]
    assert find_one_sided(cells, said).startswith("has 'only c' in ")
    assert not find_one_sided([f"shop {row % 9}" for row in range(2_000)], said)


def test_a_one_sided_column_is_warned_of_and_kept() -> None:
    rows = [
        ("2026-11-28" if cells[-1] == "yes" and row % 3 else "", *cells)
        for row, cells in enumerate(visits(3_000))
    ]
    report = read_report(parse_table(text(rows, header=("ended", *HEADER)).encode(), "v.csv"), "bought")
    [column] = [one for one in report.columns if one.leak]
    assert (column.name, column.use) == ("ended", Use.DATE)
    [warning] = report.warn_of_leaks(["ended", "device"])
    assert warning.startswith("column 'ended' is filled in ")
    assert warning.endswith(
        " % of all rows are): leave it out ([data] ignore) unless it is known before the label"
    )
