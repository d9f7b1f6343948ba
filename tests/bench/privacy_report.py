"""The figures of tests/bench/privacy.py.

Stored as JSON, drawn as pictures, written into docs/explanation/utility.md as tables.
"""

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

_SETUPS: Final = ("wbcd", "mnist", "online_shoppers")
_SCORES: Final = {"wbcd": "accuracy", "mnist": "accuracy", "online_shoppers": "AUC"}
_GAP_AT: Final = 1.0
_COLOURS: Final = ("tab:blue", "tab:green", "tab:orange")


class Figure(StrEnum):
    """What is drawn against what."""

    EPSILON = "epsilon"
    CLIP = "clip"
    LOCAL = "local"


_X_LABELS: Final = {
    Figure.EPSILON: "epsilon of the noise (delta 1e-5)",
    Figure.CLIP: "clip bound (L2)",
    Figure.LOCAL: "epsilon of the browser's noise on each feature",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One training's result. Infinite and absent numbers are infinite and NaN, here and in the stored file.

    Attributes:
        figure: Which figure it belongs to.
        setup: The data set.
        series: Whose training.
        x: Where on the x axis.
        seed: Which repeat.
        score: Accuracy, or area under the curve.
        noise_multiplier: Of the job, or of Opacus.
        epsilon: As the product charges it, against the ad server.
        collusion_epsilon: The same, against the ad server with one helper.
    """

    figure: Figure
    setup: str
    series: str
    x: float
    seed: int
    score: float
    noise_multiplier: float
    epsilon: float
    collusion_epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The repeats of one point: their mean, and their standard deviation."""

    x: float
    score: float
    deviation: float
    first: Point

    def __str__(self) -> str:
        return f"{self.score:.3f} ± {self.deviation:.3f}"


def write(points: Sequence[Point], path: Path) -> None:
    """Store the points, one a line."""
    lines = ",\n".join(json.dumps(asdict(point)) for point in points)
    path.write_text(f"[\n{lines}\n]\n")


def read(path: Path) -> list[Point]:
    """What `write` stored."""
    return [Point(**{**one, "figure": Figure(one["figure"])}) for one in json.loads(path.read_text())]


def means(points: Sequence[Point], figure: Figure, setup: str, series: str) -> list[Mean]:
    """One line of a figure, by x."""
    mine = [point for point in points if (point.figure, point.setup, point.series) == (figure, setup, series)]
    found = []
    for x in sorted({point.x for point in mine}):
        repeats = [point for point in mine if point.x == x]
        scores = [point.score for point in repeats]
        deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
        found.append(Mean(x=x, score=statistics.fmean(scores), deviation=deviation, first=repeats[0]))
    return found


def draw(points: Sequence[Point], folder: Path) -> None:
    """One picture a figure, one panel a data set; an infinite x is a dashed line across."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in Figure:
        picture = Picture(figsize=(12, 3.6), layout="constrained")
        for axes, setup in zip(picture.subplots(1, len(_SETUPS)), _SETUPS, strict=True):
            _panel(axes, points, figure, setup)
        picture.savefig(folder / f"utility-{figure}.png", dpi=110)


def _panel(axes: Axes, points: Sequence[Point], figure: Figure, setup: str) -> None:
    for colour, series in zip(_COLOURS, _series(points, figure), strict=False):
        line = means(points, figure, setup, series)
        finite = [mean for mean in line if math.isfinite(mean.x)]
        heights, spreads = [mean.score for mean in finite], [mean.deviation for mean in finite]
        axes.errorbar(
            [mean.x for mean in finite], heights, spreads, marker="o", capsize=3, color=colour, label=series
        )
        for mean in line:
            if math.isinf(mean.x):
                axes.axhline(mean.score, color="black", linestyle="--", linewidth=1, label="no noise")
    axes.set_xscale("log")
    axes.set_xticks(
        ticks := sorted({point.x for point in points if point.figure is figure and math.isfinite(point.x)})
    )
    axes.set_xticklabels([f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(title=setup, xlabel=_X_LABELS[figure], ylabel=_SCORES[setup])
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)


def tables(points: Sequence[Point]) -> str:
    """All tables, as Markdown."""
    return "\n".join(_epsilon_table(points, setup) for setup in _SETUPS) + "".join(
        _plain_table(points, f) for f in (Figure.CLIP, Figure.LOCAL)
    )


def fill_in(points: Sequence[Point], page: Path) -> None:
    """Write the tables between the page's markers."""
    text = page.read_text()
    for name, table in (("tables", tables(points)), ("gap", gap(points))):
        pattern = rf"(?<=<!-- {name} -->\n).*?(?=<!-- end {name} -->)"
        text, count = re.subn(pattern, f"\n{table}\n", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page} has no place for {name}")
    page.write_text(text)


def gap(points: Sequence[Point]) -> str:
    """Scores at `_GAP_AT` beside each other, and what the product charges for full noise there."""
    names = _series(points, Figure.EPSILON)
    rows = [
        f"| at epsilon {_GAP_AT:g} | {' | '.join(names)} | charged: full |",
        "|" + "---|" * (len(names) + 2),
    ]
    for setup in _SETUPS:
        at = [
            mean for name in names for mean in means(points, Figure.EPSILON, setup, name) if mean.x == _GAP_AT
        ]
        rows.append(f"| {setup} | {' | '.join(map(str, at))} | {_charged(at[0].first)} |")
    return "\n".join(rows) + "\n"


def _epsilon_table(points: Sequence[Point], setup: str) -> str:
    """Scores by epsilon, and what the product charges for each."""
    series = _series(points, Figure.EPSILON)
    lines = {name: {mean.x: mean for mean in means(points, Figure.EPSILON, setup, name)} for name in series}
    head = f"**{setup}** ({_SCORES[setup]})\n\n| epsilon | noise multiplier | " + " | ".join(series)
    rows = [head + " | charged: full | charged: split |", "|" + "---|" * (len(series) + 4)]
    for x in sorted({x for line in lines.values() for x in line}):
        cells = [str(line[x]) if x in line else "" for line in lines.values()]
        ours = [
            line[x].first
            for name, line in lines.items()
            if x in line and not math.isnan(line[x].first.epsilon)
        ]
        charged = [_charged(point) for point in ours] + [""] * (2 - len(ours))
        rows.append(
            f"| {_number(x)} | {ours[0].noise_multiplier:.3g} | " + " | ".join([*cells, *charged]) + " |"
        )
    return "\n".join(rows) + "\n"


def _plain_table(points: Sequence[Point], figure: Figure) -> str:
    """Scores by x, a column for each series and data set."""
    columns = [(setup, name) for setup in _SETUPS for name in _series(points, figure)]
    lines = [{mean.x: mean for mean in means(points, figure, *column)} for column in columns]
    head = f"\n**{_X_LABELS[figure]}**\n\n| | " + " | ".join(
        f"{setup}, {name}" if figure is Figure.CLIP else setup for setup, name in columns
    )
    rows = [head + " |", "|" + "---|" * (len(columns) + 1)]
    rows += [
        f"| {_number(x)} | " + " | ".join(str(line[x]) if x in line else "" for line in lines) + " |"
        for x in sorted({x for line in lines for x in line})
    ]
    return "\n".join(rows) + "\n"


def _series(points: Sequence[Point], figure: Figure) -> list[str]:
    """The series of a figure in the order of their first points; the product's before its peer."""
    found = list(dict.fromkeys(point.series for point in points if point.figure is figure))
    return sorted(found, key=lambda name: name.startswith("DP-SGD"))


def _charged(point: Point) -> str:
    return "∞" if math.isinf(point.epsilon) else f"{point.epsilon:.2f} ({point.collusion_epsilon:,.1f})"


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"
