"""The records of simulated people: feature bytes and labels, and the records that are held out.

Reports carry features as bytes, so every source says how its columns become bytes. Tables use an encoder
(`maskedlark.encoding`): the origin fits it on data that it may see, the signed task names it by its digest,
and every browser is served the same one. Without one, it is fitted to the source's own columns.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from browser_sim.draws import Draws
from maskedlark.encoding.cells import number
from maskedlark.errors import InvalidTask, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.reports.measurement import Key, Measurement
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import LabelKind
from maskedlark.runtime.durable_file import replacing

DEFAULT_PANEL_FRACTION = 0.2
_OTHER: Final = "other"
_TRUTHS: Final = {"true": 1, "yes": 1, "false": 0, "no": 0}


class InvalidSource(MaskedLarkError):
    """The data given to the simulation cannot be used.

    A file is missing, damaged, or not what it should be.
    """


class InvalidCell(InvalidSource):
    """One cell of a table cannot be used.

    Attributes:
        file: The table's name.
        line: The line of the file, from 1.
        column: The column's name.
        why: What is wrong; it does not tell the cell.
    """

    def __init__(self, *, file: str, line: int, column: str, why: str) -> None:
        super().__init__(f"{file}, line {line}, column {column!r}: {why}")
        self.file, self.line, self.column, self.why = file, line, column, why


@frozen
class Cells:
    """A column as a measurement reads it, and where each cell stands.

    Attributes:
        file: The table's name.
        column: The column's name.
        lines: The line of each cell, from 1.
        cells: One a record; None where missing.
    """

    file: str
    column: str
    lines: Sequence[int] = field(repr=False)
    cells: Sequence[str | None] = field(repr=False)

    def take(self, rows: Sequence[int]) -> "Cells":
        """Return these rows, in this order."""
        return replace(self, lines=[self.lines[row] for row in rows], cells=[self.cells[row] for row in rows])


@frozen
class MeasuredRecords:
    """What n records hold of a task's measurement, in the order in which it declares them.

    Shapes: keys u32 (n, K); values int64 (n, V).
    """

    keys: NDArray[np.uint32] = field(repr=False)
    values: NDArray[np.int64] = field(repr=False)


@frozen
class SourceRecords:
    """n records in clear, as only the people themselves know them.

    Shapes: features u8 (n, d); labels float64 (n,), whole numbers for classes; measured n rows, or None in a
        task without measurement; people int64 (n,), equal for records of one person, or None where each is
        anybody's.

    Attributes:
        encoder: The digest of the encoder that made the features; None: no encoder did.
        lines: Shape int64 (n,), the lines of the table's file; None: no table.
    """

    features: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.float64] = field(repr=False)
    measured: MeasuredRecords | None = None
    encoder: bytes | None = None
    lines: NDArray[np.int64] | None = field(default=None, repr=False)
    people: NDArray[np.int64] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.intp]) -> "SourceRecords":
        """Return these rows, in this order."""
        measured = self.measured
        return SourceRecords(
            features=self.features[rows],
            labels=self.labels[rows],
            measured=measured and MeasuredRecords(keys=measured.keys[rows], values=measured.values[rows]),
            encoder=self.encoder,
            lines=None if self.lines is None else self.lines[rows],
            people=None if self.people is None else self.people[rows],
        )

    def save(self, path: Path, kind: LabelKind) -> None:
        """Write the records in clear as .npz, in one step, for this user alone.

        `features` u8 (n, d), `labels` int64 (n,) for classes or float64 for values.

        With a measurement also its `keys` u32 (n, K) and `values` int64 (n, V); of an encoder also its
        digest, `encoder` u8 (32,); of a table also `lines` int64 (n,) of its file, and where its people are
        known `people` int64 (n,), equal for rows of one person.
        """
        labels = self.labels if kind is LabelKind.VALUES else self.labels.astype(np.int64)
        arrays: dict[str, Any] = {"features": self.features, "labels": labels}
        if self.measured is not None:
            arrays |= {"keys": self.measured.keys, "values": self.measured.values}
        if self.encoder is not None:
            arrays["encoder"] = np.frombuffer(self.encoder, np.uint8)
        if self.lines is not None:
            arrays["lines"] = self.lines
        if self.people is not None:
            arrays["people"] = self.people
        path.parent.mkdir(parents=True, exist_ok=True)
        # savez adds a suffix to names, not to files
        with replacing(path, path.with_name(f".{path.name}.unfinished")) as file:
            np.savez(file, **arrays)


@frozen
class RowCounts:
    """What became of a table's rows: each is a record, or counted once as left out.

    Attributes:
        read: Rows in the file.
        left_out: By column and reason.
    """

    read: int
    left_out: Mapping[str, int] = field(default_factory=dict)

    def without(self, dropped: Mapping[str, int]) -> "RowCounts":
        """Return the counts with more rows left out."""
        return RowCounts(read=self.read, left_out={**self.left_out, **dropped})


@frozen
class Source:
    """A data set, ready for simulation.

    Attributes:
        name: What the source calls itself.
        records: What may be reported.
        own_test: The data set's published test records, which are never reported; None if it has none.
        feature_names: d names.
        label_kind: Classes or real values.
        label_names: One name per class, by class; empty for values.
        default_label: The label that an impression without a conversion has, for the task's label space; None
            if every impression has a label.
        scaling: How features become bytes, for people.
        notes: What was left out or assumed, for people.
        cells: For each name that a measurement may declare, its column.
        rows: What became of the rows of a table; None for other sources.
    """

    name: str
    records: SourceRecords
    own_test: SourceRecords | None = None
    feature_names: tuple[str, ...]
    label_kind: LabelKind = LabelKind.CLASSES
    label_names: tuple[str, ...]
    default_label: int | None
    scaling: str
    notes: tuple[str, ...] = ()
    cells: Mapping[str, Cells] = field(default_factory=dict, repr=False)
    rows: RowCounts | None = None

    def split_panel(self, fraction: float | None, draws: Draws) -> "PanelSplit":
        """Set the panel aside: the source's own test records, or a random fraction of all (0.2 if not said).

        A fraction is of the people where records name theirs, and else of the records.

        Guarantees: no record, and no such person, is in both parts; the same seed gives the same split.
        """
        if fraction is None and self.own_test is not None:
            return PanelSplit(reported=self.records, panel=self.own_test)
        share = DEFAULT_PANEL_FRACTION if fraction is None else fraction
        records = self.records
        people = np.arange(len(records)) if records.people is None else records.people
        names = np.unique(people)
        order = draws.permutation(len(names), "panel")
        # Which rows are held back is drawn, their order in the file stays.
        is_held = np.isin(people, names[order[: round(share * len(order))]])
        return PanelSplit(
            reported=records.take(np.flatnonzero(~is_held)), panel=records.take(np.flatnonzero(is_held))
        )

    def check_fits(self, task: Task) -> None:
        """Refuse a source whose records the task cannot take, before anything is sent.

        Raises:
            InvalidTask: another number of features, another kind of label, or a label outside the task's
                space.
        """
        width = self.records.features.shape[1]
        if width != task.num_features:
            raise InvalidTask(
                f"source {self.name} has {width} features, but the task takes {task.num_features}"
            )
        if self.label_kind is not task.labels.kind:
            raise InvalidTask(
                f"source {self.name} has labels of kind {self.label_kind.value}, but the task takes "
                f"{task.labels.kind.value}"
            )
        labels = self.records.labels
        if len(labels) and not 0 <= labels.min() <= labels.max() <= task.labels.size - 1:
            raise InvalidTask(f"source {self.name} has labels outside the task's 0..{task.labels.size - 1}")

    def with_measurement(self, task: Task) -> "Source":
        """Return the source with the task's keys and values, read from columns of these names.

        Values are whole numbers; browsers hold them to their bounds. `true` and `yes` are 1, `false` and `no`
        are 0. A key's word that is no category, and its empty cell, is counted as the category `other` where
        the task declares it. A row without a value, or without a key where no `other` is declared, is left
        out and counted.

        Raises:
            InvalidSource: no column was said for a name, or no row has all that is measured.
            InvalidCell: a value is no whole number, or a key's category is not declared.
        """
        declared = task.measurement
        if declared is None:
            return self
        names = [key.name for key in declared.keys] + [value.name for value in declared.values]
        missing = [name for name in names if name not in self.cells]
        if missing:
            raise InvalidSource(
                f"the task measures {missing[0]!r}: name the column of source {self.name} that "
                "contains it (--value or --key)"
            )
        source = _complete(self, declared)
        keys = [_each(source.cells[key.name], partial(_code, key)) for key in declared.keys]
        values = [_each(source.cells[value.name], _value) for value in declared.values]
        count = len(source.records)
        measured = MeasuredRecords(
            keys=np.array(keys, np.uint32).reshape(len(keys), count).T.copy(),
            values=np.array(values, np.int64).reshape(len(values), count).T.copy(),
        )
        return replace(source, records=replace(source.records, measured=measured))


@frozen
class PanelSplit:
    """Records to report, and the panel (if any).

    The panel are people with whose agreement the ad server sees their records, to test models.
    """

    reported: SourceRecords
    panel: SourceRecords | None


def _complete(source: Source, declared: Measurement) -> Source:
    """Leave out rows that lack a value, or a key without the category `other`; count them by column."""
    needed = {value.name: "no measured value" for value in declared.values}
    needed |= {
        key.name: f"no measured key, and the task declares no category {_OTHER!r} of {key.name!r}"
        for key in declared.keys
        if _OTHER not in key.categories
    }
    is_kept, dropped = np.ones(len(source.records), np.bool_), Counter[str]()
    for name, why in needed.items():
        column = source.cells[name]
        is_empty = np.array([cell is None for cell in column.cells], np.bool_)
        # A row that lacks two values is counted once, at the first.
        dropped[f"column {column.column!r}: {why}"] += int((is_kept & is_empty).sum())
        is_kept &= ~is_empty
    if is_kept.all():
        return source
    rows = np.flatnonzero(is_kept)
    if not len(rows):
        raise InvalidSource(
            f"source {source.name} has no row with all that the task measures: {dict(+dropped)}"
        )
    return replace(
        source,
        records=source.records.take(rows),
        cells={name: column.take(rows.tolist()) for name, column in source.cells.items()},
        rows=source.rows and source.rows.without(+dropped),
    )


def _each(column: Cells, read: Callable[[str], int]) -> list[int]:
    """Read each cell; report the first unusable one with its line."""
    said = []
    for line, cell in zip(column.lines, column.cells, strict=True):
        try:
            said.append(read(cell or ""))
        except InvalidTask as error:
            raise InvalidCell(file=column.file, line=line, column=column.column, why=str(error)) from None
    return said


def _code(key: Key, cell: str) -> int:
    """Return a key's code: 3.0 means 3, and `other` stands for an undeclared category and an empty cell."""
    if not cell:
        return key.categories.index(_OTHER)
    try:
        # Tools that read a column with an empty cell as floats write 3.0 for the code 3.
        return key.code(cell.removesuffix(".0"))
    except InvalidTask:
        if _OTHER in key.categories:
            return key.categories.index(_OTHER)
        known = f"one of {', '.join(key.categories)}" if key.categories else f"a number below {key.size}"
        raise InvalidTask(
            f"the cell is not a category of key {key.name!r}: expected {known}; declare the "
            f"category {_OTHER!r} for all other values"
        ) from None


def _value(cell: str) -> int:
    """Return a whole number; TRUE and FALSE are 1 and 0."""
    word = _TRUTHS.get(cell.lower())
    if word is not None:
        return word
    value = number(cell)
    if value is None:
        raise InvalidTask(
            "the cell is not a number, but a measured value must be one; to count a word, use "
            "--value NAME=COLUMN==WORD"
        )
    if not value.is_integer():
        raise InvalidTask(
            "the cell has a fraction, but a measured value is a whole number: to count in smaller units, "
            "such as cents, use --value NAME=COLUMN*100"
        )
    return int(value)
