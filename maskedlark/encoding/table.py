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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from io import StringIO
from itertools import islice
from typing import Final

from maskedlark.encoding.cells import Cells, said
from maskedlark.encoding.close_names import list_known
from maskedlark.encoding.encoder import Encoder, NumberColumn, ValueLabel
from maskedlark.encoding.written_numbers import Amounts, read_amounts_of_numbers, read_numbers
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen

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
            name: self.amounts.get(name)
            or read_amounts_of_numbers(self.columns[name], are_commas_decimal=name in self.decimal_commas)
            for name in names
            if name in self.columns
        }
        return {name: one for name, one in found.items() if one}

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
    read = read_numbers(columns, are_commas_parting=delimiter == ",")
    parted = f"cells parted by {_PARTED.get(delimiter, repr(delimiter))}"
    return Table(
        name=name,
        columns=read.columns,
        lines=lines,
        written=", ".join([encoding, parted, *read.written]),
        form=TableForm(codec=codec, delimiter=delimiter, are_commas_decimal=read.are_commas_decimal),
        amounts=read.amounts,
        decimal_commas=read.decimal_commas,
        short=short,
        examples=read.examples,
        gap_words={title: (*words,) for title, words in gap_words.items()},
    )


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
