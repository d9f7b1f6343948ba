"""The paper's figures 3, 4 and 5, with its networks.

`make paper` (under 5 minutes), `make paper ARGS=--full`.

    figure 3  test accuracy against the gradient bound and the noise: Laplace and L1, as the paper has them,
              beside Gaussian and L2; WBCD 30-50-50-1 and MNIST 784-500-10
    figure 4  milliseconds and bytes of one request to both helpers, against the batch size, beside the same
              computation without helpers (`tests/bench/paper_latency.py`)
    figure 5  test accuracy against local noise on the features, with no other noise, under both clips
    weights   test accuracy with weights of 8 bits, as the paper sends them, and of 14, as this product does

The trainings run by the product's own functions, in this process (`tests/bench/private_training.py`). Noise
is named by its multiplier: each helper's scale over the bound. The epsilon beside it is what the product
charges for the training against the ad server; it is huge wherever Laplace noise lets a large network learn,
since L1 clipping of 397,510 coordinates leaves gradients that are short beside the noise. See
docs/explanation/paper.md.

`--json` prints everything; `--only figure3 figure4 figure5 weights` measures a part.
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from rich.console import Console
from rich.table import Table

from maskedlark.privacy.mechanism import Mechanism
from tests.bench import private_training
from tests.bench.harness import bench_parser
from tests.bench.paper_latency import Latency, latencies
from tests.bench.private_training import Privacy, Setup, train

PARTS: Final = ("figure3", "figure4", "figure5", "weights")
WBCD: Final = replace(private_training.WBCD, seeds=5)
MNIST: Final = Setup(
    name="mnist", layers=(784, 500, 10), rounds=200, batch_size=512, learning_rate=1.0, seeds=2
)
QUICK_MNIST: Final = replace(MNIST, rounds=25, batch_size=256, seeds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is tried of one network.

    Attributes:
        setup: The network and its schedule.
        clips: Bounds, by mechanism.
        noises: Noise multipliers, by mechanism.
        steps: What the learning rate is multiplied with, by mechanism.
        local: Epsilons of a feature byte; infinite for none.
    """

    setup: Setup
    clips: dict[Mechanism, tuple[float, ...]]
    noises: dict[Mechanism, tuple[float, ...]]
    steps: dict[Mechanism, float]
    local: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One training.

    Attributes:
        figure: Which figure it is of.
        network: wbcd or mnist.
        mechanism: Of the helpers' noise, and so of the clip: laplace in L1, gaussian in L2.
        clip_norm: The gradient bound.
        noise_multiplier: Each helper's noise over the bound.
        feature_epsilon: Of the browsers' noise on each byte, or None.
        weight_bits: Of the weights that the helpers get.
        seed: Of split, weights and sample.
        accuracy: On the test records.
        epsilon: What the training is charged against the ad server at delta 1e-5; None without noise.
    """

    figure: str
    network: str
    mechanism: str
    clip_norm: float
    noise_multiplier: float
    feature_epsilon: float | None
    weight_bits: int
    seed: int
    accuracy: float
    epsilon: float | None


_STEPS: Final = {Mechanism.GAUSSIAN: 1.0, Mechanism.LAPLACE: 30.0}
QUICK: Final = (
    Grid(
        setup=WBCD,
        clips={Mechanism.LAPLACE: (3.0, 30.0), Mechanism.GAUSSIAN: (0.3, 1.0)},
        noises={Mechanism.LAPLACE: (0.0, 0.25, 2.0), Mechanism.GAUSSIAN: (0.0, 0.5, 4.0)},
        steps=_STEPS,
        local=(1.0, 4.0, math.inf),
    ),
    Grid(
        setup=QUICK_MNIST,
        clips={Mechanism.LAPLACE: (100.0,), Mechanism.GAUSSIAN: (1.0,)},
        noises={Mechanism.LAPLACE: (0.001,), Mechanism.GAUSSIAN: (0.0, 0.5)},
        steps=_STEPS,
        local=(2.0,),
    ),
)
FULL: Final = (
    Grid(
        setup=WBCD,
        clips={Mechanism.LAPLACE: (1.0, 3.0, 10.0, 30.0), Mechanism.GAUSSIAN: (0.1, 0.3, 1.0, 3.0)},
        noises={
            Mechanism.LAPLACE: (0.0, 0.05, 0.25, 1.0, 4.0),
            Mechanism.GAUSSIAN: (0.0, 0.25, 1.0, 4.0, 16.0),
        },
        steps=_STEPS,
        local=(0.5, 1.0, 2.0, 4.0, 8.0, math.inf),
    ),
    Grid(
        setup=MNIST,
        clips={Mechanism.LAPLACE: (30.0, 100.0, 300.0), Mechanism.GAUSSIAN: (0.3, 1.0, 3.0)},
        noises={
            Mechanism.LAPLACE: (0.0, 0.0002, 0.001, 0.005),
            Mechanism.GAUSSIAN: (0.0, 0.25, 1.0, 4.0),
        },
        steps=_STEPS,
        local=(0.5, 1.0, 2.0, 4.0, 8.0, math.inf),
    ),
)


def figure3(grids: Sequence[Grid], *, seeds: int | None) -> Iterator[Point]:
    """Every bound with every noise."""
    for grid in grids:
        for mechanism, clips in grid.clips.items():
            for clip_norm in clips:
                for noise in grid.noises[mechanism]:
                    yield from _points("3", grid, mechanism, clip_norm, noise, seeds=seeds)


def figure5(grids: Sequence[Grid], *, seeds: int | None) -> Iterator[Point]:
    """Every local epsilon under one bound of each kind, without the helpers' noise."""
    for grid in grids:
        for mechanism, clips in grid.clips.items():
            for local in grid.local:
                shown = None if math.isinf(local) else local
                yield from _points("5", grid, mechanism, clips[-1], 0.0, seeds=seeds, local=shown)


def weights_of_both(grids: Sequence[Grid], *, seeds: int | None) -> Iterator[Point]:
    """Each network with weights of 8 and of 14 bits, clipped in L2, without noise."""
    for grid in grids:
        for bits in (8, 14):
            clip_norm = grid.clips[Mechanism.GAUSSIAN][-1]
            yield from _points("weights", grid, Mechanism.GAUSSIAN, clip_norm, 0.0, seeds=seeds, bits=bits)


def _points(
    figure: str,
    grid: Grid,
    mechanism: Mechanism,
    clip_norm: float,
    noise: float,
    *,
    seeds: int | None,
    local: float | None = None,
    bits: int = 14,
) -> Iterator[Point]:
    for seed in range(seeds or grid.setup.seeds):
        privacy = Privacy(
            mechanism=mechanism,
            clip_norm=clip_norm,
            noise_multiplier=noise,
            feature_epsilon=local,
            weight_bits=bits,
            step=grid.steps[mechanism],
        )
        outcome = train(grid.setup, privacy, seed)
        epsilon = outcome.cost.ad_server
        yield Point(
            figure=figure,
            network=grid.setup.name,
            mechanism=mechanism.value,
            clip_norm=clip_norm,
            noise_multiplier=noise,
            feature_epsilon=local,
            weight_bits=bits,
            seed=seed,
            accuracy=outcome.score,
            epsilon=epsilon if noise and math.isfinite(epsilon) else None,
        )


def main() -> None:
    """Measure, and print."""
    parser = bench_parser("The paper's figures 3, 4 and 5")
    parser.add_argument("--full", action="store_true", help="the whole grids (hours on a small machine)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    asked = parser.parse_args()
    grids, seeds = (FULL, None) if asked.full else (QUICK, 1)
    began = time.monotonic()
    makers = {"figure3": figure3, "figure5": figure5, "weights": weights_of_both}
    points: list[Point] = []
    for part, make in makers.items():
        if part in asked.only:
            for point in make(grids, seeds=seeds):
                points.append(point)
                sys.stderr.write(f"{_line(point)}\n")
    found = latencies(is_quick=not asked.full) if "figure4" in asked.only else []
    seconds = time.monotonic() - began
    if asked.json:
        print(json.dumps(_figures(points, found, seconds, is_full=asked.full)))
    else:
        _show(points, found, seconds)


def _figures(
    points: Sequence[Point], found: Sequence[Latency], seconds: float, *, is_full: bool
) -> dict[str, object]:
    by_figure = {
        name: [asdict(one) for one in points if one.figure == name] for name in ("3", "5", "weights")
    }
    return {
        "is_full": is_full,
        "seconds": seconds,
        "figure3": by_figure["3"],
        "figure4": [asdict(one) for one in found],
        "figure5": by_figure["5"],
        "weights": by_figure["weights"],
    }


def _line(point: Point) -> str:
    local = "" if point.feature_epsilon is None else f", features at epsilon {point.feature_epsilon:g}"
    charged = "" if point.epsilon is None else f", charged {point.epsilon:.3g}"
    return (
        f"figure {point.figure}, {point.network}, {point.mechanism}, bound {point.clip_norm:g},"
        f" noise {point.noise_multiplier:g}{local}, {point.weight_bits} bits: accuracy {point.accuracy:.4f}"
        f"{charged}"
    )


def _show(points: Sequence[Point], found: Sequence[Latency], seconds: float) -> None:
    console = Console()
    trained = Table(title="trainings", box=None)
    names = ("figure", "network", "mechanism", "clip_norm", "noise_multiplier", "feature_epsilon")
    for name in (*names, "weight_bits", "accuracy", "epsilon"):
        trained.add_column(name.replace("_", " "))
    for point in points:
        row = asdict(point)
        cells = ["" if row[name] is None else str(row[name]) for name in (*names, "weight_bits")]
        epsilon = "" if point.epsilon is None else f"{point.epsilon:.3g}"
        trained.add_row(*cells, f"{point.accuracy:.4f}", epsilon)
    asked = Table(title="figure 4: one request to both helpers", box=None)
    for name in (
        "network",
        "batch",
        "ms a request",
        "ms without helpers",
        "times",
        "bytes sent",
        "bytes back",
    ):
        asked.add_column(name, justify="right")
    for one in found:
        asked.add_row(
            one.network,
            str(one.batch_size),
            f"{one.request_ms:.1f}",
            f"{one.local_ms:.1f}",
            f"{one.times:.2f}",
            f"{one.bytes_sent:,}",
            f"{one.bytes_back:,}",
        )
    console.print(trained, asked)
    console.print(f"{seconds:.0f} s")


if __name__ == "__main__":
    main()
