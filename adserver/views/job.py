"""A job as people and programs see it: tables, JSON, and the live view of `adserver job watch`."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final, Protocol, assert_never

from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import JobRecord
from adserver.records.job_state import LEASED, STOPPED, JobState
from adserver.records.local_plan import LocalPlan
from adserver.records.round_figures import AS_GOOD, RoundFigures, best_evaluated, has_risen
from adserver.records.training_plan import TrainingPlan
from adserver.training.cost import privacy_line
from adserver.views.federated import rows_of_devices
from adserver.views.printing import print_table, progress_on, short
from maskedlark.escape import escape
from maskedlark.terminal.interactive import may_be_seen
from maskedlark.terminal.plural import plural
from maskedlark.utc import format_utc

_FIRST_POLL_S: Final = 0.2
_LONGEST_POLL_S: Final = 1.0
# A short job's end is seen at once; a long one is not asked about several times a second
_POLLS_GROW: Final = 1.2
# An ad server takes a job, or renews its lease, within this time
_SILENT_S: Final = 5.0
# What helps where the rate is no higher than the rule's
_MORE_SIGNAL: Final = "train with more reports or a larger epsilon, or lower --learning-rate if you named one"


def print_jobs(jobs: tuple[JobRecord, ...]) -> None:
    """Print all jobs as a table."""
    print_table(
        ("job", "name", "task", "state", "submitted", "rounds or updates", "cause"),
        [
            (
                short(job.job_id),
                job.name,
                job.task_name,
                job.state.value,
                format_utc(job.submitted_at_s),
                job.updates if job.rounds is None else f"{job.rounds_done}/{job.rounds}",
                job.stop.cause if job.stop else "",
            )
            for job in jobs
        ],
    )


def print_job(job: JobRecord, history: tuple[RoundFigures, ...]) -> None:
    """Print one job as a table of settings and figures."""
    plan = job.plan
    match plan:
        case FederatedPlan() | LocalPlan():
            rows: list[tuple[str, object]] = [*rows_of_devices(job, plan), ("state", describe_outcome(job))]
        case TrainingPlan():
            rows = _rows(job, plan)
        case _:
            assert_never(plan)
    # After the id, before everything that is measured: what its owner looks for first
    rows[1:1] = [(what, said) for what, said in (("name", job.name), ("note", job.note)) if said]
    if line := charged_line(job):
        rows.append(("charged rounds", line))
    if evaluated := last_evaluated(history):
        rows.append((f"after {plural(evaluated.rounds_done, 'round')}", describe_evaluation(evaluated)))
    if isinstance(plan, TrainingPlan):
        rows += _compare_evaluations(history)
    print_table(("", ""), rows)


def _compare_evaluations(history: tuple[RoundFigures, ...]) -> list[tuple[str, object]]:
    """Return the best weights, where the last ones are not, and whether training made the model worse."""
    first = next((one for one in history if one.loss is not None), None)
    last, best = last_evaluated(history), best_evaluated(history)
    rows: list[tuple[str, object]] = []
    if best is not None and best is not last:
        to_export = "`adserver model export --weights best` has these weights"
        rows.append(
            (f"best after {plural(best.rounds_done, 'round')}", f"{describe_best(best)}; {to_export}")
        )
    if line := rise_line(first, last):
        rows.append(("warning", line))
    return rows


def rise_line(first: RoundFigures | None, last: RoundFigures | None) -> str:
    """Say that training made the model worse, and what to do; empty if it did not.

    Args:
        first: The first evaluated round: only that before any training tells.
        last: The last one.
    """
    if first is None or first.rounds_done or first.loss is None or last is None or not last.rounds_done:
        return ""
    # With steps too long for the noise, weights end worse than they began. Clipping alone, where labels are
    # rare, raises the plain loss of a model that learns.
    if not has_risen(_loss_of(last), _loss_of(first)):
        return ""
    name = "loss" if last.calibrated_loss is None else "calibrated loss"
    return f"the {name} rose from {_loss_of(first):.4f} before the first round: {_MORE_SIGNAL}"


def _loss_of(figures: RoundFigures) -> float:
    """Return the loss, of two classes that after calibration; infinite for one that is no number."""
    # Training that diverged has a loss that is no number, and compares with nothing
    loss = math.inf if figures.choosing_loss is None else figures.choosing_loss
    return math.inf if math.isnan(loss) else loss


def _rows(job: JobRecord, plan: TrainingPlan) -> list[tuple[str, object]]:
    """Return the settings of a job over a dataset as rows of a table."""
    rows: list[tuple[str, object]] = [
        ("job", job.job_id.hex()),
        ("task", f"{plan.task.name} ({short(plan.job.task_id)})"),
        ("dataset", f"{short(plan.job.dataset_id)}, {plural(plan.dataset_size, 'report')}"),
        ("state", describe_outcome(job)),
        ("rounds", f"{job.rounds_done} of {plan.job.rounds}, {plan.denominator:g} reports expected in each"),
        ("loss", plan.job.loss.value),
        (
            "optimizer",
            (
                f"{plan.optimizer.kind.value}, learning rate {plan.optimizer.learning_rate:g},"
                f" {plan.schedule.kind.value}"
            ),
        ),
        ("privacy so far", privacy_line(plan, job.rounds_done)),
    ]
    if plan.job.carried is not None:
        rows.append(("noise", f"correlated, {plan.job.carried} of 64 parts are taken out again"))
    if plan.job.trained is not None:
        rows.append(("trained", ", ".join(plan.job.trained)))
    return rows


def charged_line(job: JobRecord) -> str:
    """Say of which rounds a budget holds the cost though the model lacks them; empty if there are none."""
    lost = (job.rounds_charged or 0) - job.rounds_done
    if lost <= 0:
        return ""
    return (
        f"{job.rounds_charged:,} are charged: {lost:,} {'was' if lost == 1 else 'were'} answered by a helper "
        "and not applied"
    )


def describe_outcome(job: JobRecord) -> str:
    """Describe the state in one line, with its cause and what can be done."""
    if job.stop is None:
        return job.state.value
    line = f"{job.state.value} ({job.stop.reason}): {job.stop.cause}"
    if job.state not in (JobState.REFUSED, JobState.FAILED):
        return line
    name, back = short(job.job_id), "gives the unused budget back"
    if job.stop.is_lasting:
        return f"{line}; resumed, it would stop again: submit another; `adserver job cancel {name}` {back}"
    return (
        f"{line}; `adserver job resume {name}` goes on with this round once the cause is gone, `adserver job"
        f" cancel {name}` {back}"
    )


class JobSource(Protocol):
    """Where a watcher reads a job: an `AdServer`."""

    def job(self, job: str) -> JobRecord:
        """Return one job."""

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, oldest first."""

    def history(self, job_id: bytes, *, after_rounds: int = -1) -> tuple[RoundFigures, ...]:
        """Return the figures of a job's rounds after `after_rounds`."""


def watch(
    source: JobSource,
    job_id: bytes,
    *,
    is_shown: bool,
    tell: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> JobRecord:
    """Follow a job, from any process, until it stops; on a terminal, show its progress on standard error.

    Args:
        source: Where the job is.
        job_id: The job.
        is_shown: Whether a bar may be drawn.
        tell: Gets what the job waits for, each time that it changes.
        sleep: Waits for so many seconds.
        clock: Unix seconds.
    """
    is_drawn = is_shown and may_be_seen()
    pause_s, told, began_s, queue = _FIRST_POLL_S, "", clock(), _Queue(source, clock)
    with _bar(source, job_id) if is_drawn else nullcontext(lambda _job, _behind: None) as show:
        while True:
            job = source.job(job_id.hex())
            behind = queue.find_running() if job.state is JobState.QUEUED else None
            # Before the end is looked for: the bar stays on the screen, with the last state
            show(job, behind)
            if job.state in STOPPED:
                return job
            waits_for = _what_it_waits_for(job, behind, watched_s=clock() - began_s, now_s=clock())
            if waits_for != told:
                told = waits_for
                if told:
                    tell(told)
            sleep(pause_s)
            pause_s = min(pause_s * _POLLS_GROW, _LONGEST_POLL_S)


class _Queue:
    """The job that keeps a worker from the queued ones."""

    def __init__(self, source: JobSource, clock: Callable[[], float]) -> None:
        self._source, self._clock = source, clock
        self._running: JobRecord | None = None
        self._listed_s = -math.inf

    def find_running(self) -> JobRecord | None:
        """Return a job that a worker holds, the same one while it does; None if there is none."""
        if self._running is not None:
            found = self._source.job(self._running.job_id.hex())
            self._running = found if found.state in LEASED else None
        # A list of all may be long: it is asked for seldom
        if self._running is None and self._clock() - self._listed_s >= _SILENT_S:
            self._listed_s = self._clock()
            self._running = next((one for one in self._source.jobs() if one.state in LEASED), None)
        return self._running


def _what_it_waits_for(job: JobRecord, behind: JobRecord | None, *, watched_s: float, now_s: float) -> str:
    """Return what a job waits for, or nothing while it runs.

    No worker runs a job whose lease has run out: its ad server has ended.
    """
    if job.state is JobState.WAITING and job.stop:
        return job.stop.cause
    if behind is not None and behind.lease_until_s >= now_s - _SILENT_S:
        return f"job {short(job.job_id)} waits behind {_name(behind)}"
    # 0 of a job that no worker has taken
    is_silent = 0 < job.lease_until_s < now_s - _SILENT_S
    if is_silent or (job.state is JobState.QUEUED and watched_s > _SILENT_S):
        return (
            f"job {short(job.job_id)} waits for `adserver serve`, which "
            f"{'has ended' if is_silent else 'has not taken it yet'}: see that it runs on the same --data"
        )
    return ""


def _name(job: JobRecord) -> str:
    return f"job {short(job.job_id)}" + (f", {escape(job.name)}" if job.name else "")


@contextmanager
def _bar(source: JobSource, job_id: bytes) -> Iterator[Callable[[JobRecord, JobRecord | None], None]]:
    """Show a bar of the rounds with the latest figures; call the result with the job as it is stored now."""
    from rich.console import Console
    from rich.progress import TextColumn

    evaluated: RoundFigures | None = None
    seen = -1
    figures = TextColumn("{task.fields[figures]}", markup=False)  # a helper's words are in them
    with progress_on(Console(stderr=True), figures, is_shown=True, transient=False) as progress:
        bar = progress.add_task("queued", total=None, figures="")

        def show(job: JobRecord, behind: JobRecord | None) -> None:
            nonlocal evaluated, seen
            news = source.history(job_id, after_rounds=seen)
            evaluated = last_evaluated(news) or evaluated
            # No news may be a round whose figures are not stored yet: the next look asks from the same place
            seen = max(job.rounds_done, seen) if news else seen
            progress.update(
                bar,
                description=job.state.value,
                completed=job.updates if job.rounds is None else job.rounds_done,
                total=job.rounds,
                figures=_live(job, behind, evaluated),
            )

        yield show


def last_evaluated(history: tuple[RoundFigures, ...]) -> RoundFigures | None:
    """Return the latest figures with a loss."""
    return next((figures for figures in reversed(history) if figures.loss is not None), None)


def _live(job: JobRecord, behind: JobRecord | None, evaluated: RoundFigures | None) -> str:
    """Describe the figures shown next to the bar, without the epsilons, whose computation takes long."""
    parts = [describe_evaluation(evaluated)] if evaluated else []
    if job.state is JobState.WAITING and job.stop:
        parts.append(job.stop.cause)
    if job.state is JobState.QUEUED:
        parts.append("waiting for `adserver serve`" if behind is None else f"waiting behind {_name(behind)}")
    return " · ".join(parts)


def describe_best(figures: RoundFigures) -> str:
    """Describe how a job's best weights did, and by what they are chosen."""
    name = "loss" if figures.calibrated_loss is None else "calibrated loss"
    return f"{describe_evaluation(figures)}, the latest within {100 * AS_GOOD:g} % of the least {name}"


def describe_evaluation(figures: RoundFigures) -> str:
    """Describe how the model did on the evaluation set after a round."""
    known = {
        "calibrated loss": figures.calibrated_loss,
        "accuracy": figures.accuracy,
        "AUC": figures.auc,
    }
    shown = (f", {name} {value:.4f}" for name, value in known.items() if value is not None)
    is_known = figures.auc_low is not None and figures.auc_high is not None
    interval = f" (99 %: {figures.auc_low:.3f} to {figures.auc_high:.3f})" if is_known else ""
    return f"loss {figures.loss:.4f}{''.join(shown)}{interval}"
