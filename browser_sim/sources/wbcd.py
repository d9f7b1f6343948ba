"""The Wisconsin diagnostic breast-cancer data: 569 records, 30 measurements, two classes, in wbcd.csv.

W. Wolberg, O. Mangasarian, N. Street, W. Street, Breast Cancer Wisconsin (Diagnostic), UCI Machine Learning
Repository, 1993, https://doi.org/10.24432/C5DW2B, under CC BY 4.0. The rows are in scikit-learn's order (a
test compares both); the last column is new: 1 for malignant.
"""

import csv
from bisect import bisect_right
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from browser_sim.source import Source, SourceRecords
from maskedlark.encoding.column_kinds import Binning
from maskedlark.encoding.fit import number_column


def load_wbcd() -> Source:
    """Load the data with label malignant = 1; benign stands for an unconverted impression."""
    with resources.files("browser_sim.sources").joinpath("wbcd.csv").open(encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    *columns, malignant = zip(*(map(float, row) for row in rows), strict=True)
    return Source(
        name="wbcd",
        records=SourceRecords(
            features=np.stack([_bytes(list(column)) for column in columns], axis=1),
            labels=np.array(malignant, np.float64),
        ),
        feature_names=tuple(names[:-1]),
        label_names=("benign", "malignant"),
        default_label=0,
        scaling="each column in 256 even bins between its 1st and 99th percentile",
    )


def _bytes(values: list[float]) -> NDArray[np.uint8]:
    # The encoder's own bins, so that the sample's bytes are those that a table of the same numbers has.
    column = number_column("any", values, has_missing=False, binning=Binning.RANGE, bins=256)
    return np.array([column.byte_of_bin(bisect_right(column.edges, value)) for value in values], np.uint8)
