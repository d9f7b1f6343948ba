"""A job's curves for people.

A CSV file, a PNG picture, and TensorBoard event files, all made from the stored history.

The history is the truth and survives a crash without gaps or repeats; every file here can be made again from
it.
"""

import csv
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from adserver.records.round_figures import RoundFigures
from maskedlark.runtime.durable_file import write_durably
from maskedlark.terminal.pictures import as_png, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

CSV_NAME: Final = "curves.csv"
PNG_NAME: Final = "curves.png"
EVENTS_NAME: Final = "events"

_COLUMNS: Final = tuple(field.name for field in fields(RoundFigures))
_TAGS: Final = {
    "loss": "eval/loss",
    "accuracy": "eval/accuracy",
    "gradient_norm": "round/gradient_norm",
    "noise_to_signal": "round/noise_to_signal",
    "learning_rate": "round/learning_rate",
}


class CurveWriter:
    """Keeps a running job's curves up to date.

    The event files at every round, the CSV file and the picture now and then.

    A picture takes longer than many a round, so it is drawn at most once in `rewrite_every_s` of the rounds'
    own time.
    """

    def __init__(
        self, folder: Path, history: Sequence[RoundFigures], title: str, rewrite_every_s: float
    ) -> None:
        self._folder = folder
        self._history = list(history)
        self._title = title
        self._rewrite_every_s = rewrite_every_s
        self._written_at_s: float | None = None
        self._events = EventLog(folder, history)

    @classmethod
    @contextmanager
    def opened(
        cls, folder: Path, history: Sequence[RoundFigures], *, title: str, rewrite_every_s: float = 30.0
    ) -> Iterator["CurveWriter"]:
        """Curves that begin with the history so far, and are complete when the context ends."""
        writer = cls(folder, history, title, rewrite_every_s)
        try:
            yield writer
        finally:
            writer._close()

    def append(self, figures: RoundFigures) -> None:
        """Add a round."""
        self._history.append(figures)
        self._events.append(figures)
        if self._written_at_s is None:
            self._written_at_s = figures.finished_at_s
        elif figures.finished_at_s - self._written_at_s >= self._rewrite_every_s:
            write_curves(self._folder, self._history, self._title)
            self._written_at_s = figures.finished_at_s

    def _close(self) -> None:
        self._events.close()
        write_curves(self._folder, self._history, self._title)


def write_curves(folder: Path, history: Sequence[RoundFigures], title: str) -> None:
    """Write `curves.csv` and `curves.png` anew from the whole history."""
    write_durably(folder / CSV_NAME, _csv(history))
    write_durably(folder / PNG_NAME, _png(history, title))


class EventLog:
    """TensorBoard event files of one job, appended to round by round.

    Opening it writes the history so far into a fresh file in place of whatever an earlier process left, so
    that a resumed job has every round once.
    """

    def __init__(self, folder: Path, history: Sequence[RoundFigures]) -> None:
        from tensorboardX import SummaryWriter

        events = folder / EVENTS_NAME
        shutil.rmtree(events, ignore_errors=True)
        self._writer = SummaryWriter(str(events))
        for figures in history:
            self.append(figures)

    def append(self, figures: RoundFigures) -> None:
        """Add one round's scalars."""
        for name, tag in _TAGS.items():
            value = getattr(figures, name)
            if value is not None:
                self._writer.add_scalar(tag, value, figures.rounds_done, walltime=figures.finished_at_s)

    def close(self) -> None:
        """Write what is buffered, and end the writer's thread."""
        self._writer.close()


def _csv(history: Sequence[RoundFigures]) -> bytes:
    """One line a round; an empty cell where there is no figure. Floats in Python's shortest exact form."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_COLUMNS)
    lines.writerows(astuple(figures) for figures in history)
    return text.getvalue().encode("ascii")


def _png(history: Sequence[RoundFigures], title: str) -> bytes:
    """Loss and accuracy above, gradient norm and noise below; without an evaluation only the latter."""
    is_evaluated = any(figures.loss is not None for figures in history)
    figure = new_figure(8, 7.2 if is_evaluated else 4.2)
    panels = figure.subplots(2 if is_evaluated else 1, 1, sharex=True, squeeze=False)[:, 0]
    figure.suptitle(title, fontsize=11)
    if is_evaluated:
        _draw_pair(panels[0], history, ("loss", "loss on the evaluation set"), ("accuracy", "accuracy"))
    _draw_pair(
        panels[-1],
        history,
        ("gradient_norm", "norm of the noisy mean gradient"),
        ("noise_to_signal", "noise / signal"),
    )
    panels[-1].set_xlabel("rounds")
    return as_png(figure)


def _draw_pair(
    left: "Axes", history: Sequence[RoundFigures], first: tuple[str, str], second: tuple[str, str]
) -> None:
    """Two figures against the rounds, (attribute, label) each.

    The second is on the right-hand axis, if there is any of it.
    """
    lines = _draw(left, history, *first, color="tab:blue", style="-")
    left.grid(visible=True, alpha=0.3)
    if any(getattr(figures, second[0]) is not None for figures in history):
        right = left.twinx()
        lines += _draw(right, history, *second, color="tab:orange", style="--")
        if second[0] == "accuracy":
            right.set_ylim(0, 1)
    left.legend(handles=lines, loc="best", fontsize=9)


def _draw(
    axes: "Axes", history: Sequence[RoundFigures], name: str, label: str, *, color: str, style: str
) -> "list[Line2D]":
    """One line, its axis in its colour."""
    points = [
        (figures.rounds_done, value) for figures in history if (value := getattr(figures, name)) is not None
    ]
    axes.set_ylabel(label, color=color)
    axes.tick_params(axis="y", labelcolor=color)
    marker = "." if len(points) <= 60 else ""
    return axes.plot(
        [at for at, _ in points],
        [value for _, value in points],
        style,
        marker=marker,
        color=color,
        label=label,
    )
