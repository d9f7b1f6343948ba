"""How a round's time grows with records, parameters, labels and threads, with VNNI and without.

`python -m tests.bench.gradient_sweep [--busy]`.

Writes docs/img/gradient-sweep.png and prints the points. One factor varies at a time around 784-500-10, 2,000
records, 2 labels and one thread. The second line is this processor held to AVX2 and float64 products
(`without_vnni`). With --busy it is processor time and threads are left out: for a machine that others are
using.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import matplotlib.pyplot as plt

from tests.bench import peers
from tests.bench.gradient import best_times, images, round_of, workload
from tests.bench.processor import processor
from tests.bench.without_vnni import restart_without

ROOT = Path(__file__).resolve().parents[2]
PLOT = ROOT / "docs" / "img" / "gradient-sweep.png"
RUNS = 5
LINES: Final = {"this processor": (), "held to AVX2": ("--without-vnni",)}


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


def sweeps(*, is_busy: bool) -> list[Sweep]:
    base = Point()
    records = [250, 500, 1000, 2000, 4000, 8000, 16000]
    hidden = [16, 50, 125, 250, 500, 1000, 2000]
    labels = [1, 2, 3, 5, 7, 10]
    threads = list(range(1, len(os.sched_getaffinity(0)) + 1))
    widths = [replace(base, hidden=count) for count in hidden]
    found = [
        Sweep(axis="records", points=[replace(base, records=count) for count in records], values=records),
        Sweep(axis="parameters", points=widths, values=[point.parameters for point in widths]),
        Sweep(
            axis="candidate labels", points=[replace(base, labels=count) for count in labels], values=labels
        ),
        Sweep(axis="threads", points=[replace(base, threads=count) for count in threads], values=threads),
    ]
    return found[:-1] if is_busy else found


def milliseconds(point: Point, *, is_busy: bool, portable: bool) -> float:
    """The best time of one round."""
    features, labels = images(point.records)
    onnx = peers.export(peers.dense((784, point.hidden, 10)), 784)
    work = workload(onnx, features, labels, classes=10, candidates=point.labels)
    clock = time.process_time if is_busy else time.perf_counter
    run = round_of(work, "cross_entropy", point.threads, portable=portable)
    return 1e3 * best_times([run], RUNS, clock)[0]


def measured(options: tuple[str, ...]) -> list[list[float]]:
    """All points of a line, measured in a process of its own: libraries choose their code once."""
    command = [sys.executable, "-m", "tests.bench.gradient_sweep", "--points", *options]
    found: list[list[float]] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def main() -> None:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--points", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--without-vnni", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.points:
        if arguments.without_vnni:
            restart_without(["-m", "tests.bench.gradient_sweep", *sys.argv[1:]])
        of = {"is_busy": arguments.busy, "portable": arguments.without_vnni}
        points = [sweep.points for sweep in sweeps(is_busy=arguments.busy)]
        print(json.dumps([[milliseconds(point, **of) for point in line] for line in points]))
        return
    busy = ("--busy",) if arguments.busy else ()
    print(processor())
    lines = {name: measured((*busy, *options)) for name, options in LINES.items()}
    swept = sweeps(is_busy=arguments.busy)
    figure, panels = plt.subplots(1, len(swept), figsize=(3.5 * len(swept), 3.2), layout="constrained")
    for index, (panel, sweep) in enumerate(zip(panels, swept, strict=True)):
        taken = [line[index] for line in lines.values()]
        for value, *both in zip(sweep.values, *taken, strict=True):
            print(f"{sweep.axis:18}{value:>10,}" + "".join(f"{one:>10.1f} ms" for one in both))
        for name, times in zip(lines, taken, strict=True):
            panel.plot(sweep.values, times, marker="o", label=name)
        panel.set_xlabel(sweep.axis)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("ms a round")
    panels[0].legend()
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, dpi=100)


if __name__ == "__main__":
    main()
