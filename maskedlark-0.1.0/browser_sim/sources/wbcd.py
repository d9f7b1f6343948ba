"""The Wisconsin diagnostic breast-cancer data, which ships inside scikit-learn.

569 records, 30 measurements, two classes.
"""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from browser_sim.source import InvalidSource, Records, Source
from maskedlark.encoding.fit import Binning, number_column


def load_wbcd() -> Source:
    """The data with label malignant = 1; a benign record stands for an impression that did not convert.

    Raises:
        InvalidSource: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import (
            load_breast_cancer,
        )  # an extra, and slow to import: only for those who ask for this source
    except ImportError:
        raise InvalidSource("source wbcd needs scikit-learn: install maskedlark[browser-sim]") from None
    table = load_breast_cancer()
    columns = [_bytes(column.tolist()) for column in table.data.T]
    return Source(
        name="wbcd",
        records=Records(features=np.stack(columns, axis=1), labels=(table.target == 0).astype(np.float64)),
        feature_names=tuple(str(name) for name in table.feature_names),
        label_names=("benign", "malignant"),
        default_label=0,
        scaling="each column in 256 even bins between its 1st and 99th percentile",
    )


def _bytes(values: list[float]) -> NDArray[np.uint8]:
    column = number_column("any", values, has_missing=False, binning=Binning.RANGE, bins=256)
    return np.array([column.byte_of_bin(bisect_right(column.edges, value)) for value in values], np.uint8)
