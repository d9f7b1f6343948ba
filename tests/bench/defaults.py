"""The rate that quickstart's rule chooses beside others, on four data sets: a table of defaults.md.

    python -m tests.bench.defaults [--only adult]            about 15 minutes on two cores, all of it

Trained is as in `tests/bench/models.py`, at epsilon 3 against the ad server, and the rate alone changes. One
row for each data set and rate: the mean over seeds, with the standard deviation; the rule's rate comes first.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from sklearn.datasets import load_breast_cancer

from maskedlark.encoding.fit import FitSettings, fit
from tests.bench.harness import bench_parser, show
from tests.bench.mnist import FOLDER
from tests.bench.models import Examples, adult, split, train_by_defaults
from tests.bench.models_ids import frappe_auc

EPSILON: Final = 3.0
_WORDS: Final = 254
"""Of a column of Frappe: with the row of the rest, what one byte names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One data set at one rate."""

    data: str
    learning_rate: float
    is_by_the_rule: bool
    score: float
    standard_deviation: float | None
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
    cells = {name: [repr(float(value)) for value in column] for name, column in columns.items()}
    return _on_the_panel(cells, [str(label) for label in table.target], seed, learning_rate, is_auc=False)


def online_shoppers(seed: int, learning_rate: float | None) -> tuple[float, float]:
    """AUC on the fifth of the sessions that is not reported."""
    with (FOLDER.parent / "online_shoppers_intention.csv").open() as file:
        rows = list(csv.DictReader(file))
    cells = {name: [row[name] for row in rows] for name in rows[0]}
    return _on_the_panel(cells, cells.pop("Revenue"), seed, learning_rate, is_auc=True)


def _on_the_panel(
    cells: dict[str, list[str]], labels: list[str], seed: int, learning_rate: float | None, *, is_auc: bool
) -> tuple[float, float]:
    encoder = fit(cells, FitSettings())
    records = split(Examples(features=encoder.features(cells), labels=np.array(labels, np.int64)), seed)
    score = train_by_defaults(
        encoder, records, records.panel, epsilon=EPSILON, seed=seed, learning_rate=learning_rate
    )
    return score.auc if is_auc else score.accuracy, score.learning_rate


def adult_auc(seed: int, learning_rate: float | None) -> tuple[float, float]:
    """AUC on Adult's test file."""
    encoder, seen, test = adult()
    score = train_by_defaults(
        encoder, split(seen, seed), test, epsilon=EPSILON, seed=seed, learning_rate=learning_rate
    )
    return score.auc, score.learning_rate


def frappe(seed: int, learning_rate: float | None) -> tuple[float, float]:
    """AUC on Frappe's test file, one byte a column."""
    return frappe_auc(seed=seed, words=_WORDS, epsilon=EPSILON, learning_rate=learning_rate)


DATA: Final = {
    "wbcd": Data(seeds=12, rates=(0.2, 0.5, 2.0, 4.0), run=wbcd),
    "online_shoppers": Data(seeds=3, rates=(0.25, 0.5, 2.0, 4.0), run=online_shoppers),
    "adult": Data(seeds=2, rates=(3.0, 16.0), run=adult_auc),
    "frappe": Data(seeds=2, rates=(2.0, 18.0), run=frappe),
}


def rows(only: str) -> Iterator[Row]:
    """Measure the data sets whose names start so."""
    for name, data in DATA.items():
        if not name.startswith(only):
            continue
        for rate in (None, *data.rates):
            found = [data.run(seed, rate) for seed in range(1, data.seeds + 1)]
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
