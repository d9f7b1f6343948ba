"""An epsilon that a person names is what a release costs, or it is refused with what is left.

Less would train or count with more noise than was asked for, and nobody would see why.
"""

import math
from typing import Final

from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.privacy.accounting import Epsilons
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


def round_down(number: float) -> float:
    """Return a number to three digits, never more than it is."""
    if not number > 0:
        return 0.0
    scale = 10.0 ** (_DIGITS - 1 - math.floor(math.log10(number)))
    return math.floor(number * scale) / scale
