"""What a table holds is found out column by column: identifiers, row numbers, dates, codes, leaks, "
"useless columns."""

from random import Random

import pytest
from sklearn.datasets import load_breast_cancer

from adserver.quickstart.table_report import Use, read_report, warn_of_spellings
from maskedlark.encoding.table import parse_table
from maskedlark.errors import InvalidTask
from tests.adserver.quickstart.tables import CASES, HEADER, ROWS, text, visits, with_column


def use_of(name: str, text: str) -> tuple[Use, str]:
    report = read_report(parse_table(text.encode(), "visits.csv"), "bought")
    [column] = [one for one in report.columns if one.name == name]
    return column.use, column.why


@pytest.mark.parametrize(
    ("name", "cells", "use", "why"),
    [
        ("user", "u{row}@mail.example", Use.LEFT_OUT, "looks like identifiers: e-mail addresses"),
        ("name", "Ann {row}", Use.LEFT_OUT, "looks like identifiers: 400 different words"),
        ("Full Name", "Ann {some_few}", Use.LEFT_OUT, "names of people, by the column's name"),
        ("product name", "Ann {some_few}", Use.WORDS, ""),
        ("name", "kind {few}", Use.WORDS, ""),
        ("row", "{row}", Use.LEFT_OUT, "row numbers: 400 different values"),
        ("userId", "{big}", Use.LEFT_OUT, "an identifier"),
        ("contact", "{big}", Use.LEFT_OUT, "an identifier"),
        ("shop_id", "{few}", Use.WORDS, "numbers that name things"),
        ("region", "{few:02}", Use.WORDS, "codes: numbers do not begin with 0 as 00"),
        ("cents", "{some}", Use.NUMBER, ""),
        ("price", "{some}.5", Use.NUMBER, ""),
        ("colour", "colour {few}", Use.WORDS, ""),
        ("created_at", "1{unix}", Use.DATE, ""),
        ("created_at", "1{unix}250", Use.DATE, ""),
        ("seen", "2026-11-{day} 10:00", Use.DATE, ""),
        ("seen", "{month}/{month}/2026", Use.LEFT_OUT, "day or the month stands first"),
        ("price", "{some}.{few} €", Use.NUMBER, "read without '€'"),
        ("price", "{some}.{few} kg", Use.LEFT_OUT, "amounts with a unit, 'kg': write the numbers alone"),
        ("price", "{some}.{few} {unit}", Use.LEFT_OUT, "amounts with several units, '€', '$': write"),
        ("price", "{some}.{few}{bare}", Use.LEFT_OUT, "amounts with and without a unit, '€': write"),
        ("price", "1 {some:03}.{few}", Use.LEFT_OUT, "numbers with parted thousands"),
        ("price", '"{some},{few}"', Use.LEFT_OUT, "or decimal commas: write them as 1234.5"),
        ("share", "{few} kg", Use.WORDS, ""),
        ("seen", "{day}.12.25 18:{day}", Use.LEFT_OUT, "dates with years of two digits: write four"),
        ("seen", "{month}/{month}/25", Use.LEFT_OUT, "dates with years of two digits: write four"),
        ("rating", "{gap}", Use.WORDS, "numbers in 300 cells and 's/d' in 100: empty those cells if it is"),
        ("rating", "{dash}", Use.NUMBER, ""),
        ("plan", "{plan}", Use.WORDS, ""),
        ("order", "CMD-{row}", Use.LEFT_OUT, "looks like identifiers: 400 different words"),
        ("price", "EUR {some}.{few}", Use.NUMBER, "read without 'EUR'"),
        ("plan", "EUR{few}", Use.WORDS, ""),
        ("tax_code", "{few} %", Use.WORDS, "numbers that name things"),
        ("price", "{some}.{few}{odd}", Use.LEFT_OUT, "words in 10, such as"),
        ("age", "{few}{odd}", Use.WORDS, "empty those cells if it is a column of numbers"),
        ("seen", "2026-11-{day} 10:{row}{odd}", Use.LEFT_OUT, "dates in a form that is not read in "),
        (
            "seen",
            "2026-{month}-{day} 10:{day}{odd}",
            Use.WORDS,
            "in 390 cells and words in 10, such as '2026-",
        ),
        ("seen", "2026-{month}-{day} {clock}", Use.WORDS, "such as '2026-9-21 10:05 Uhr': write dates as"),
        ("seen", "{date}", Use.LEFT_OUT, "dates in 390 cells and '00.00.0000' in 10: empty those cells"),
        ("seen", "{few_dates}", Use.WORDS, "and 'unbekannt' in 10: empty those cells if it is a column of d"),
        ("seen", "{day}. April 2025", Use.WORDS, "'10. April 2025': write dates as 2026-11-28, 28.11.2026 o"),
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
            odd="" if row % 40 else " or so", unit="€$"[row % 2], bare=" €" if row % 3 else "",
            dash=1 + row % 5 if row % 9 else ("-", "--", ".", "#N/A", "<NA>", "NaT")[row % 6],
            some_few=row % 90, clock="10:05 Uhr",
            date=f"{1 + row % 28}.{1 + row % 12}.20{20 + row % 5}" if row % 40 else "00.00.0000",
            few_dates=f"{1 + row % 28}.12.2025" if row % 40 else "unbekannt",
            gap=1 + row % 5 if row % 4 else "s/d", plan=(1, 2, "basic", "more")[row % 4],
        )  # fmt: skip

    found, said = use_of(name, with_column(name, cell))
    assert (found, why in said) == (use, True), said


def test_signs_for_gaps_are_counted_as_gaps() -> None:
    content = with_column("price", lambda row, _: ("-", "<NA>", "NaT", f"{row % 17}.5")[row % 4])
    report = read_report(parse_table(content.encode(), "visits.csv"), "bought")
    [column] = [one for one in report.columns if one.name == "price"]
    assert (column.use, column.gaps, column.distinct) == (Use.NUMBER, 300, 17)


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["Noël", "Noe\u0308l", "NOEL ", "Noël"], "'NOEL' (1 row) and 'Noe\u0308l' (1 row) next to 'Noël'"),
        (["ja", "Ja", "ja", "nein"], "'Ja' (1 row) next to 'ja'"),
        (
            ["new\u00a0York", "New  York", "new\u00a0York", "York"],
            "'New  York' (1 row) next to 'new\\xa0York'",
        ),
        (["STRASSE", "Straße", "1.0", "1"], "'Straße' (1 row) next to 'STRASSE'"),
        (["A", "a", "B", "b", "C", "c", "D", "d"], ", 'c' (1 row) next to 'C', and 1 more word"),
        (["1", "1.0", "01", "1"], ""),
        (["Köln", "Bonn", "K", "k1"], ""),
    ],
)
def test_words_in_several_spellings_are_told_with_the_most_frequent_one(cells: list[str], told: str) -> None:
    rows = [(f'"{cells[row] if row < len(cells) else "other"}"', *of) for row, of in enumerate(visits())]
    content = text(rows, header=("shop", *HEADER))
    report = read_report(parse_table(content.encode(), "visits.csv"), "bought")
    [shop] = [one for one in report.columns if one.name == "shop"]
    assert shop.spellings.endswith(told)
    assert bool(shop.spellings) == bool(told)
    assert [told in one for one in report.warn_of_spellings(["shop"])] == [True] * bool(told)
    assert report.warn_of_spellings(["device"]) == ()
    # The same of columns alone, where no report is needed
    table = parse_table(content.encode(), "visits.csv")
    assert warn_of_spellings(table, ["shop", "moon"]) == report.warn_of_spellings(["shop"])


def test_a_label_in_several_spellings_is_warned_of_whatever_columns_are_used() -> None:
    rows = [(*of[:-1], of[-1].upper() if row < 9 else of[-1]) for row, of in enumerate(visits())]
    [warned] = read_report(parse_table(text(rows).encode(), "visits.csv"), "bought").warn_of_spellings(())
    assert warned.startswith("column 'bought' has words that differ in case, accents or space only: 'NO' (")


def follows(share: float) -> str:
    chance = Random(5)
    rows = [(cells[-1] if chance.random() < share else "no", *cells) for cells in visits()]
    return text(rows, header=("paid", "visit", "device", "minutes", "pages", "bought"))


def test_a_label_that_is_an_empty_cell_is_no_class() -> None:
    rows = [(*cells[:-1], "yes" if cells[-1] == "yes" else "-") for cells in visits()]
    unlabelled = sum(cells[-1] == "-" for cells in rows)
    with pytest.raises(
        InvalidTask, match=f"one class only.*; {unlabelled} other rows have an empty cell, which"
    ):
        read_report(parse_table(text(rows).encode(), "visits.csv"), "bought")


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


@pytest.mark.parametrize("year", ["2026", "26"])
def test_a_leak_in_dates_that_are_not_read_is_not_advised_to_be_read(year: str) -> None:
    def date(row: int) -> str:
        return f"{1 + row % 12}/{1 + row // 12 % 12}/{year}"

    rows = [(date(row) if cells[-1] == "yes" else "", *cells) for row, cells in enumerate(visits())]
    use, why = use_of("paid", text(rows, header=("paid", "visit", "device", "minutes", "pages", "bought")))
    assert (use, "(a leak?)" in why, "dates" in why) == (Use.LEFT_OUT, True, False)


def test_a_payment_that_only_buyers_make_follows_the_label_though_others_have_zero() -> None:
    chance = Random(6)
    rows = [(f"{chance.expovariate(0.02) * (cells[-1] == 'yes'):.2f}", *cells) for cells in visits()]
    use, why = use_of("paid", text(rows, header=("paid", "visit", "device", "minutes", "pages", "bought")))
    assert (use, "follows the label" in why) == (Use.LEFT_OUT, True)


@pytest.mark.parametrize("gaps", ["none", "lowest", "highest"])
@pytest.mark.parametrize(
    ("apart", "use", "leak"),
    [
        (9.0, Use.LEFT_OUT, "follows the label"),
        (3.7, Use.LEFT_OUT, "ranks the label by itself (AUC 0.99"),
        (2.6, Use.NUMBER, "ranks the label by itself (AUC 0.9"),
        (1.8, Use.NUMBER, ""),
    ],
)
def test_a_number_that_ranks_the_label_is_left_out_or_warned_of(
    apart: float, use: Use, leak: str, gaps: str
) -> None:
    chance, rows = Random(8), []
    for cells in visits(3_000):
        paid = chance.gauss(apart * (cells[-1] == "yes"), 1)
        is_gap = {"none": False, "lowest": paid < -0.5, "highest": paid > apart + 0.5}[gaps]
        rows.append(("" if is_gap else f"{paid:.3f}", *cells))
    table = text(rows, header=("paid", *HEADER))
    report = read_report(parse_table(table.encode(), "visits.csv"), "bought")
    [column] = [one for one in report.columns if one.name == "paid"]
    assert column.use is use
    assert column.leak.startswith(leak)
    assert bool(column.leak) == bool(leak)
    assert (column.leak in column.why) == (use is Use.LEFT_OUT or not leak)
    # Whatever became of it: an owner may take it out of `ignore`.
    warned = report.warn_of_leaks(["paid", "device"])
    assert all("column 'paid'" in one and "known before the label" in one for one in warned)
    assert len(warned) == bool(leak)
    assert report.warn_of_leaks(["device"]) == ()


@pytest.mark.parametrize(("apart", "is_warned_of"), [(2.7, True), (1.8, False)])
def test_a_number_that_ranks_the_label_where_it_is_not_empty_is_warned_of(
    apart: float, is_warned_of: bool
) -> None:
    chance, rows = Random(8), []
    for cells in visits(3_000):
        paid = chance.gauss(apart * (cells[-1] == "yes"), 1)
        rows.append(("" if chance.random() < 0.4 else f"{paid:.3f}", *cells))
    table = text(rows, header=("paid", *HEADER))
    report = read_report(parse_table(table.encode(), "visits.csv"), "bought")
    [column] = [one for one in report.columns if one.name == "paid"]
    assert column.use is Use.NUMBER
    assert ("by itself where it is not empty (AUC 0.9" in column.leak) == is_warned_of
    assert len(report.warn_of_leaks(["paid"])) == is_warned_of


def test_words_of_few_rows_each_do_not_rank_the_label_by_chance() -> None:
    chance = Random(9)
    rows = [(f"shop {chance.randrange(150)}", *cells) for cells in visits()]
    report = read_report(parse_table(text(rows, header=("shop", *HEADER)).encode(), "v"), "bought")
    assert not [one.name for one in report.columns if one.leak]


def test_words_that_one_class_has_rank_the_label_though_each_is_rare() -> None:
    rows = [
        (f"order {row % 60}" if cells[-1] == "yes" else "", *cells) for row, cells in enumerate(visits(2_000))
    ]
    use, why = use_of("paid", text(rows, header=("paid", *HEADER)))
    assert (use, "the label" in why) == (Use.LEFT_OUT, True)


def test_of_more_classes_no_column_is_ranked() -> None:
    rows = [(str(row // 40), *cells[:-1], "abc"[row // 134]) for row, cells in enumerate(visits())]
    report = read_report(parse_table(text(rows, header=("stage", *HEADER)).encode(), "v"), "bought")
    [stage] = [one for one in report.columns if one.name == "stage"]
    assert "AUC" not in stage.leak


def test_a_single_measurement_of_the_breast_cancer_data_is_kept_with_a_warning() -> None:
    data = load_breast_cancer()
    names = ("perimeter", "symmetry", "benign")
    cells = zip(data.data[:, 22], data.data[:, 8], data.target, strict=True)
    content = text([(str(a), str(b), str(c)) for a, b, c in cells], header=names)
    report = read_report(parse_table(content.encode(), "cells.csv"), "benign")
    assert report.left_out() == {}
    assert [one.leak for one in report.columns] == ["ranks the label by itself (AUC 0.975)", ""]


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


@pytest.mark.parametrize("label", ["", "bought"])
def test_an_example_of_amounts_is_what_groups_by_them_are_called(label: str) -> None:
    lines = "".join(f"{row % 3 * 5} %,{'yes' if row % 2 else 'no'}\n" for row in range(200))
    table = parse_table(f"off,bought\n{lines}".encode(), "shop.csv")
    [off, *_] = read_report(table, label).columns
    assert off.example == "5 %"
    assert off.distinct == 3


@pytest.mark.parametrize(
    ("cell", "delimiter"), [("23,55", ";"), ("1.234,5", ";"), ('"1,234.50"', ","), ("23.55", ",")]
)
def test_an_example_of_numbers_is_a_cell_as_the_file_has_it(cell: str, delimiter: str) -> None:
    lines = "".join(
        f"{cell if row % 4 else f'{row}.5' if delimiter == ',' else f'{row},5'}{delimiter}{row % 3 % 2}\n"
        for row in range(200)
    )
    table = parse_table(f"paid{delimiter}bought\n{lines}".encode(), "shop.csv")
    [paid] = read_report(table, "bought").columns
    assert paid.use is Use.NUMBER
    assert paid.example == cell.strip('"')
