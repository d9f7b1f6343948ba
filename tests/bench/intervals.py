"""How often 99 % intervals cover: `make bench-intervals` (ARGS=--json, ARGS=--quick).

Thousands of data sets a cell are drawn from a population, noised as both helpers do, and read by the ad
server's own functions. A cell is one figure at one mechanism, epsilon, number of records and share of
positives. What an evaluation's interval must cover is the population's figure of binned scores: it holds the
sampling of records too. What a query's must cover is the records' own sum, mean or quantile.

- `coverage_least`, `coverage_most`: over all cells where at least half of the answers have an interval, of
  those that have one. Of quantiles whose interval is six buckets or fewer, which is mostly their own
  width, only the least counts.
  Nor do cells of about k reports count there: their intervals hold what a hidden cell may have.
- `cells`: how many these are; `cells_without`: in how many fewer answers have an interval.
- `wrong_most`: the largest share of a cell's answers whose interval does not cover, of all its answers.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.measuring.cells import ResultRow
from adserver.measuring.estimate import Estimate
from adserver.measuring.evaluation_intervals import NoisyCounts
from adserver.measuring.evaluation_metrics import SmoothedCounts, smooth
from adserver.measuring.evaluation_result import GROUPS, OF_LABELS
from adserver.measuring.evaluator import plan_evaluation
from adserver.measuring.measurer import read_query
from adserver.measuring.request import Request, plan_query
from adserver.measuring.result import AggregateResult
from adserver.records.asked_query import PlannedQuery, StoredAnswer
from adserver.records.defaults import ALL, REST
from maskedlark.model.dense import dense_network
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.randomness import seeded
from maskedlark.releases.evaluation import UNITS
from maskedlark.releases.grouping import cells_to_show
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.release import deviation_of_both
from maskedlark.reports.input_shares import MeasuredShares
from tests.bench.harness import bench_parser, show
from tests.builders import World
from tests.measured import dataset_of, measuring_world

Numbers = NDArray[np.float64]

BINS: Final = 64
RECORDS: Final = (500, 2_000, 10_000, 50_000)
POSITIVES: Final = (0.01, 0.05, 0.2, 0.5)
EPSILONS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
MECHANISMS: Final = (Mechanism.GAUSSIAN, Mechanism.LAPLACE)
SHAPES: Final = ("calibrated", "apart")
"""Of scores: probabilities that are right, most of them low where positives are few; or two humps."""
BUCKETS: Final = 128
_SUMS: Final = 8_192
_HISTOGRAMS: Final = 2_048
"""Data sets of a query: cells of one key."""
_QUANTILES: Final = {"median": 0.5, "quantile .9": 0.9}
_HOLD_HIDDEN: Final = ("cells of about k", "cells of a roll-up")
_RESOLVED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the data sets of a cell have in common."""

    mechanism: Mechanism
    epsilon: float
    records: int
    positives: float
    shape: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """How a figure's intervals did: `coverage` of those that there are, `wrong` of all answers."""

    figure: str
    setting: Setting
    with_interval: float
    coverage: float
    wrong: float
    width: float
    is_wider: bool = False
    """Whether the interval holds more than noise and sampling, so that only the least coverage counts."""


def settings(shapes: Sequence[str] = SHAPES) -> list[Setting]:
    """The grid."""
    return [
        Setting(mechanism=mechanism, epsilon=epsilon, records=records, positives=positives, shape=shape)
        for shape, mechanism, epsilon, records, positives in product(
            shapes, MECHANISMS, EPSILONS, RECORDS, POSITIVES
        )
    ]


@cache
def population(positives: float, shape: str, bins: int = BINS) -> Numbers:
    """The probability of each row and score bin."""
    numbers = np.random.default_rng(1)
    logits = 1.8 * numbers.standard_normal(200_000)
    if shape == "calibrated":
        low, high = -20.0, 20.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if _probability(logits + middle).mean() < positives else (low, middle)
        scores = _probability(logits + low)
        bin_of = np.minimum((scores * bins).astype(np.int64), bins - 1)
        rows = [np.bincount(bin_of, weights=weight, minlength=bins) for weight in (1 - scores, scores)]
        return np.array(rows, np.float64) / len(scores)
    scores = np.stack([numbers.beta(2, 4, 200_000), numbers.beta(4, 2, 200_000)])
    rows = [np.bincount((row * bins).astype(np.int64), minlength=bins) for row in scores]
    return np.asarray(np.array(rows, np.float64) / scores.shape[1] * np.array([[1 - positives], [positives]]))


def _probability(logits: Numbers) -> Numbers:
    return np.asarray(1 / (1 + np.exp(-logits)))


@cache
def laboratory(mechanism: Mechanism) -> World:
    """A task with more budget than any cell takes."""
    return measuring_world(
        {
            "min_cell_count": 20,
            "values": [
                {"name": "purchase", "low": 0, "high": 1},
                {"name": "amount", "low": 0, "high": BUCKETS - 1, "bucket_starts": list(range(BUCKETS))},
            ],
            "keys": [{"name": "campaign"}],
        },
        num_features=4,
        mechanism=mechanism.value,
        norm="l1" if mechanism is Mechanism.LAPLACE else "l2",
        epsilon=8.0,
        collusion_epsilon=1_000.0,
    )


@cache
def evaluation_noise(mechanism: Mechanism, epsilon: float, bins: int = BINS) -> float:
    """Each helper's noise scale on every bin of an evaluation, in records."""
    of = laboratory(mechanism)
    planned = plan_evaluation(
        dense_network([4, 1], "relu", seed=1),
        task=of.task,
        dataset=dataset_of(of, 1_000),
        query_id=bytes(16),
        epsilon=epsilon,
        num_bins=bins,
    )
    return planned.spec.noise_units(of.task) / UNITS


def noise_of_both(mechanism: Mechanism, scale: float, shape: tuple[int, ...], seed: Any) -> Numbers:
    """The sum of both helpers' noise; as the product's, but for its rounding to a millionth of a record."""
    numbers = np.random.default_rng(seed)
    draw = numbers.laplace if mechanism is Mechanism.LAPLACE else numbers.normal
    return np.asarray(draw(0.0, scale, shape) + draw(0.0, scale, shape))


def evaluation_cells(setting: Setting, data_sets: int, seed: int, bins: int = BINS) -> list[Cell]:
    """The figures of evaluations of many data sets at once."""
    truth = population(setting.positives, setting.shape, bins)
    drawn = np.random.default_rng([seed, 1]).multinomial(
        setting.records, truth.reshape(-1) / truth.sum(), data_sets
    )
    scale = evaluation_noise(setting.mechanism, setting.epsilon, bins)
    noise = noise_of_both(setting.mechanism, scale, (data_sets, 2, bins), [seed, 2])
    noisy = drawn.reshape(noise.shape) + noise
    smoothed = smooth(noisy)
    counts = NoisyCounts(
        noisy=noisy,
        smoothed=smoothed,
        mechanism=setting.mechanism,
        noise_variance=(scale * deviation_of_both(setting.mechanism)) ** 2,
    )
    population_counts = SmoothedCounts(counts=1e9 * truth)
    most = counts.num_groups(GROUPS).tolist()
    groups = np.stack(
        [
            SmoothedCounts(counts=one).calibration_groups(many)
            for one, many in zip(smoothed, most, strict=True)
        ]
    )
    by_group = (groups[:, None, :] == np.arange(GROUPS)[:, None]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        observed = (1e9 * truth[1] * by_group).sum(-1) / (1e9 * truth.sum(0) * by_group).sum(-1)
    found = {
        name: (interval(counts), figure(population_counts)) for name, (figure, interval) in OF_LABELS.items()
    }
    cells = [
        judge(name, setting, interval.low, interval.high, np.asarray(true))
        for name, (interval, true) in found.items()
    ]
    calibration, is_group = counts.observed_share(by_group), by_group.any(-1)
    low, high = calibration.low[is_group], calibration.high[is_group]
    return [*cells, judge("calibration", setting, low, high, observed[is_group])]


def query_cells(setting: Setting, seed: int, data_sets: tuple[int, int] = (_SUMS, _HISTOGRAMS)) -> list[Cell]:
    """Sums, means and quantiles: every group of one query is a data set."""
    of, numbers = laboratory(setting.mechanism), np.random.default_rng([seed, 3])
    paid = numbers.binomial(setting.records, setting.positives, data_sets[0])
    count = np.full(data_sets[0], setting.records)
    law = np.geomspace(1, 0.02, BUCKETS)
    amounts = numbers.multinomial(setting.records, law / law.sum(), data_sets[1])
    asked = Request(values=("count", "purchase"), group_by=("campaign",), epsilon=setting.epsilon)
    sums = answered(of, asked, np.stack([count, paid], 1), seed)
    asked = Request(values=(), histograms=("amount",), group_by=("campaign",), epsilon=setting.epsilon)
    quantities = answered(of, asked, amounts, seed)
    cells = [
        judge_estimates("sum", setting, [row.estimates[1] for row in sums.rows[:-1]], paid),
        judge_estimates("mean", setting, [one for _, one in sums.means("purchase")][:-1], paid / count),
    ]
    for name, share in _QUANTILES.items():
        true = (np.cumsum(amounts, 1) >= share * setting.records).argmax(1)
        found = [one for _, one in quantities.quantiles("amount", share)][:-1]
        cells.append(judge_estimates(name, setting, found, true))
    return cells


def answered(of: World, asked: Request, truth: NDArray[np.int64], seed: int) -> AggregateResult:
    """The result of a query whose groups have these sums (groups, columns), and nothing in the rest."""
    dataset = dataset_of(of, 1 << 20)
    asked = replace(asked, domains={"campaign": np.arange(len(truth), dtype=np.uint32)})
    planned: PlannedQuery[QuerySpec] = plan_query(asked, task=of.task, dataset=dataset, query_id=bytes(16))
    spec = planned.spec
    units = np.zeros((len(truth) + 1, truth.shape[1]), np.int64)
    units[:-1] = truth * np.repeat([one.scale for one in spec.measures], units.shape[1] // len(spec.measures))
    noise = noise_of_both(of.task.mechanism, spec.noise_units(of.task), units.shape, [seed, 4])
    answer = StoredAnswer(
        total=(units + np.rint(noise).astype(np.int64)).reshape(-1),
        dataset_spent=Epsilons(ad_server=0.0, colluding=0.0),
    )
    result = read_query(of.task, dataset, planned, answer)
    assert result.rows[-1].group == (REST,)
    return result


SIZES: Final = (1, 5, 10, 15, 20, 25, 40, 60, 100, 150, 300, 1_000)
"""Reports in the cells of `threshold_cells`, over and over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A query whose cells are compared with k."""

    mechanism: Mechanism
    epsilon: float
    least: int
    value: str = "count"


def threshold_cells(asked_of: Threshold, data_sets: int, seed: int) -> list[Cell]:
    """Cells of about k reports with and without a roll-up, and a roll-up's totals and rests.

    Which are shown is decided by the helpers' own function. What an interval must cover is the cell's own
    number, hidden or not; of a rest, what the shown cells of its group leave.
    """
    of = measuring_world(
        {
            "min_cell_count": asked_of.least,
            "values": [{"name": "purchase", "low": 0, "high": 1}],
            "keys": [{"name": "campaign", "size": 4}, {"name": "place", "size": 6}],
        },
        mechanism=asked_of.mechanism.value,
        norm="l1" if asked_of.mechanism is Mechanism.LAPLACE else "l2",
        epsilon=20.0,
        collusion_epsilon=1_000.0,
    )
    sizes = np.resize(SIZES, 4 * 6)
    keys = np.repeat(np.array(list(np.ndindex(4, 6)), np.uint32), sizes, axis=0)
    measured = MeasuredShares(keys=keys, value_shares=np.zeros((len(keys), 2), np.uint64))
    setting = Setting(
        mechanism=asked_of.mechanism,
        epsilon=asked_of.epsilon,
        records=len(keys),
        positives=1.0,
        shape=f"k {asked_of.least}, {asked_of.value}",
    )
    found: dict[str, list[tuple[Estimate, float]]] = {}
    for rolled in (False, True):
        asked = Request(
            values=(asked_of.value,),
            group_by=("campaign", "place"),
            is_rolled_up=rolled,
            epsilon=asked_of.epsilon,
        )
        dataset = dataset_of(of, len(keys))
        planned = plan_query(asked, task=of.task, dataset=dataset, query_id=bytes(16))
        spec = planned.spec
        scale = spec.measures[0].scale
        for number in range(data_sets):
            shown = cells_to_show(of.task, spec, seeded(seed, f"{rolled} {number}"), measured, [None, None])
            counts = [
                np.bincount(cell[cell >= 0], minlength=spec.num_cells(level))
                for level, cell in zip(spec.levels, shown, strict=True)
            ]
            units = np.concatenate(counts)[:, None] * scale
            scale_of_noise = spec.noise_units(of.task)
            noise = noise_of_both(asked_of.mechanism, scale_of_noise, units.shape, [seed, rolled, number])
            answer = StoredAnswer(
                total=(units + np.rint(noise).astype(np.int64)).reshape(-1),
                dataset_spent=Epsilons(ad_server=0.0, colluding=0.0),
            )
            rows = read_query(of.task, dataset, planned, answer).rows
            for row, true in zip(rows, _truths(rows, np.concatenate(counts), sizes), strict=True):
                kind = "cells of about k" if not rolled else "cells of a roll-up"
                if row.group[0] == ALL:
                    kind = "total of a roll-up"
                elif REST in row.group and rolled:
                    kind = "rests of a roll-up"
                found.setdefault(kind, []).append((row.estimates[0], true))
    return [
        judge_estimates(kind, setting, [one for one, _ in each], [true for _, true in each])
        for kind, each in found.items()
    ]


def _truths(rows: Sequence[ResultRow], shown: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[float]:
    """Yield each row's own number of reports; of a rest, what the shown cells of its group leave."""
    table = sizes.reshape(4, 6)
    released = {row.group: int(count) for row, count in zip(rows, shown, strict=True)}
    for row in rows:
        if REST not in row.group:
            place = tuple(int(name) if name != ALL else slice(None) for name in row.group)
            yield float(table[place].sum())
            continue
        above = row.group[: row.group.index(REST)]
        is_part = {
            group: count
            for group, count in released.items()
            if group[: len(above)] == above
            and group != row.group
            and group[len(above)] not in (ALL, REST)
            and (len(above) == 1 or group[1] == ALL)
        }
        whole = released.get((*above, *[ALL] * (2 - len(above))))
        if whole is None:
            whole = int(table[tuple(int(name) for name in above)].sum())
        yield float(whole - sum(is_part.values()))


def judge_estimates(figure: str, setting: Setting, found: Sequence[Estimate], true: Any) -> Cell:
    """A cell of estimates and their truths."""
    is_none = np.array([one.no_interval is not None for one in found])
    low, high = (np.array([getattr(one, end) for one in found]) for end in ("low", "high"))
    return judge(figure, setting, np.where(is_none, np.nan, low), high, np.asarray(true, np.float64))


def judge(figure: str, setting: Setting, low: Numbers, high: Numbers, true: Numbers) -> Cell:
    """A cell of intervals, whose low end is NaN where there is none, and their truths."""
    is_known = ~np.isnan(low)
    is_within = (low - 1e-12 <= true) & (true <= high + 1e-12)
    widths = (high - low)[is_known]
    return Cell(
        figure=figure,
        setting=setting,
        with_interval=float(is_known.mean()),
        coverage=float(is_within[is_known].mean()) if is_known.any() else float("nan"),
        wrong=float((is_known & ~is_within).mean()),
        width=float(np.median(widths)) if len(widths) else float("nan"),
        is_wider=figure in _HOLD_HIDDEN
        or (figure in _QUANTILES and bool(len(widths)) and float(np.median(widths)) < _RESOLVED),
    )


def cells_of(setting: Setting, data_sets: int, seed: int = 1) -> list[Cell]:
    """All figures of a setting."""
    found = evaluation_cells(setting, data_sets, seed)
    return found + (query_cells(setting, seed) if setting.shape == SHAPES[0] else [])


def summary(cells: Sequence[Cell]) -> dict[str, Any]:
    """What the bench prints."""
    counted = [cell for cell in cells if cell.with_interval >= 0.5]
    least = min(counted, key=lambda cell: cell.coverage)
    most = max((cell for cell in counted if not cell.is_wider), key=lambda cell: cell.coverage)
    return {
        "coverage_least": least.coverage,
        "coverage_most": most.coverage,
        "cells": len(counted),
        "cells_without": len(cells) - len(counted),
        "wrong_most": max(cell.wrong for cell in cells),
        "cells_wider": sum(cell.is_wider for cell in counted),
        "least": _named(least),
        "most": _named(most),
        "by_figure": dict(_by_figure(counted)),
    }


def _named(cell: Cell) -> str:
    setting = cell.setting
    return (
        f"{cell.figure}, {setting.mechanism.value}, epsilon {setting.epsilon:g}, {setting.records} records,"
        f" {setting.positives:g} positives, {setting.shape}"
    )


def _by_figure(cells: Sequence[Cell]) -> Iterator[tuple[str, Any]]:
    for figure in dict.fromkeys(cell.figure for cell in cells):
        coverages = [cell.coverage for cell in cells if cell.figure == figure]
        yield figure, {"least": min(coverages), "most": max(coverages), "cells": len(coverages)}


def main() -> None:
    """Print how often intervals cover."""
    parser = bench_parser(__doc__)
    parser.add_argument("--data-sets", type=int, default=4_000, help="of each evaluation's cell")
    parser.add_argument("--quick", action="store_true", help="one score shape, 1,000 data sets a cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", action="store_true", help="add a row for each cell")
    arguments = parser.parse_args()
    grid = settings(SHAPES[:1]) if arguments.quick else settings()
    work = partial(cells_of, data_sets=1_000 if arguments.quick else arguments.data_sets, seed=arguments.seed)
    with ProcessPoolExecutor(2) as pool:
        cells = [cell for found in pool.map(work, grid) for cell in found]
        thresholds = [
            Threshold(mechanism=mechanism, epsilon=epsilon, least=least, value=value)
            for value in ("count", "purchase")
            for mechanism, epsilon, least in product(MECHANISMS, (1.0, 2.0, 4.0, 8.0), (20, 100))
        ]
        work = partial(threshold_cells, data_sets=400 if arguments.quick else 4_000, seed=arguments.seed)
        cells += [cell for found in pool.map(work, thresholds) for cell in found]
    told = summary(cells)
    if arguments.rows or arguments.json:
        told["rows"] = [
            {
                "figure": cell.figure,
                "mechanism": cell.setting.mechanism.value,
                "epsilon": cell.setting.epsilon,
                "records": cell.setting.records,
                "positives": cell.setting.positives,
                "shape": cell.setting.shape,
                "with_interval": round(cell.with_interval, 4),
                "coverage": None if np.isnan(cell.coverage) else round(cell.coverage, 5),
                "wrong": round(cell.wrong, 5),
                "width": None if np.isnan(cell.width) else round(cell.width, 5),
            }
            for cell in cells
        ]
    show(told, is_json=arguments.json)


if __name__ == "__main__":
    main()
