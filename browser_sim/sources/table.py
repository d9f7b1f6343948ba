"""Any table with a header and a label column, as CSV.

Numbers are binned, words are coded by frequency, gaps keep a byte of their own.
"""

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from browser_sim.binning import Binning, category_bytes, numeric_bytes
from browser_sim.source import InvalidSource, Records, Source
from maskedlark.reports.task import LabelKind

_MISSING: Final = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """How to read a table.

    Attributes:
        path: A CSV file in UTF-8 with a header.
        label: The label's column.
        label_kind: Whether labels are classes or real values.
        ignore: Columns to leave out, such as row numbers.
        binning: Where the bins of numeric columns lie.
        bins: How many there are, 2 to 256.
        values: The columns of measured values, by their names in the task. They are secret, so they are no
            features.
        keys: The columns of measured keys, by their names in the task.
    """

    path: Path
    label: str
    label_kind: LabelKind = LabelKind.CLASSES
    ignore: tuple[str, ...] = ()
    binning: Binning = Binning.RANGE
    bins: int = 256
    values: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Cells by column, None where missing; all columns have one length."""

    columns: dict[str, list[str | None]]
    rows: int


def load_table(settings: TableSettings) -> Source:
    """The table's records.

    Classes are the distinct labels in ascending order: as numbers if all are, else by the alphabet.

    Raises:
        InvalidSource: unreadable, ragged, without such a label column, or with labels that are not of their
            kind.
    """
    whole = _read(settings.path)
    measured = {**settings.values, **settings.keys}
    unknown = [
        name for name in (settings.label, *settings.ignore, *measured.values()) if name not in whole.columns
    ]
    if unknown:
        raise InvalidSource(
            f"{settings.path.name} has no column {unknown[0]!r}; it has {', '.join(whole.columns)}"
        )
    table = _complete(whole, {settings.label, *measured.values()})
    left_out = {settings.label, *settings.ignore, *settings.values.values()}
    names = tuple(name for name in table.columns if name not in left_out)
    if not names or not table.rows:
        raise InvalidSource(f"{settings.path.name} has no features or no labelled rows")
    labels, label_names = _labels([cell or "" for cell in table.columns[settings.label]], settings.label_kind)
    words = [name for name in names if _numbers(table.columns[name]) is None]
    where = (
        "between its 1st and 99th percentile" if settings.binning is Binning.RANGE else "of even population"
    )
    return Source(
        name=f"csv:{settings.path.name}",
        records=Records(
            features=np.stack([_bytes(table.columns[name], settings) for name in names], axis=1),
            labels=labels,
        ),
        feature_names=names,
        label_kind=settings.label_kind,
        label_names=label_names,
        default_label=0 if len(label_names) == 2 else None,
        scaling=(
            f"each numeric column in {settings.bins} bins {where}; each column of words by rank of frequency"
        ),
        notes=_notes(words, whole.rows - table.rows),
        cells={name: table.columns[column] for name, column in measured.items()},
    )


def _notes(words: list[str], unlabelled: int) -> tuple[str, ...]:
    coded = (f"columns of words: {', '.join(words)}",) if words else ()
    return (
        (*coded, f"{unlabelled} rows without a label or a measured cell are left out")
        if unlabelled
        else coded
    )


def _read(path: Path) -> _Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            rows = [_row(cells, header, f"{path.name}, line {reader.line_num}") for cells in reader if cells]
    except OSError as error:
        raise InvalidSource(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidSource(f"{path} is not a CSV file in UTF-8") from None
    if len(set(header)) != len(header) or not header:
        raise InvalidSource(f"{path.name} needs a header with distinct column names")
    columns = [list(cells) for cells in zip(*rows, strict=True)] or [[] for _ in header]
    return _Table(columns=dict(zip(header, columns, strict=True)), rows=len(rows))


def _row(cells: list[str], header: list[str], where: str) -> list[str | None]:
    if len(cells) != len(header):
        raise InvalidSource(f"{where}: {len(cells)} cells under {len(header)} columns")
    return [None if cell.strip().lower() in _MISSING else cell.strip() for cell in cells]


def _complete(table: _Table, needed: Collection[str]) -> _Table:
    """The rows that lack neither label nor measured cells."""
    kept = [row for row in range(table.rows) if all(table.columns[name][row] is not None for name in needed)]
    return _Table(
        columns={name: [cells[row] for row in kept] for name, cells in table.columns.items()}, rows=len(kept)
    )


def _numbers(cells: Sequence[str | None]) -> NDArray[np.float64] | None:
    """The column as numbers, NaN where missing; None if a cell is no finite number or all are missing."""
    try:
        numbers = np.array([math.nan if cell is None else float(cell) for cell in cells])
    except ValueError:
        return None
    present = numbers[[cell is not None for cell in cells]]
    return numbers if len(present) and bool(np.isfinite(present).all()) else None


def _bytes(cells: Sequence[str | None], settings: TableSettings) -> NDArray[np.uint8]:
    numbers = _numbers(cells)
    return (
        category_bytes(cells)
        if numbers is None
        else numeric_bytes(numbers, binning=settings.binning, bins=settings.bins)
    )


def _labels(cells: Sequence[str], kind: LabelKind) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    numbers = _numbers(cells)
    if kind is LabelKind.VALUES:
        if numbers is None:
            raise InvalidSource("labels of kind values are finite numbers; this column holds something else")
        return numbers, ()
    names, classes = np.unique(np.array(cells) if numbers is None else numbers, return_inverse=True)
    return classes.astype(np.float64), tuple(str(name) if numbers is None else f"{name:g}" for name in names)
