"""A job's curves: a CSV file and TensorBoard event files, both made from the stored history.

The history is the truth and survives a crash without gaps or repeats; every file here can be made again from
it. Pictures are drawn by the command that is asked for one: `adserver job show --plot`.
"""

import csv
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields
from io import StringIO
from pathlib import Path
from typing import Final

from adserver.records.round_figures import RoundFigures
from adserver.training.event_file import EventFile
from maskedlark.runtime.durable_file import write_durably

CSV_NAME: Final = "curves.csv"
EVENTS_NAME: Final = "events"
_EVENT_FILE: Final = "events.out.tfevents.job"  # TensorBoard knows its files by "tfevents"

_COLUMNS: Final = tuple(field.name for field in fields(RoundFigures))
_TAGS: Final = {
    "loss": "eval/loss",
    "accuracy": "eval/accuracy",
    "auc": "eval/auc",
    "calibrated_loss": "eval/calibrated_loss",
    "gradient_norm": "round/gradient_norm",
    "noise_to_signal": "round/noise_to_signal",
    "learning_rate": "round/learning_rate",
}


class CurveWriter:
    """Keeps a running job's curves up to date.

    The event file at every round, the CSV file now and then: it is written as a whole, at most once in
    `rewrite_every_s` of the rounds' own time.
    """

    def __init__(
        self, folder: Path, events: EventFile, history: Sequence[RoundFigures], rewrite_every_s: float
    ) -> None:
        self._folder = folder
        self._events = events
        self._history: list[RoundFigures] = []
        self._rewrite_every_s = rewrite_every_s
        self._written_at_s: float | None = None
        for figures in history:
            self._add(figures)

    @classmethod
    @contextmanager
    def open(
        cls, folder: Path, history: Sequence[RoundFigures], *, rewrite_every_s: float = 30.0
    ) -> Iterator["CurveWriter"]:
        """Open curves that begin with the history so far and are complete when the context ends.

        The history is written into a fresh event file in place of whatever an earlier process left, so that a
        resumed job has every round once.
        """
        events = folder / EVENTS_NAME
        shutil.rmtree(events, ignore_errors=True)
        with EventFile.open(events / _EVENT_FILE) as stream:
            writer = cls(folder, stream, history, rewrite_every_s)
            try:
                yield writer
            finally:
                _write_csv(folder, writer._history)

    def append(self, figures: RoundFigures) -> None:
        """Add a round."""
        self._add(figures)
        # The first round only sets the time: the history so far is written when the context ends.
        if self._written_at_s is None:
            self._written_at_s = figures.finished_at_s
        elif figures.finished_at_s - self._written_at_s >= self._rewrite_every_s:
            _write_csv(self._folder, self._history)
            self._written_at_s = figures.finished_at_s

    def _add(self, figures: RoundFigures) -> None:
        self._history.append(figures)
        values = {tag: getattr(figures, name) for name, tag in _TAGS.items()}
        there = {tag: value for tag, value in values.items() if value is not None}
        self._events.add(figures.rounds_done, there, at_s=figures.finished_at_s)


def _write_csv(folder: Path, history: Sequence[RoundFigures]) -> None:
    """Write `curves.csv` anew from the whole history."""
    write_durably(folder / CSV_NAME, _csv(history))


def _csv(history: Sequence[RoundFigures]) -> bytes:
    """Encode one line a round, an empty cell for a missing figure, floats in Python's shortest exact form."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_COLUMNS)
    lines.writerows(astuple(figures) for figures in history)
    return text.getvalue().encode("ascii")
