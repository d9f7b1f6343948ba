"""What a federated job would cost and how noisy its rounds would be, before anything is stored.

    found = forecast(submission, task=task, already=held, now_s=...)     # `adserver job plan --strategy`
    found.together.ad_server, found.noise_to_signal

Without `rounds` in the settings, it finds the most rounds that a given noise allows.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from adserver.records.federated_plan import FederatedPlan
from adserver.records.submissions import FederatedSubmission
from adserver.training.cost import job_epsilons_without_coins
from adserver.training.federated.submission import plan_federated
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Charge, Epsilons, spent, spent_in_turn
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.instructions import read_instructions
from maskedlark.releases.release import multiplier_of_each_helper
from maskedlark.reports.task import Task

MOST_ROUNDS: Final = 10_000
"""That are looked for; a job may have more."""
_ANY_ID: Final = bytes(16)


@frozen
class FederatedForecast:
    """A federated job that is planned and not yet submitted.

    Attributes:
        plan: What would be stored.
        alone: What all its rounds cost a person.
        together: The same with what is spent or reserved on the task.
        leaked: What all its rounds would cost if devices' coins were known.
        noise_norm: The expected L2 norm of both helpers' noise on the last round's mean update.
    """

    plan: FederatedPlan
    alone: Epsilons
    together: Epsilons
    leaked: Epsilons
    noise_norm: float

    @property
    def noise_to_signal(self) -> float:
        """The noise over the longest mean update, the clip bound: the least that the ratio can be."""
        return self.noise_norm / read_instructions(self.plan.job).strategy.bound.clip_norm

    @property
    def submit_options(self) -> str:
        """The options of `adserver job submit` that give this job's rounds and noise."""
        multiplier = read_instructions(self.plan.job).strategy.noise_multiplier
        noise = f" --noise-multiplier {multiplier!r}" if multiplier else ""
        return f"--rounds {self.plan.job.rounds}{noise}"


def forecast(
    submission: FederatedSubmission, *, task: Task, already: Sequence[Charge], now_s: float
) -> FederatedForecast:
    """Plan a job and cost it. Spends and stores nothing.

    Args:
        submission: What is asked for. Its settings need no rounds if they have the noise.
        task: Its task.
        already: What is spent or reserved on the task.
        now_s: Unix seconds.

    Raises:
        InvalidTask, InvalidModel, JobRefused: as `plan_federated`.
    """
    asked, takes_less = submission, False
    if task.mechanism is not Mechanism.NONE:
        if submission.epsilon is None and "noise_multiplier" not in submission.settings:
            asked, takes_less = replace(submission, epsilon=task.epsilon), True
        elif "rounds" not in submission.settings:
            asked = _with_most_rounds(submission, task, already, now_s)
    plan = plan_federated(
        asked, task=task, job_id=_ANY_ID, now_s=now_s, already=already, takes_less=takes_less
    )
    charges = plan.job.charges(task, plan.job.rounds)
    return FederatedForecast(
        plan=plan,
        alone=spent(charges, task.delta),
        together=spent_in_turn([*([one] for one in already), charges], task.delta),
        leaked=job_epsilons_without_coins(plan, plan.job.rounds),
        noise_norm=_noise_norm(plan),
    )


def _with_most_rounds(
    submission: FederatedSubmission, task: Task, already: Sequence[Charge], now_s: float
) -> FederatedSubmission:
    """Return the submission with the most rounds that the budgets allow next to existing charges."""

    def with_rounds(rounds: int) -> FederatedSubmission:
        return replace(submission, settings={**submission.settings, "rounds": rounds})

    def fits(rounds: int) -> bool:
        try:
            plan_federated(with_rounds(rounds), task=task, job_id=_ANY_ID, now_s=now_s, already=already)
        except JobRefused as refusal:
            if refusal.reason is not JobReason.BUDGET_EXHAUSTED:
                raise
            return False
        return True

    enough, too_many = 1, MOST_ROUNDS + 1
    if not fits(enough):
        return with_rounds(enough)  # whose refusal says by how much
    while too_many - enough > 1:
        # By the geometric mean while the range is wide, since most answers are far below the limit.
        middle = math.isqrt(enough * too_many) if too_many > 2 * enough else (enough + too_many) // 2
        enough, too_many = (middle, too_many) if fits(middle) else (enough, middle)
    return with_rounds(enough)


def _noise_norm(plan: FederatedPlan) -> float:
    """Return the expected norm of both helpers' noise on the mean of the last round."""
    strategy, model = read_instructions(plan.job)
    phase = plan.job.phases[-1]
    if plan.task.mechanism is Mechanism.NONE:
        return 0.0
    each = multiplier_of_each_helper(plan.task, phase.noise_multiplier)
    bound = math.ldexp(strategy.bound.sensitivity, -strategy.bound.frac_bits)
    weight = strategy.devices if strategy.total_weight is None else strategy.total_weight
    least = weight if strategy.least_weight is None else strategy.least_weight
    sigma = math.sqrt(2.0) * each * bound / (phase.sampling_rate * least)
    return sigma * math.sqrt(model.size)
