"""Private evaluations that are planned with jobs: each one's part of a budget, before anything is collected.

tests = plan_tests(task, count=50, share=0.1)
tests.epsilon      # what `adserver evaluate --epsilon` is to be given each time
"""

from adserver.budgets.asked_epsilon import round_down
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Charge, Epsilons, smallest_fitting, spent, spent_in_turn
from maskedlark.releases.release import (
    charge_of,
    deviation_of_both,
    multiplier_for_each_helper,
    multiplier_of_each_helper,
)
from maskedlark.reports.task import Task

MOST_TESTS = 10_000


@frozen
class PlannedTests:
    """Evaluations at one epsilon each.

    Attributes:
        count: How many.
        epsilon: What each costs alone against the ad server, and is asked with.
        noise_multiplier: Of each, as it is charged.
        count_noise: The standard deviation of both helpers' noise in each count of a histogram, in reports.
        cost: Of all together, without any job.
    """

    count: int
    epsilon: float
    noise_multiplier: float
    count_noise: float
    cost: Epsilons

    def charges(self, task: Task) -> tuple[Charge, ...]:
        """Return what they are charged as."""
        return (charge_of(task, self.noise_multiplier),) * self.count


def plan_tests(task: Task, *, count: int, share: float, epsilon: float | None = None) -> PlannedTests:
    """Plan evaluations that together take a share of both budgets.

    Each has the epsilon that the accountant leaves it, rounded down to three digits; that is more than an
    equal part of the whole.

    Args:
        task: With noise; its budgets count.
        count: How many, at least 1.
        share: Of both budgets, between 0 and 1.
        epsilon: Of which they take a share against the ad server; None: of the task's.

    Raises:
        InvalidTask: a number is out of its range.
        JobRefused(BUDGET_EXHAUSTED): no noise is enough.
    """
    if not 1 <= count <= MOST_TESTS:
        raise InvalidTask(f"tests must be 1 to {MOST_TESTS}, not {count}")
    if not 0 < share < 1:
        raise InvalidTask(f"test_share must be between 0 and 1, not {share}")
    budget = task.epsilon if epsilon is None else epsilon
    each = smallest_fitting(
        lambda noise: (charge_of(task, multiplier_for_each_helper(task, noise)),),
        share * budget,
        task.delta,
        already=(),
        collusion_epsilon=share * task.collusion_epsilon,
        times=count,
    )
    alone = spent([charge_of(task, multiplier_for_each_helper(task, each))], task.delta).ad_server
    if not alone > 0:
        raise InvalidTask(
            f"tests share epsilon {share * budget:.3g}, and each gets less than can be told from 0: plan "
            "fewer tests, or give them more"
        )
    # People type this epsilon with each evaluation: the noise is found anew for the number that they type
    asked = round_down(alone)
    multiplier = multiplier_for_each_helper(
        task,
        smallest_fitting(
            lambda noise: (charge_of(task, multiplier_for_each_helper(task, noise)),),
            asked,
            task.delta,
            already=(),
            collusion_epsilon=task.collusion_epsilon,
        ),
    )
    charge = charge_of(task, multiplier)
    return PlannedTests(
        count=count,
        epsilon=asked,
        noise_multiplier=multiplier,
        count_noise=deviation_of_both(task.mechanism) * multiplier_of_each_helper(task, multiplier),
        cost=spent_in_turn([[charge]] * count, task.delta),
    )
