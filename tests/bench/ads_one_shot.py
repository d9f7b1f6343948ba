"""One release instead of many rounds: a logistic regression over bins, solved with an unlabelled panel.

The loss of a logistic regression is sum(softplus(w x) - y w x). Labels are in its second part alone, in
sum(y x), so one noisy release of s = sum((y - 1/2) x), which is the gradient of a job at zero weights, tells
all that it needs of those who report. The first part is estimated on a panel whose labels nobody has to know:

    minimise  n mean_panel(softplus(w x) - w x / 2) - w s + lambda |w|^2 / 2

Nothing but s is taken of reports, so lambda may be chosen freely: by the panel in folds. What the fold that
is held out says of w s is too good by cov(s, w) = sigma^2 tr(H^-1), as s has its own noise in w, and that is
added back (Stein's estimate).

    python -m tests.bench.ads_one_shot [--seeds 2]     beside iterative jobs, on three data sets: ADR 55

A record's x has a one for each column: its gradient's length is sqrt(columns) / 2, whoever it is of.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array, diags_array

from maskedlark.encoding.encoder import (
    CategoryColumn,
    Encoder,
    HashColumn,
    IdColumn,
    NumberColumn,
)
from tests.bench.ads_data import Prepared, Source, adult, frappe, online_shoppers
from tests.bench.ads_methods import Score, rule, score, train_ours
from tests.bench.harness import bench_parser
from tests.bench.private_training import one_curators_noise

_BINS: Final = 16
_LAMBDAS: Final = (3.0, 8.0, 20.0, 50.0, 130.0, 350.0)
_FOLDS: Final = 3
_TOP: Final = 256
_STEPS: Final = 200
_FEW: Final = 1_000
_FACTORS: Final = (0.4, 1.0, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What one round gives: the noisy sum of (y - 1/2) x, its number of records, its noise's deviation."""

    total: NDArray[np.float64]
    records: int
    deviation: float


def train_one_shot(
    data: Prepared, *, epsilon: float, seed: int, is_colluding: bool = False, panel: int | None = None
) -> Score:
    """Release once at the whole budget, and solve with so many of the panel's rows, by default all."""
    reported = in_bins(data.encoder, data.reported.features)
    unlabelled = in_bins(data.encoder, data.panel.features[:panel])
    of_one = one_curators_noise(epsilon, 1.0, 1) * (math.sqrt(2) if is_colluding else 1.0)
    columns = len(data.encoder.columns)
    deviation = of_one * math.sqrt(columns) / 2
    noise = np.random.default_rng([seed, 5]).normal(0, deviation, reported.shape[1])
    release = Release(
        total=reported.T @ (data.reported.labels - 0.5) + noise,
        records=len(data.reported.labels),
        deviation=deviation,
    )
    chosen = min(_LAMBDAS, key=lambda one: _expected_loss(release, unlabelled, one))
    weights = solve(release, unlabelled, chosen)
    return score(in_bins(data.encoder, data.test.features) @ weights, data.test)


def in_bins(encoder: Encoder, features: NDArray[np.uint8]) -> Any:
    """One-hot rows (records, bins): a bin for each word, and 16 for each number."""
    places, sizes, at = [], [], 0
    for column in encoder.columns:
        wide = column.num_bytes
        value = sum(features[:, at + byte].astype(np.int64) << 8 * byte for byte in range(wide))
        at += wide
        match column:
            case NumberColumn():
                places.append(value * _BINS // _TOP)
                sizes.append(_BINS)
            case CategoryColumn():
                places.append(value)
                sizes.append(max(column.other, column.missing) + 1)
            case IdColumn() | HashColumn():
                places.append(value)
                sizes.append(column.rows)
            case _:
                raise ValueError("a picture has no bins")
    starts = np.cumsum([0, *sizes])
    rows = np.stack(places, 1) + starts[:-1]
    count, width = rows.shape
    ends = np.arange(0, count * width + 1, width)
    return csr_array((np.ones(rows.size), rows.ravel(), ends), shape=(count, starts[-1]))


def solve(release: Release, panel: Any, ridge: float) -> NDArray[np.float64]:
    """Minimise the loss of the module's text."""
    factor = release.records / panel.shape[0]

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = panel @ weights
        value = factor * (np.logaddexp(0, logits) - logits / 2).sum() - release.total @ weights
        slope = factor * (panel.T @ (_chance(logits) - 0.5)) - release.total
        return value + ridge / 2 * weights @ weights, slope + ridge * weights

    options = {"maxiter": _STEPS, "ftol": 1e-8}
    found = minimize(loss, np.zeros(panel.shape[1]), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x)


def _expected_loss(release: Release, panel: Any, ridge: float) -> float:
    """Estimate the loss on the people who reported, up to what no lambda changes."""
    count, total = panel.shape[0], 0.0
    for fold in range(_FOLDS):
        is_held = np.arange(count) % _FOLDS == fold
        used, held = panel[~is_held], panel[is_held]
        weights = solve(release, used, ridge)
        logits, chance = held @ weights, _chance(used @ weights)
        is_seen = np.asarray(used.sum(0)).ravel() > 0
        seen = used[:, np.flatnonzero(is_seen)]
        curvature = (
            seen.T @ diags_array(chance * (1 - chance) * release.records / used.shape[0]) @ seen
        ).toarray()
        inverse = np.trace(np.linalg.inv(curvature + ridge * np.eye(len(curvature))))
        inverse += (~is_seen).sum() / ridge
        total += release.records * float(np.mean(np.logaddexp(0, logits) - logits / 2))
        total += release.deviation**2 * float(inverse) - float(release.total @ weights)
    return total


def _chance(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))))


def compare(make: Callable[[], Source], *, epsilon: float, seeds: Sequence[int]) -> dict[str, Any]:
    """Return mean AUCs: of one shot, by the whole panel and 1,000 of its rows, and of jobs at some rates."""
    aucs: dict[str, list[float]] = {}
    for seed in seeds:
        data = make().prepare(epsilon, seed)
        for rows in (None, _FEW):
            found = train_one_shot(data, epsilon=epsilon, seed=seed, panel=rows)
            aucs.setdefault(f"one shot, {rows or 'all'} rows", []).append(found.auc)
        for factor in _FACTORS:
            rate = factor * rule(data, epsilon)
            trained = train_ours(data, epsilon=epsilon, seed=seed, learning_rate=rate)
            aucs.setdefault(f"job at {factor:g} x the rule's rate", []).append(trained.test.auc)
    return {name: round(float(np.mean(found)), 4) for name, found in aucs.items()}


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="data sets whose names begin so")
    arguments = parser.parse_args()
    for make in (online_shoppers, adult, frappe):
        for epsilon in (0.5, 1.0, 3.0):
            if make.__name__.startswith(arguments.only):
                found = compare(make, epsilon=epsilon, seeds=range(1, arguments.seeds + 1))
                print(json.dumps({"data": make.__name__, "epsilon": epsilon, **found}), flush=True)


if __name__ == "__main__":
    main()
