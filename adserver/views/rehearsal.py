"""A rehearsal as people see it: a table, a picture, and how to submit the best job."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer

from adserver.records.scored_loss import scored_loss
from adserver.records.submissions import Submission
from adserver.training.eval_set import EvalSet
from adserver.training.model_file import prepare_model
from adserver.training.pipeline import width_of_outputs
from adserver.training.rehearsal import describe_examples
from adserver.training.rehearsal_pool import OnProgress
from adserver.training.rehearsal_training import ALONE, NO_NOISE
from adserver.training.rehearsed import DEFAULT, METRIC_NAMES, REFERENCES, WARM, Rehearsal, Rehearsed
from adserver.views.plan import Remark, remarks_of_columns, remarks_of_loss
from adserver.views.printing import print_table, progress_bars, write_as
from maskedlark.encoding.encoder import Encoder
from maskedlark.model.heads import trained_loss
from maskedlark.reports.task import Task
from maskedlark.terminal.pictures import as_png, new_figure

_LOG_EVERY_S: Final = 60.0
_LEAST_SHARE: Final = 0.05


def remarks_of_rehearsal(
    submission: Submission, task: Task, examples: EvalSet, encoder: Encoder | None, *, seeds: int
) -> Iterator[Remark]:
    """Yield what may be wrong, and how well a score can be known by the examples, before hours go into it.

    Raises:
        InvalidModel, InvalidTask: the model is refused, as it would be when it is submitted.
    """
    file, loss = (
        prepare_model(
            submission.model,
            num_features=task.num_features,
            encoder=encoder,
            are_columns_checked=submission.are_columns_checked,
        ).file,
        trained_loss(submission.loss),
    )
    yield from remarks_of_loss(file, loss, task)
    yield from remarks_of_columns(file, task, lambda _: encoder)
    if told := describe_examples(examples, scored_loss(loss, width_of_outputs(file)), seeds=seeds):
        yield Remark(text=told)


def print_rehearsal(found: Rehearsal) -> None:
    """Print each setting, the advised learning rate at each epsilon, and what stands out."""
    print_table(
        (
            "",
            "rate",
            METRIC_NAMES[found.metric],
            "±",
            "99 %",
            "loss",
            "mean/rate",
            "clipped",
            "noise",
            "with one helper",
        ),
        [_row(one, _mark(found, one)) for one in found.settings],
    )
    typer.echo(
        "*: the advised rate; =: one that cannot be told apart from the best. ±: standard deviation over "
        "seeds. 99 %: what one job will reach, by the number of examples that were scored and by the seeds. "
        "mean/rate: mean prediction over the share of positives; with one helper: the epsilon against the ad "
        "server with one helper"
    )
    typer.echo(REFERENCES)
    for line in found.remarks():
        typer.echo(line)


def _mark(found: Rehearsal, one: Rehearsed) -> str:
    """Return how a setting's rate compares with the others of its name."""
    if one.learning_rate not in found.as_good(one.name):
        return " "
    return "*" if one == found.advised(one.name) else "="


def _row(one: Rehearsed, mark: str) -> tuple[str, ...]:
    name = f"{mark} {one.name}"
    if not one.scores:
        return (name, f"{one.learning_rate:g}", f"refused: {one.refused}", *("",) * 7)
    over = one.mean_over_rate
    return (
        name,
        f"{one.learning_rate:g}",
        f"{one.value:.4f}",
        "" if math.isnan(one.spread) else f"{one.spread:.4f}",
        one.interval_text,
        f"{one.loss:.4f}",
        "" if over is None else f"{over:.2f}",
        "" if one.clipped is None else f"{one.clipped:.0%}",
        f"{one.noise_multiplier:.4g}" if one.noise_multiplier else "",
        "" if one.costs is None else f"{one.costs.colluding:.3g}",
    )


@contextmanager
def training_progress(
    what: str, *, is_shown: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[OnProgress]:
    """Show how far trainings are and how long they will still take, until the context ends.

    On a terminal or in a notebook by a bar; elsewhere, as in the log of a script, by a line a minute.
    """
    with progress_bars(is_shown=is_shown) as bars:
        if is_shown and bars.disable:
            yield _LoggedProgress(what, clock).show
            return
        # Not before the total is known: a bar of unknown length says nothing
        bar = bars.add_task(what, total=None, visible=False)
        yield lambda done, of: bars.update(bar, completed=done, total=of, visible=True)


class _LoggedProgress:
    """Tells on stderr how far something is, at most once a minute."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self._what, self._clock = what, clock
        self._began = self._told = clock()

    def show(self, done: int, of: int) -> None:
        now = self._clock()
        if now - self._told < _LOG_EVERY_S or not done:
            return
        self._told = now
        shown = f"{self._what}: {done / of:.0%} after {(now - self._began) / 60:.0f} min"
        # The first steps load and compile, so that they tell little of the others
        if done / of >= _LEAST_SHARE:
            left = (now - self._began) * (of - done) / done
            shown += f", about {math.ceil(left / 60)} min left"
        typer.echo(shown, err=True)


def write_plot(found: Rehearsal, path: Path) -> None:
    """Draw the advised job's score at each epsilon next to those without noise and of the examples alone.

    Raises:
        InvalidTask: the file's name does not end in .png.
    """
    write_as({".png": _png}, found, path, "the rehearsal is")


def _png(found: Rehearsal) -> bytes:
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    advised = [found.advised(name) for name in found.names()]
    for label, style in (("", "o-"), (WARM, "s-"), (DEFAULT, "^-")):
        kind = (label == WARM, label == DEFAULT)
        noisy = [one for one in advised if one.epsilon is not None and one.scores]
        if noisy := [one for one in noisy if (one.is_warm, one.is_default) == kind]:
            axes.errorbar(
                [one.epsilon or 0.0 for one in noisy],
                [one.value for one in noisy],
                yerr=[0.0 if math.isnan(one.spread) else one.spread for one in noisy],
                fmt=style,
                capsize=3,
                label=f"the job{label}",
            )
    for name, style in ((NO_NOISE, "--"), (ALONE, ":")):
        one = found.advised(name)
        if one.scores:
            axes.axhline(one.value, linestyle=style, color="grey", label=name)
    # Epsilons are tried in factors
    axes.set_xscale("log")
    axes.set_xlabel("epsilon against the ad server")
    axes.set_ylabel(METRIC_NAMES[found.metric])
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    return as_png(figure)
