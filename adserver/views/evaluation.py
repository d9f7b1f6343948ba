"""An evaluation for people: tables, and a picture of its three curves with error bars."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from adserver.measuring.evaluation_result import CurvePoint, EvaluationResult
from adserver.measuring.group_table import align_estimates
from adserver.views.printing import print_table, write_as
from adserver.views.query import noise_lines
from maskedlark.terminal.pictures import as_png, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def print_evaluation(result: EvaluationResult) -> None:
    """Print the tables of figures and of calibration, and lines about the release."""
    metrics = [(one.name, str(one.estimate)) for one in result.metrics]
    print_table(("metric", "value"), align_estimates(metrics))
    typer.echo()
    print_table(
        ("score from", "predicted", "observed"),
        align_estimates(
            [(f"{point.threshold:.3f}", f"{point.x.value:.4f}", str(point.y)) for point in result.calibration]
        ),
    )
    typer.echo(f"evaluation {result.query_id}")
    typer.echo(f"{result.num_bins} score bins; ± is half of an interval, of sampling and noise")
    typer.echo(result.caption)
    for line in noise_lines(result, f" on every bin: {result.noise_scale:.4g} records"):
        typer.echo(line)


def write_plot(result: EvaluationResult, path: Path) -> None:
    """Draw the ROC, PR and calibration curves with their 99 % intervals, below the caption.

    Raises:
        InvalidTask: the file's name does not end in .png.
    """
    write_as({".png": _png}, result, path, "curves are")


def _png(result: EvaluationResult) -> bytes:
    figure = new_figure(12.6, 4.4, result.caption)
    roc, pr, calibration = figure.subplots(1, 3)
    title = f"AUC {result.metric('confidence_roc_auc' if result.is_of_classes else 'roc_auc')!s}"
    _draw(roc, result.roc, f"ROC: {title}", "false positive rate", "true positive rate")
    _draw(pr, result.pr, "precision and recall", "recall", "precision")
    _draw(calibration, result.calibration, "calibration", "predicted", "observed")
    # What guessing gives, and what a model gives whose predictions add up
    for axes in (roc, calibration):
        axes.plot([0, 1], [0, 1], ":", color="grey")
    return as_png(figure)


def _draw(axes: "Axes", points: Sequence[CurvePoint], title: str, across: str, up: str) -> None:
    """Draw one curve with an error bar at every point."""
    # A point without an interval says nothing at this noise
    known = [point for point in points if math.isfinite(point.y.high)]
    # An interval is clipped to [0, 1] and a noised value is not: matplotlib refuses a bar of negative length
    below = [max(0.0, point.y.value - point.y.low) for point in known]
    above = [max(0.0, point.y.high - point.y.value) for point in known]
    at, value = [point.x.value for point in known], [point.y.value for point in known]
    axes.errorbar(
        at,
        value,
        yerr=[below, above],
        fmt=".-",
        color="tab:blue",
        ecolor="tab:orange",
        elinewidth=0.8,
        capsize=1.5,
    )
    axes.set(title=title, xlabel=across, ylabel=up, xlim=(0, 1), ylim=(0, 1.02))
    axes.grid(visible=True, alpha=0.3)
