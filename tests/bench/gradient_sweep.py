"""How a round's time grows with records, parameters, labels and threads.

`python -m tests.bench.gradient_sweep [--busy]`.

Writes docs/img/gradient-sweep.png and prints the points. One factor varies at a time around 784-500-10, 2,000
records, 2 labels and one thread. With --busy one thread is timed by processor time: for a machine that others
are using.
"""

import os
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt

from tests.bench import peers
from tests.bench.gradient import best_times, images, round_of, workload

ROOT = Path(__file__).resolve().parents[2]
PLOT = ROOT / "docs" / "img" / "gradient-sweep.png"
RUNS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting."""

    records: int = 2000
    hidden: int = 500
    labels: int = 2
    threads: int = 1

    @property
    def parameters(self) -> int:
        return 785 * self.hidden + 10 * (self.hidden + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One factor's settings, and what the axis says."""

    axis: str
    points: list[Point]
    values: list[int]


def sweeps() -> list[Sweep]:
    base = Point()
    records = [250, 500, 1000, 2000, 4000, 8000, 16000]
    hidden = [16, 50, 125, 250, 500, 1000, 2000]
    labels = [1, 2, 3, 5, 7, 10]
    threads = list(range(1, len(os.sched_getaffinity(0)) + 1))
    widths = [replace(base, hidden=count) for count in hidden]
    return [
        Sweep(axis="records", points=[replace(base, records=count) for count in records], values=records),
        Sweep(axis="parameters", points=widths, values=[point.parameters for point in widths]),
        Sweep(
            axis="candidate labels", points=[replace(base, labels=count) for count in labels], values=labels
        ),
        Sweep(axis="threads", points=[replace(base, threads=count) for count in threads], values=threads),
    ]


def seconds(point: Point) -> float:
    """The best time of one round."""
    features, labels = images(point.records)
    onnx = peers.export(peers.dense((784, point.hidden, 10)), 784)
    work = workload(onnx, features, labels, classes=10, candidates=point.labels)
    clock = time.process_time if point.threads == 1 and "--busy" in sys.argv else time.perf_counter
    return best_times([round_of(work, "cross_entropy", point.threads)], RUNS, clock)[0]


def main() -> None:
    """Measure, print, plot."""
    warnings.simplefilter("ignore")
    figure, panels = plt.subplots(1, 4, figsize=(14, 3.2), layout="constrained")
    for panel, sweep in zip(panels, sweeps(), strict=True):
        times = [seconds(point) * 1e3 for point in sweep.points]
        for value, taken in zip(sweep.values, times, strict=True):
            print(f"{sweep.axis:18}{value:>10,}{taken:>10.1f} ms")
        panel.plot(sweep.values, times, marker="o")
        panel.set_xlabel(sweep.axis)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("ms a round")
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, dpi=100)


if __name__ == "__main__":
    main()
