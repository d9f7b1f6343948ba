"""`make bench-aggregate`.

Grouped sums of opened reports per second and core, their memory, and whether they are linear in the reports.

1,000,000 reports with three declared values and two keys, grouped into 1,000 cells (100 campaigns x 10
places), at one helper on one core: cells, noisy counts, sums in the field, blind and noise. Opening the
reports comes before; its rate stands beside.
"""

import resource
from dataclasses import dataclass
from functools import partial

import numpy as np

from maskedlark.numbers.field import random_vector
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from maskedlark.releases.grouping import answer_query, cells_to_show, sum_groups
from maskedlark.releases.query import Axis, Measure, QuerySpec
from maskedlark.reports.input_shares import InputShares, MeasuredShares
from maskedlark.reports.report import Example, MeasuredValues
from tests.bench.harness import bench_parser, best_of, show
from tests.builders import World, reports, shares_for
from tests.measured import DATASET, measuring_world

CAMPAIGNS, PLACES = 100, 10
TARGET_PER_S = 1_000_000
TURNS = 3
MEASUREMENT = {
    "min_cell_count": 20,
    "values": (
        [{"name": name, "low": 0, "high": 1} for name in ("view", "click")]
        + [{"name": "purchase", "low": 0, "high": 10_000}]
    ),
    "keys": [{"name": "campaign", "size": CAMPAIGNS}, {"name": "place", "size": PLACES}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One size.

    Attributes:
        reports: How many.
        sum_s: The grouped sum of three values alone.
        query_s: The whole answer.
        sums_per_s: Reports a second and core of the grouped sum.
        queries_per_s: Reports a second and core of the whole answer.
        peak_mib: The largest memory of the process so far, its inputs included.
    """

    reports: int
    sum_s: float
    query_s: float
    sums_per_s: float
    queries_per_s: float
    peak_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All sizes of one run, and how fast such reports are opened."""

    cells: int
    values: int
    opened_per_s: float
    target_per_s: int
    sizes: tuple[Figures, ...]


def measure(of: World, reports: int) -> Figures:
    draw = np.random.default_rng(reports)
    keys = np.stack([draw.integers(0, CAMPAIGNS, reports), draw.integers(0, PLACES, reports)], axis=1).astype(
        np.uint32
    )
    measured = MeasuredShares(
        keys=keys, value_shares=random_vector(4 * reports, seeded(reports)).reshape(reports, 4)
    )
    shares = InputShares(
        features=np.zeros((reports, 4), np.uint8),
        labels=np.zeros((reports, 2), np.uint32),
        mask_shares=np.zeros((reports, 2), np.uint64),
        measured=measured,
    )
    spec = QuerySpec(
        query_id=bytes(16),
        task_id=of.task.task_id,
        dataset_id=DATASET,
        measures=tuple(Measure(value=name, scale=1 << 16) for name in ("view", "click", "purchase")),
        group_by=(Axis(key="campaign", size=CAMPAIGNS), Axis(key="place", size=PLACES)),
        levels=(2,),
        noise_multiplier=5.0,
        threshold_noise_multiplier=5.0,
    )
    (cell,) = cells_to_show(of.task, spec, seeded(1), measured, (None, None))
    sum_s = best_of(lambda: sum_groups(cell, measured.value_shares, (1, 2, 3), spec.num_cells(2)), TURNS)
    noise = partial(noise_vector, randomness=seeded(2))
    pair = of.pair(0)
    query_s = best_of(
        lambda: answer_query(
            task=of.task, spec=spec, pair=pair, shares=shares, domains=(None, None), noise=noise
        ),
        TURNS,
    )
    return Figures(
        reports=reports,
        sum_s=round(sum_s, 4),
        query_s=round(query_s, 4),
        sums_per_s=round(reports / sum_s),
        queries_per_s=round(reports / query_s),
        peak_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    )


def opening_rate(of: World, count: int = 1_000) -> float:
    """Reports of this task opened a second and core."""
    measured = MeasuredValues(keys=(1, 2), values=(1, 0, 30))
    example = Example(features=np.zeros(of.task.num_features, np.uint8), label=1.0, measured=measured)
    incoming, opener = shares_for(reports(of, [example] * count), 0), of.opener(0)
    return count / best_of(lambda: opener.open(incoming), TURNS)


def run(counts: list[int]) -> Outcome:
    """All sizes, in ascending order."""
    of = measuring_world(MEASUREMENT, mechanism="gaussian")
    return Outcome(
        cells=CAMPAIGNS * PLACES,
        values=3,
        opened_per_s=round(opening_rate(of)),
        target_per_s=TARGET_PER_S,
        sizes=tuple(measure(of, count) for count in sorted(counts)),
    )


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--reports", type=int, nargs="+", default=[250_000, 500_000, 1_000_000, 2_000_000])
    arguments = parser.parse_args()
    show(run(arguments.reports), is_json=arguments.json)


if __name__ == "__main__":
    main()
