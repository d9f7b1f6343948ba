"""An epsilon that a person names is what a release costs, or it is refused with what is left.

Less would train or count with more noise than was asked for, and nobody would see why.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.privacy.accounting import Charge, Epsilons, smallest_fitting, spent
from maskedlark.releases.release import charge_of, multiplier_for_each_helper
from maskedlark.reports.task import Task

# Noise is found to 1 %, which is up to some hundredths of an epsilon.
_ENOUGH: Final = 0.95
_DIGITS: Final = 3


def check_epsilon(epsilon: float, task: Task) -> None:
    """Refuse an epsilon that no release of the task could cost.

    Raises:
        InvalidTask
    """
    if not 0 < epsilon < math.inf:
        raise InvalidTask(f"epsilon must be positive and finite, not {epsilon}")
    if epsilon > task.epsilon:
        raise InvalidTask(
            f"epsilon is {epsilon:g}, but the whole budget of task {task.name!r} is {task.epsilon:g}: ask "
            "for at most that"
        )


def check_granted(epsilon: float, task: Task, *, alone: Epsilons, together: Epsilons) -> None:
    """Refuse a job that fits only with more noise than its epsilon takes.

    Args:
        epsilon: What it was asked to cost against the ad server.
        task: Its task.
        alone: What it costs with the least noise that fits.
        together: The same with all that is spent or reserved.

    Raises:
        JobRefused(BUDGET_EXHAUSTED): with the epsilon that is left for it.
    """
    if alone.ad_server >= _ENOUGH * epsilon:
        return
    left = round_down(alone.ad_server)
    if together.colluding / task.collusion_epsilon > together.ad_server / task.epsilon:
        why = (
            f"the budget against the ad server with one helper, {task.collusion_epsilon:g}, leaves this job "
            f"{left:g}"
        )
        others = f"larger batches or another {task.unit.budget_owner}"
    else:
        # Not what a list of budgets calls left: together, releases cost less than the sum of what each costs
        why = f"next to what is spent and reserved, {task.epsilon:g} in all leave this job {left:g}"
        others = f"another {task.unit.budget_owner}"
    remedy = f"ask for epsilon {left:g} (--epsilon {left:g}, epsilon={left:g}), or use " if left else "use "
    raise JobRefused(
        JobReason.BUDGET_EXHAUSTED, f"epsilon {epsilon:g} was asked for, but {why}: {remedy}{others}"
    )


def epsilon_left(
    task: Task, already: Sequence[Charge], charge: Callable[[float], Charge] | None = None
) -> float:
    """Return the most epsilon that one more release may ask for, as `check_granted` names it.

    It is less than what a budget leaves where releases of other noise add up to less than the sum of their
    epsilons, or where the budget against the ad server with one helper is the nearer one.

    Args:
        task: With noise.
        already: The charges that are spent or reserved.
        charge: What the release is charged as at a noise multiplier; None: a query, or a job with Gaussian
            noise whose rounds take all reports.

    Guarantees: rounded down to three digits; 0 where no noise is enough.
    """

    def charges(each: float) -> tuple[Charge, ...]:
        named = multiplier_for_each_helper(task, each)
        return (charge_of(task, named) if charge is None else charge(named),)

    try:
        noise = smallest_fitting(
            charges, task.epsilon, task.delta, already=already, collusion_epsilon=task.collusion_epsilon
        )
    except JobRefused:
        return 0.0
    return round_down(spent(charges(noise), task.delta).ad_server)


def round_down(number: float) -> float:
    """Return a number to three digits, never more than it is."""
    if not number > 0:
        return 0.0
    scale = 10.0 ** (_DIGITS - 1 - math.floor(math.log10(number)))
    return math.floor(number * scale) / scale
