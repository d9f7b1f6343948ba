"""Any table with a header, as CSV, through an encoder.

One that was fitted before, or one that is fitted to this table.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from shlex import quote
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from browser_sim.source import Cells, InvalidCell, InvalidSource, RowCounts, Source, SourceRecords
from maskedlark.encoding import dates
from maskedlark.encoding.cells import number, said
from maskedlark.encoding.close_names import list_unknown
from maskedlark.encoding.column_kinds import Binning, ColumnKind
from maskedlark.encoding.dates import DateOrder
from maskedlark.encoding.encoder import (
    CategoryColumn,
    ClassLabel,
    Encoder,
    HashColumn,
    IdColumn,
    NumberColumn,
    WrongCell,
)
from maskedlark.encoding.fit import FitSettings, PlannedTraining, fit
from maskedlark.encoding.identifiers import FEWEST_ROWS, why_codes, why_identifiers
from maskedlark.encoding.people_columns import find_people_columns, why_private
from maskedlark.encoding.table import Table, parse_table
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.reports.task_kinds import LabelKind

_IS: Final = "=="
_IS_NOT: Final = "!="
_TIMES: Final = "*"
_T = TypeVar("_T")


@frozen
class TableSettings:
    """How to read a table.

    Attributes:
        path: A CSV file with a header; `maskedlark.encoding.table` finds out how it is written.
        encoder: How cells become bytes; None: one is fitted to this table, as the settings below say.
        label: The label's column; None: the encoder's. Without either, columns are measured and nothing
            is learned: each record has a label of 0 and one feature, which is 0.
        label_kind: Whether labels are classes or real values.
        classes: The label's classes; rows with any other label are left out and counted. Empty: all that the
            table holds, or the encoder's, and any other is refused.
        ignore: Columns to leave out, such as row numbers, whatever else names them.
        binning: Where the bins of numeric columns lie.
        bins: How many there are, 2 to 256.
        kinds: What columns hold, where it is not what their cells look like.
        words: Columns of ids and how many words of each have rows; None: as many as are planned.
        hashed: Columns of ids that are hashed, and how many rows each has.
        training: What planned vocabularies are for.
        dates: Columns of dates, of which the encoder reads the parts (`maskedlark.encoding.dates`), and what
            stands first in those with slashes; None: the encoder's order, or else what the cells show.
        publish: Columns whose words the encoder may hold though they look like identifiers.
        values: The columns of measured values, by their names in the task. They are secret, so they are no
            features. COLUMN==WORD is 1 where the cell is that word, and else 0; COLUMN!=WORD the other way
            round; without a word, COLUMN!= is 1 where the cell is not empty. COLUMN*100 is the number times
            100.
        are_gaps_zero: Whether a row without a measured number reports 0; else it is left out and counted.
        keys: The columns of measured keys, by their names in the task.
        person: The column that names the person, which is no feature; a row without one is left out and
            counted. None: each row is anybody's.
    """

    path: Path
    encoder: Encoder | None = None
    label: str | None = None
    label_kind: LabelKind = LabelKind.CLASSES
    classes: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    binning: Binning = Binning.RANGE
    bins: int = 256
    kinds: Mapping[str, ColumnKind] = field(default_factory=dict)
    words: Mapping[str, int | None] = field(default_factory=dict)
    hashed: Mapping[str, int] = field(default_factory=dict)
    training: PlannedTraining | None = None
    dates: Mapping[str, DateOrder | None] = field(default_factory=dict)
    publish: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    are_gaps_zero: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    person: str | None = None

    @property
    def people(self) -> tuple[str, ...]:
        """The column of the person, if there is one."""
        return () if self.person is None else (self.person,)


@frozen
class _FittedEncoder:
    """An encoder, what became of the rows that it was fitted to, and which of their words have no code."""

    encoder: Encoder
    rows: RowCounts
    notes: tuple[str, ...] = ()


def load_table(settings: TableSettings) -> Source:
    """Load the table's records.

    Guarantees: each row is a record or counted as left out, by column and reason.

    Raises:
        InvalidSource: unreadable, ragged, without such a column, or not what the encoder reads; `InvalidCell`
            where one cell is at fault.
    """
    whole = _read(settings.path)
    is_labelled = bool(settings.label or settings.classes or (settings.encoder and settings.encoder.label))
    if not is_labelled and (settings.values or settings.keys):
        return _load_measured_alone(whole, settings)
    label = _label(settings)
    columns = _measured_columns(whole, settings)
    _check_columns(whole, (label, *settings.ignore, *settings.dates, *columns.values(), *settings.people))
    _check_person(settings.person, {label, *columns.values()}, "the label, or measured")
    table, rows, people = _select_named(*_select_labelled(whole, label, settings), settings.person)
    encoder, left_out = settings.encoder, dict[str, str]()
    if encoder is None:
        others = {label, *columns.values()}
        left_out = _find_row_numbers(table, settings, others) | _find_row_words(table, settings, others)
        encoder = _fit(table, _without(settings, left_out), label)
    measured = {columns[name] for name in settings.values}
    # The label may be measured too: encoders keep it apart from the features.
    _check_secret(encoder, measured - {label})
    _check_keys(settings.keys.values(), measured | {label})
    _check_person(settings.person, {column.name for column in encoder.columns}, "a feature of the encoder")
    with _locating(table, encoder):
        cells = _encoded_cells(table, encoder, settings)
        records = SourceRecords(
            features=encoder.features(cells),
            labels=encoder.labels(cells),
            encoder=encoder.digest,
            lines=np.array(table.lines, np.int64),
            people=people,
        )
    classes = encoder.label.classes if isinstance(encoder.label, ClassLabel) else ()
    return Source(
        name=f"csv:{table.name}",
        records=records,
        feature_names=encoder.feature_names,
        label_kind=LabelKind.CLASSES if classes else LabelKind.VALUES,
        label_names=classes,
        # Of two classes the first is the impression that did not convert; of more, every impression has its
        # own.
        default_label=0 if len(classes) == 2 else None,
        scaling=_scaling(settings),
        notes=(*_notes(encoder, whole), *_describe_left_out(left_out)),
        cells=_measured_cells(table, settings),
        rows=rows,
    )


def _load_measured_alone(whole: Table, settings: TableSettings) -> Source:
    """Return all rows with what is measured of them, and the features of an encoder without a label.

    Without an encoder there is one feature that is the same in each row.
    """
    columns, encoder = _measured_columns(whole, settings), settings.encoder
    _check_columns(whole, (*settings.ignore, *settings.dates, *columns.values(), *settings.people))
    measured = {columns[name] for name in settings.values}
    _check_keys(settings.keys.values(), measured)
    _check_person(settings.person, {*columns.values()}, "measured")
    if encoder is not None:
        _check_secret(encoder, measured)
        _check_person(
            settings.person, {column.name for column in encoder.columns}, "a feature of the encoder"
        )
    table, rows, people = _select_named(whole, RowCounts(read=len(whole)), settings.person)
    features = np.zeros((len(table), 1), np.uint8)
    if encoder is not None:
        with _locating(table, encoder):
            features = encoder.features(_encoded_cells(table, encoder, settings))
    return Source(
        name=f"csv:{table.name} without a label",
        records=SourceRecords(
            features=features,
            labels=np.zeros(len(table), np.float64),
            encoder=None if encoder is None else encoder.digest,
            lines=np.array(table.lines, np.int64),
            people=people,
        ),
        feature_names=("nothing",) if encoder is None else encoder.feature_names,
        label_names=("none", "unused"),
        default_label=0,
        scaling="no column is a feature" if encoder is None else _scaling(settings),
        notes=(f"read as {table.written}",) if encoder is None else _notes(encoder, whole),
        cells=_measured_cells(table, settings),
        rows=rows,
    )


def _encoded_cells(
    table: Table, encoder: Encoder, settings: TableSettings
) -> dict[str, Sequence[str | None]]:
    """Return the columns that an encoder reads: the table's, and the parts of its dates."""
    orders = {name: order for name, order in settings.dates.items() if order is not None}
    for name, order in encoder.date_orders.items():
        if (asked := orders.setdefault(name, order)) is not order:
            raise InvalidSource(f"the encoder reads the dates of column {name!r} as {order}, not as {asked}")
    read = table.read_by(encoder).columns
    return {**read, **dates.with_parts(read, [column.name for column in encoder.columns], orders)}


def _measured_columns(table: Table, settings: TableSettings) -> dict[str, str]:
    """Return the column of each measured value and key, by its name in the task."""
    wanted = {**settings.values, **settings.keys}
    return {name: _column(of, table) for name, of in wanted.items()}


def _measured_cells(table: Table, settings: TableSettings) -> dict[str, Cells]:
    """Return the cells of each measured value and key, by its name in the task."""
    return {
        **{name: _value_cells(table, of, settings) for name, of in settings.values.items()},
        **{name: _cells(table, of, is_number=False) for name, of in settings.keys.items()},
    }


def fit_counting(settings: TableSettings) -> _FittedEncoder:
    """Fit an encoder for tables like this one, and count the rows with and without a label.

    Raises:
        InvalidSource: as `load_table`; or a column of words looks like identifiers, which the public encoder
            would hold.
    """
    whole = _read(settings.path)
    needed = [] if settings.label is None else [settings.label]
    values = [_column(of, whole) for of in settings.values.values()]
    _check_columns(whole, (*needed, *settings.ignore, *settings.dates, *settings.publish, *values))
    table, rows = _select_labelled(whole, settings.label, settings)
    # Words that name rows are refused below, as their owner may want to publish them
    left_out = _find_row_numbers(table, settings, {settings.label, *values})
    encoder = _fit(table, _without(settings, left_out), settings.label)
    _check_public(encoder, table, settings.publish)
    notes = (
        *_describe_left_out(left_out),
        *_describe_others(encoder, table),
        *_describe_ids(encoder, table, settings),
    )
    return _FittedEncoder(encoder=encoder, rows=rows, notes=notes)


def _find_row_numbers(
    table: Table, settings: TableSettings, others: Collection[str | None]
) -> dict[str, str]:
    """Return the columns whose numbers name rows, of which nobody said what they hold, and why."""
    found = dict[str, str]()
    for name in _unanswered(table, settings, others):
        counts = Counter(cell for cell in table.numbers(name) if cell is not None)
        if all(number(cell) is not None for cell in counts) and (why := why_identifiers(name, counts)):
            found[name] = f"{why}; --type {quote(f'{name}=number')} says that they are amounts"
    return found


def _find_row_words(table: Table, settings: TableSettings, others: Collection[str | None]) -> dict[str, str]:
    """Return the columns whose words name rows or people, of which nobody said what they hold, and why.

    Columns of dates are none: another option reads them.
    """
    found = dict[str, str]()
    for name in _unanswered(table, settings, others):
        cells = table.columns[name]
        if (why := why_private(name, cells)) and not _holds_dates(cells):
            found[name] = f"looks like identifiers ({why}); --publish {quote(name)} makes it a feature"
    return found


def _unanswered(table: Table, settings: TableSettings, others: Collection[str | None]) -> list[str]:
    """Return the columns of which nobody said what they hold."""
    answered = {*others, *settings.ignore, *settings.people, *settings.dates, *settings.publish}
    answered |= {*settings.kinds, *settings.words, *settings.hashed}
    return [name for name in table.columns if name not in answered]


def _without(settings: TableSettings, left_out: Collection[str]) -> TableSettings:
    return replace(settings, ignore=(*settings.ignore, *left_out))


def _describe_left_out(left_out: Mapping[str, str]) -> Iterator[str]:
    """Say which columns were left out, why, and how to keep each."""
    return (f"{name!r} is left out: {why}" for name, why in left_out.items())


def _describe_ids(encoder: Encoder, table: Table, settings: TableSettings) -> Iterator[str]:
    """Say which features seem to name people or things, of columns of which nobody said what they hold."""
    answered = {*settings.kinds, *settings.words, *settings.hashed, *settings.publish}
    features = {column.name: column for column in encoder.columns if column.name in table.columns}
    people = find_people_columns(table, features.keys() - answered)
    for name, column in features.items():
        if name in answered:
            continue
        is_number = isinstance(column, NumberColumn)
        ignore = f"leave it out with --ignore {quote(name)}"
        is_fine = f"--type {quote(f'{name}={column.kind}')} says"
        counts = Counter(
            cell for cell in table.columns[name] if cell is not None and number(cell) is not None
        )
        if name in people.named:
            yield (
                f"{name!r} seems to name people, and helpers read features: {ignore}; if it names none, "
                f"{is_fine} so"
            )
        elif not is_number and _holds_dates(table.columns[name]):
            yield (
                f"{name!r} holds dates, each a word of its own: --date {quote(name)} makes weekday, day and "
                f"hour of them; {is_fine} that they are words"
            )
        elif is_number and counts.total() >= FEWEST_ROWS and (why := why_codes(name, counts)):
            asked = f"; if they name people, {ignore}" if name in people.asked else ""
            yield (
                f"{name!r} is read as numbers, and seems to hold {why}; --type {name}=category, --words or "
                f"--hash tells them apart, and {is_fine} that they are amounts{asked}"
            )
        elif name in people.asked:
            yield f"{name!r} looks like ids: if they name people, {ignore}; if not, {is_fine} so"


def _describe_others(encoder: Encoder, table: Table) -> Iterator[str]:
    """Say of each column of more words than it has codes for how many rows are *other*."""
    for column in encoder.columns:
        if not isinstance(column, CategoryColumn | IdColumn) or column.name not in table.columns:
            continue
        counts = Counter(cell for cell in table.columns[column.name] if cell is not None)
        rows = sum(counts[word] for word in counts.keys() - set(column.words))
        if rows and not _holds_dates(table.columns[column.name]):
            more = f"; --words {column.name}={len(counts)} tells them apart"
            yield (
                f"{column.name!r} has {len(counts)} words: {len(column.words)} have codes of their own; the "
                f"others, in {rows / counts.total():.1%} of its rows, share one"
                + ("" if isinstance(column, IdColumn) else more)
            )


def _select_labelled(whole: Table, label: str | None, settings: TableSettings) -> tuple[Table, RowCounts]:
    """Return the rows with a label, and how many had none or another than the declared ones.

    Raises:
        InvalidSource: there are none.
    """
    if label is None:
        return whole, RowCounts(read=len(whole))
    cells, classes = whole.columns[label], settings.classes
    if gaps := [one for one in classes if said(one) is None]:
        raise InvalidSource(
            f"class {gaps[0]!r} of column {label!r} is an empty cell, and a row without a label is left out: "
            "write a word in the table for it"
        )
    is_empty = [cell is None for cell in cells]
    is_other = [bool(classes) and cell is not None and not _is_among(cell, classes) for cell in cells]
    kept = [row for row in range(len(whole)) if not is_empty[row] and not is_other[row]]
    if not kept:
        raise InvalidSource(
            f"{whole.name} has no rows with a label: of {len(whole)} rows, column {label!r} is empty in "
            f"{sum(is_empty)} "
            f"and has another label than the declared ones in {sum(is_other)}: check the label column"
        )
    left_out = {
        f"column {label!r}: no label{whole.explain_gaps(label)}": sum(is_empty),
        f"column {label!r}: not a declared class": sum(is_other),
    }
    return whole.take(kept), RowCounts(
        read=len(whole), left_out={reason: count for reason, count in left_out.items() if count}
    )


def _select_named(
    table: Table, rows: RowCounts, person: str | None
) -> tuple[Table, RowCounts, NDArray[np.int64] | None]:
    """Return the rows that have a person, the counts with those that have none, and whose each row is.

    Raises:
        InvalidSource: there are none.
    """
    if person is None:
        return table, rows, None
    cells = table.columns[person]
    kept = [row for row, cell in enumerate(cells) if cell is not None]
    if not kept:
        raise InvalidSource(
            f"{table.name} has no row with a label and a person: column {person!r} is empty there"
        )
    # In the order of their names: people have the same numbers however the rows are ordered
    numbers = {name: number for number, name in enumerate(sorted({cells[row] or "" for row in kept}))}
    people = np.array([numbers[cells[row] or ""] for row in kept], np.int64)
    unnamed = {f"column {person!r}: no person": len(cells) - len(kept)}
    return table.take(kept), rows.without(+Counter(unnamed)), people


def check_labelled(encoder: Encoder) -> None:
    """Raise InvalidSource if an encoder has no label to read."""
    if encoder.label is None:
        raise InvalidSource("the encoder was fitted without a label: fit it with --label COLUMN")


def _is_among(cell: str, classes: Collection[str]) -> bool:
    """Return True for a class by its text or as a number, as an encoder reads it."""
    value = number(cell)
    return cell in classes or (value is not None and value in map(number, classes))


def _label(settings: TableSettings) -> str:
    """Return the label's column: the encoder's, or the given one."""
    if settings.encoder is not None:
        check_labelled(settings.encoder)
    fitted = settings.encoder and settings.encoder.label
    name = fitted.name if fitted else settings.label
    if name is None:
        raise InvalidSource(
            "source csv needs --label COLUMN or an encoder, or to report no label, --value or --key"
        )
    if settings.label not in (None, name):
        raise InvalidSource(f"the encoder's label is column {name!r}, not {settings.label!r}")
    return name


def _column(of: str, table: Table) -> str:
    """Return the column of COLUMN, COLUMN==WORD, COLUMN!=WORD or COLUMN*FACTOR."""
    # A column whose own name holds one of these comes first.
    return of if of in table.columns else _split_factor(_split_word(of)[0])[0]


def _split_word(of: str) -> tuple[str, str, str]:
    """Return the column, the comparison and the word of COLUMN==WORD and COLUMN!=WORD; "" for none."""
    # By the one that comes first: the word may hold the other
    return min((of.partition(sign) for sign in (_IS, _IS_NOT)), key=lambda parts: len(parts[0]))


def _split_factor(of: str) -> tuple[str, Decimal | None]:
    """Return the column and factor of COLUMN*FACTOR; None for no factor."""
    column, times, factor = of.rpartition(_TIMES)
    try:
        return (column, Decimal(factor)) if times else (of, None)
    except InvalidOperation:
        return of, None


def _check_columns(table: Table, names: Collection[str]) -> None:
    if unknown := [name for name in names if name not in table.columns]:
        raise InvalidSource(
            f"{table.name} has {list_unknown(unknown, table.columns)} (read as {table.written})"
        )


def _check_secret(encoder: Encoder, secret: Collection[str]) -> None:
    """Check that no measured value is a feature: values are secret, helpers see features."""
    shown = [column.name for column in encoder.columns if column.name in secret]
    if shown:
        raise InvalidSource(
            f"column {shown[0]!r} is a measured value, which helpers may not see, and a feature of the"
            f" encoder: fit the encoder with --ignore {shown[0]}"
        )


def _check_keys(keys: Collection[str], secret: Collection[str | None]) -> None:
    """Check that no measured key is a secret column: keys are in the clear for helpers and the ad server."""
    shown = [column for column in keys if column in secret]
    if shown:
        raise InvalidSource(
            f"column {shown[0]!r} is the label or a measured value, which helpers may not see, and a key, "
            "which they see: group by another column"
        )


def _check_person(person: str | None, others: Collection[str], what: str) -> None:
    """Check that the column of the person is nothing that a report holds."""
    if person in others:
        raise InvalidSource(
            f"column {person!r} names the person and is {what}, which a report would hold: name another "
            "column, or leave it out there"
        )


def _check_public(encoder: Encoder, table: Table, publish: Collection[str]) -> None:
    """Refuse an encoder whose words look like identifiers, unless their column is named as published."""
    for column in encoder.columns:
        has_words = isinstance(column, CategoryColumn | IdColumn)
        if has_words and column.name in table.columns and column.name not in publish:
            cells = table.columns[column.name]
            if isinstance(column, IdColumn):  # the others are not in the encoder
                kept = frozenset(column.words)
                cells = [cell for cell in cells if cell in kept]
            found = why_private(column.name, cells)
            if found:
                instead = f"read its dates with --date {column.name!r}, " if _holds_dates(cells) else ""
                raise InvalidSource(
                    f"{table.name}: column {column.name!r} looks like identifiers ({found}), and an "
                    f"encoder is public: {instead}leave it out with --ignore {column.name!r}, or let its "
                    f"words be published with --publish {column.name!r}"
                )


def _holds_dates(cells: Sequence[str | None]) -> bool:
    """Return whether `--date` is what helps: it reads the cells, or says what their dates lack."""
    try:
        return dates.are_dates(cells)
    except InvalidTask:
        return True


def _fit(table: Table, settings: TableSettings, label: str | None) -> Encoder:
    # The label may be measured, too, and is no feature anyway.
    left_out = {*settings.ignore, *(_column(of, table) for of in settings.values.values())} - {label}
    left_out |= {*settings.people}
    with _locating(table):
        parts = {
            one: dates.parts(table.columns, one, order)
            for one, order in settings.dates.items()
            if one not in left_out and one != label
        }
        orders = {one: settings.dates[one] or dates.find_order(table.columns[one]) for one in parts}
    columns = dict[str, Sequence[str | None]]()
    for name, cells in table.columns.items():
        if name in parts:
            columns |= parts[name]
        elif name not in left_out:
            columns[name] = cells
    if not columns.keys() - {label}:
        raise InvalidSource(
            f"{table.name} has no feature columns: leave out fewer columns (--ignore); of a column that "
            "seems to name its rows, say with --type COLUMN=number or --publish what it holds"
        )

    def of_features(named: Mapping[str, _T]) -> dict[str, _T]:
        # A column that is no feature may still be named as one of words, as it may among the dates
        return {name: one for name, one in named.items() if name not in left_out}

    # Here, since the encoder's columns are not all of the table's, which a message should list
    named = (*of_features(settings.kinds), *of_features(settings.words), *of_features(settings.hashed))
    _check_columns(table, [one for one in named if one not in columns])
    how = FitSettings(
        label=label,
        is_label_a_value=settings.label_kind is LabelKind.VALUES,
        classes=settings.classes,
        binning=settings.binning,
        bins=settings.bins,
        kinds=of_features(settings.kinds),
        words=of_features(settings.words),
        hashed=of_features(settings.hashed),
        training=settings.training,
        dates={one: order for one, order in orders.items() if order is not None},
    )
    with _locating(table):
        return fit(columns, how, {name: one.cells for name, one in table.amounts.items()})


@contextmanager
def _locating(table: Table, encoder: Encoder | None = None) -> Iterator[None]:
    """Add to an encoder's refusal the file, and the line where one cell is at fault.

    Args:
        table: What is encoded.
        encoder: What reads it; None where one is fitted.
    """
    try:
        yield
    except WrongCell as wrong:
        amounts = None if encoder is None else table.amounts_read_by(encoder).get(wrong.column)
        raise InvalidCell(
            file=table.name,
            line=table.lines[wrong.row],
            column=wrong.column,
            why=amounts.explain(wrong.row, wrong.why) if amounts else wrong.why,
        ) from None
    except dates.WrongDate as wrong:
        line = table.lines[wrong.row]
        raise InvalidCell(file=table.name, line=line, column=wrong.column, why=wrong.why) from None
    except dates.UnknownOrder as error:
        raise InvalidSource(
            f"{table.name}: {error}: write 2026-11-28, or say it with --date COLUMN=dmy (the day) or "
            "--date COLUMN=mdy (the month)"
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


def _notes(encoder: Encoder, table: Table) -> tuple[str, ...]:
    # With the rows that a table for it needs
    words = [f"{one.name} ({one.rows} rows)" for one in encoder.columns if isinstance(one, CategoryColumn)]
    ids = [
        f"{one.name} ({one.rows} rows)" for one in encoder.columns if isinstance(one, IdColumn | HashColumn)
    ]
    told = (("columns of words", words), ("columns of ids", ids))
    return (f"read as {table.written}", *(f"{what}: {', '.join(names)}" for what, names in told if names))


def _value_cells(table: Table, of: str, settings: TableSettings) -> Cells:
    """Read the cells of a measured value, with 0 for gaps where that is asked."""
    found = _cells(table, of, is_number=True)
    if not settings.are_gaps_zero:
        return found
    return replace(found, cells=[cell or "0" for cell in found.cells])


def _cells(table: Table, of: str, *, is_number: bool) -> Cells:
    """Read the cells of a measured column: as they are, whether each is a word, or times a factor."""
    name, asked, word = (of, "", "") if of in table.columns else _split_word(of)
    if word and said(word) is None:
        raise InvalidSource(
            f"{of!r} compares with {word!r}, which is an empty cell: {name}{_IS} counts rows with one, "
            f"{name}{_IS_NOT} all others"
        )
    column, factor = (name, None) if asked or name in table.columns else _split_factor(name)
    cells = table.numbers(column) if is_number and not asked else table.columns[column]
    if asked:
        cells = ["1" if ((cell or "") == word) == (asked == _IS) else "0" for cell in cells]
    elif factor is not None:
        cells = [None if cell is None else _times(cell, factor) for cell in cells]
    return Cells(file=table.name, column=column, lines=table.lines, cells=cells)


def _times(cell: str, factor: Decimal) -> str:
    """Multiply a cell exactly; a word stays as it is."""
    # Decimals, for in floats 0.07 times 100 is no whole number.
    return cell if number(cell) is None else f"{Decimal(cell) * factor:f}"


def _read(path: Path) -> Table:
    try:
        return parse_table(path.read_bytes(), path.name)
    except OSError as error:
        raise InvalidSource(f"cannot read {path}: {error.strerror}") from None
    except InvalidTask as error:
        raise InvalidSource(str(error)) from None
