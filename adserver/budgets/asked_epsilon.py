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

_DIGITS: Final = 3
# Of binary fractions: 2.48 + 0.01 is less than 2.49
_ROUNDING: Final = 1 + 1e-12


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


def check_granted(epsilon: float, task: Task, *, left: float, together: Epsilons) -> None:
    """Refuse a job that fits only with more noise than its epsilon takes.

    Args:
        epsilon: What it was asked to cost against the ad server.
        task: Its task.
        left: The most that it may ask for, as of `epsilon_left`; one more in the last digit is rounding, and
            granted.
        together: What it costs with the least noise that fits, with all that is spent or reserved.

    Raises:
        JobRefused(BUDGET_EXHAUSTED): with the epsilon that is left for it.
    """
    if epsilon <= (left + _last_digit(left)) * _ROUNDING:
        return
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
    task: Task, already: Sequence[Charge], charges: Callable[[float], Sequence[Charge]] | None = None
) -> float:
    """Return the most epsilon that one more release may ask for: what `budgets` shows and a refusal names.

    It is less than what a budget leaves where releases of other noise add up to less than the sum of their
    epsilons, or where the budget against the ad server with one helper is the nearer one.

    Args:
        task: With noise.
        already: The charges that are spent or reserved.
        charges: What the release is charged as at a noise multiplier of each helper; None: a query, or a job
            with Gaussian noise whose rounds take all reports.

    Guarantees: the task's epsilon where nothing is held and no other budget is nearer; else rounded down to
        three digits; 0 where no noise is enough.
    """

    def of_one_release(each: float) -> tuple[Charge, ...]:
        return (charge_of(task, multiplier_for_each_helper(task, each)),)

    charges = charges or of_one_release

    def least_noise(epsilon: float) -> float:
        return smallest_fitting(
            charges, epsilon, task.delta, already=already, collusion_epsilon=task.collusion_epsilon
        )

    try:
        # The search for noise ends up to 1 % too high: of a budget that nobody used, all is left
        if not already and spent(charges(least_noise(math.inf)), task.delta).ad_server >= task.epsilon:
            return task.epsilon
        return round_down(spent(charges(least_noise(task.epsilon)), task.delta).ad_server)
    except JobRefused:
        return 0.0


def round_down(number: float) -> float:
    """Return a number to three digits, never more than it is."""
    if not number > 0:
        return 0.0
    scale = 1 / _last_digit(number)
    return math.floor(number * scale) / scale


def _last_digit(number: float) -> float:
    """Return what one more in the last of three digits adds; 0 to 0."""
    return 10.0 ** (math.floor(math.log10(number)) - _DIGITS + 1) if number > 0 else 0.0
