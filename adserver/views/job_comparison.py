"""Jobs side by side: what each was asked for, what it cost, and how it did on its evaluation set.

print_comparison(compare_jobs(server, ["3f", "a0"]))
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, Protocol

import typer

from adserver.messages.job import job_facts
from adserver.records.federated_plan import FederatedPlan
from adserver.records.html_table import html_table, text_table
from adserver.records.job_record import JobRecord
from adserver.records.local_plan import LocalPlan
from adserver.records.round_figures import NOT_EVALUATED, RoundFigures, best_evaluated
from adserver.records.training_plan import TrainingPlan
from adserver.views.job import JobSource, last_evaluated
from adserver.views.printing import print_table, short
from maskedlark.frozen import frozen, pick_attributes

_DIGEST_DIGITS: Final = 64
# Enough to type where an id is expected
_SHOWN_DIGITS: Final = 12
# Columns of twelve digits next to the names of figures, in 88 letters
_MOST_ABREAST: Final = 5

_Table = tuple[tuple[str, ...], list[tuple[object, ...]]]


@frozen
class _ComparedJob:
    """A job as a row of a comparison; None where a job of its kind has no such figure, or not yet.

    Attributes:
        job: Its id.
        name: What its owner calls it.
        task: The name of its task; empty without helpers.
        task_id: Its task's id.
        dataset_id: That of the dataset that it is over.
        eval_set: The digest of its evaluation set; None without one.
        model: The digest of the graph that it trains, without the weights that it begins at; of a job on
            devices its widths.
        state: Where it is in its life.
        rounds: Optimizer steps, as planned.
        rounds_done: Those that were taken.
        batch: Expected reports in a round.
        learning_rate: Before the schedule.
        noise_multiplier: Each helper's noise over the clip norm; of a job on devices that of its present
            phase.
        epsilon: What the rounds cost against the ad server.
        collusion_epsilon: And against the ad server with one helper.
        loss: On its evaluation set after the last round that was evaluated.
        calibrated_loss: What calibration would leave of that, of two classes.
        accuracy: There, of a classifier.
        auc: There, of two classes.
        best_loss: There, of the weights that the job keeps as its best; of two classes not the least loss,
            since those weights are chosen by the calibrated loss.
        best_calibrated_loss: Theirs, of two classes.
        best_rounds: After so many rounds.
        note: What its owner wants to remember of it.
    """

    job: str
    name: str
    task: str
    task_id: str | None
    dataset_id: str | None
    eval_set: str | None
    model: str
    state: str
    rounds: int | None
    rounds_done: int
    batch: float | None
    learning_rate: float | None
    noise_multiplier: float | None
    epsilon: float | None
    collusion_epsilon: float | None
    loss: float | None
    calibrated_loss: float | None
    accuracy: float | None
    auc: float | None
    best_loss: float | None
    best_calibrated_loss: float | None
    best_rounds: int | None
    note: str


def job_figures(
    job: JobRecord, last: RoundFigures | None, best: RoundFigures | None
) -> dict[str, float | None]:
    """Return what jobs are compared by, by the names of a comparison; without the epsilons, which take long.

    Args:
        job: Of any kind.
        last: Its last evaluated round.
        best: The round of the weights that it keeps as its best.
    """
    plan, best = job.plan if isinstance(job.plan, TrainingPlan) else None, best or NOT_EVALUATED
    return {
        "batch": plan.denominator if plan else None,
        "learning_rate": plan.optimizer.learning_rate if plan else None,
        "noise_multiplier": _noise_of(job),
        **pick_attributes(last or NOT_EVALUATED, ("loss", "calibrated_loss", "accuracy", "auc")),
        "best_loss": best.loss,
        "best_calibrated_loss": best.calibrated_loss,
        "best_rounds": best.rounds_done or None,  # weights as they were submitted are never the best
    }


def _noise_of(job: JobRecord) -> float | None:
    """Return each helper's noise over the clip norm; of a job on devices that of its present phase."""
    match job.plan:
        case TrainingPlan():
            return job.plan.job.noise_multiplier
        case FederatedPlan():
            return job.plan.job.phase(min(job.rounds_done, job.plan.job.rounds - 1)).noise_multiplier
        case LocalPlan():
            return None


def _compare_job(job: JobRecord, history: tuple[RoundFigures, ...]) -> _ComparedJob:
    """Return a job's row."""
    last = last_evaluated(history)
    facts, plan = job_facts(job, last), job.plan
    spec = plan.job if isinstance(plan, TrainingPlan) else None
    return _ComparedJob(
        job=job.job_id.hex(),
        task_id=None if plan.task is None else plan.task.task_id.hex(),
        task=job.task_name,
        dataset_id=spec.dataset_id.hex() if spec else None,
        eval_set=None if job.eval_set_digest is None else job.eval_set_digest.hex(),
        model=spec.model_digest.hex() if spec else "-".join(map(str, getattr(facts, "widths", ()))),
        state=job.state.value,
        # Without helpers there are none
        epsilon=getattr(facts, "epsilon_spent", None),
        collusion_epsilon=getattr(facts, "collusion_epsilon_spent", None),
        **pick_attributes(job, ("rounds", "rounds_done", "name", "note")),
        **dict[str, Any](job_figures(job, last, best_evaluated(history))),
    )


class _JobsSource(JobSource, Protocol):
    """Where a comparison reads jobs: an `AdServer`."""

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, oldest first."""


def compare_jobs(server: _JobsSource, jobs: Sequence[str] = ()) -> list[_ComparedJob]:
    """Return a row for each of some jobs, by the starts of their ids or names; without any, for all jobs.

    Raises:
        JobRefused(UNKNOWN_JOB)
    """
    found = [server.job(job) for job in jobs] if jobs else server.jobs()
    return [_compare_job(job, server.history(job.job_id)) for job in found]


class ComparedJobs(list[dict[str, Any]]):
    """Rows of a comparison as a list of dicts, which a shell and a notebook show as `print_comparison`."""

    def __init__(self, rows: Iterable[_ComparedJob]) -> None:
        self._rows = tuple(rows)
        super().__init__(map(asdict, self._rows))

    def __repr__(self) -> str:
        """Show a column for each job, without what none of them has; many jobs in tables below each other."""
        remark = _remark(self._rows)
        tables = [text_table(*table) for table in _tables(self._rows)]
        return "\n\n".join(tables) + (f"\n{remark}" if remark else "")

    def _repr_html_(self) -> str:
        """Return the same with a table, for a notebook."""
        remark = _remark(self._rows)
        tables = "".join(html_table(*table) for table in _tables(self._rows))
        return tables + (f"<p>{remark}</p>" if remark else "")


def print_comparison(rows: Sequence[_ComparedJob]) -> None:
    """Print jobs as columns of a table: there are more figures than jobs that one compares.

    Past `_MOST_ABREAST` jobs the others have tables below, as a terminal is no wider. What no job has is
    left out. Jobs of several evaluation sets or datasets have a warning below.
    """
    for number, table in enumerate(_tables(rows)):
        if number:
            typer.echo()
        print_table(*table)
    if remark := _remark(rows):
        typer.echo(remark)


def _remark(rows: Sequence[_ComparedJob]) -> str:
    why = why_not_comparable((row.dataset_id, row.eval_set) for row in rows)
    return f"warning: {why}" if why else ""


def _tables(rows: Sequence[_ComparedJob]) -> list[_Table]:
    """Return the head and the lines of each table: a column for each of its jobs, the same lines in all."""
    # The id is no row: it heads its column
    names = [
        field.name
        for field in fields(_ComparedJob)[1:]
        if any(getattr(row, field.name) not in (None, "") for row in rows)
    ]
    starts = range(0, max(1, len(rows)), _MOST_ABREAST)
    return [_table(rows[start : start + _MOST_ABREAST], names) for start in starts]


def _table(rows: Sequence[_ComparedJob], names: Sequence[str]) -> _Table:
    head = ("job", *(short(bytes.fromhex(row.job)) for row in rows))
    return head, [(name.replace("_", " "), *(_shown(getattr(row, name)) for row in rows)) for name in names]


def why_not_comparable(jobs: Iterable[tuple[object, object]]) -> str:
    """Return why figures of jobs do not compare; empty if they do.

    Args:
        jobs: The dataset and the evaluation set of each, by their ids and digests. Jobs without an evaluation
            set have no figures, and count for nothing.
    """
    evaluated = [(dataset, panel) for dataset, panel in jobs if panel is not None]
    if len({panel for _, panel in evaluated}) > 1:
        return (
            "these jobs have different evaluation sets: losses, accuracies and AUCs compare only on one "
            "evaluation set"
        )
    if len({dataset for dataset, _ in evaluated}) > 1:
        return (
            "these jobs are over different datasets: a difference in loss, accuracy or AUC may be the "
            "records', and not the settings'"
        )
    return ""


def _shown(value: object) -> object:
    if isinstance(value, str) and len(value) == _DIGEST_DIGITS:
        return value[:_SHOWN_DIGITS]
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else value
