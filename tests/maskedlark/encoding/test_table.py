"""A table is read however it was exported, and how is named; what is no table is refused in one line."""

from collections.abc import Sequence

import pytest

from maskedlark.encoding.cells import number
from maskedlark.encoding.encoder import CategoryColumn, ClassLabel, Encoder, NumberColumn, ValueLabel
from maskedlark.encoding.table import append_columns, parse_table
from maskedlark.encoding.written_numbers import doubts_points, have_decimal_commas, read_each_amount
from maskedlark.errors import InvalidTask

ROWS = "Größe{0}Stadt{0}y\n1{0}Köln{0}no\n2{0}Århus{0}yes\n"
COLUMNS = {"Größe": ["1", "2"], "Stadt": ["Köln", "Århus"], "y": ["no", "yes"]}


@pytest.mark.parametrize(
    ("delimiter", "parted"), [(",", "commas"), (";", "semicolons"), ("\t", "tabs"), ("|", "bars")]
)
@pytest.mark.parametrize(
    ("codec", "encoding"),
    [
        ("utf-8", "UTF-8"),
        ("utf-8-sig", "UTF-8 with a mark"),
        ("utf-16", "UTF-16"),
        ("utf-16-be", "UTF-16 without a mark"),
        ("utf-16-le", "UTF-16 without a mark"),
        ("cp1252", "Windows-1252"),
    ],
)
def test_encodings_and_delimiters_are_found_and_named(
    delimiter: str, parted: str, codec: str, encoding: str
) -> None:
    table = parse_table(ROWS.format(delimiter).encode(codec), "a.csv")
    assert dict(table.columns) == COLUMNS
    assert table.lines == [2, 3]
    assert table.written == f"{encoding}, cells parted by {parted}"


@pytest.mark.parametrize(
    ("text", "columns", "lines"),
    [
        ("sep=;\na;b\n1;2\n", {"a": ["1"], "b": ["2"]}, [3]),
        ("sep=\t\r\na\tb\r\n1\t2\r\n", {"a": ["1"], "b": ["2"]}, [3]),
        ('sep="\na\n', {'sep="': ["a"]}, [2]),
        ('a;b\n"x;1";"two\nlines"\n', {"a": ["x;1"], "b": ["two\nlines"]}, [3]),
        ("a;b\n1,5;1.234,5\n2;7\n", {"a": ["1.5", "2"], "b": ["1234.5", "7"]}, [2, 3]),
        ("a;b\n1,5;x\nmany;y\n", {"a": ["1,5", "many"], "b": ["x", "y"]}, [2, 3]),
        ("a;b\n1,5;x\nk.A.;x\n1.000,25;x\n", {"a": ["1.5", "k.A.", "1000.25"], "b": ["x"] * 3}, [2, 3, 4]),
        ("a;b\n1,5;x\n0.125;y\n", {"a": ["1.5", "0.125"], "b": ["x", "y"]}, [2, 3]),
        ("only\n1\n\n2\n", {"only": ["1", "2"]}, [2, 4]),
        ("a,b\n", {"a": [], "b": []}, []),
        ("a\tb,c\n1\t2\n", {"a": ["1"], "b,c": ["2"]}, [2]),
    ],
)
def test_cells_and_their_lines(text: str, columns: dict[str, list[str]], lines: list[int]) -> None:
    table = parse_table(text.encode(), "a.csv")
    assert (dict(table.columns), table.lines) == (columns, lines)


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize(
    ("cells", "read", "unit"),
    [
        (["846,60 €", "1.234,50 €", "7 €"], ["846.60", "1234.50", "7"], "€"),
        (["€ 1.234,50", "€-3,5", "€ -4,5"], ["1234.50", "-3.5", "-4.5"], "€"),
        (["1 234,50\u202f€", "1\u00a0234\u00a0567 €"], ["1234.50", "1234567"], "€"),
        (["$1,234.50", "-$7"], ["1234.50", "-7"], "$"),
        (["CHF 1'234.50", "2 CHF"], ["1234.50", "2"], "CHF"),
        (["USD 5", "6 USD", ""], ["5", "6", None], "USD"),
        (["A$1", "2A$"], ["1", "2"], "A$"),
        (["R$ 27,92", "R$ 1.234,50", "R$3"], ["27.92", "1234.50", "3"], "R$"),
        (["12,50 kr", "3,2 kr"], ["12.50", "3.2"], "kr"),
        (["12 %", "12.5%", "0.125 %"], ["12", "12.5", "0.125"], "%"),
        (["1.234.567 €", "1.234 €"], ["1234567", "1234"], "€"),
        (["1,5 €", "2,5 €", "k.A."], ["1.5", "2.5", "k.A."], "€"),
    ],
)
def test_amounts_of_one_unit_are_read_as_numbers_without_it(
    cells: list[str], read: list[str | None], unit: str, delimiter: str
) -> None:
    content = f"a{delimiter}b\n" + "".join(f'"{cell}"{delimiter}x\n' for cell in cells)
    table = parse_table(content.encode(), "a.csv")
    assert (table.numbers("a"), table.amounts["a"].unit) == (read, unit)
    assert table.columns["a"] == [cell or None for cell in cells]
    assert table.take([1]).numbers("a") == read[1:2]
    assert table.written.endswith(f"amounts (as numbers, without {unit})")
    are_commas_decimal = delimiter == ";" and any(",5" in cell for cell in cells)
    assert table.form.are_commas_decimal is are_commas_decimal


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize(
    ("cells", "read", "unit"),
    [
        (["5.10", "7", "(2.60)"], ["5.10", "7", "-2.60"], ""),
        (["5", "\u22122", "k.A."], ["5", "-2", "k.A."], ""),
        (["93,62 €", "(93,62 €)", "€ (1.234,50)", ""], ["93.62", "-93.62", "-1234.50", None], "€"),
        (["\u221298,49 €", "1,5 €", "(2,5) €"], ["-98.49", "1.5", "-2.5"], "€"),
        (["$1,234.50", "-$7", "$(7)"], ["1234.50", "-7", "-7"], "$"),
        (["5,001.23", "1,234", "(1,234)"], ["5001.23", "1234", "-1234"], ""),
    ],
)
def test_negative_numbers_in_brackets_or_with_a_minus_sign_are_read(
    cells: list[str], read: list[str | None], unit: str, delimiter: str
) -> None:
    content = f"a{delimiter}b\n" + "".join(f'"{cell}"{delimiter}x\n' for cell in cells)
    table = parse_table(content.encode(), "a.csv")
    assert (table.numbers("a"), table.amounts["a"].unit) == (read, unit)
    assert "negative numbers in brackets or with a minus sign" in table.written
    assert table.take([1]).numbers("a") == read[1:2]


def test_negative_numbers_are_read_next_to_decimal_commas() -> None:
    table = parse_table("a;b\n5,10;x\n(2,60);y\n\u22121.234,50;z\n7,5;z\n9;z\n".encode(), "a.csv")
    assert table.numbers("a") == ["5.10", "-2.60", "-1234.50", "7.5", "9"]
    # As words they are as before
    assert table.columns["a"] == ["5.10", "(2,60)", "\u22121.234,50", "7.5", "9"]


def test_an_encoder_reads_negative_numbers_as_numbers_only_where_it_has_numbers() -> None:
    encoder = Encoder(
        columns=(
            CategoryColumn(name="a", first=0, categories=("(1)", "2"), missing=2),
            NumberColumn(name="b", first=0, edges=(5.5,), missing=0),
            NumberColumn(name="c", first=0, edges=(5.5,), missing=0),
        )
    )
    table = parse_table("a;b;c\n(1);(5,5 €);(1)\n2;\u22126;(2)\n3;7 €;(3)\n".encode(), "a.csv")
    read = table.read_by(encoder).columns
    assert read == {"a": ["(1)", "2", "3"], "b": ["-5.5", "-6", "7"], "c": ["-1", "-2", "-3"]}


@pytest.mark.parametrize(
    "cells", [["(1)", "(2)", "(3)"], ["a (1)", "b (2)"], ["(1)", "x", "y"], ["\u2212", "5"]]
)
def test_brackets_that_mean_no_negative_numbers_stay(cells: list[str]) -> None:
    table = parse_table(("a;b\n" + "".join(f"{cell};y\n" for cell in cells)).encode(), "a.csv")
    assert table.numbers("a") == table.columns["a"] == cells
    assert table.written == "UTF-8, cells parted by semicolons"


@pytest.mark.parametrize(
    "cells",
    [
        ["1 €", "2 $"],
        ["1 €", "2 €", "3"],
        ["1 €", "3", "x"],
        ["1.234 €", "5 €"],
        ["1.234,5 €", "1,234.5 €"],
        ["1 €", "x"],
        ["5 kg", "6 kg"],
        ["A 5", "A 6"],
        ["EUR1", "EUR2"],
        ["1EUR", "2kr"],
        ["A$ B1", "A$ B2"],
        ["--5 €", "+-6 €"],
        ["1.2.3 €", "4 €"],
        ["12 34 €", "5 €"],
        ["€ 5 €", "6 €"],
        ["", ""],
        [f"{'9' * 500} x €", "x"],
    ],
)
def test_amounts_that_could_mean_something_else_stay_as_they_are(cells: list[str]) -> None:
    table = parse_table(("a;b\n" + "".join(f"{cell};y\n" for cell in cells)).encode(), "a.csv")
    assert table.columns["a"] == [cell or None for cell in cells]
    assert not table.amounts
    assert table.numbers("a") == table.columns["a"]
    assert table.written == "UTF-8, cells parted by semicolons"


def test_an_encoder_reads_amounts_as_numbers_only_where_it_has_numbers() -> None:
    table = parse_table(b"a;b;c;d\n10 %;5 EUR;1,5 EUR;x\n20 %;6 EUR;2 EUR;y\n", "a.csv")
    encoder = Encoder(
        columns=(
            CategoryColumn(name="a", first=0, categories=("10 %", "20 %"), missing=2),
            NumberColumn(name="b", first=0, edges=(5.5,), missing=0),
        ),
        label=ValueLabel(name="c"),
    )
    read = table.read_by(encoder)
    assert read.columns == {"a": ["10 %", "20 %"], "b": ["5", "6"], "c": ["1.5", "2"], "d": ["x", "y"]}
    assert encoder.features(read.columns).tolist() == [[0, 0], [1, 255]]
    classes = Encoder(columns=encoder.columns, label=ClassLabel(name="c", classes=("1,5 EUR", "2 EUR")))
    assert table.read_by(classes).columns["c"] == ["1,5 EUR", "2 EUR"]
    assert table.read_by(Encoder(columns=encoder.columns)).numbers("c") == ["1,5 EUR", "2 EUR"]


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        ("2,5", "2.5"),
        ("0,125", "0.125"),
        ("1.234,5", "1234.5"),
        ("1,234.5", "1234.5"),
        ("1.234", "1.234"),
        ("1,234", "1,234"),
        ("1.234.567", "1234567"),
        ("1.234 €", "1.234 €"),
        ("€ 1.234,50", "1234.50"),
        ("1 234,50 kr", "1234.50"),
        ("12 %", "12"),
        ("EUR1", "EUR1"),
        ("1.2.3", "1.2.3"),
        ("many", "many"),
        ("1e3", "1e3"),
    ],
)
def test_a_number_by_itself_is_read_where_it_can_mean_one_thing(cell: str, read: str) -> None:
    assert read_each_amount([cell]).cells == [read]


UNIT = "it is an amount in {}, where the others are in {}"
EITHER = "its points or commas may part thousands as well as decimals: write numbers as 1234.5"


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize(
    ("cells", "read", "why"),
    [
        (["12,00", "3,50 €", "1.234 €"], ["12.00", "3.50", "1234"], {}),
        (["3,50 €", "1.234", "1 234,5", ""], ["3.50", "1234", "1234.5", None], {}),
        (["3,50 €", "12 USD", "4,5 €"], ["3.50", "12 USD", "4.5"], {"12 USD": UNIT.format("USD", "€")}),
        (["$3.50", "$1,234", "2 %"], ["3.50", "1234", "2 %"], {"2 %": UNIT.format("%", "$")}),
        (["3,50 €"] * 20 + ["12.5", "1.234 €"], ["3.50"] * 20 + ["12.5", "1234"], {}),
        (["3,50 €", "12.5", "1.234 €", "7 €"], ["3.50", "12.5", "1.234 €", "7"], {"1.234 €": EITHER}),
        (["1.234 €", "1.234", "5"], ["1.234 €", "1.234", "5"], {"1.234 €": EITHER}),
        (["3,50 €", "1,2,3 €", "many", "1e3"], ["3.50", "1,2,3 €", "many", "1e3"], {}),
        (["2,500", "3", "4", "5,00 €", "1.234 €"], ["2.500", "3", "4", "5.00", "1234"], {}),
    ],
)
def test_an_encoder_reads_each_amount_and_leaves_out_only_what_cannot_be_read(
    cells: list[str], read: list[str | None], why: dict[str, str], delimiter: str
) -> None:
    content = f"a{delimiter}b\n" + "".join(f'"{cell}"{delimiter}x\n' for cell in cells)
    table = parse_table(content.encode(), "a.csv")
    encoder = Encoder(columns=(NumberColumn(name="a", first=1, edges=(5.5,), missing=0),))
    amounts = table.amounts_read_by(encoder)["a"]
    assert (amounts.cells, amounts.why) == (read, why)
    assert table.read_by(encoder).columns["a"] == read


def test_a_column_without_a_unit_is_read_as_it_was_parsed() -> None:
    table = parse_table(b"a;b\n1,234;x\n2.345;y\n", "a.csv")
    encoder = Encoder(columns=(NumberColumn(name="a", first=1, edges=(5.5,), missing=0),))
    assert not table.amounts_read_by(encoder)
    assert table.read_by(encoder).columns == table.columns


@pytest.mark.parametrize(
    ("numbers", "have"),
    [
        (["1,5", "2"], True),
        (["1.234,5"], True),
        (["1.5", "0.125"], False),
        (["1,234.5"], False),
        (["1", "-2"], False),
        (["1.234"], None),
        (["1,234"], None),
        (["1,5", "1.5"], None),
        (["x"], None),
    ],
)
def test_decimal_commas_are_told_from_points_where_the_numbers_show_it(
    numbers: list[str], have: bool | None
) -> None:
    assert have_decimal_commas(numbers) is have


@pytest.mark.parametrize(
    ("delimiter", "cells", "read"),
    [
        # Of the largest amounts alone
        (
            ",",
            ["12.50", "5,001.23", "7", "n/a?", "-1,234,567.8"],
            ["12.50", "5001.23", "7", "n/a?", "-1234567.8"],
        ),
        (",", ["12.50", "1,234", "5,001.23"], ["12.50", "1234", "5001.23"]),
        (";", ["12.50", "1,234", "5,001.23"], ["12.50", "1234", "5001.23"]),
        (";", ["12,50", "1,234"], ["12.50", "1.234"]),
        # One stray cell says nothing of the others
        (";", ["25,776", "0,889", "2.5", "31,004"], ["25.776", "0.889", "2.5", "31.004"]),
        (",", ["12.50", "1,234"], ["12.50", "1,234"]),
        (",", ["101,205", "300,400,500", "7"], ["101,205", "300,400,500", "7"]),
        # Nothing shows it
        (",", ["7", "1,234"], ["7", "1,234"]),
        (",", ["a, b", "c, d", "1,234.5"], ["a, b", "c, d", "1,234.5"]),
    ],
)
def test_commas_between_thousands_are_read_where_the_numbers_show_it(
    delimiter: str, cells: list[str], read: list[str]
) -> None:
    lines = [f"a{delimiter}b", *(f'"{cell}"{delimiter}x' for cell in cells)]
    table = parse_table("\n".join(lines).encode(), "a.csv")
    assert table.numbers("a") == read
    assert ("commas between thousands" in table.written) == ("5,001.23" in cells)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PK\x03\x04rest", "a workbook or a ZIP archive: save the table as CSV"),
        (b"PAR1rest", "a Parquet file"),
        (b"a,b\n\0\x81,1\n", "not a text file"),
        (b"", "no valid header"),
        (b",,\n", "no valid header"),
        (b"a,b,a\n1,2,3\n", "columns 1 and 3 are both named 'a'"),
        (b"a;b\n1;2\n3\n", "line 3: found 1 cell, expected 2.*semicolons"),
        (b"a;b\n1;2\n3\n4;5\n6;7;8\n9\n", r"line 3: found 1 cell, .*\); 2 more of another length: 5, 6$"),
        (b'a,b\n"1,2\n', "line 2: expected a CSV file"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(content: bytes, why: str) -> None:
    with pytest.raises(InvalidTask, match=why) as refused:
        parse_table(content, "a.csv")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("codec", "table", "expected"),
    [
        (
            "cp1252",
            'Größe;"a;b"\r\n1.000,50;?\r\n\r\n7;x\r\n',
            'Größe;"a;b";p;why\r\n1.000,50;?;0,25;\r\n7;x;;a gap\r\n',
        ),
        ("utf-16", "sep=|\nGröße|b\n1|2\n3|4\n", "sep=|\nGröße|b|p|why\n1|2|0.25|\n3|4||a gap\n"),
        ("utf-8-sig", "尺寸,b\n1,2\n3,4", "尺寸,b,p,why\n1,2,0.25,\n3,4,,a gap\n"),
    ],
)
def test_columns_are_appended_in_the_form_of_the_file(codec: str, table: str, expected: str) -> None:
    content = table.encode(codec)
    added: dict[str, Sequence[str | float]] = {"p": [0.25, ""], "why": ["", "a gap"]}
    written = append_columns(content, parse_table(content, "a.csv"), added)
    assert written == expected.encode(codec)


@pytest.mark.parametrize("content", [b"a,b,c\n1,2\n3,4\n", b"a,b,c\n1,2,3,4\n"])
def test_a_table_of_which_no_line_fits_the_header_is_refused_though_short_rows_are_kept(
    content: bytes,
) -> None:
    with pytest.raises(InvalidTask, match="line 2: found"):
        parse_table(content, "a.csv", are_short_rows_kept=True)


def test_a_short_row_keeps_its_text_has_no_cell_and_gets_what_is_appended_in_its_place() -> None:
    content = b"a,b,c\n1,2,3\n4,5\n6,7,8\n"
    table = parse_table(content, "a.csv", are_short_rows_kept=True)
    assert table.short == {1: "its line has 2 cells, expected 3"}
    assert table.columns == {"a": ["1", None, "6"], "b": ["2", None, "7"], "c": ["3", None, "8"]}
    assert table.take([2, 1]).short == {1: table.short[1]}
    added: dict[str, Sequence[str | float]] = {"p": [0.5, "", 1.0], "why": ["", table.short[1], ""]}
    written = append_columns(content, table, added)
    why = "its line has 2 cells, expected 3"
    assert written == f'a,b,c,p,why\n1,2,3,0.5,\n4,5,,,"{why}"\n6,7,8,1.0,\n'.encode()
    with pytest.raises(InvalidTask, match="line 3: found 4 cells, expected 3"):
        parse_table(b"a,b,c\n1,2,3\n4,5,6,7\n", "a.csv", are_short_rows_kept=True)


def test_appending_keeps_the_text_of_cells_but_not_their_quotes_or_the_order_of_bytes() -> None:
    content = 'a, b\n"1", "x, y"\n'.encode("utf-16-be")
    marked = b"\xfe\xff" + content
    written = append_columns(marked, parse_table(marked, "a.csv"), {"p": [1.0]})
    assert written == 'a,b,p\n1,"x, y",1.0\n'.encode("utf-16")
    unmarked = append_columns(content, parse_table(content, "a.csv"), {"p": [1.0]})
    assert unmarked == 'a,b,p\n1,"x, y",1.0\n'.encode("utf-16-be")


def test_a_column_that_the_files_encoding_cannot_hold_is_refused() -> None:
    content = "größe\n1\n".encode("cp1252")
    with pytest.raises(InvalidTask, match=r"a\.csv is Windows-1252, .* cannot hold '尺' of a new column"):
        append_columns(content, parse_table(content, "a.csv"), {"尺寸": [0.5]})


def test_a_stray_amount_makes_no_thousands_of_numbers_with_three_decimals() -> None:
    numbers = [f"{row}.{row:03d}" for row in range(1, 200)]
    content = "\n".join(["paid", *numbers, '"2,5 €"']).encode()
    encoder = Encoder(
        columns=(NumberColumn(name="paid", first=1, missing=0, edges=(0.0, 1.0)),),
        label=ClassLabel(name="bought", classes=("no", "yes")),
    )
    found = parse_table(content, "t.csv").read_by(encoder)
    assert [float(cell or "nan") for cell in found.columns["paid"][:2]] == [1.001, 2.002]


def test_words_that_read_as_gaps_are_named_by_column() -> None:
    table = parse_table(b"a,b\nnone,x\nNone,\nNA, -\n1,y\n", "t.csv")
    assert table.gap_words == {"a": ("none", "None", "NA")}
    assert table.explain_gaps("a").startswith(" ('none', 'None', 'NA' read as gaps: ")
    assert table.explain_gaps("b") == ""


@pytest.mark.parametrize(
    ("cells", "other", "read"),
    [
        (["1.745", "950", "-12.345.678"], "74,2", ["1745", "950", "-12345678"]),
        (["1.745", "950"], "7,50 €", ["1745", "950"]),
        # Nothing shows that commas are decimal
        (["1.745", "950"], "7", ["1.745", "950"]),
        # No thousands begin with 0 or have two digits
        (["1.745", "0.250"], "74,2", ["1.745", "0.250"]),
        (["1.745", "9.5"], "74,2", ["1.745", "9.5"]),
        # A comma in the column makes it one of decimals
        (["1,745", "31,004"], "74,2", ["1.745", "31.004"]),
    ],
)
def test_points_part_thousands_where_a_file_has_decimal_commas(
    cells: list[str], other: str, read: list[str]
) -> None:
    content = "\n".join(["a;b", *(f"{cell};{other}" for cell in cells)])
    table = parse_table(content.encode(), "t.csv")
    assert table.numbers("a") == read
    assert ("points between thousands" in table.written) == (read[0] == "1745")


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize(
    ("cells", "other", "read"),
    [
        (["1,234", "950", "-12,345,678"], "1,234.50", ["1234", "950", "-12345678"]),
        (["1,234", "950.25"], "1,234.50", ["1234", "950.25"]),
        (["1,234", "(5,678)"], "1,234.50", ["1234", "-5678"]),
        (["$1,234", "$5,678"], "1,234.50", ["1234", "5678"]),
        (["1,234", "950"], "$1,234.50", ["1234", "950"]),
        (["1.234 €", "5.678 €"], "1,234.50", ["1.234", "5.678"]),
        # These are lists, and no thousands
        (["1,2", "3,4"], "1,234.50", None),
        (["12,34", "1,234"], "1,234.50", None),
    ],
)
def test_commas_part_thousands_where_a_file_shows_that_they_do(
    cells: list[str], other: str, read: list[str] | None, delimiter: str
) -> None:
    content = "\n".join([f"a{delimiter}b", *(f'"{cell}"{delimiter}"{other}"' for cell in cells)])
    table = parse_table(content.encode(), "t.csv")
    assert read is None or table.numbers("a") == read
    assert [*map(number, filter(None, table.numbers("b")))] == [1234.5] * len(cells)
    if read is None and delimiter == ",":
        assert table.numbers("a") == cells


def test_commas_that_are_decimal_somewhere_part_no_thousands_elsewhere() -> None:
    content = 'a,b,c\n"1,234","1,234.50","1,5"\n"950","2,000.25","2,5"'
    assert parse_table(content.encode(), "t.csv").numbers("a") == ["1,234", "950"]


def test_points_that_may_part_thousands_are_doubted() -> None:
    thousands = [f"{n}.{n:03}" for n in range(1, 60)]
    assert doubts_points([*thousands, "950"]).startswith("points are read as decimals, as in '1.001'")
    assert not doubts_points(thousands)
    assert not doubts_points([*thousands, "950", "9.5"])
    assert not doubts_points([*thousands[:10], "950"])
