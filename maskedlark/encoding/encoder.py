"""An encoder: which columns of a table are features, and which bytes each cell becomes.

It is fitted once (`maskedlark.encoding.fit`), stored as canonical JSON, named by its digest in the signed
task, and used for every file and by every browser, so that equal cells give equal bytes everywhere.

    a number      the byte of its bin: how many `edges` are at most the number
    a word        the byte of its place among `categories`, or the one after the last for any other word
    nothing       the byte `missing`
    an id         its row's bytes, lowest first: 0 if missing, 1 for the rest, then a place among `words`
    a hashed id   the bytes of its row: 0 if missing, else one of the others by a hash
    a date        its weekday, day and hour, columns of their own (`maskedlark.encoding.dates`)
    an image      the bytes of its histograms (`maskedlark.encoding.images`); the cell is its pixels in hex

Only comparisons of float64 numbers and integer arithmetic: any language can do the same bit for bit
(tests/vectors/encoder holds vectors).

>>> column = CategoryColumn(name="colour", first=1, categories=("red", "blue"), missing=0)
>>> [column.byte(cell) for cell in ("red", "blue", "green", None)]
[1, 2, 3, 0]
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Final, Literal, Self, TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from maskedlark.canonical import canonical, decode, digest, encode
from maskedlark.encoding.cells import number
from maskedlark.encoding.dates import DateOrder, part_of
from maskedlark.encoding.images import CELL, MAX_SIDE, hog, hog_bytes
from maskedlark.errors import InvalidTask

TOP: Final = 255
MAX_ROWS: Final = 1 << 20
"""Of a column of ids: as many as the largest table that a model may have for it."""
ID_ROWS: Final = 2
"""The rows of a column of ids before its words: of missing cells, and of the rest."""
MAX_ENCODER_BYTES: Final = 4 << 20
MAX_WORD: Final = 200
# Python's integers have no end: hashes wrap at 64 bits, as those of other languages.
_WORD_MASK: Final = (1 << 64) - 1
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_HEX: Final = re.compile("[0-9A-Fa-f]*")

Byte = Annotated[int, Field(ge=0, le=TOP)]
First = Annotated[int, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=CELL, le=MAX_SIDE, multiple_of=CELL)]
ColumnName = Annotated[str, Field(min_length=1, max_length=MAX_WORD)]
Word = Annotated[str, Field(min_length=1, max_length=MAX_WORD)]


_T = TypeVar("_T")


class WrongCell(InvalidTask):
    """A cell is not what its column holds.

    Attributes:
        column: The column's name.
        row: The row's index, from 0, without the header.
        why: What is wrong; it does not tell the cell.
    """

    def __init__(self, column: str, row: int, why: str) -> None:
        super().__init__(f"column {column!r}, row {row + 1}: {why}")
        self.column, self.row, self.why = column, row, why


@canonical
class _Column:
    """What columns of numbers and of words have in common.

    Attributes:
        name: The column's name.
        first: The byte of the first bin or word: 1 where byte 0 stands for missing cells.
        missing: The byte of a missing cell.
    """

    name: ColumnName
    first: First
    missing: Byte

    @property
    def num_bytes(self) -> int:
        """The number of features that the column becomes."""
        return 1


@canonical
class NumberColumn(_Column):
    """A column of numbers, cut into bins.

    Attributes:
        kind: "number".
        edges: Where each bin but the first begins, ascending. The last bin's byte is 255.
    """

    kind: Literal["number"] = "number"
    edges: Annotated[tuple[float, ...], Field(max_length=TOP)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(later <= earlier for earlier, later in pairwise(self.edges)):
            raise ValueError("edges ascend")
        if len(self.edges) > TOP - self.first:
            raise ValueError("there is a byte for each bin")
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the column names: none."""
        return ()

    def byte_of_bin(self, index: int) -> int:
        """Return the byte of a bin: bins are spread evenly over the bytes, halves rounded up."""
        bins = len(self.edges)
        return self.first + ((2 * index * (TOP - self.first) + bins) // (2 * bins) if bins else 0)

    def byte(self, cell: str | None) -> int:
        """Encode one cell, None where missing; ValueError for a word."""
        if cell is None:
            return self.missing
        value = number(cell)
        if value is None:
            raise ValueError("it holds a word, or a number that is not finite, where the encoder has numbers")
        return self.byte_of_bin(bisect_right(self.edges, value))


@canonical
class CategoryColumn(_Column):
    """A column of words.

    Attributes:
        kind: "category".
        categories: The words that are encoded as different bytes, in the order of the bytes.
    """

    kind: Literal["category"] = "category"
    categories: Annotated[tuple[Word, ...], Field(max_length=TOP)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.categories)) != len(self.categories):
            raise ValueError("categories are distinct")
        if self.other > TOP:
            raise ValueError("there is a byte for each category and one for other words")
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the column names."""
        return self.categories

    @property
    def rows(self) -> int:
        """The rows of a table for this column: one for each byte that a cell can have."""
        return max(self.missing, self.other) + 1

    @property
    def other(self) -> int:
        """The byte of every other word."""
        return self.first + len(self.categories)

    def byte(self, cell: str | None) -> int:
        """Encode one cell, None where missing."""
        if cell is None:
            return self.missing
        return self.first + self.categories.index(cell) if cell in self.categories else self.other


@canonical
class IdColumn:
    """A column of ids, which a model reads as rows of a table: one row for each word, one for all others.

    Attributes:
        kind: "id".
        name: The column's name.
        words: The words that have rows of their own, from row 2 on.
    """

    kind: Literal["id"] = "id"
    name: ColumnName
    words: Annotated[tuple[Word, ...], Field(max_length=MAX_ROWS - ID_ROWS)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.words)) != len(self.words):
            raise ValueError("words are distinct")
        return self

    @property
    def rows(self) -> int:
        """The rows of a table for this column."""
        return ID_ROWS + len(self.words)

    @property
    def num_bytes(self) -> int:
        """The number of features that the column becomes."""
        return _bytes_of_row(self.rows)


@canonical
class HashColumn:
    """A column of ids without a vocabulary: each word is read as one of `rows` - 1 rows, by a hash.

    Attributes:
        kind: "hash".
        name: The column's name.
        rows: The rows of a table for this column; row 0 is of missing cells.
    """

    kind: Literal["hash"] = "hash"
    name: ColumnName
    rows: Annotated[int, Field(ge=2, le=MAX_ROWS)]

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the column names: none."""
        return ()

    @property
    def num_bytes(self) -> int:
        """The number of features that the column becomes."""
        return _bytes_of_row(self.rows)


@canonical
class ImageColumn:
    """A column of grey images of one size, which become histograms of oriented gradients.

    Attributes:
        kind: "image".
        name: The column's name.
        height: Rows of pixels.
        width: Pixels of a row.
    """

    kind: Literal["image"] = "image"
    name: ColumnName
    height: Side
    width: Side

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the column names: none."""
        return ()

    @property
    def num_bytes(self) -> int:
        """The number of features that the column becomes."""
        return hog_bytes(self.height, self.width)

    @property
    def num_pixels(self) -> int:
        """Bytes of an image."""
        return self.height * self.width

    def pixels(self, cell: str | None) -> bytes:
        """Read one cell, two hexadecimal digits a pixel, row by row; ValueError for any other."""
        if cell is None:
            raise ValueError("the image is missing")
        digits = 2 * self.num_pixels
        if len(cell) != digits or not _HEX.fullmatch(cell):
            raise ValueError(
                f"an image of {self.height} x {self.width} pixels has {digits} hexadecimal digits"
            )
        return bytes.fromhex(cell)


@canonical
class ClassLabel:
    """A label column of classes.

    Attributes:
        kind: "classes".
        name: The column's name.
        classes: The classes in the order of their numbers, from 0.
    """

    kind: Literal["classes"] = "classes"
    name: ColumnName
    classes: Annotated[tuple[Word, ...], Field(min_length=1, max_length=1 << 16)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes are distinct")
        return self

    def label(self, cell: str | None) -> float:
        """Return the class of one cell, by its text or as a number; ValueError for any other."""
        if cell is None:
            raise ValueError("the label is missing")
        if cell in self.classes:
            return float(self.classes.index(cell))
        value = number(cell)
        # A file may write the class 1 as 1.0.
        for index, name in enumerate(self.classes):
            if value is not None and number(name) == value:
                return float(index)
        raise ValueError(f"its label is none of the encoder's {len(self.classes)} classes")


@canonical
class ValueLabel:
    """A label column of numbers.

    Attributes:
        kind: "values".
        name: The column's name.
    """

    kind: Literal["values"] = "values"
    name: ColumnName

    def label(self, cell: str | None) -> float:
        """Return the number of one cell; ValueError for a word."""
        value = None if cell is None else number(cell)
        if value is None:
            raise ValueError("labels of kind values are finite numbers; it holds something else")
        return value


@canonical
class DateColumn:
    """A column of dates with slashes, of which the encoder reads parts.

    Attributes:
        name: The column's name, `seen` where the encoder reads `seen@day`.
        order: Whether the day or the month stands first.
    """

    name: ColumnName
    order: DateOrder


CodedColumn = NumberColumn | CategoryColumn | IdColumn | HashColumn
"""A column whose cells are each one number."""
Column = Annotated[CodedColumn | ImageColumn, Field(discriminator="kind")]
Label = Annotated[ClassLabel | ValueLabel, Field(discriminator="kind")]


@canonical
class Encoder:
    """How a table becomes features and labels.

    Attributes:
        version: Of these rules.
        columns: In the order of the report's bytes: of one feature each, ids of up to three, images of many.
        label: The label's column, or None for a table without labels.
        dates: Columns of dates of which it is known what stands first where slashes part them. It is left out
            of the bytes where it is empty; of other columns the cells that are read together show it.
    """

    version: Literal[1] = 1
    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=1 << 16)]
    label: Label | None = None
    dates: Annotated[
        tuple[DateColumn, ...], Field(max_length=1 << 16, exclude_if=lambda dates: not dates)
    ] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [*(column.name for column in self.columns), *([self.label.name] if self.label else [])]
        if len(set(names)) != len(names):
            raise ValueError("names of columns are distinct")
        if len(self.date_orders) != len(self.dates):
            raise ValueError("names of dates are distinct")
        if not self.date_orders.keys() <= {part_of(column.name) for column in self.columns}:
            raise ValueError("a part of each date is a column")
        return self

    @property
    def date_orders(self) -> dict[str, DateOrder]:
        """What stands first in dates with slashes, by the column of dates."""
        return {date.name: date.order for date in self.dates}

    @property
    def digest(self) -> bytes:
        """The 32 bytes that name this encoder in a task."""
        return digest("encoder", encode(self))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of each feature: the column's, with `byte 1`, `byte 2` for its further bytes."""
        return tuple(
            column.name if place == 0 else f"{column.name} byte {place}"
            for column in self.columns
            for place in range(column.num_bytes)
        )

    @property
    def num_features(self) -> int:
        """The number of bytes that a row of cells becomes."""
        return sum(column.num_bytes for column in self.columns)

    def features(self, cells: Mapping[str, Sequence[str | None]]) -> NDArray[np.uint8]:
        """Encode a table as u8 (rows, features); cells by column, as `said` gives them.

        Raises:
            WrongCell: a word in a column of numbers, or an image of another size.
            InvalidTask: a column is missing.
        """
        return np.concatenate(
            [_features(column, _cells(cells, column.name)) for column in self.columns], axis=1
        )

    def wrong_cells(self, cells: Mapping[str, Sequence[str | None]]) -> Iterator[WrongCell]:
        """Yield each cell that its column does not hold, column by column: `features` takes the other rows.

        Raises:
            InvalidTask: a column is missing.
        """
        for column in self.columns:
            coded = column.pixels if isinstance(column, ImageColumn) else coder(column)
            known: dict[str | None, str] = {}
            for row, cell in enumerate(_cells(cells, column.name)):
                if cell not in known:
                    known[cell] = _why_wrong(coded, cell)
                if known[cell]:
                    yield WrongCell(column.name, row, known[cell])

    def image_features(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Encode images (n, height, width) as `features` would, for an encoder of images alone.

        Raises:
            InvalidTask: the encoder has other columns, or its images have another size.
        """
        column = self.columns[0]
        if len(self.columns) > 1 or not isinstance(column, ImageColumn):
            raise InvalidTask("the encoder reads columns of a table: give it one that was fitted to images")
        if images.shape[1:] != (column.height, column.width):
            size, expected = (
                "{} x {}".format(*pair) for pair in (images.shape[1:], (column.height, column.width))
            )
            raise InvalidTask(f"images have {size} pixels, but the encoder takes {expected}")
        return hog(images)

    def labels(self, cells: Mapping[str, Sequence[str | None]]) -> NDArray[np.float64]:
        """Return the labels of a table, (rows,).

        Raises:
            WrongCell: a label is missing, or none of the encoder's.
            InvalidTask: there is no such column, or the encoder has no label.
        """
        if self.label is None:
            raise InvalidTask("this encoder was fitted without a label")
        return np.array(_each(self.label.name, _cells(cells, self.label.name), self.label.label), np.float64)


def _bytes_of_row(rows: int) -> int:
    return max(1, -(-(rows - 1).bit_length() // 8))


def coder(column: CodedColumn) -> Callable[[str | None], int]:
    """Return what encodes one cell of a column, None where missing, as its byte, or its row for an id.

    It raises ValueError for a cell that the column does not hold.
    """
    match column:
        case NumberColumn() | CategoryColumn():
            return column.byte
        case IdColumn():
            # A dictionary, once: vocabularies have up to a million words.
            places = {word: ID_ROWS + place for place, word in enumerate(column.words)}
            return lambda cell: 0 if cell is None else places.get(cell, 1)
        case HashColumn():
            return lambda cell: 0 if cell is None else 1 + _hash_word(cell) % (column.rows - 1)
    assert_never(column)


def _hash_word(word: str) -> int:
    """Return 64 bits of a word: FNV-1a of its UTF-8 bytes, then SplitMix64's finaliser.

    Anybody can compute it, and two words may share a row: it spreads words, and hides none.
    """
    state = _FNV_OFFSET
    for byte in word.encode():
        state = (state ^ byte) * _FNV_PRIME & _WORD_MASK
    # FNV's lowest bits depend on the lowest bits of the word's bytes alone, and the remainder reads them.
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD_MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _WORD_MASK
    return state ^ state >> 31


def read_encoder(encoded: bytes) -> Encoder:
    """Parse an encoder from its canonical bytes.

    Raises:
        InvalidTask: they are none.
    """
    return decode(Encoder, encoded, max_bytes=MAX_ENCODER_BYTES)


def _cells(cells: Mapping[str, Sequence[str | None]], name: str) -> Sequence[str | None]:
    if name not in cells:
        # A date's parts have names of their own, which the table never had
        column, what = (name, "column") if (of := part_of(name)) is None else (of, "the dates of column")
        raise InvalidTask(f"the encoder reads {what} {column!r}, and the table has none of this name")
    return cells[name]


def _features(column: Column, cells: Sequence[str | None]) -> NDArray[np.uint8]:
    """Encode one column, (rows, `num_bytes`)."""
    if isinstance(column, ImageColumn):
        pixels = b"".join(_each(column.name, cells, column.pixels))
        return hog(np.frombuffer(pixels, np.uint8).reshape(-1, column.height, column.width))
    codes = np.array(_each(column.name, cells, coder(column)), np.int64)
    places = [(codes >> 8 * place & TOP).astype(np.uint8) for place in range(column.num_bytes)]
    return np.stack(places, axis=1)


def _why_wrong(coded: Callable[[str | None], object], cell: str | None) -> str:
    """Return why a column does not hold a cell, or nothing."""
    try:
        coded(cell)
    except ValueError as error:
        return str(error)
    return ""


def _each(name: str, cells: Sequence[str | None], coded: Callable[[str | None], _T]) -> list[_T]:
    """Return each cell's code; equal cells are looked up once."""
    known: dict[str | None, _T] = {}
    codes = []
    for row, cell in enumerate(cells):
        if cell not in known:
            try:
                known[cell] = coded(cell)
            except ValueError as error:
                raise WrongCell(name, row, str(error)) from None
        codes.append(known[cell])
    return codes
