"""What a dataset's jobs and queries cost, and whether one more fits.

The helper decides this itself, whatever the ad server planned.
"""

import math
from collections import Counter
from collections.abc import Sequence

from helper.ledger.records import ReleaseKey, Reservation, key_of
from maskedlark.errors import JobReason, JobRefused
from maskedlark.privacy.accounting import Charge, Epsilons, spent, spent_against_ad_server, spent_in_turn
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import AnySpec
from maskedlark.releases.release import fitting
from maskedlark.releases.update import UpdateJob, UpdateSpec, rounds_by_job
from maskedlark.reports.task import Task


def cost(task: Task, reservations: Sequence[Reservation]) -> Epsilons:
    """Return the cost of a dataset's jobs and queries, open jobs with all their planned rounds.

    Infinite without noise.
    """
    return spent_in_turn(_jobs(task, reservations), task.delta)


class Spending:
    """What a budget's jobs and queries cost while they are charged, one answer after the other.

    What each is charged as is worked out when it is charged, and not for each number that is asked for.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._rounds: Counter[ReleaseKey | UpdateJob] = Counter()
        self._charges: dict[ReleaseKey | UpdateJob, Sequence[Charge]] = {}

    def add(self, spec: AnySpec, answers: int) -> None:
        """Charge so many more answers of a job, or a query."""
        if isinstance(spec, UpdateSpec):
            # A federated job is charged up to its highest round, whichever rounds were answered.
            job = spec.round.job
            self._rounds[job] = max(self._rounds[job], spec.round.round_index + 1)
            self._charges[job] = job.charges(self._task, self._rounds[job])
            return
        name = key_of(spec)
        self._rounds[name] += answers
        self._charges[name] = spec.charges(self._task, self._rounds[name])

    def cost(self) -> Epsilons:
        """Return what `cost` gives of all that was charged."""
        return spent_in_turn(list(self._charges.values()), self._task.delta)


def left(task: Task, reservations: Sequence[Reservation]) -> float:
    """Return what a dataset's jobs and queries leave of the epsilon against the ad server.

    Never negative, and 0 without noise.
    """
    return max(0.0, task.epsilon - spent_against_ad_server(_jobs(task, reservations), task.delta))


def check_fits(task: Task, before: Sequence[Reservation], new: Reservation) -> None:
    """Refuse a job or query that the dataset's budgets do not hold.

    A task without noise, which is for debugging, has no budget to keep.

    Raises:
        JobRefused(BUDGET_EXHAUSTED): saying what is left, what it would come to, and for a query what it
        could still cost.
    """
    if task.mechanism is Mechanism.NONE:
        return
    after = cost(task, [*before, new])
    if after.ad_server <= task.epsilon and after.colluding <= task.collusion_epsilon:
        return
    # For the message alone: what fits is charged without asking the accountant again.
    already = cost(task, before)
    raise JobRefused(
        JobReason.BUDGET_EXHAUSTED,
        f"{_what(new)} not fit this {task.unit.budget_owner}: "
        f"{_sentence('epsilon', already.ad_server, after.ad_server, task.epsilon)}; "
        f"{_sentence('collusion_epsilon', already.colluding, after.colluding, task.collusion_epsilon)}. "
        f"{_way_out(task, before, new)}",
    )


def _jobs(task: Task, reservations: Sequence[Reservation]) -> list[Sequence[Charge]]:
    """Return the charges of each job and query; a federated job's up to its highest round."""
    rounds = rounds_by_job(one.spec.round for one in reservations if isinstance(one.spec, UpdateSpec))
    return [
        *(one.spec.charges(task, one.rounds) for one in reservations if not isinstance(one.spec, UpdateSpec)),
        *(job.charges(task, highest) for job, highest in rounds.items()),
    ]


def _what(new: Reservation) -> str:
    return "the query does" if new.spec.is_query else f"{new.rounds} rounds do"


def _way_out(task: Task, before: Sequence[Reservation], new: Reservation) -> str:
    """Describe what would fit: for a query, the epsilon at which it is affordable."""
    spec = new.spec
    if isinstance(spec, JobSpec):
        return f"Use fewer rounds, more noise, or another {task.unit.budget_owner}"
    if isinstance(spec, UpdateSpec):
        return "The job stops here: submit one with more noise or a lower rate, or make another task"
    already = [charge for job in _jobs(task, before) for charge in job]
    try:
        fits = fitting(task, spec, epsilon=task.epsilon, already=already)
    except JobRefused:
        return f"No noise makes it fit: use another {task.unit.budget_owner}"
    alone = spent(fits.charges(task), task.delta).ad_server
    return (
        f"The same query fits at epsilon {alone:.4g} (noise_multiplier {fits.noise_multiplier:.4g}), "
        f"or use another {task.unit.budget_owner}"
    )


def _sentence(name: str, already: float, after: float, budget: float) -> str:
    left = max(0.0, budget - already) if math.isfinite(already) else 0.0
    return f"{name} would be {after:.4g} of {budget:.4g}, of which {left:.4g} is left"
