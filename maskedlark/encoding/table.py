r"""A table as people export it, read from a file's bytes into columns of cells.

How the file was written is detected and named: its encoding (UTF-8, UTF-16, Windows-1252), the character
between cells (comma, semicolon, tab, bar), where cells are not parted by commas numbers with a decimal comma,
and columns of amounts with one currency or %, which are numbers without it where numbers are read.

>>> table = parse_table("Größe;Stadt\n1,5;Köln\n".encode("cp1252"), "export.csv")
>>> table.columns, table.written
({'Größe': ['1.5'], 'Stadt': ['Köln']}, 'Windows-1252, cells parted by semicolons, decimal commas')
"""

import csv
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from io import StringIO
from itertools import islice
from typing import Final

from maskedlark.encoding.cells import number, said
from maskedlark.encoding.close_names import list_known
from maskedlark.encoding.encoder import Encoder, NumberColumn, ValueLabel
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen

Cells = Sequence[str | None]
"""One column: each cell stripped, None where it holds no value."""

_PARTED: Final = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# Rows from which the character between cells is guessed
_ROWS_TRIED: Final = 100
# The least share of those rows that have as many cells as the header
_AGREEING: Final = 0.5
_NO_TEXT: Final = {
    b"PK\x03\x04": "a workbook or a ZIP archive",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip archive",
    b"%PDF": "a PDF document",
}
# Further lines that an error names
_MOST_LINES: Final = 5
# The share of filled cells that are numbers, above which a column is one of numbers
_MOSTLY: Final = 0.5
# The share of the cells that show how commas and points are meant, from which the others follow them
_CLEARLY: Final = 0.95
# Points or commas between thousands; no thousands begin with 0
_DECIMAL_COMMA: Final = re.compile(r"[+-]?(?:[1-9][0-9]{0,2}(?:\.[0-9]{3})+|[0-9]+)(?:,[0-9]+)?")
_DECIMAL_POINT: Final = re.compile(r"[+-]?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
_POINTS_OF_THOUSANDS: Final = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+")
# Of decimals, so many would all have three digits with a chance of less than 1 %
_FEWEST_POINTED: Final = 50
_SYMBOL: Final = r"[$€£¥₹%]|(?:R|A|C|US)\$"
# No letters but these, and these apart from the figures: others may be names, such as A 5 and EUR1
_LETTERS: Final = "kr|zł|Kč|AUD|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EUR|GBP|INR|JPY|MXN|NOK|NZD|PLN|SEK|USD"
_NAMED_UNIT: Final = re.compile(
    rf"(?:\b(?:R|A|C|US))?\$|{_SYMBOL}|(?<![^\W_])(?:{_LETTERS})(?![^\W_])", re.IGNORECASE
)
_CODES: Final = {
    "€": "EUR",
    "$": "USD",
    "US$": "USD",
    "£": "GBP",
    "¥": "JPY",
    "₹": "INR",
    "R$": "BRL",
    "A$": "AUD",
    "C$": "CAD",
}
_BLANK: Final = r"[ \u00a0\u202f]"
_FIGURES: Final = r"[0-9](?:[0-9.,' \u00a0\u202f\u2019]*[0-9])?"
_AMOUNT: Final = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<before>{_SYMBOL}|(?:{_LETTERS})(?={_BLANK})){_BLANK}?(?P<first>[+-]?{_FIGURES})"
    rf"|(?P<last>{_FIGURES}){_BLANK}?(?P<after>{_SYMBOL}|(?<={_BLANK})(?:{_LETTERS})))"
)
# As accounts write negative amounts: `(2.60)`, `(2,60 €)`, `€(2.60)`
_BRACKETED: Final = re.compile(
    rf"(?P<before>(?:{_SYMBOL}){_BLANK}?)?\((?P<inside>[^()+0-9-]*[0-9][^()+-]*)\)(?P<after>{_BLANK}?(?:{_SYMBOL}|{_LETTERS}))?"
)
_MINUS: Final = "\u2212"
_SPACE_OF_THOUSANDS: Final = re.compile(r"(?<=[0-9])[' \u00a0\u202f\u2019](?=[0-9]{3}(?![0-9]))")
# The first line by which Excel says what parts cells
_SEP_LINE: Final = re.compile(r'\ufeff?sep=(\t|[^\s"])\r?\n')


@frozen
class TableForm:
    """How a table's file was written, for a file that opens in the same programs.

    Attributes:
        codec: Python's name of the encoding.
        delimiter: The character between cells.
        are_commas_decimal: Whether numbers have decimal commas.
    """

    codec: str = "utf-8"
    delimiter: str = ","
    are_commas_decimal: bool = False


@frozen
class Amounts:
    """A column of amounts as numbers.

    Attributes:
        unit: The currency or % that the amounts have; empty for none.
        cells: The column without it, and with decimal points.
        have_commas: Whether decimal commas were written.
        why: Why a cell is no number, by cell, where more can be said than that it is none.
    """

    unit: str
    cells: Cells = field(repr=False)
    have_commas: bool
    why: Mapping[str, str] = field(default_factory=dict, repr=False)

    def explain(self, row: int, usual: str) -> str:
        """Return why a row's cell is no number, or the usual reason if no more can be said."""
        cell = self.cells[row]
        return usual if cell is None else self.why.get(cell, usual)


@frozen
class Table:
    """Cells by column.

    Attributes:
        name: The file's name.
        columns: In the order of the header, all of one length.
        lines: The line of the file that each row ends on, from 1.
        written: How the file was written, for people.
        form: The same for `append_columns`.
        amounts: The columns of amounts: `columns` has them as words, with their currency or %.
        decimal_commas: The columns of numbers that had decimal commas, and have points in `columns`.
        short: Rows with fewer cells than the header, and why they are not read; all their cells are None.
        examples: Of each column whose numbers have other points in `columns` than in the file, the most
            frequent cell as it is written.
        gap_words: Of each column that has such, the words that read as gaps, as `none` does.
    """

    name: str
    columns: Mapping[str, Cells] = field(repr=False)
    lines: Sequence[int] = field(repr=False)
    written: str = ""
    form: TableForm = TableForm()
    amounts: Mapping[str, Amounts] = field(default_factory=dict)
    decimal_commas: Collection[str] = ()
    short: Mapping[int, str] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    gap_words: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: Sequence[int]) -> "Table":
        """Return these rows, in this order."""
        return replace(
            self,
            columns={name: [cells[row] for row in rows] for name, cells in self.columns.items()},
            lines=[self.lines[row] for row in rows],
            short={place: self.short[row] for place, row in enumerate(rows) if row in self.short},
            amounts={
                name: replace(one, cells=[one.cells[row] for row in rows])
                for name, one in self.amounts.items()
            },
        )

    def explain_gaps(self, column: str) -> str:
        """Return, to follow a word such as gap, that words of a column are read so; empty if none is."""
        words = self.gap_words.get(column, ())
        read = f"{', '.join(map(repr, words))} {'reads as a gap' if len(words) == 1 else 'read as gaps'}"
        return f" ({read}: to make a class of it, write another word)" if words else ""

    def numbers(self, column: str) -> Cells:
        """Return a column where numbers are read: amounts without their currency or %.

        Raises:
            InvalidTask: there is no such column.
        """
        cells = self.cells(column)
        return self.amounts[column].cells if column in self.amounts else cells

    def read_by(self, encoder: Encoder) -> "Table":
        """Return the table with amounts as numbers where the encoder has numbers, and as words elsewhere.

        They are read as by `amounts_read_by`.
        """
        numbers = {name: one.cells for name, one in self.amounts_read_by(encoder).items()}
        return replace(self, columns={**self.columns, **numbers}, amounts={})

    def amounts_read_by(self, encoder: Encoder) -> dict[str, Amounts]:
        """Return the columns of amounts that an encoder has as numbers, by name.

        Unlike a column that an encoder is fitted to, one that an encoder reads may have cells without a unit,
        and loses no more than the cells of another unit and those that cannot be read.
        """
        read = (*encoder.columns, *((encoder.label,) if encoder.label else ()))
        names = [one.name for one in read if isinstance(one, NumberColumn | ValueLabel)]
        found = {
            name: self.amounts.get(name) or self._read_each_amount(name)
            for name in names
            if name in self.columns
        }
        return {name: one for name, one in found.items() if one}

    def _read_each_amount(self, name: str) -> Amounts | None:
        cells: Cells = self.columns[name]
        if any(map(_has_other_minus, set(cells))):
            cells = [None if cell is None else _use_hyphen(cell) for cell in cells]
        if cells == self.columns[name] and not any(
            _AMOUNT.fullmatch(cell) for cell in set(cells) if cell and number(cell) is None
        ):
            return None
        if name in self.decimal_commas:
            return read_each_amount(cells, are_commas_decimal=True, have_numbers_points=True)
        return read_each_amount(cells, are_commas_decimal=_have_mostly_decimal_commas(cells))

    def cells(self, column: str) -> Cells:
        """Return a column.

        Raises:
            InvalidTask: there is no such column.
        """
        if column not in self.columns:
            raise InvalidTask(f"{self.name} has no column {column!r}; {list_known(column, self.columns)}")
        return self.columns[column]

    def without(self, column: str) -> "Table":
        """Return the table without a column.

        Raises:
            InvalidTask: there is no such column.
        """
        self.cells(column)
        return replace(
            self,
            columns={name: cells for name, cells in self.columns.items() if name != column},
            amounts={name: found for name, found in self.amounts.items() if name != column},
            decimal_commas=tuple(name for name in self.decimal_commas if name != column),
        )


def parse_table(content: bytes, name: str, *, are_short_rows_kept: bool = False) -> Table:
    """Parse a table with a header from a file's bytes.

    Args:
        content: The file's bytes.
        name: The file's name.
        are_short_rows_kept: Whether rows with fewer cells than the header are kept without a cell, as
            `Table.short`: nobody can tell which cells they lack.

    Raises:
        InvalidTask: the bytes are no text, a header's name is used twice, or a row has more or fewer cells
            than the header; the message names the file, and the lines or the columns.
    """
    text, codec, encoding = _text(content, name)
    skipped = 0
    if declared := _SEP_LINE.match(text):
        text, skipped, delimiter = text[declared.end() :], 1, declared[1]
    else:
        delimiter = _delimiter(text)
    lines = list[int]()
    short, ragged, of_short = dict[int, str](), dict[int, int](), dict[int, int]()
    gap_words = dict[str, dict[str, None]]()
    known = dict[str, str | None]()  # equal cells are one string: that takes a third of the memory
    try:
        # Line ends stay as they are, for csv to tell those in quotes from the others.
        reader = csv.reader(
            StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True
        )
        header = [one.strip() for one in next(reader, [])]
        _check_header(header, name)
        columns: dict[str, list[str | None]] = {one: [] for one in header}
        for given in reader:
            cells = given
            # Empty lines, such as exports end with, are no rows.
            if cells:
                line = reader.line_num + skipped
                if len(cells) < len(header) and are_short_rows_kept:
                    of_short[line] = len(cells)
                    short[len(lines)] = f"its line has {_count_cells(len(cells))}, expected {len(header)}"
                    cells = [""] * len(header)
                if len(cells) != len(header):
                    ragged[line] = len(cells)
                    continue
                for (title, column), cell in zip(columns.items(), cells, strict=True):
                    if cell not in known:
                        known[cell] = said(cell)
                    column.append(known[cell])
                    if known[cell] is None and cell.strip().isalpha():
                        gap_words.setdefault(title, {})[cell.strip()] = None
                lines.append(line)
    except csv.Error as error:
        raise InvalidTask(
            f"{name}, line {reader.line_num + skipped}: expected a CSV file, but {error}: check its quotes"
        ) from None
    # Where all are short, the header is what is wrong
    _check_lengths(ragged | (of_short if len(short) == len(lines) else {}), len(header), name, delimiter)
    columns_read = _read_numbers(columns, delimiter)
    return replace(
        columns_read,
        name=name,
        lines=lines,
        written=", ".join(
            [
                encoding,
                f"cells parted by {_PARTED.get(delimiter, repr(delimiter))}",
                *filter(None, [columns_read.written]),
            ]
        ),
        form=replace(columns_read.form, codec=codec, delimiter=delimiter),
        short=short,
        gap_words={title: (*words,) for title, words in gap_words.items()},
    )


def _read_numbers(columns: Mapping[str, Cells], delimiter: str) -> Table:
    """Return a table of columns, with points in numbers where commas or thousands were.

    Its `written` says what was read so; it has no lines yet.
    """
    as_written, columns, written = columns, {**columns}, list[str]()
    with_points = {} if delimiter == "," else dict(_with_points(columns))
    if with_points:
        columns |= with_points
        written.append("decimal commas")
    without_thousands = dict(_without_thousands(columns))
    if without_thousands:
        columns |= without_thousands
        written.append("commas between thousands")
    amounts = {one: found for one, cells in columns.items() if (found := _read_amounts(cells))}
    signed = dict(_with_hyphens(as_written))
    amounts |= _read_signed(signed, are_commas_parting=delimiter == ",")
    written += _describe_amounts(amounts, signed)
    have_commas = any(found.have_commas for found in amounts.values()) and delimiter != ","
    if with_points or have_commas:
        # A point is none of decimals then, except where it was a comma
        read = with_points.keys() | without_thousands.keys()
        if parted := dict(_without_points({one: cells for one, cells in columns.items() if one not in read})):
            columns |= parted
            written.append("points between thousands")
    return Table(
        name="",
        columns=columns,
        lines=(),
        written=", ".join(written),
        form=TableForm(are_commas_decimal=bool(with_points) or have_commas),
        amounts=amounts,
        decimal_commas=frozenset(with_points),
        examples={
            one: find_example(as_written[one])
            for one, cells in columns.items()
            if cells is not as_written[one]
        },
    )


def _describe_amounts(amounts: Mapping[str, Amounts], signed: Collection[str]) -> Iterator[str]:
    if not amounts.keys().isdisjoint(signed):
        yield "negative numbers in brackets or with a minus sign"
    if units := dict.fromkeys(found.unit for found in amounts.values() if found.unit):
        yield f"amounts (as numbers, without {' and '.join(units)})"


def find_other_unit(column: str, unit: str) -> str:
    """Return the unit that a column's name has, if it has one and amounts are in another; else nothing.

    >>> find_other_unit("Umsatz (€)", "$"), find_other_unit("Umsatz (€)", "EUR")
    ('€', '')
    """
    named = [found[0].upper() for found in _NAMED_UNIT.finditer(column)]
    known = {_CODES.get(one, one) for one in named}
    return "" if not named or _CODES.get(unit, unit).upper() in known else named[0]


def names_unit(column: str) -> bool:
    """Return whether a column's name has a currency or %."""
    return bool(_NAMED_UNIT.search(column))


def find_example(cells: Cells) -> str:
    """Return a column's most frequent cell, of equals the last in order; empty if all are gaps."""
    counts = Counter(cell for cell in cells if cell is not None)
    return max(counts, key=lambda cell: (counts[cell], cell), default="")


def _count_cells(cells: int) -> str:
    return "1 cell" if cells == 1 else f"{cells} cells"


def _check_lengths(ragged: Mapping[int, int], expected: int, name: str, delimiter: str) -> None:
    """Refuse lines with another number of cells than the header, given by line; name several at once."""
    if not ragged:
        return
    first, *others = ragged
    listed = ", ".join(map(str, others[:_MOST_LINES])) + (", ..." if others[_MOST_LINES:] else "")
    raise InvalidTask(
        f"{name}, line {first}: found {_count_cells(ragged[first])}, expected {expected}, one for each "
        f"column of the header (cells are parted by {_PARTED.get(delimiter, delimiter)})"
        + (f"; {len(others)} more of another length: {listed}" if others else "")
    )


def is_number_as_written(cell: str) -> bool:
    """Return True if a cell is a number, or one with a decimal comma."""
    return bool(number(cell) is not None or _DECIMAL_COMMA.fullmatch(cell))


def append_columns(content: bytes, table: Table, added: Mapping[str, Sequence[str | float]]) -> bytes:
    """Return a table's file with columns appended, in its encoding, delimiter and decimal sign.

    The text of the file's cells stays, as do a `sep=` line, the kind of line ends and the mark of UTF-8;
    quotes and the space before cells may go, and UTF-16 with a mark becomes little-endian. Short rows get
    empty cells up to the new columns.

    Args:
        content: The file's bytes.
        table: As `parse_table` read it from them.
        added: New columns by name, of one cell a row.

    Raises:
        InvalidTask: the encoding lacks a character of a new column.
    """
    form = table.form
    text = content.decode(form.codec)
    declared = _SEP_LINE.match(text)
    begin = declared.end() if declared else 0
    reader = csv.reader(
        StringIO(text[begin:], newline=""), delimiter=form.delimiter, strict=True, skipinitialspace=True
    )
    file = StringIO(newline="")
    file.write(text[:begin])
    first_line = text[begin:].partition("\n")[0]
    writer = csv.writer(
        file, delimiter=form.delimiter, lineterminator="\r\n" if first_line.endswith("\r") else "\n"
    )
    header = next(reader)
    writer.writerow([*header, *added])
    cells = zip(*added.values(), strict=True)
    for row, more in zip(filter(None, reader), cells, strict=True):
        gap = [""] * (len(header) - len(row))
        writer.writerow([*row, *gap, *(_write_cell(one, form) for one in more)])
    try:
        return file.getvalue().encode(form.codec)
    except UnicodeEncodeError as error:
        raise InvalidTask(
            f"{table.name} is {table.written}, which cannot hold {error.object[error.start]!r} of a new "
            "column: save the table in UTF-8 first"
        ) from None


def _write_cell(cell: str | float, form: TableForm) -> str:
    if isinstance(cell, str):
        return cell
    return repr(cell).replace(".", ",") if form.are_commas_decimal else repr(cell)


def _text(content: bytes, name: str) -> tuple[str, str, str]:
    """Decode a file; return its text, and its encoding's name for Python and for people."""
    found = next((what for start, what in _NO_TEXT.items() if content.startswith(start)), None)
    if found is not None:
        raise InvalidTask(f"{name} is {found}: save the table as CSV first")
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        tried = [("utf-16", "UTF-16")]
    elif content.startswith(BOM_UTF8):
        tried = [("utf-8-sig", "UTF-8 with a mark")]
    elif half := _utf_16_without_mark(content):
        tried = [(half, "UTF-16 without a mark")]
    else:
        # UTF-8 first: other encodings are hardly ever valid UTF-8. Latin-1 last: it takes any bytes.
        tried = [("utf-8", "UTF-8"), ("cp1252", "Windows-1252"), ("latin-1", "Latin-1")]
    for codec, encoding in tried:
        try:
            text = content.decode(codec)
        except UnicodeDecodeError:
            continue
        # Text has no zero bytes: this is a binary file, or was read in the wrong encoding.
        if "\0" not in text:
            return text, codec, encoding
    raise InvalidTask(
        f"{name} is not a text file in UTF-8, UTF-16 or Windows-1252: save the table as CSV in UTF-8"
    )


def _utf_16_without_mark(content: bytes) -> str | None:
    """Return the byte order of text whose every other byte is mostly zero, or None."""
    sample = content[:2_000]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if 4 * max(even, odd) < len(sample) or not sample:
        return None
    return "utf-16-be" if even > odd else "utf-16-le"


def _delimiter(text: str) -> str:
    """Return the character by which most rows have as many cells as the header, and the header most."""
    return max(_PARTED, key=lambda one: _fit_of_delimiter(text, one))  # of equals the first: the comma


def _fit_of_delimiter(text: str, delimiter: str) -> tuple[float, int]:
    """Return the share of rows as long as the header, in tenths, and its length; zeros for no delimiter."""
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        widths = [len(cells) for cells in islice(reader, _ROWS_TRIED) if cells]
    except csv.Error:
        return 0, 0
    agreeing = sum(width == widths[0] for width in widths)
    is_one = bool(widths) and widths[0] > 1 and agreeing >= _AGREEING * len(widths)
    # In tenths: one ragged row more must not decide against the delimiter that finds more columns.
    return (10 * agreeing // len(widths), widths[0]) if is_one else (0, 0)


def _check_header(header: list[str], name: str) -> None:
    if not any(header):
        raise InvalidTask(f"{name} has no valid header: expected a first line with distinct column names")
    repeated = [one for one, count in Counter(header).items() if count > 1]
    if repeated:
        places = [str(place) for place, one in enumerate(header, 1) if one == repeated[0]]
        raise InvalidTask(
            f"{name} has no valid header: columns {' and '.join(places)} are both named {repeated[0]!r}: "
            "give "
            "them distinct names in the first line"
        )


def _with_points(columns: Mapping[str, Cells]) -> Iterator[tuple[str, list[str | None]]]:
    """Yield the columns of numbers with decimal commas, with points instead."""
    for name, cells in columns.items():
        filled = [cell for cell in cells if cell is not None]
        # A stray word among them stays one, and costs its own row alone.
        numbers = sum(1 for cell in filled if is_number_as_written(cell))
        if (
            numbers > _MOSTLY * len(filled)
            and any("," in cell and _DECIMAL_COMMA.fullmatch(cell) for cell in filled)
            and not _parted_by_commas(cells)
        ):
            yield name, [None if cell is None else _use_decimal_point(cell) for cell in cells]


def _has_other_minus(cell: str | None) -> bool:
    """Return whether a cell is perhaps a negative number without a hyphen."""
    return cell is not None and ("(" in cell or _MINUS in cell)


def _use_hyphen(cell: str) -> str:
    """Return a negative number with a hyphen, and any other cell as it is.

    >>> [_use_hyphen(cell) for cell in ("(2.60)", "(93,62 €)", "\u22125", "(see below)")]
    ['-2.60', '-93,62 €', '-5', '(see below)']
    """
    text = cell.replace(_MINUS, "-")
    if found := _BRACKETED.fullmatch(text):
        text = f"-{found['before'] or ''}{found['inside']}{found['after'] or ''}"
    return text if _is_number_or_amount(text) else cell


def _is_number_or_amount(cell: str) -> bool:
    return is_number_as_written(cell) or bool(_DECIMAL_POINT.fullmatch(cell) or _AMOUNT.fullmatch(cell))


def _with_hyphens(columns: Mapping[str, Cells]) -> Iterator[tuple[str, Cells]]:
    """Yield the columns of numbers of which some are negative in brackets or by a minus sign, with hyphens.

    A column of nothing but numbers in brackets, such as those of notes, is none.
    """
    for name, cells in columns.items():
        if not any(map(_has_other_minus, set(cells))):
            continue
        counts = Counter(cell for cell in cells if cell is not None)
        written = {cell: _use_hyphen(cell) for cell in counts}
        numbers = sum(count for cell, count in counts.items() if _is_number_or_amount(written[cell]))
        bracketed = sum(count for cell, count in counts.items() if "(" in cell and written[cell] != cell)
        is_changed = any(cell != other for cell, other in written.items())
        if is_changed and numbers > max(_MOSTLY * counts.total(), bracketed):
            yield name, [None if cell is None else written[cell] for cell in cells]


def _read_signed(signed: Mapping[str, Cells], *, are_commas_parting: bool) -> Iterator[tuple[str, Amounts]]:
    """Yield the columns with hyphens as numbers; none of those of several units, or with and without one.

    Args:
        signed: The columns.
        are_commas_parting: Whether commas part the cells, so that there are no decimal commas.
    """
    with_points = {} if are_commas_parting else dict(_with_points(signed))
    read: dict[str, Cells] = {**signed, **with_points}
    read |= dict(_without_thousands(read))
    for name, cells in read.items():
        if found := _read_amounts(cells):
            yield name, found
        elif not any(_AMOUNT.fullmatch(cell) for cell in set(cells) if cell is not None):
            yield name, Amounts(unit="", cells=cells, have_commas=name in with_points)


def _without_thousands(columns: Mapping[str, Cells]) -> Iterator[tuple[str, list[str | None]]]:
    """Yield the columns of numbers with commas between thousands, without these."""
    for name, cells in columns.items():
        if parted := _parted_by_commas(cells):
            yield name, [cell.replace(",", "") if cell in parted else cell for cell in cells]


def _without_points(columns: Mapping[str, Cells]) -> Iterator[tuple[str, list[str | None]]]:
    """Yield the columns of numbers with points between thousands, without these."""
    for name, cells in columns.items():
        counts = Counter(cell for cell in cells if cell is not None)
        if _may_points_part(counts):
            yield name, [None if cell is None else _join_thousands(cell) for cell in cells]


def _may_points_part(counts: Counter[str]) -> bool:
    """Return whether each point of a column of numbers may part thousands, and there are such.

    >>> [_may_points_part(Counter(cells)) for cells in (["1.745", "950"], ["1.745", "9.5"], ["0.250"])]
    [True, False, False]
    """
    numbers = [cell for cell in counts if number(cell) is not None or _POINTS_OF_THOUSANDS.fullmatch(cell)]
    pointed = [cell for cell in numbers if "." in cell]
    return (
        bool(pointed)
        and all(map(_POINTS_OF_THOUSANDS.fullmatch, pointed))
        and sum(counts[cell] for cell in numbers) > _MOSTLY * counts.total()
    )


def _join_thousands(cell: str) -> str:
    return cell.replace(".", "") if _POINTS_OF_THOUSANDS.fullmatch(cell) else cell


def doubts_points(cells: Cells) -> str:
    """Return a doubt of a column of numbers that are read with decimals, and may have none; else nothing.

    Of decimals some would have fewer than three digits after the point, as one in ten numbers has that is
    written without zeros at its end.
    """
    counts = Counter(cell for cell in cells if cell is not None)
    pointed = [cell for cell in counts if "." in cell]
    is_mixed = len(pointed) < len(counts)
    if not is_mixed or len(pointed) < _FEWEST_POINTED or not _may_points_part(counts):
        return ""
    return f"points are read as decimals, as in {pointed[0]!r}: where they part thousands, remove them"


def _parted_by_commas(cells: Cells) -> frozenset[str]:
    """Return the numbers of a column with commas between thousands: 1,234 too, if one is like 5,001.23.

    None where none is like that, where one is like 0,5, or where numbers are not most cells.
    """
    counts = Counter(cell for cell in cells if cell is not None)
    parted = frozenset(cell for cell in counts if "," in cell and _DECIMAL_POINT.fullmatch(cell))
    if not any("." in cell for cell in parted):
        return frozenset()
    numbers = [cell for cell in counts if cell in parted or is_number_as_written(cell)]
    if sum(counts[cell] for cell in numbers) <= _MOSTLY * counts.total():
        return frozenset()
    return parted if have_decimal_commas(numbers) is False else frozenset()


def read_each_amount(
    cells: Cells, *, are_commas_decimal: bool | None = None, have_numbers_points: bool = False
) -> Amounts:
    """Read a column's numbers with and without a unit, each cell that can be read.

    Cells of another unit than the most frequent one are left as they are, and so are those that are no
    numbers.

    Args:
        cells: The column.
        are_commas_decimal: What commas and points are in cells where they may part thousands as well as
            decimals (`1,234`, `1.234 €`). None: these are left as they are, except numbers as
            `maskedlark.encoding.cells` reads them: 1.234.
        have_numbers_points: Whether such numbers are kept as they are in any case.

    >>> read_each_amount(["12,5 %", "1.234,50", "1,234", "1.234", "5 €", "7 %"]).cells
    ['12.5', '1234.50', '1,234', '1.234', '5 €', '7']
    """
    counts = Counter(cell for cell in cells if cell is not None)
    found = {cell: _AMOUNT.fullmatch(cell) for cell in counts if number(cell) is None}
    units = Counter[str]()
    for cell, amount in found.items():
        if amount:
            units[_unit(amount)] += counts[cell]
    ((unit, _),) = units.most_common(1) or [("", 0)]
    keeps_numbers = have_numbers_points or are_commas_decimal is None
    read, why, have_commas = dict[str, str](), dict[str, str](), False
    for cell in counts:
        amount = found.get(cell)
        if amount and (other := _unit(amount)) != unit:
            why[cell] = f"it is an amount in {other}, where the others are in {unit}"
        elif cell in found or not keeps_numbers:
            figures = _figures(amount) if amount else _SPACE_OF_THOUSANDS.sub("", cell)
            is_decimal = have_decimal_commas([figures])
            if _is_ambiguous(figures):
                is_decimal = are_commas_decimal
                if is_decimal is None:
                    why[cell] = (
                        "its points or commas may part thousands as well as decimals: write numbers as 1234.5"
                    )
            if is_decimal is not None:
                read[cell] = _write_with_point(figures, is_decimal)
                have_commas |= is_decimal and "," in figures
    return Amounts(
        unit=unit,
        cells=[None if cell is None else read.get(cell, cell) for cell in cells],
        have_commas=have_commas,
        why=why,
    )


def _have_mostly_decimal_commas(cells: Cells) -> bool | None:
    """Return whether nearly all cells that show it have decimal commas, or points; None for neither."""
    shown, plain = Counter[bool | None](), 0
    for cell, count in Counter(cell for cell in cells if cell is not None).items():
        amount = _AMOUNT.fullmatch(cell)
        figures = _figures(amount) if amount else _SPACE_OF_THOUSANDS.sub("", cell)
        if amount is None and "." in cell and is_number_as_written(cell):
            plain += count
        if "," in figures or "." in figures:
            shown[have_decimal_commas([figures])] += count
    del shown[None]
    ((is_decimal, count),) = shown.most_common(1) or [(None, 0)]
    # A few amounts with commas make no thousands of a column of 1.234
    is_outnumbered = bool(is_decimal) and plain > shown.total()
    return None if is_outnumbered or count < _CLEARLY * shown.total() else is_decimal


def _read_amounts(cells: Cells) -> Amounts | None:
    """Read a column whose numbers all have one and the same unit; None for others.

    As of decimal commas, a stray word stays one. Numbers without a unit, or points and commas that may part
    thousands as well as decimals, are not guessed at: the column stays as it is.
    """
    first = next((cell for cell in cells if cell is not None), None)
    if first is None or is_number_as_written(first):  # most columns, without a look at each cell
        return None
    counts = Counter(cell for cell in cells if cell is not None)
    found = {cell: one for cell in counts if (one := _AMOUNT.fullmatch(cell))}
    units = set(map(_unit, found.values()))
    rows = sum(counts[cell] for cell in found)
    if len(units) != 1 or rows <= _MOSTLY * counts.total() or any(map(is_number_as_written, counts)):
        return None
    figures = {cell: _figures(one) for cell, one in found.items()}
    are_commas_decimal = have_decimal_commas(figures.values())
    if are_commas_decimal is None:
        return None
    read = {cell: _write_with_point(one, are_commas_decimal) for cell, one in figures.items()}
    return Amounts(
        unit=units.pop(),
        cells=[None if cell is None else read.get(cell, cell) for cell in cells],
        have_commas=are_commas_decimal and any("," in one for one in figures.values()),
    )


def _unit(amount: re.Match[str]) -> str:
    return amount["before"] or amount["after"]


def _figures(amount: re.Match[str]) -> str:
    """Return an amount's sign and figures, with nothing but points and commas among them."""
    return _SPACE_OF_THOUSANDS.sub("", amount["sign"] + (amount["first"] or amount["last"]))


def _write_with_point(figures: str, are_commas_decimal: bool) -> str:
    return _use_decimal_point(figures) if are_commas_decimal else figures.replace(",", "")


def have_decimal_commas(numbers: Collection[str]) -> bool | None:
    """Return whether numbers have decimal commas or points; None if nothing shows it or some have others."""
    with_comma = all(_DECIMAL_COMMA.fullmatch(one) for one in numbers)
    with_point = all(_DECIMAL_POINT.fullmatch(one) for one in numbers)
    if with_comma and with_point:
        # 1.234 is either, and 1234 the same in both
        return None if any("." in one or "," in one for one in numbers) else False
    return with_comma if with_comma or with_point else None


def _is_ambiguous(figures: str) -> bool:
    """Return whether points or commas may part thousands as well as decimals."""
    is_either = _DECIMAL_COMMA.fullmatch(figures) and _DECIMAL_POINT.fullmatch(figures)
    return bool(is_either) and have_decimal_commas([figures]) is None


def _use_decimal_point(cell: str) -> str:
    return cell.replace(".", "").replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell
