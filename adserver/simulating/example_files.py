"""Labelled examples from files, for simulations: MNIST's four idx files, or a CSV with a user column.

    read_examples(Path("data/mnist"))  # no users: the simulation deals shards
    read_examples(Path("shop.csv"), label="Revenue", user="Region")     # one device a user

Numbers in a CSV are scaled to bytes column by column, from the smallest to the largest. Every tenth row is
kept for evaluation.
"""

import csv
from pathlib import Path
from typing import Final

import numpy as np

from maskedlark.encoding.close_names import list_known
from maskedlark.encoding.idx import TEST, TRAIN, idx_pair, unpack
from maskedlark.errors import InvalidTask
from maskedlark.federated.local_training import Examples
from maskedlark.frozen import frozen

_EVALUATED: Final = 10


@frozen(eq=False)
class ExampleSet:
    """Examples to train and to evaluate on.

    Attributes:
        training: What devices hold.
        evaluation: What the model is scored on.
        users: The owner of each training example; empty if the file names none.
        classes: How many labels there are.
    """

    training: Examples
    evaluation: Examples
    users: tuple[str, ...]
    classes: int

    @property
    def width(self) -> int:
        """The number of features of an example."""
        return int(self.training.features.shape[1])


def read_examples(path: Path, *, label: str = "", user: str = "") -> ExampleSet:
    """Read a folder of idx files, or a CSV file with its columns of labels and users.

    Raises:
        InvalidTask: the files are not there, or not of the form, or a column is missing.
    """
    if path.is_dir():
        training, evaluation = (_examples(path, names) for names in (TRAIN, TEST))
        classes = int(training.labels.max()) + 1
        return ExampleSet(training=training, evaluation=evaluation, users=(), classes=classes)
    return _csv_set(path, label, user)


def _examples(folder: Path, names: tuple[str, str]) -> Examples:
    found = idx_pair(names, lambda name: _content(folder, name))
    if not len(found.labels):
        raise InvalidTask(f"{names[1]} contains no labels")
    return Examples(
        features=found.images.reshape(len(found.images), -1), labels=found.labels.astype(np.int64)
    )


def _content(folder: Path, name: str) -> bytes:
    """Read a file, compressed or not."""
    packed = folder / f"{name}.gz"
    try:
        return unpack(packed.read_bytes(), name) if packed.exists() else (folder / name).read_bytes()
    except OSError as error:
        raise InvalidTask(f"cannot read {name} in the folder: {type(error).__name__}") from None


def _csv_set(path: Path, label: str, user: str) -> ExampleSet:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
    except (OSError, UnicodeDecodeError, ValueError, csv.Error):
        raise InvalidTask(
            f"{path.name} is not valid: expected a folder, or a CSV file with column names in its first row"
        ) from None
    for column in (label, user):
        if column not in head:
            raise InvalidTask(f"{path.name} has no column {column!r}; {list_known(column, head)}")
    at_label, at_user = head.index(label), head.index(user)
    named = sorted({row[at_label] for row in rows if len(row) == len(head)})
    try:
        numbers = np.array(
            [
                [float(cell) for place, cell in enumerate(row) if place not in (at_label, at_user)]
                for row in rows
            ]
        )
        labels = np.array([named.index(row[at_label]) for row in rows], np.int64)
        users = [row[at_user] for row in rows]
    except (ValueError, IndexError):
        raise InvalidTask(
            f"{path.name} has a row with too few cells, or a feature that is not a number"
        ) from None
    if len(rows) < _EVALUATED or not np.isfinite(numbers).all():
        raise InvalidTask(f"{path.name} has fewer than {_EVALUATED} rows, or a feature that is not finite")
    low, span = numbers.min(axis=0), np.ptp(numbers, axis=0)
    # A column of one number throughout has no span, and becomes zeros.
    features = np.rint((numbers - low) / np.where(span > 0, span, 1) * 255).astype(np.uint8)
    kept = np.arange(len(rows)) % _EVALUATED == 0
    return ExampleSet(
        training=Examples(features=features[~kept], labels=labels[~kept]),
        evaluation=Examples(features=features[kept], labels=labels[kept]),
        users=tuple(one for one, is_kept in zip(users, kept, strict=True) if not is_kept),
        classes=len(named),
    )
