"""A job's curves as a picture, drawn from the stored history: `adserver job show --plot`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final, assert_never

from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import JobRecord
from adserver.records.local_plan import LocalPlan
from adserver.records.round_figures import NOISE_TO_SIGNAL, RoundFigures
from adserver.records.training_plan import TrainingPlan
from adserver.training.cost import privacy_line
from adserver.views.printing import write_as
from maskedlark.errors import InvalidTask
from maskedlark.terminal.pictures import as_png, new_figure
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# Letters of a line that fit under a picture.
_LINE: Final = 110
# Letters of a line of the title, which are larger
_TITLE_LINE: Final = 80
# Colour and style of each line on the right-hand axis.
_ON_THE_RIGHT: Final = (("tab:orange", "--"), ("tab:purple", "-."))


def draw_curves(job: JobRecord, history: Sequence[RoundFigures]) -> bytes:
    """Draw a job's loss, accuracy, AUC, gradient norm and noise against its rounds, as a PNG file.

    Raises:
        InvalidTask: the job is one without helpers.
    """
    match job.plan:
        case TrainingPlan() as plan:
            return _png(history, _title(plan), "norm of the noisy mean gradient")
        case FederatedPlan() as plan:
            return _png(history, _title_of_federated(plan), "norm of the noisy mean update")
        case LocalPlan():
            raise InvalidTask("a job without helpers has no curves, because nothing evaluates it")
        case _:
            assert_never(job.plan)


def write_plot(job: JobRecord, history: Sequence[RoundFigures], path: Path) -> None:
    """Write the picture of `draw_curves` to a file.

    Raises:
        InvalidTask: the file's name does not end in .png; or the job is one without helpers.
    """
    write_as({".png": lambda one: draw_curves(job, one)}, history, path, "curves are")


def _title(plan: TrainingPlan) -> str:
    """Return the title of a job's curves, with the epsilons of all its rounds."""
    job = plan.job
    return (
        f"{plan.task.name} · {job.loss} · job {job.job_id.hex()[:8]}\n{privacy_line(plan, job.rounds)} ·"
        f" {plural(job.rounds, 'round')} · batch {plan.denominator:,.0f}"
    )


def _title_of_federated(plan: FederatedPlan) -> str:
    """Return the title of a federated job's curves, with the epsilons of all its rounds."""
    name = f"{plan.task.name} · federated · job {plan.job.job_id.hex()[:8]}"
    rounds = plan.job.rounds
    return f"{name}\n{privacy_line(plan, rounds)} · {plural(rounds, 'round')}"


def _png(history: Sequence[RoundFigures], title: str, step: str) -> bytes:
    """Draw loss, accuracy and AUC above, a step's norm and noise below; unevaluated only the latter."""
    is_evaluated = any(figures.loss is not None for figures in history)
    figure = new_figure(8, 7.2 if is_evaluated else 4.2)
    # Without squeezing, one panel comes as an array, too
    panels = figure.subplots(2 if is_evaluated else 1, 1, sharex=True, squeeze=False)[:, 0]
    wrapped = "\n".join(fill(line, _TITLE_LINE) for line in title.splitlines())
    figure.suptitle(wrapped, fontsize=11, parse_math=False)
    if is_evaluated:
        shares = {"accuracy": "accuracy", "auc": "AUC"}
        _draw_panel(panels[0], history, ("loss", "loss on the evaluation set"), shares)
    _draw_panel(panels[-1], history, ("gradient_norm", step), {"noise_to_signal": "noise / signal"})
    is_compared = any(figures.noise_to_signal is not None for figures in history)
    panels[-1].set_xlabel("rounds" + (f"\n{fill(NOISE_TO_SIGNAL, _LINE)}" if is_compared else ""), fontsize=9)
    return as_png(figure)


def _draw_panel(
    left: "Axes", history: Sequence[RoundFigures], first: tuple[str, str], others: Mapping[str, str]
) -> None:
    """Draw figures against the rounds, each by its attribute with its label.

    All but the first are on the right-hand axis, as far as there is any of them.
    """
    lines = []
    # By this loss weights are chosen: the plain one may rise while a model of a rare label learns
    if first[0] == "loss" and any(figures.calibrated_loss is not None for figures in history):
        lines += _draw(left, history, "calibrated_loss", "calibrated loss", color="tab:blue", style=":")
    lines += _draw(left, history, *first, color="tab:blue", style="-")
    left.grid(visible=True, alpha=0.3)
    there = [name for name in others if any(getattr(figures, name) is not None for figures in history)]
    if there:
        right = left.twinx()
        for name, (color, style) in zip(there, _ON_THE_RIGHT, strict=False):
            lines += _draw(right, history, name, others[name], color=color, style=style)
        if len(there) > 1:
            right.set_ylabel(", ".join(others[name] for name in there), color="black")
            right.tick_params(axis="y", labelcolor="black")
        # From 0 to 1 always, so that pictures of several jobs can be laid side by side
        if "accuracy" in there:
            right.set_ylim(0, 1)
    # Above: anywhere inside, some job's line runs through it.
    left.legend(
        handles=lines,
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        ncols=len(lines),
        frameon=False,
        fontsize=9,
    )


def _draw(
    axes: "Axes", history: Sequence[RoundFigures], name: str, label: str, *, color: str, style: str
) -> "list[Line2D]":
    """Draw one line, its axis in its colour."""
    points = [
        (figures.rounds_done, value) for figures in history if (value := getattr(figures, name)) is not None
    ]
    axes.set_ylabel(label, color=color)
    axes.tick_params(axis="y", labelcolor=color)
    # More dots than that run into one another
    marker = "." if len(points) <= 60 else ""
    return axes.plot(
        [at for at, _ in points],
        [value for _, value in points],
        style,
        marker=marker,
        color=color,
        label=label,
    )
