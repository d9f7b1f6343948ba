"""The records that simulated people live through.

Feature bytes and labels, and who of them is never simulated.

Reports carry features as bytes, so every source says how its columns become bytes. That scaling is fitted
here on the source's own columns, as public knowledge: in real life the origin publishes the bin edges inside
its page's tag, fitted on data that it may see (a consented panel, or its own inventory); the task carries the
number of bytes only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from browser_sim.draws import Draws, permutation
from maskedlark.errors import InvalidTask, MaskedLarkError
from maskedlark.reports.task import LabelKind, Task

DEFAULT_PANEL_FRACTION = 0.2


class InvalidSource(MaskedLarkError):
    """The data given to the simulation cannot be used.

    A file is missing, damaged, or not what it should be.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRecords:
    """What n records hold of a task's measurement, in the order in which it declares them.

    Shapes: keys u32 (n, K); values int64 (n, V).
    """

    keys: NDArray[np.uint32] = field(repr=False)
    values: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """n records in clear: what the people know, never what anybody else does.

    Shapes: features u8 (n, d); labels float64 (n,), whole numbers for classes; measured n rows, or None in a
        task without measurement.
    """

    features: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.float64] = field(repr=False)
    measured: MeasuredRecords | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.intp]) -> "Records":
        """These rows, in this order."""
        measured = self.measured
        return Records(
            features=self.features[rows],
            labels=self.labels[rows],
            measured=measured and MeasuredRecords(keys=measured.keys[rows], values=measured.values[rows]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data set, ready to be lived through.

    Attributes:
        name: What the source calls itself.
        records: What may be reported.
        own_test: The data set's published test records, which are never reported; None if it has none.
        feature_names: d names.
        label_kind: Classes or real values.
        label_names: One name per class, by class; empty for values.
        default_label: The label that an impression without a conversion has, for the task's label space; None
            if every impression ends in a label of its own.
        scaling: How features become bytes, for people.
        notes: What was left out or assumed, for people.
        cells: For each name that a measurement may declare, the cells of its column, one a record; None where
            missing.
    """

    name: str
    records: Records
    own_test: Records | None = None
    feature_names: tuple[str, ...]
    label_kind: LabelKind = LabelKind.CLASSES
    label_names: tuple[str, ...]
    default_label: int | None
    scaling: str
    notes: tuple[str, ...] = ()
    cells: Mapping[str, Sequence[str | None]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelSplit:
    """Records to report, and the panel (if any).

    People who agreed that the ad server sees their records, for testing models.
    """

    reported: Records
    panel: Records | None


def split_panel(source: Source, fraction: float | None, draws: Draws) -> PanelSplit:
    """Set the panel aside: the source's own test records, or a random fraction of all (0.2 if not said).

    Guarantees: no record is in both parts; the same seed gives the same split.
    """
    if fraction is None and source.own_test is not None:
        return PanelSplit(reported=source.records, panel=source.own_test)
    share = DEFAULT_PANEL_FRACTION if fraction is None else fraction
    order = permutation(len(source.records), draws.stream("panel"))
    count = round(share * len(order))
    return PanelSplit(
        reported=source.records.take(np.sort(order[count:])),
        panel=source.records.take(np.sort(order[:count])),
    )


def check_fits(source: Source, task: Task) -> None:
    """Refuse a source whose records the task cannot take, before anything is sent.

    Raises:
        InvalidTask: another number of features, another kind of label, or a label outside the task's space.
    """
    width = source.records.features.shape[1]
    if width != task.num_features:
        raise InvalidTask(f"the task takes {task.num_features} features, source {source.name} has {width}")
    if source.label_kind is not task.labels.kind:
        raise InvalidTask(
            f"the task's labels are {task.labels.kind.value}, source {source.name} gives"
            f" {source.label_kind.value}"
        )
    labels = source.records.labels
    if len(labels) and not 0 <= labels.min() <= labels.max() <= task.labels.size - 1:
        raise InvalidTask(f"source {source.name} has labels outside the task's 0..{task.labels.size - 1}")


def with_measurement(source: Source, task: Task) -> Source:
    """The source with the keys and values that a task measures, read from the columns of these names.

    Values are rounded to whole numbers; browsers hold them to their bounds.

    Raises:
        InvalidSource: no column was said for a name, a cell is missing, a value is no number, or a key's
            category is not declared.
    """
    declared = task.measurement
    if declared is None:
        return source
    names = [key.name for key in declared.keys] + [value.name for value in declared.values]
    missing = [name for name in names if name not in source.cells]
    if missing:
        raise InvalidSource(
            f"the task measures {missing[0]!r}: say which column of source {source.name} holds it"
        )
    try:
        keys = [[key.code(_whole(cell)) for cell in source.cells[key.name]] for key in declared.keys]
        values = [
            [round(float(cell or "")) for cell in source.cells[value.name]] for value in declared.values
        ]
    except (ValueError, OverflowError):
        raise InvalidSource(f"source {source.name} has a value that is no number, or none") from None
    except InvalidTask as error:
        raise InvalidSource(f"source {source.name}: {error}") from None
    count = len(source.records)
    measured = MeasuredRecords(
        keys=np.array(keys, np.uint32).reshape(len(keys), count).T.copy(),
        values=np.array(values, np.int64).reshape(len(values), count).T.copy(),
    )
    return replace(source, records=replace(source.records, measured=measured))


def _whole(cell: str | None) -> str:
    """A key's cell: 3.0 means 3."""
    if cell is None:
        raise InvalidTask("a key has no value in some row")
    return cell.removesuffix(".0")


def save_records(path: Path, records: Records, kind: LabelKind) -> None:
    """Write records in clear as .npz.

    `features` u8 (n, d), `labels` int64 (n,) for classes or float64 for values.

    With a measurement also its `keys` u32 (n, K) and `values` int64 (n, V).
    """
    labels = records.labels if kind is LabelKind.VALUES else records.labels.astype(np.int64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # savez adds a suffix to names, not to files
        if records.measured is None:
            np.savez(file, features=records.features, labels=labels)
        else:
            np.savez(
                file,
                features=records.features,
                labels=labels,
                keys=records.measured.keys,
                values=records.measured.values,
            )
