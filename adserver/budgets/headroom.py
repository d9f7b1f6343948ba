"""The room that a dataset's budgets leave for a job.

Find how much of one fits, of noise, batch size and rounds, when the other two are given.

A job fits if it costs no more alone than was asked for it, and if its dataset stays within both budgets with
all that is held on it. The helpers decide by the same sum over their own ledgers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum, unique
from typing import Final

from adserver.budgets.asked_epsilon import check_epsilon, check_granted, epsilon_left
from adserver.budgets.planned_tests import PlannedTests
from adserver.budgets.weights_error import weights_error
from adserver.records.defaults import MAX_ROUNDS
from adserver.records.optimizer_kinds import ScheduleKind
from adserver.records.sampling_options import SamplingOptions
from adserver.records.training_plan import Schedule
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Charge, Epsilons, smallest_fitting, spent, spent_in_turn
from maskedlark.privacy.clip import Clip
from maskedlark.privacy.correlated import MAX_EPOCHS, trajectory_error
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.sample_size import least_batch
from maskedlark.releases.release import multiplier_for_each_helper
from maskedlark.releases.samples import Samples
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.task import Task
from maskedlark.terminal.plural import plural

MOST_JOBS: Final = 1_000


@unique
class Limit(StrEnum):
    """What a job is closest to."""

    ASKED = "asked"
    """The epsilon that was asked for."""
    AD_SERVER = "budget"
    """The dataset's budget against the ad server alone."""
    COLLUDING = "collusion"
    """The dataset's budget against the ad server with one helper, where sampling does not count."""


@frozen
class Cost:
    """What a job costs.

    Attributes:
        alone: One job, if nothing else is held on its dataset.
        planned: All jobs and evaluations that are planned, if nothing else is held.
        together: Those with all that is held.
    """

    alone: Epsilons
    planned: Epsilons
    together: Epsilons


@frozen
class JobLimits(SamplingOptions):
    """What limits a job: its task, its dataset, what is held on that already, and what the job may cost.

    Its samples and noise are those of `SamplingOptions`. Several equal jobs may be planned, and evaluations
    with them: a job fits if all of them do, one after another.

    Attributes:
        task: With noise.
        dataset_size: Reports.
        already: The charges that are spent or reserved.
        epsilon: What all that is planned may cost alone against the ad server; None for whatever the budget
            leaves.
        momentum: Of its optimizer; correlated noise is fitted to it.
        schedule: Its learning rate's.
        clip_norm: Its clip bound, at most the task's; None for the task's.
        jobs: How many equal jobs are planned.
        tests: Evaluations that are planned too, or None.
    """

    task: Task
    dataset_size: int
    already: Sequence[Charge] = ()
    epsilon: float | None = None
    momentum: float = 0.9
    schedule: Schedule = Schedule(kind=ScheduleKind.COSINE)
    clip_norm: float | None = None
    jobs: int = 1
    tests: PlannedTests | None = None

    def __post_init__(self) -> None:
        if self.task.mechanism is Mechanism.NONE:
            raise JobRefused(
                JobReason.NOISE_OUT_OF_RANGE,
                "the task adds no noise, so it has no budget to plan with: use another task",
            )
        if self.epsilon is not None:
            check_epsilon(self.epsilon, self.task)
        if not 0 <= self.momentum < 1:
            raise InvalidTask(f"momentum must be at least 0 and less than 1, not {self.momentum}")
        if self.clip_norm is not None and not 0 < self.clip_norm <= self.task.clip_norm:
            raise InvalidTask(
                f"clip_norm must be positive and at most the task's, {self.task.clip_norm:g}, not "
                f"{self.clip_norm:g}"
            )
        if not 1 <= self.jobs <= MOST_JOBS:
            raise InvalidTask(f"jobs must be 1 to {MOST_JOBS}, not {self.jobs}")

    @property
    def clip(self) -> Clip:
        """The bound on a gradient."""
        clip = self.task.clip
        return clip if self.clip_norm is None else replace(clip, bound=self.clip_norm)

    @property
    def charges_of_tests(self) -> tuple[Charge, ...]:
        """The charges of the planned evaluations."""
        return () if self.tests is None else self.tests.charges(self.task)

    def samples(self, batch_size: float, rounds: int) -> Samples:
        """Return how a job of such batches samples and correlates its noise, as it would be submitted.

        Raises:
            JobRefused(MALFORMED): no round of such a batch could be of use.
        """
        check_batch(self.task, batch_size, self.dataset_size)
        found = Samples.of(
            self.task,
            batch_size=batch_size,
            dataset_size=self.dataset_size,
            is_allocated=self.is_allocated,
            is_public=self.is_sample_public,
        )
        if self.noise is StepNoise.INDEPENDENT:
            return found
        return found.carrying(self.task, rounds=rounds, momentum=self.momentum, carried=self.carried)

    def error_ratio(self, *, rounds: int, batch_size: float) -> float:
        """Return the error of the weights over all rounds, relative to independent noise of equal scale."""
        carried = self.samples(batch_size, rounds).carried
        if carried is None:
            return 1.0
        left, whole = (self._error_over_steps(parts, rounds) for parts in (carried, 0))
        return left / whole

    def _error_over_steps(self, carried: int, rounds: int) -> float:
        if self.schedule.kind is ScheduleKind.CONSTANT:
            return trajectory_error(carried, rounds=rounds, momentum=self.momentum)
        found = weights_error(carried, rounds=rounds, momentum=self.momentum, schedule=self.schedule)
        return found.over_steps

    def noise_for(self, *, rounds: int, batch_size: float) -> float:
        """Find the least noise multiplier, to 1 %, with which a job fits.

        Raises:
            JobRefused(BUDGET_EXHAUSTED): no noise is enough, so much is held already.
        """
        # What was asked for counts this job alone; the budget counts it with all that is held: the larger
        # noise holds both
        asked = min(self.task.epsilon, self.epsilon or math.inf)
        needed = self._needed(rounds, batch_size, epsilon=asked, already=())
        if self.already:
            needed = max(
                needed, self._needed(rounds, batch_size, epsilon=self.task.epsilon, already=self.already)
            )
        return needed

    def noise_asked_for(self, *, rounds: int, batch_size: float) -> float:
        """Find the least noise multiplier, to 1 %, with which a job fits and costs the epsilon named.

        Raises:
            JobRefused(BUDGET_EXHAUSTED): the budgets leave it less than that epsilon.
        """
        noise = self.noise_for(rounds=rounds, batch_size=batch_size)
        if self.epsilon is not None:
            self._check_granted(self.epsilon, rounds, batch_size, noise)
        return noise

    def why_not_granted(self, *, rounds: int, batch_size: float, noise_multiplier: float) -> str:
        """Return why a job is refused its epsilon, by the least noise that fits; empty if it is not."""
        if self.epsilon is None or self.jobs > 1 or self.tests is not None:
            return ""  # what several share is no one's own epsilon
        try:
            self._check_granted(self.epsilon, rounds, batch_size, noise_multiplier)
        except JobRefused as refusal:
            return str(refusal)
        return ""

    def _check_granted(self, epsilon: float, rounds: int, batch_size: float, noise: float) -> None:
        left = self.epsilon_left(rounds=rounds, batch_size=batch_size)
        cost = self.cost(rounds=rounds, batch_size=batch_size, noise_multiplier=noise)
        check_granted(epsilon, self.task, left=left, together=cost.together)

    def epsilon_left(self, *, rounds: int, batch_size: float) -> float:
        """Return the most epsilon that a job of such rounds and batches may ask for; 0 if no noise fits.

        Raises:
            JobRefused(MALFORMED): no round of such a batch could be of use.
        """
        samples = self.samples(batch_size, rounds)
        is_whole = samples.rate == 1 and samples.carried is None
        if is_whole and self.task.mechanism is Mechanism.GAUSSIAN:
            # Rounds cost what one of less noise does: the number is that of a list of budgets, to the digit
            return epsilon_left(self.task, self.already)
        return epsilon_left(self.task, self.already, self._charges(rounds, batch_size))

    def least_noise_in_collusion(self, *, rounds: int, batch_size: float) -> float:
        """Find the least noise multiplier within the collusion budget alone, in closed form if Gaussian.

        No job that fits has less.

        Raises:
            JobRefused(BUDGET_EXHAUSTED): no noise is enough.
        """
        return self._needed(rounds, batch_size, epsilon=math.inf, already=self.already)

    def _needed(self, rounds: int, batch_size: float, *, epsilon: float, already: Sequence[Charge]) -> float:
        """Find the least noise multiplier within an epsilon and the budget against collusion."""
        task = self.task
        each = smallest_fitting(
            self._charges(rounds, batch_size),
            epsilon,
            task.delta,
            already=(*already, *self.charges_of_tests),
            collusion_epsilon=task.collusion_epsilon,
            times=self.jobs,
        )
        return multiplier_for_each_helper(task, each)

    def _charges(self, rounds: int, batch_size: float) -> Callable[[float], tuple[Charge, ...]]:
        """Return what a job is charged as, by the noise of each helper.

        Collusion is charged by that, where a task may name both helpers' noise together.
        """
        samples, task = self.samples(batch_size, rounds), self.task

        def charges(each: float) -> tuple[Charge, ...]:
            return (samples.charge(task, multiplier_for_each_helper(task, each), rounds=rounds),)

        return charges

    def rounds_for(self, *, noise_multiplier: float, batch_size: float) -> int:
        """Find the most rounds that fit, to 1 % and at most `MAX_ROUNDS`.

        Raises:
            JobRefused(BUDGET_EXHAUSTED): not even one does.
        """

        def fits(rounds: int) -> bool:
            return self._excess(rounds, batch_size, noise_multiplier) is None

        self.check(rounds=1, batch_size=batch_size, noise_multiplier=noise_multiplier)
        # Correlated noise is accounted for so many epochs, and refused beyond
        steps = self.samples(batch_size, 1).epoch_steps or 1
        is_bounded = self.noise is StepNoise.CORRELATED
        return _largest(fits, min(MAX_ROUNDS, MAX_EPOCHS * steps) if is_bounded else MAX_ROUNDS)

    def batch_size_for(self, *, noise_multiplier: float, rounds: int) -> float:
        """Find the largest batch that fits, a whole number, to 1 %.

        Of equal noise, the largest batch has the least of it in its mean. Batches near min_batch_size cost
        more than somewhat larger ones, whose samples stay secret: the search begins with those where the
        smallest does not fit.

        Raises:
            JobRefused(BUDGET_EXHAUSTED): the smallest batch does not fit, and the smallest batch with secret
                samples does not either.
        """
        smallest = self.task.min_batch_size
        if self._excess(rounds, smallest, noise_multiplier) is not None:
            reports = self.task.reports_per_user
            secret = least_batch(dataset_size=self.dataset_size, k=smallest, reports=reports)
            smallest = min(secret + 1, self.dataset_size)  # one more: its rate is rounded

        def fits(extra: int) -> bool:
            return self._excess(rounds, smallest + extra - 1, noise_multiplier) is None

        self.check(rounds=rounds, batch_size=smallest, noise_multiplier=noise_multiplier)
        most = self.dataset_size - smallest + 1
        return float(smallest - 1 + (most if fits(most) else _largest(fits, most)))

    def check(self, *, rounds: int, batch_size: float, noise_multiplier: float) -> None:
        """Refuse a job that does not fit.

        Raises:
            JobRefused(BUDGET_EXHAUSTED): naming the limit, what the job would cost, and what to change.
        """
        excess = self._excess(rounds, batch_size, noise_multiplier)
        if excess is not None:
            raise JobRefused(
                JobReason.BUDGET_EXHAUSTED,
                f"{self._jobs_named}{rounds} rounds of {batch_size:g} reports at noise "
                f"{noise_multiplier:.4g} exceed "
                f"{excess}: use more noise, fewer rounds, smaller batches (no help with one "
                f"helper) or another {self.task.unit.budget_owner}",
            )

    def cost(self, *, rounds: int, batch_size: float, noise_multiplier: float) -> "Cost":
        """Return what a job would cost, whether it fits or not.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE, MALFORMED)
        """
        charge = self.charge(rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier)
        alone = spent([charge], self.task.delta)
        planned = [[one] for one in (*self.charges_of_tests, *(charge,) * self.jobs)]
        return Cost(
            alone=alone,
            planned=alone if len(planned) == 1 else spent_in_turn(planned, self.task.delta),
            together=spent_in_turn([*([one] for one in self.already), *planned], self.task.delta),
        )

    @property
    def _jobs_named(self) -> str:
        of_tests = "" if self.tests is None else f"{plural(self.tests.count, 'evaluation')} and "
        return of_tests + (f"{self.jobs} jobs of " if self.jobs > 1 else "")

    def charge(self, *, rounds: int, batch_size: float, noise_multiplier: float) -> Charge:
        """Return what a job is charged as; see `JobSpec.charge`.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE): the noise is not positive and finite.
        """
        try:
            samples = self.samples(batch_size, rounds)
            return samples.charge(self.task, noise_multiplier, rounds=rounds)
        # The accountant refuses noise outside its range as a plain number that is wrong
        except ValueError as error:
            raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, str(error)) from None

    def _excess(self, rounds: int, batch_size: float, noise_multiplier: float) -> str | None:
        """Describe the limit that a job exceeds, with numbers; None if it fits."""
        task = self.task
        cost = self.cost(rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier)
        if self.epsilon is not None and cost.planned.ad_server > self.epsilon:
            return f"the requested epsilon, at {cost.planned.ad_server:.4g} of {self.epsilon:.4g}"
        if cost.together.ad_server > task.epsilon:
            return f"the budget against the ad server, at {cost.together.ad_server:.4g} of {task.epsilon:.4g}"
        if cost.together.colluding > task.collusion_epsilon:
            return (
                f"the budget against the ad server with one helper, at {cost.together.colluding:.4g} of"
                f" {task.collusion_epsilon:.4g}"
            )
        return None

    def nearest(self, cost: "Cost") -> Limit:
        """Return the limit that a job comes closest to, in proportion."""
        used = {
            Limit.AD_SERVER: cost.together.ad_server / self.task.epsilon,
            Limit.COLLUDING: cost.together.colluding / self.task.collusion_epsilon,
        }
        if self.epsilon is not None:
            used[Limit.ASKED] = cost.planned.ad_server / self.epsilon
        return max(used, key=lambda limit: used[limit])


def default_batch_size(dataset_size: int) -> float:
    """Return the expected reports of a round of a job that names none: all of them.

    At equal rounds and epsilon no smaller batch has less noise over signal, or costs less against the ad
    server with one helper, where samples hide nothing. It may cost less of the helpers' time.
    """
    return float(dataset_size)


def check_batch(task: Task, batch_size: float, dataset_size: int) -> None:
    """Refuse a batch that no round could use.

    Raises:
        JobRefused(MALFORMED)
    """
    if dataset_size < task.min_batch_size:
        raise JobRefused(
            JobReason.MALFORMED,
            f"a dataset of {plural(dataset_size, 'report')} is too small for a round: it needs at least the "
            f"task's min_batch_size, {task.min_batch_size}, since smaller rounds would give only noise; "
            "collect more reports",
        )
    if not task.min_batch_size <= batch_size <= dataset_size:  # also false for NaN
        raise JobRefused(
            JobReason.MALFORMED,
            f"the batch size is {batch_size:g}: expected at least the task's min_batch_size, "
            f"{task.min_batch_size}, and at most the dataset's {dataset_size} reports; smaller "
            "batches would give only noise",
        )


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Find the largest argument, to 1 % from below and at most `most`, at which a predicate holds."""
    # Doubling first: a fit takes the accountant, and most answers are far below `most`
    low = 1
    while low < most and fits(min(2 * low, most)):
        low = min(2 * low, most)
    high = min(2 * low, most)
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
