"""Records in the clear, for benches: Adult, Frappe, and a split into what is reported and the panel."""

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.encoding.cells import said
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from tests.bench.mnist import FOLDER

COLUMNS: Final = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
    "income",
)  # fmt: skip
LABEL: Final = "income"
_RARE: Final = 0.01
"""The share of positives where they are rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Records in the clear."""

    features: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def part(self, chosen: NDArray[Any]) -> "Examples":
        """The chosen records."""
        return Examples(features=self.features[chosen], labels=self.labels[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows in the clear: cells by column, and 0 or 1 for each row."""

    cells: dict[str, list[str | None]]
    labels: NDArray[np.int64]

    def part(self, chosen: NDArray[np.int64]) -> "Table":
        """The chosen rows."""
        cells = {name: [column[row] for row in chosen] for name, column in self.cells.items()}
        return Table(cells=cells, labels=self.labels[chosen])

    def encode(self, encoder: Encoder) -> Examples:
        """Features as a browser encodes them."""
        return Examples(features=encoder.features(self.cells), labels=self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Four fifths that are reported, and the panel."""

    reported: Examples
    panel: Examples


def split(seen: Examples, seed: int) -> Split:
    """Draw the panel by a seed."""
    order = np.random.default_rng(seed).permutation(len(seen.labels))
    panel = len(order) // 5
    return Split(reported=seen.part(order[panel:]), panel=seen.part(order[:panel]))


def adult() -> tuple[Encoder, Examples, Examples]:
    """The encoder that `browser-sim encode --fit` makes of Adult, its training and its test records."""
    tables = [table_of_adult(part) for part in ("data", "test")]
    encoder = fit(tables[0], FitSettings(label=LABEL))
    seen, test = (
        Examples(features=encoder.features(table), labels=encoder.labels(table).astype(np.int64))
        for table in tables
    )
    return encoder, seen, test


def table_of_adult(part: str) -> dict[str, list[str | None]]:
    """Adult's cells by column: the training rows, `data`, or the `test` rows."""
    with gzip.open(FOLDER.parent / "ads" / f"adult.{part}.gz", "rt") as file:
        return read_adult(file)


def read_adult(lines: Iterable[str]) -> dict[str, list[str | None]]:
    """Cells by column of Adult's lines; its test file ends each with a dot."""
    rows = [line.strip().rstrip(".").split(", ") for line in lines]
    kept = [row for row in rows if len(row) == len(COLUMNS)]
    return {column: [said(row[at]) for row in kept] for at, column in enumerate(COLUMNS)}


def frappe(part: str) -> Table:
    """Frappe's rows, whether each is a use of the app: of the file `validation` or `test`."""
    with gzip.open(FOLDER.parent / "ads" / f"frappe.{part}.libfm.gz", "rt") as file:
        return read_libfm(file)


def read_libfm(lines: Iterable[str]) -> Table:
    """Cells and labels of lines such as `-1 451:1 4149:1`: a label, and the word of each field."""
    rows = [line.split() for line in lines]
    columns = zip(*(row[1:] for row in rows), strict=True)
    return Table(
        cells={
            f"field {place}": [one.split(":")[0] for one in column] for place, column in enumerate(columns)
        },
        labels=np.array([float(row[0]) > 0 for row in rows], np.int64),
    )


def rare_rows(labels: NDArray[np.int64], seed: int, share: float = _RARE) -> NDArray[np.int64]:
    """All rows of label 0, and so many of label 1 that they are a share of both."""
    positives = np.random.default_rng(seed).permutation(np.flatnonzero(labels == 1))
    negatives = np.flatnonzero(labels == 0)
    return np.sort(np.append(negatives, positives[: round(len(negatives) * share / (1 - share))]))


def rare(examples: Examples, seed: int, share: float = _RARE) -> Examples:
    """Examples of which a share is positive."""
    return examples.part(rare_rows(examples.labels, seed, share))
