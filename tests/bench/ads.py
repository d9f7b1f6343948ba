"""Private training in the field's own terms, beside what others offer: `make bench-ads`.

    make bench-ads ARGS="--quick --json"     two seeds: under 15 minutes on two idle cores
    make bench-ads                           four seeds, rates and rehearsals with each
    make bench-ads ARGS="--quick --write"    also rewrites docs/explanation/ads.md with its picture
    make bench-ads ARGS="--criteo-attribution criteo_attribution_dataset.tsv.gz --rows 1000000"

Data sets are Adult and Frappe as they come (`tests/bench/ads_data.py`), and those that a user brings. At each
epsilon, one network is trained by quickstart's job against the ad server and against the ad server with one
helper, by Opacus, by randomised response on labels, and by one shot; without epsilon plainly, with the clip
alone, and on the panel alone. Everything is scored on the same test file.
"""

import json
import math
import os
import resource
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console

from adserver.quickstart.settings import TaskSettings
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.defaults import ROUNDS
from adserver.training.eval_set import EvalSet
from adserver.training.rehearsal import Wish, rehearse
from maskedlark.model.losses import Loss
from maskedlark.privacy.mechanism import Mechanism
from tests.bench import ads_cost, ads_report
from tests.bench.ads_data import (
    Prepared,
    Source,
    adult,
    criteo_attribution,
    criteo_private_ad,
    digest,
    frappe,
)
from tests.bench.ads_methods import (
    NO_LIMIT,
    Score,
    rule,
    train_label_dp,
    train_opacus,
    train_ours,
    train_panel,
    train_plainly,
)
from tests.bench.ads_one_shot import train_one_shot
from tests.bench.harness import bench_parser
from tests.bench.processor import processor
from tests.builders import world

EPSILONS: Final = (0.5, 1.0, 3.0, 8.0)
RATE_FACTORS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Learning rates over the rule's."""
_REHEARSED_AT: Final = (1.0, 3.0)
_RATES_AT: Final = 3.0
_ONE_SHOT_SMALL: Final = (0.5, 1.0)
_CLOSE: Final = 0.005
_PROGRESS: Final = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One training.

    Attributes:
        method: `ours`, `ours, colluding`, `Opacus`, `label DP`, `one shot`, `clip alone`, `plain`,
            `panel alone`, `rate` or `rehearsed`.
        data: A data set.
        epsilon: Infinite without.
        seed: Of the split, the first weights and the noise.
        factor: Of the rule's learning rate.
    """

    method: str
    data: str
    epsilon: float
    seed: int
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a training reached, on the test file and, of our own, on the panel."""

    work: Work
    score: Score
    panel_auc: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The seeds of one method at one epsilon: means, and the standard deviation of the AUC.

    Attributes:
        charged: What the product's accountant charges, against the ad server and with one helper.
    """

    data: str
    method: str
    epsilon: float | None
    auc: float
    auc_spread: float | None
    log_loss: float
    mean_over_rate: float
    seeds: int
    charged: tuple[float, float] | None


SOURCES: Final = {"adult": adult, "frappe": frappe}
Brought = tuple[str, str, int, str]
"""A data set that the user brings: its name, its path, how many rows, the label."""


@lru_cache(maxsize=4)
def source(name: str, brought: tuple[Brought, ...]) -> Source:
    """Load a data set."""
    for own, path, rows, label in brought:
        if own == name:
            load = criteo_attribution if name == "criteo-attribution" else criteo_private_ad
            return load(Path(path), rows=rows, label=label)
    return SOURCES[name]()


@lru_cache(maxsize=2)
def prepared(name: str, epsilon: float, seed: int, brought: tuple[Brought, ...]) -> Prepared:
    """Prepare a data set for a job."""
    return source(name, brought).prepare(epsilon, seed)


def run(work: Work, brought: tuple[Brought, ...]) -> Done:
    """Train once. Called in a process of its own."""
    torch.set_num_threads(1)
    epsilon, seed = work.epsilon, work.seed
    data = prepared(work.data, min(epsilon, max(EPSILONS)), seed, brought)
    match work.method:
        case "ours" | "ours, colluding" | "clip alone" | "rate":
            trained = train_ours(
                data,
                epsilon=epsilon,
                seed=seed,
                is_colluding=work.method == "ours, colluding",
                learning_rate=None if work.factor == 1 else work.factor * rule(data, epsilon),
            )
            return Done(work=work, score=trained.test, panel_auc=trained.panel.auc)
        case "rehearsed":
            return Done(work=work, score=_rehearse(data, epsilon))
        case "Opacus":
            found = train_opacus(data, epsilon=epsilon, seed=seed)
        case "label DP":
            found = train_label_dp(data, epsilon=epsilon, seed=seed)
        case "one shot":
            found = train_one_shot(data, epsilon=epsilon, seed=seed)
        case "plain":
            found = train_plainly(data, seed=seed)
        case "panel alone":
            found = train_panel(data, seed=seed)
        case _:
            raise AssertionError(work.method)
    return Done(work=work, score=found)


def _rehearse(data: Prepared, epsilon: float) -> Score:
    """Predict by the panel what the job will reach, each quarter of it tested once."""
    settings = TaskSettings()
    task = world(
        num_features=data.encoder.num_features,
        min_batch_size=settings.min_batch_size,
        mechanism=Mechanism.GAUSSIAN,
        clip_norm=settings.clip_norm,
        epsilon=epsilon,
        collusion_epsilon=NO_LIMIT,
        delta=1e-5,
    ).task
    submission = Submission(
        model=data.onnx,
        loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        rounds=ROUNDS,
        batch_size=None,
        epsilon=None,
        noise_multiplier=None,
        optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=rule(data, epsilon)),
        schedule=Schedule(kind=ScheduleKind.COSINE),
        eval_set=None,
        eval_every=None,
    )
    wish = Wish(
        reports=len(data.reported.labels),
        epsilons=(epsilon,),
        learning_rates=(rule(data, epsilon),),
        seeds=4,
    )
    panel = EvalSet(features=data.panel.features, labels=data.panel.labels)
    best = rehearse(submission, task, panel, wish).best(f"epsilon {epsilon:g}")
    return Score(auc=best.value, log_loss=best.loss, mean_over_rate=best.mean_over_rate or math.nan)


def works(names: Sequence[str], seeds: int, *, is_quick: bool) -> list[Work]:
    """All trainings, the longest first. Quick: what is not ours or Opacus's has one seed."""
    found = []
    for name, seed in product(names, range(1, seeds + 1)):
        is_whole = seed == 1 or not is_quick
        methods = ("Opacus", "ours", *(("ours, colluding", "label DP", "one shot") if is_whole else ()))
        found += [
            Work(method=method, data=name, epsilon=epsilon, seed=seed)
            for epsilon, method in product(EPSILONS, methods)
        ]
        if is_whole:
            found += [
                Work(method=method, data=name, epsilon=math.inf, seed=seed)
                for method in ("clip alone", "plain", "panel alone")
            ]
            found += [
                Work(method="rate", data=name, epsilon=_RATES_AT, seed=seed, factor=factor)
                for factor in RATE_FACTORS
                if factor != 1
            ]
            found += [
                Work(method="rehearsed", data=name, epsilon=epsilon, seed=seed)
                for epsilon in (_REHEARSED_AT[-1:] if is_quick else _REHEARSED_AT)
            ]
    order = {"rehearsed": 0, "Opacus": 1}
    return sorted(found, key=lambda one: (order.get(one.method, 2), one.data))


def train_all(todo: Sequence[Work], brought: tuple[Brought, ...], workers: int) -> list[Done]:
    """Train everything, on all cores."""
    done: list[Done] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, one, brought) for one in todo]):
            done.append(future.result())
            work = done[-1].work
            _PROGRESS.print(
                f"{len(done)}/{len(todo)} {work.data} {work.method} epsilon {work.epsilon:g}"
                f" seed {work.seed}: {done[-1].score.auc:.4f}"
            )
    return done


def cells(done: Iterable[Done]) -> list[Cell]:
    """Average the seeds."""
    grouped: dict[tuple[str, str, float], list[Score]] = {}
    for one in sorted(done, key=lambda one: (one.work.data, one.work.epsilon, one.work.seed)):
        if one.work.method not in {"rate", "rehearsed"}:
            grouped.setdefault((one.work.data, one.work.method, one.work.epsilon), []).append(one.score)
    return [
        Cell(
            data=data,
            method=method,
            epsilon=None if math.isinf(epsilon) else epsilon,
            auc=float(np.mean([one.auc for one in scores])),
            auc_spread=float(np.std([one.auc for one in scores], ddof=1)) if len(scores) > 1 else None,
            log_loss=float(np.mean([one.log_loss for one in scores])),
            mean_over_rate=float(np.mean([one.mean_over_rate for one in scores])),
            seeds=len(scores),
            charged=None
            if scores[0].cost is None or math.isinf(epsilon)
            else (scores[0].cost.ad_server, scores[0].cost.colluding),
        )
        for (data, method, epsilon), scores in grouped.items()
    ]


def keys(done: Sequence[Done], names: Sequence[str]) -> dict[str, Any]:
    """The figures that the bars are about."""
    by = {(cell.data, cell.method, cell.epsilon): cell for cell in cells(done)}

    def auc(data: str, method: str, epsilon: float) -> float:
        return by[data, method, epsilon].auc

    beside = {
        f"{data}, epsilon {epsilon:g}": auc(data, "ours", epsilon) - auc(data, "Opacus", epsilon)
        for data in names
        for epsilon in EPSILONS
    }
    rehearsals = [one for one in done if one.work.method == "rehearsed"]
    errors = {
        f"{one.work.data}, epsilon {one.work.epsilon:g}, seed {one.work.seed}": one.score.auc
        - (_same(done, one.work).panel_auc or 0.0)
        for one in rehearsals
    }
    losses = {data: _rate_loss(done, data) for data in names}
    one_shot = {
        f"{data}, epsilon {epsilon:g}": auc(data, "one shot", epsilon) - auc(data, "ours", epsilon)
        for data in names
        for epsilon in EPSILONS
    }
    return {
        "ours_minus_opacus_auc": min(beside.values()),
        "ours_minus_opacus_auc_cells": beside,
        "rehearse_error_auc": max(map(abs, errors.values())),
        "rehearse_error_auc_cells": errors,
        "rate_rule_loss_auc": max(losses.values()),
        "rate_rule_loss_auc_cells": losses,
        "one_shot": {
            "minus_ours_auc": one_shot,
            "is_within_bar": all(
                one_shot[f"{data}, epsilon {epsilon:g}"] >= -_CLOSE
                for data in names
                for epsilon in _ONE_SHOT_SMALL
            ),
        },
    }


def _same(done: Sequence[Done], work: Work) -> Done:
    """Find our job of the same data set, epsilon and seed."""
    return next(
        one
        for one in done
        if one.work.method == "ours"
        and (one.work.data, one.work.epsilon, one.work.seed) == (work.data, work.epsilon, work.seed)
    )


def _rate_loss(done: Sequence[Done], data: str) -> float:
    """How far the rule's rate is behind the best one, over the seeds that all rates were tried with."""
    tried: dict[float, list[float]] = {}
    seeds = {one.work.seed for one in done if one.work.method == "rate" and one.work.data == data}
    for one in done:
        work = one.work
        is_rate = work.method in {"rate", "ours"} and work.epsilon == _RATES_AT
        if is_rate and work.data == data and work.seed in seeds:
            tried.setdefault(work.factor, []).append(one.score.auc)
    means = {factor: float(np.mean(aucs)) for factor, aucs in tried.items()}
    return max(means.values()) - means[1.0]


def processor_s() -> float:
    """What this process and those that have ended took of the processor, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def brought_by(arguments: Namespace) -> tuple[Brought, ...]:
    """The user's own data sets."""
    given = (
        ("criteo-attribution", arguments.criteo_attribution, "click"),
        ("criteo-private-ad", arguments.criteo_private_ad, "is_clicked"),
    )
    return tuple(
        (name, str(path), arguments.rows, arguments.label or label) for name, path, label in given if path
    )


def main() -> None:
    """Measure, print, and write the page."""
    parser = bench_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds; rates and rehearsals with one")
    parser.add_argument("--seeds", type=int, help="how often each training is repeated")
    parser.add_argument("--only", default="", help="data sets whose name begins so")
    parser.add_argument("--criteo-attribution", type=Path, help="criteo_attribution_dataset.tsv[.gz]")
    parser.add_argument("--criteo-private-ad", type=Path, help="CriteoPrivateAd's folder of day_int=N")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of Criteo's logs, the first ones")
    parser.add_argument("--label", help="the column of Criteo's that is predicted; by default the click")
    parser.add_argument(
        "--dollars-per-vcpu-hour", type=float, default=0.04, help="the price that costs are told at"
    )
    parser.add_argument(
        "--write", action="store_true", help="rewrite docs/explanation/ads.md and its picture"
    )
    arguments = parser.parse_args()
    began, brought = time.time(), brought_by(arguments)
    names = [name for name in (*SOURCES, *(one[0] for one in brought)) if name.startswith(arguments.only)]
    seeds = arguments.seeds or (2 if arguments.quick else 4)
    costs = ads_cost.measure(dollars_per_vcpu_hour=arguments.dollars_per_vcpu_hour)
    os.environ["OMP_NUM_THREADS"] = "1"
    todo = works(names, seeds, is_quick=arguments.quick)
    done = train_all(todo, brought, len(os.sched_getaffinity(0)))
    found: Mapping[str, Any] = {
        **keys(done, names),
        **costs,
        "brought": {
            one[0]: {"sha256": digest(Path(one[1])), "rows": one[2], "label": one[3]} for one in brought
        },
        "cells": [asdict(one) for one in cells(done)],
        "seeds": seeds,
        "processor": processor(),
        "load": os.getloadavg()[0],
        "seconds": round(time.time() - began),
        "processor_s": round(processor_s()),
    }
    if arguments.write:
        ads_report.write(found)
    print(json.dumps(found) if arguments.json else ads_report.tables(found))


if __name__ == "__main__":
    main()
