"""Any table with a header, as CSV, through an encoder.

One that was fitted before, or one that is fitted to this table.
"""

import csv
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Final

from browser_sim.source import Cells, InvalidCell, InvalidSource, Source, SourceRecords
from maskedlark.encoding.cells import said
from maskedlark.encoding.column_kinds import Binning, ColumnKind
from maskedlark.encoding.encoder import CategoryColumn, ClassLabel, Encoder, WrongCell
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.reports.task_kinds import LabelKind

_IS: Final = "=="


@frozen
class TableSettings:
    """How to read a table.

    Attributes:
        path: A CSV file in UTF-8 with a header.
        encoder: How cells become bytes; None: one is fitted to this table, as the settings below say.
        label: The label's column; None: the encoder's.
        label_kind: Whether labels are classes or real values.
        ignore: Columns to leave out, such as row numbers.
        binning: Where the bins of numeric columns lie.
        bins: How many there are, 2 to 256.
        kinds: What columns hold, where it is not what their cells look like.
        values: The columns of measured values, by their names in the task. They are secret, so they are no
            features. COLUMN==WORD is 1 where the cell is that word, and else 0.
        keys: The columns of measured keys, by their names in the task.
    """

    path: Path
    encoder: Encoder | None = None
    label: str | None = None
    label_kind: LabelKind = LabelKind.CLASSES
    ignore: tuple[str, ...] = ()
    binning: Binning = Binning.RANGE
    bins: int = 256
    kinds: Mapping[str, ColumnKind] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


@frozen
class _Table:
    """Cells by column, None where missing, all of one length; and the line that each row ends on."""

    name: str
    columns: dict[str, list[str | None]]
    lines: list[int]


def load_table(settings: TableSettings) -> Source:
    """Load the table's records.

    Raises:
        InvalidSource: unreadable, ragged, without such a column, or not what the encoder reads; `InvalidCell`
            where one cell is at fault.
    """
    whole = _read(settings.path)
    label = _label(settings)
    wanted = {**settings.values, **settings.keys}
    columns = {name: _column(of) for name, of in wanted.items()}
    _check_columns(whole, (label, *settings.ignore, *columns.values()))
    table = _complete(whole, {label, *columns.values()})
    if not table.lines:
        raise InvalidSource(f"{table.name} has no rows with a label: check the label column")
    encoder = settings.encoder or _fit(table, settings, label)
    _check_secret(encoder, {columns[name] for name in settings.values} - {label})
    with _locating(table):
        records = SourceRecords(
            features=encoder.features(table.columns), labels=encoder.labels(table.columns)
        )
    classes = encoder.label.classes if isinstance(encoder.label, ClassLabel) else ()
    return Source(
        name=f"csv:{table.name}",
        records=records,
        feature_names=tuple(column.name for column in encoder.columns),
        label_kind=LabelKind.CLASSES if classes else LabelKind.VALUES,
        label_names=classes,
        default_label=0 if len(classes) == 2 else None,
        scaling=_scaling(settings),
        notes=_notes(encoder, len(whole.lines) - len(table.lines)),
        cells={name: _cells(table, of) for name, of in wanted.items()},
    )


def fit_table(settings: TableSettings) -> Encoder:
    """Fit an encoder for tables like this one to its rows that have a label.

    Raises:
        InvalidSource: as `load_table`.
    """
    whole = _read(settings.path)
    needed = [] if settings.label is None else [settings.label]
    _check_columns(whole, (*needed, *settings.ignore, *map(_column, settings.values.values())))
    table = _complete(whole, needed)
    if not table.lines:
        raise InvalidSource(f"{table.name} has no rows with a label: check the label column")
    return _fit(table, settings, settings.label)


def _label(settings: TableSettings) -> str:
    """Return the label's column: the encoder's, or the given one."""
    fitted = settings.encoder and settings.encoder.label
    if settings.encoder is not None and fitted is None:
        raise InvalidSource("the encoder was fitted without a label: fit it with --label COLUMN")
    name = fitted.name if fitted else settings.label
    if name is None:
        raise InvalidSource("source csv needs --label COLUMN, or an encoder")
    if settings.label not in (None, name):
        raise InvalidSource(f"the encoder's label is column {name!r}, not {settings.label!r}")
    return name


def _column(of: str) -> str:
    """Return the column of COLUMN or COLUMN==WORD."""
    return of.partition(_IS)[0]


def _check_columns(table: _Table, names: Collection[str]) -> None:
    unknown = [name for name in names if name not in table.columns]
    if unknown:
        raise InvalidSource(f"{table.name} has no column {unknown[0]!r}; it has {', '.join(table.columns)}")


def _check_secret(encoder: Encoder, secret: Collection[str]) -> None:
    """Check that no measured value is a feature: values are secret, helpers see features."""
    shown = [column.name for column in encoder.columns if column.name in secret]
    if shown:
        raise InvalidSource(
            f"column {shown[0]!r} is a measured value, which helpers may not see, and a feature of the"
            f" encoder: fit the encoder with --ignore {shown[0]}"
        )


def _fit(table: _Table, settings: TableSettings, label: str | None) -> Encoder:
    left_out = {*settings.ignore, *map(_column, settings.values.values())} - {label}
    columns = {name: cells for name, cells in table.columns.items() if name not in left_out}
    if not columns.keys() - {label}:
        raise InvalidSource(f"{table.name} has no feature columns: leave out fewer columns (--ignore)")
    how = FitSettings(
        label=label,
        is_label_a_value=settings.label_kind is LabelKind.VALUES,
        binning=settings.binning,
        bins=settings.bins,
        kinds=settings.kinds,
    )
    with _locating(table):
        return fit(columns, how)


@contextmanager
def _locating(table: _Table) -> Iterator[None]:
    """Add to an encoder's refusal the file, and the line where one cell is at fault."""
    try:
        yield
    except WrongCell as wrong:
        raise InvalidCell(
            file=table.name, line=table.lines[wrong.row], column=wrong.column, why=wrong.why
        ) from None
    except InvalidTask as error:
        raise InvalidSource(f"{table.name}: {error}") from None


def _scaling(settings: TableSettings) -> str:
    if settings.encoder is not None:
        return f"by the encoder {settings.encoder.digest.hex()}"
    where = (
        "between its 1st and 99th percentile" if settings.binning is Binning.RANGE else "of even population"
    )
    return (
        f"each numeric column in {settings.bins} bins {where}; each column of words by rank of "
        "frequency; fitted to this file only"
    )


def _notes(encoder: Encoder, unlabelled: int) -> tuple[str, ...]:
    words = [column.name for column in encoder.columns if isinstance(column, CategoryColumn)]
    coded = (f"columns of words: {', '.join(words)}",) if words else ()
    return (*coded, f"left out {unlabelled} rows without a label or a measured cell") if unlabelled else coded


def _cells(table: _Table, of: str) -> Cells:
    """Read the cells of a measured column; for COLUMN==WORD, whether each is the word."""
    column, asked, word = of.partition(_IS)
    cells = table.columns[column]
    return Cells(
        file=table.name,
        column=column,
        lines=table.lines,
        cells=["1" if cell == word else "0" for cell in cells] if asked else cells,
    )


def _read(path: Path) -> _Table:
    lines = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True, skipinitialspace=True)
            header = [name.strip() for name in next(reader, [])]
            rows = []
            for cells in reader:
                if cells:
                    rows.append(_row(cells, header, f"{path.name}, line {reader.line_num}"))
                    lines.append(reader.line_num)
    except OSError as error:
        raise InvalidSource(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidSource(f"{path} is not valid: expected a CSV file in UTF-8") from None
    if len(set(header)) != len(header) or not header:
        raise InvalidSource(
            f"{path.name} has no valid header: expected a first line with distinct column names"
        )
    columns = [list(cells) for cells in zip(*rows, strict=True)] or [[] for _ in header]
    return _Table(name=path.name, columns=dict(zip(header, columns, strict=True)), lines=lines)


def _row(cells: list[str], header: list[str], where: str) -> list[str | None]:
    if len(cells) != len(header):
        raise InvalidSource(
            f"{where}: found {len(cells)} cells, expected {len(header)}, one for each column of the header"
        )
    return [said(cell) for cell in cells]


def _complete(table: _Table, needed: Collection[str]) -> _Table:
    """Return the rows that have a label and all measured cells."""
    kept = [
        row for row in range(len(table.lines)) if all(table.columns[name][row] is not None for name in needed)
    ]
    return _Table(
        name=table.name,
        columns={name: [cells[row] for row in kept] for name, cells in table.columns.items()},
        lines=[table.lines[row] for row in kept],
    )
