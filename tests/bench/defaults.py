"""The rate that quickstart's rule chooses beside others, on five data sets: a table of defaults.md.

    python -m tests.bench.defaults [--only adult]            about twenty minutes on two idle cores, all of it

Everything is quickstart's, at epsilon 3 against the ad server, with the exact engine and both helpers' noise,
and the rate alone changes. One row for each data set and rate: the mean over seeds, with the standard
deviation; the rule's rate comes first. Seeds begin at 101: lower ones chose the rule.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from adserver.training.inference import evaluate
from maskedlark.encoding.cells import said
from maskedlark.encoding.column_kinds import Binning
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, PlannedTraining, fit, number_column
from tests.bench.examples import Examples, Split, adult, frappe, split
from tests.bench.harness import bench_parser, show
from tests.bench.mnist import FOLDER, load_test_set, load_training_set
from tests.bench.quickstart_job import train_by_defaults

EPSILON: Final = 3.0
_FIRST_SEED: Final = 101
_FEW: Final = 1_000
"""Test records below which accuracy is the score."""
Cells = dict[str, list[str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One data set at one rate."""

    data: str
    learning_rate: float
    is_by_the_rule: bool
    score: float
    standard_deviation: float
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A data set: how often it is repeated, other rates, and the score and rate of a run.

    A run is given a seed, and a rate or None for the rule's.
    """

    seeds: int
    rates: tuple[float, ...]
    run: Callable[[int, float | None], tuple[float, float]]


def wbcd(seed: int, learning_rate: float | None) -> tuple[float, float]:
    """Accuracy on the fifth of the records that is not reported."""
    table = load_breast_cancer()
    columns = dict(zip(table.feature_names, table.data.T, strict=True))
    cells: Cells = {name: [repr(float(value)) for value in column] for name, column in columns.items()}
    encoder, seen = _fitted(cells, [str(label) for label in table.target])
    return _score(encoder, split(seen, seed), None, seed, learning_rate)


def online_shoppers(seed: int, learning_rate: float | None) -> tuple[float, float]:
    """AUC on the fifth of the sessions that is not reported."""
    encoder, seen = read_online_shoppers()
    return _score(encoder, split(seen, seed), None, seed, learning_rate)


def read_online_shoppers() -> tuple[Encoder, Examples]:
    """The encoder that is fitted to the sessions, and the sessions."""
    with (FOLDER.parent / "online_shoppers_intention.csv").open() as file:
        rows = list(csv.DictReader(file))
    cells = {name: [said(row[name]) for row in rows] for name in rows[0]}
    return _fitted(cells, cells.pop("Revenue"))


def adult_auc(seed: int, learning_rate: float | None) -> tuple[float, float]:
    """AUC on Adult's test file."""
    encoder, seen, test = adult()
    return _score(encoder, split(seen, seed), test, seed, learning_rate)


def frappe_auc(seed: int, learning_rate: float | None) -> tuple[float, float]:
    """AUC on Frappe's test file; every field is a column of ids with a planned vocabulary."""
    seen, test = frappe("validation"), frappe("test")
    reports = len(seen.labels) - len(seen.labels) // 5
    training = PlannedTraining(reports=reports, epsilon=EPSILON)
    encoder = fit(seen.cells, FitSettings(words=dict.fromkeys(seen.cells), training=training))
    return _score(encoder, split(seen.encode(encoder), seed), test.encode(encoder), seed, learning_rate)


def mnist(seed: int, learning_rate: float | None) -> tuple[float, float]:
    """Accuracy on MNIST's test images; each pixel is a column of numbers."""
    encoder, seen, test = _pixels()
    return _score(encoder, split(seen, seed), test, seed, learning_rate)


@lru_cache(maxsize=1)
def _pixels() -> tuple[Encoder, Examples, Examples]:
    """The encoder that a table of pixels is fitted by, MNIST's training and its test images."""
    parts = load_training_set(), load_test_set()
    columns = [
        number_column(f"p{place}", pixels, has_missing=False, binning=Binning.RANGE, bins=256)
        for place, pixels in enumerate(np.sort(parts[0][0], axis=0).T.astype(float).tolist())
    ]
    coded = np.array([[column.byte(str(value)) for value in range(256)] for column in columns], np.uint8)
    seen, test = (
        Examples(features=coded[np.arange(images.shape[1]), images], labels=labels)
        for images, labels in parts
    )
    return Encoder(columns=tuple(columns), label=None), seen, test


def _fitted(cells: Cells, labels: list[str | None]) -> tuple[Encoder, Examples]:
    encoder = fit(cells, FitSettings())
    numbers: NDArray[np.int64] = np.array(labels, np.float64).astype(np.int64)
    return encoder, Examples(features=encoder.features(cells), labels=numbers)


def _score(
    encoder: Encoder, records: Split, test: Examples | None, seed: int, learning_rate: float | None
) -> tuple[float, float]:
    """Return the AUC, or the accuracy where there is none or records are few, on test rows or the panel."""
    trained = train_by_defaults(encoder, records, epsilon=EPSILON, seed=seed, learning_rate=learning_rate)
    tested = records.panel if test is None else test
    found = evaluate(trained.onnx, tested.features, tested.labels, trained.loss)
    is_by_accuracy = found.auc is None or len(tested.labels) < _FEW
    score = found.accuracy if is_by_accuracy else found.auc
    return score or 0.0, trained.learning_rate


DATA: Final = {
    "wbcd": Data(seeds=30, rates=(0.1, 0.2, 1.0, 2.0, 4.0), run=wbcd),
    "online_shoppers": Data(seeds=3, rates=(0.25, 0.5, 1.5, 3.0, 6.0), run=online_shoppers),
    "adult": Data(seeds=2, rates=(1.0, 2.0, 4.0, 12.0, 16.0), run=adult_auc),
    "frappe": Data(seeds=2, rates=(1.0, 2.0, 4.0, 12.0, 16.0), run=frappe_auc),
    "mnist": Data(seeds=2, rates=(0.5, 1.0, 2.0, 6.0, 8.0), run=mnist),
}


def rows(only: str) -> Iterator[Row]:
    """Measure the data sets whose names start so."""
    for name, data in DATA.items():
        if not name.startswith(only):
            continue
        for rate in (None, *data.rates):
            found = [data.run(seed, rate) for seed in range(_FIRST_SEED, _FIRST_SEED + data.seeds)]
            scores = [score for score, _ in found]
            yield Row(
                data=name,
                learning_rate=found[0][1],
                is_by_the_rule=rate is None,
                score=round(float(np.mean(scores)), 4),
                standard_deviation=round(float(np.std(scores, ddof=1)), 4),
                seeds=data.seeds,
            )


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="data sets whose names start so")
    arguments = parser.parse_args()
    for row in rows(arguments.only):
        show(row, is_json=arguments.json)


if __name__ == "__main__":
    main()
