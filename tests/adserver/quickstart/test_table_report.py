"""What a table holds is found out column by column: identifiers, row numbers, dates, codes, leaks, "
"useless columns."""

from random import Random

import pytest

from adserver.quickstart.table_report import Use, read_report
from maskedlark.encoding.table import parse_table
from maskedlark.errors import InvalidTask
from tests.adserver.quickstart.tables import CASES, ROWS, text, visits, with_column


def use_of(name: str, text: str) -> tuple[Use, str]:
    report = read_report(parse_table(text.encode(), "visits.csv"), "bought")
    [column] = [one for one in report.columns if one.name == name]
    return column.use, column.why


@pytest.mark.parametrize(
    ("name", "cells", "use", "why"),
    [
        ("user", "u{row}@mail.example", Use.LEFT_OUT, "looks like identifiers: e-mail addresses"),
        ("name", "Ann {row}", Use.LEFT_OUT, "looks like identifiers: 400 different words"),
        ("row", "{row}", Use.LEFT_OUT, "row numbers: 400 different values"),
        ("userId", "{big}", Use.LEFT_OUT, "an identifier"),
        ("contact", "{big}", Use.LEFT_OUT, "an identifier"),
        ("shop_id", "{few}", Use.WORDS, "numbers that name things"),
        ("cents", "{some}", Use.NUMBER, ""),
        ("price", "{some}.5", Use.NUMBER, ""),
        ("colour", "colour {few}", Use.WORDS, ""),
        ("created_at", "1{unix}", Use.DATE, ""),
        ("seen", "2026-11-{day} 10:00", Use.DATE, ""),
        ("seen", "{month}/{month}/2026", Use.LEFT_OUT, "day or the month stands first"),
        ("price", "{some}.{few} €", Use.LEFT_OUT, "with a unit"),
        ("price", "{some}.{few}{odd}", Use.LEFT_OUT, "words in 10: empty those cells"),
        ("seen", "2026-11-{day} 10:{row}{odd}", Use.LEFT_OUT, "looks like identifiers"),
        ("empty", "", Use.LEFT_OUT, "empty in every row"),
        ("same", "x", Use.LEFT_OUT, "the same in every row"),
        ("", "{few}", Use.LEFT_OUT, "0 characters"),
    ],
)
def test_columns(name: str, cells: str, use: Use, why: str) -> None:
    def cell(row: int, chance: Random) -> str:
        return cells.format(
            row=row, big=chance.randrange(10**9, 10**10), few=row % 7, some=chance.randrange(300),
            unix=f"{chance.randrange(6 * 10**8, 9 * 10**8):09}", day=f"{1 + row % 30:02}", month=1 + row % 12,
            odd="" if row % 40 else " or so",
        )  # fmt: skip

    found, said = use_of(name, with_column(name, cell))
    assert (found, why in said) == (use, True), said


def follows(share: float) -> str:
    chance = Random(5)
    rows = [(cells[-1] if chance.random() < share else "no", *cells) for cells in visits()]
    return text(rows, header=("paid", "visit", "device", "minutes", "pages", "bought"))


def test_a_column_that_follows_the_label_is_left_out_and_one_that_helps_is_not() -> None:
    use, why = use_of("paid", follows(1.0))
    assert use is Use.LEFT_OUT
    assert "follows the label" in why
    assert use_of("paid", follows(0.8))[0] is Use.WORDS
    assert use_of("minutes", follows(1.0))[0] is Use.NUMBER


def test_a_number_that_only_one_class_has_follows_the_label() -> None:
    rows = [(f"{row}.5" if cells[-1] == "yes" else "", *cells) for row, cells in enumerate(visits())]
    use, why = use_of("paid", text(rows, header=("paid", "visit", "device", "minutes", "pages", "bought")))
    assert (use, "follows the label" in why) == (Use.LEFT_OUT, True)


def test_a_payment_that_only_buyers_make_follows_the_label_though_others_have_zero() -> None:
    chance = Random(6)
    rows = [(f"{chance.expovariate(0.02) * (cells[-1] == 'yes'):.2f}", *cells) for cells in visits()]
    use, why = use_of("paid", text(rows, header=("paid", "visit", "device", "minutes", "pages", "bought")))
    assert (use, "follows the label" in why) == (Use.LEFT_OUT, True)


def test_a_label_in_few_rows_is_no_class_and_is_counted() -> None:
    rows = visits()
    rows[:4] = [(*cells[:-1], "maybe") for cells in rows[:4]]
    rows[4] = (*rows[4][:-1], "")
    report = read_report(parse_table(text(rows).encode(), "visits.csv"), "bought")
    assert list(report.classes) == ["no", "yes"]
    assert (report.other_labels, report.unlabelled) == ({"maybe": 4}, 1)
    assert report.labelled + 4 + 1 == report.rows == ROWS


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ("sold", "no column 'sold'"),
        ("minutes", "different numbers in 400 rows"),
        ("visit", "different numbers"),
    ],
)
def test_a_label_that_is_none_is_refused(label: str, why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        read_report(parse_table(text(visits()).encode(), "visits.csv"), label)


def test_a_table_without_a_column_to_learn_from_says_why() -> None:
    with pytest.raises(InvalidTask, match="no column to learn from: 'visit': row numbers"):
        read_report(
            parse_table(text([(c[0], c[-1]) for c in visits()], header=("visit", "bought")).encode(), "v"),
            "bought",
        )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.features])
def test_tables_that_nobody_prepared_are_described(name: str) -> None:
    case = CASES[name]
    report = read_report(parse_table(case.content, "visits.csv"), "bought")
    assert tuple(report.left_out()) == case.left_out
    assert report.labelled + report.unlabelled == report.rows == ROWS
    assert report.unlabelled == case.unlabelled


@pytest.mark.parametrize(
    ("words", "rarer", "classes"),
    [
        (("ja", "nein"), "ja", ["nein", "ja"]),
        (("a", "b"), "b", ["a", "b"]),
        (("no", "yes"), "no", ["no", "yes"]),
        (("False", "True"), "False", ["False", "True"]),
        (("0", "1"), "0", ["0", "1"]),
    ],
)
def test_of_two_words_the_rarer_is_the_second_class(
    words: tuple[str, str], rarer: str, classes: list[str]
) -> None:
    (other,) = set(words) - {rarer}
    rows = [(*cells[:-1], other if row % 4 else rarer) for row, cells in enumerate(visits())]
    report = read_report(parse_table(text(rows).encode(), "visits.csv"), "bought")
    assert list(report.classes) == classes
