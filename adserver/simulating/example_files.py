"""Labelled examples from files, for simulations: MNIST's four idx files, or a table with a user column.

    read_examples(Path("data/mnist"))  # no users: the simulation deals shards
    read_examples(Path("shop.csv"), label="Revenue", user="Region")     # one device a user

All other columns of a table are numbers, scaled to bytes column by column, from the smallest to the largest.
Every tenth row is kept for evaluation.
"""

from pathlib import Path
from typing import Final

import numpy as np

from maskedlark.encoding.cells import number
from maskedlark.encoding.idx import TEST, TRAIN, idx_pair, unpack
from maskedlark.encoding.table import Table, parse_table
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
    """Read a folder of idx files, or a table with its columns of labels and users.

    Raises:
        InvalidTask: the files are not there, or not of the form, or a column is missing or has a
            cell that is empty or no number.
    """
    if path.is_dir():
        training, evaluation = (_examples(path, names) for names in (TRAIN, TEST))
        classes = int(training.labels.max()) + 1
        return ExampleSet(training=training, evaluation=evaluation, users=(), classes=classes)
    return _table_set(path, label, user)


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
        raise InvalidTask(
            f"cannot read {folder / name}: {error.strerror}; expected a folder with MNIST's four idx files "
            "(plain or .gz), or a CSV file"
        ) from None


def _table_set(path: Path, label: str, user: str) -> ExampleSet:
    try:
        table = parse_table(path.read_bytes(), path.name)
    except OSError as error:
        raise InvalidTask(f"cannot read {path}: {error.strerror}") from None
    if not label:
        raise InvalidTask(f"{table.name} is a table: name the column of its labels with --label")
    said = _filled(table, label, "--label")
    users = _filled(table, user, "--user") if user else []
    names = [name for name in table.columns if name not in (label, user)]
    if len(table) < _EVALUATED or not names:
        raise InvalidTask(f"{table.name} has fewer than {_EVALUATED} rows, or no column of numbers: add them")
    numbers = np.array([_numbers(table, name) for name in names]).T
    classes = sorted(set(said))
    places = {name: place for place, name in enumerate(classes)}
    labels = np.array([places[one] for one in said], np.int64)
    low, span = numbers.min(axis=0), np.ptp(numbers, axis=0)
    # A column of one number throughout has no span, and becomes zeros.
    features = np.rint((numbers - low) / np.where(span > 0, span, 1) * 255).astype(np.uint8)
    kept = np.arange(len(table)) % _EVALUATED == 0
    return ExampleSet(
        training=Examples(features=features[~kept], labels=labels[~kept]),
        evaluation=Examples(features=features[kept], labels=labels[kept]),
        users=tuple(one for one, is_kept in zip(users, kept, strict=bool(users)) if not is_kept),
        classes=len(classes),
    )


def _filled(table: Table, name: str, option: str) -> list[str]:
    """Return the cells of the column that an option names; each row must have one."""
    filled = list[str]()
    for line, cell in zip(table.lines, table.cells(name), strict=True):
        if cell is None:
            raise InvalidTask(
                f"{table.name}, line {line}, column {name!r}: found no value, expected one in each row, as "
                f"{option} names the column: fill it in, or remove the row"
            )
        filled.append(cell)
    return filled


def _numbers(table: Table, name: str) -> list[float]:
    """Return a column of numbers."""
    numbers = list[float]()
    for line, cell in zip(table.lines, table.numbers(name), strict=True):
        value = None if cell is None else number(cell)
        if value is None:
            found = "no value" if cell is None else "a word"
            raise InvalidTask(
                f"{table.name}, line {line}, column {name!r}: found {found}, expected a number, as all "
                "columns but those of --label and --user are features: write words as numbers, such as a "
                "column of 0 and 1 for each word, fill gaps, or remove the column or the row"
            )
        numbers.append(value)
    return numbers
