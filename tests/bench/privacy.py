"""Utility against privacy, as the paper's figures 3 and 5.

Accuracy or AUC against epsilon, the clip bound and local noise on features.

    make figures                   all of it (14 minutes on 2 shared cores): docs/img/utility-*.png and the
                                   tables of docs/explanation/utility.md, from
                                   docs/explanation/utility.json, which this writes first
    make figures ARGS=--quick      a few points, once each, printed only
    make figures ARGS=--redraw     pictures and tables from the stored figures

Needs the folder that MASKEDLARK_DATA names (MNIST, online_shoppers); WBCD ships inside scikit-learn.
"""

import json
import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import track

from tests.bench import privacy_report
from tests.bench.harness import bench_parser
from tests.bench.privacy_report import Figure, Point

_EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_CLIPS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)
_CLIP_EPSILONS: Final = (1.0, 8.0, math.inf)
_WORKERS: Final = 2
DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


class Series(StrEnum):
    """Whose training a point is of."""

    FULL = "full noise at each helper"
    SPLIT = "noise: split"
    PEER = "DP-SGD (Opacus)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training: which figure it is for, and its settings."""

    figure: Figure
    setup: str
    series: str
    x: float
    epsilon: float
    clip_norm: float
    feature_epsilon: float | None
    seed: int


def trials(*, is_quick: bool) -> Iterator[Trial]:
    """Every training, the longest ones first so that the workers end together."""
    from tests.bench.private_training import SETUPS

    for setup in sorted(SETUPS, key=lambda one: -one.layers[0]):
        for seed in range(1 if is_quick else setup.seeds):
            common = Trial(
                figure=Figure.EPSILON,
                setup=setup.name,
                series=Series.PEER,
                x=0.0,
                epsilon=0.0,
                clip_norm=1.0,
                feature_epsilon=None,
                seed=seed,
            )
            for epsilon in (1.0, 8.0) if is_quick else _EPSILONS:
                for series in Series:
                    yield replace(common, series=series, x=epsilon, epsilon=epsilon)
            yield replace(common, series=Series.FULL, x=math.inf, epsilon=math.inf)
            for clip_norm in (0.3, 1.0) if is_quick else _CLIPS:
                for epsilon in (8.0,) if is_quick else _CLIP_EPSILONS:
                    name = f"epsilon {epsilon:g}" if math.isfinite(epsilon) else "no noise"
                    yield replace(
                        common,
                        figure=Figure.CLIP,
                        series=name,
                        x=clip_norm,
                        epsilon=epsilon,
                        clip_norm=clip_norm,
                    )
            for feature_epsilon in (2.0,) if is_quick else (*_EPSILONS, math.inf):
                local = feature_epsilon if math.isfinite(feature_epsilon) else None
                name = "noise in the browser"
                yield replace(
                    common,
                    figure=Figure.LOCAL,
                    series=name,
                    x=feature_epsilon,
                    epsilon=math.inf,
                    feature_epsilon=local,
                )


def run(trial: Trial) -> Point:
    """One training. In a worker process."""
    from tests.bench.dp_sgd import train_by_opacus
    from tests.bench.private_training import SETUPS, Privacy, train

    setup = next(one for one in SETUPS if one.name == trial.setup)
    if trial.series == Series.PEER:
        peer = train_by_opacus(setup, trial.epsilon, trial.seed)
        return _point(trial, peer.score, peer.noise_multiplier, math.nan, math.nan)
    privacy = Privacy(
        epsilon=trial.epsilon,
        is_split=trial.series == Series.SPLIT,
        clip_norm=trial.clip_norm,
        feature_epsilon=trial.feature_epsilon,
    )
    ours = train(setup, privacy, trial.seed)
    return _point(trial, ours.score, ours.noise_multiplier, ours.cost.ad_server, ours.cost.colluding)


def _point(trial: Trial, score: float, noise: float, ad_server: float, colluding: float) -> Point:
    return Point(
        figure=trial.figure,
        setup=trial.setup,
        series=trial.series,
        x=trial.x,
        seed=trial.seed,
        score=score,
        noise_multiplier=noise,
        epsilon=ad_server,
        collusion_epsilon=colluding,
    )


def measure(*, is_quick: bool) -> list[Point]:
    """All trainings, two at a time."""
    wanted = list(trials(is_quick=is_quick))
    with ProcessPoolExecutor(_WORKERS, initializer=_one_thread) as pool:
        return list(track(pool.map(run, wanted), "training", total=len(wanted), console=Console(stderr=True)))


def _one_thread() -> None:
    """A worker has one core, and is quiet."""
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def main() -> None:
    """Measure, store, draw."""
    parser = bench_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a few points, printed only")
    parser.add_argument("--redraw", action="store_true", help="from the stored figures")
    arguments = parser.parse_args()
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # before numba is imported, in the workers too
    stored = DOCS / "explanation" / "utility.json"
    points = privacy_report.read(stored) if arguments.redraw else measure(is_quick=arguments.quick)
    if not arguments.quick:
        privacy_report.write(points, stored)
        privacy_report.draw(points, DOCS / "img")
        privacy_report.fill_in(points, DOCS / "explanation" / "utility.md")
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(point) for point in points]) + "\n")
    else:
        sys.stdout.write(privacy_report.tables(points))


if __name__ == "__main__":
    main()
