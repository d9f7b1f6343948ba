"""What a dataset's jobs cost, and whether one more fits. The helper decides this itself, whatever the ad server planned."""

import math
from collections.abc import Sequence

from helper.ledger import Reservation
from maskedlark.accounting import Epsilons, spent
from maskedlark.errors import JobReason, JobRefused
from maskedlark.job import charge
from maskedlark.noise import Mechanism
from maskedlark.task import Task


def cost(task: Task, reservations: Sequence[Reservation]) -> Epsilons:
    """The cost of a dataset's jobs at the task's delta, open ones with all their planned rounds; infinite without noise."""
    charges = [charge(task, reservation.spec, reservation.rounds) for reservation in reservations if reservation.rounds > 0]
    return spent(charges, task.delta)


def check_fits(task: Task, before: Sequence[Reservation], new: Reservation) -> None:
    """Refuse a job that the dataset's budgets do not hold. A task without noise, which is for debugging, has no budget to keep.

    Raises:
        JobRefused(BUDGET_EXHAUSTED): saying what is spent, and what the job would bring it to.
    """
    if task.mechanism is Mechanism.NONE:
        return
    after = cost(task, [*before, new])
    if after.ad_server <= task.epsilon and after.colluding <= task.collusion_epsilon:
        return
    already = cost(task, before)
    raise JobRefused(
        JobReason.BUDGET_EXHAUSTED,
        f"{new.rounds} rounds do not fit this dataset: {_sentence('epsilon', already.ad_server, after.ad_server, task.epsilon)}; "
        f"{_sentence('collusion_epsilon', already.colluding, after.colluding, task.collusion_epsilon)}. "
        "Ask for fewer rounds, more noise, or use another dataset",
    )


def _sentence(name: str, already: float, after: float, budget: float) -> str:
    left = max(0.0, budget - already) if math.isfinite(already) else 0.0
    return f"{name} would be {after:.4g} of {budget:.4g}, of which {left:.4g} is left"
