"""Accuracy with noise over repeated runs, mean and standard deviation: a table of benchmarks.md.

    make table                                 these rows after the single runs
    python -m tests.bench.repeated --only mnist --json

What runs are the product's own functions in one process, as in `make figures`. Each run has an initial model,
slots and noise of its own, and on WBCD a split of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.console import Console

from tests.bench.harness import bench_parser, show
from tests.bench.private_training import Privacy, Setup, train

_PROGRESS: Final = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """One row: a setup, each helper's noise over the clip bound, and the first seed."""

    setup: Setup
    noise_multiplier: float
    first_seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the runs of a setup say."""

    name: str
    seeds: tuple[int, ...]
    accuracy: float
    standard_deviation: float
    epsilon: float
    collusion_epsilon: float


REPEATED: Final = (
    Repeated(
        setup=Setup(
            name="wbcd 60 full-batch rounds",
            layers=(30, 50, 50, 1),
            rounds=60,
            batch_size=None,
            learning_rate=0.3,
            seeds=20,
        ),
        noise_multiplier=7.6715,
    ),
    Repeated(
        setup=Setup(
            name="mnist 784-500-10 correlated",
            layers=(784, 500, 10),
            rounds=192,
            batch_size=2083,
            learning_rate=2.0,
            seeds=3,
            epoch_steps=24,
            carried=60,
            records=50_000,
        ),
        noise_multiplier=9.04,
    ),
)


def measure(repeated: Repeated) -> Row:
    """Train so many times, and summarise."""
    setup = repeated.setup
    seeds = range(repeated.first_seed, repeated.first_seed + setup.seeds)
    privacy = Privacy(noise_multiplier=repeated.noise_multiplier)
    outcomes = []
    for seed in seeds:
        outcomes.append(train(setup, privacy, seed))
        _PROGRESS.print(f"{setup.name}: seed {seed}: {outcomes[-1].score:.4f}")
    scores = [one.score for one in outcomes]
    return Row(
        name=setup.name,
        seeds=tuple(seeds),
        accuracy=round(float(np.mean(scores)), 4),
        standard_deviation=round(float(np.std(scores, ddof=1)), 4),
        epsilon=round(outcomes[0].cost.ad_server, 3),
        collusion_epsilon=round(outcomes[0].cost.colluding, 3),
    )


def rows(only: str) -> Iterator[Row]:
    """Measure the rows whose name starts so."""
    for one in REPEATED:
        if one.setup.name.startswith(only):
            yield measure(one)


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="rows whose name starts so")
    arguments = parser.parse_args()
    show(list(rows(arguments.only)), is_json=arguments.json)


if __name__ == "__main__":
    main()
