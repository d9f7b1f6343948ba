"""How the ad server trains: the optimizer, the schedule of its learning rate, and when to evaluate.

Nothing that a helper sees. `adserver.training.trainer` applies it.

>>> Schedule(kind=ScheduleKind.STEP, step_rounds=10).factor(10, 100)
0.5
"""

import math
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from adserver.records.defaults import MOMENTUM
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.round_figures import noise_norm
from maskedlark.canonical import canonical
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.clip import Clip
from maskedlark.releases.job import JobSpec
from maskedlark.reports.task import Task

# How slowly Adam's mean of the gradients, by which it steps, forgets: see `adserver.training.optimizers`.
_ADAMS: Final = 0.9


@canonical
class Optimizer:
    """An optimizer's settings.

    Attributes:
        kind: Which.
        learning_rate: What the schedule's factor multiplies. In an adaptive job it multiplies the mean
            gradient over the round's bound.
        momentum: Of `momentum` only.
    """

    kind: OptimizerKind = OptimizerKind.SGD
    learning_rate: Annotated[float, Field(gt=0.0, le=1e6)]
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = MOMENTUM

    @property
    def inertia(self) -> float:
        """The share of a step's direction that the next one keeps; correlated noise is fitted to it."""
        match self.kind:
            case OptimizerKind.MOMENTUM:
                return self.momentum
            case OptimizerKind.ADAM:
                return _ADAMS
            case OptimizerKind.SGD | OptimizerKind.ADAGRAD:
                return 0.0


@canonical
class Schedule:
    """A learning-rate schedule; each number belongs to the kind that names it."""

    kind: ScheduleKind = ScheduleKind.CONSTANT
    final_factor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    step_rounds: Annotated[int, Field(ge=1)] = 100
    step_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    warmup_rounds: Annotated[int, Field(ge=1)] = 10

    def factor(self, round_index: int, rounds: int) -> float:
        """Return the factor of the learning rate in a round, in [0, 1].

        A function of its arguments alone, so that a resumed job agrees.

        Args:
            round_index: From 0.
            rounds: The job's total.
        """
        match self.kind:
            case ScheduleKind.CONSTANT:
                return 1.0
            case ScheduleKind.COSINE:
                fall = (1 + math.cos(math.pi * min(round_index / rounds, 1.0))) / 2
                return self.final_factor + (1 - self.final_factor) * fall
            case ScheduleKind.STEP:
                return float(self.step_factor ** (round_index // self.step_rounds))
            case ScheduleKind.LINEAR_WARMUP:
                # From the first step up, for one of rate 0 would spend a round's budget on nothing.
                return min((round_index + 1) / self.warmup_rounds, 1.0)


@canonical
class TrainingPlan:
    """A job as the ad server holds it, without its model file and evaluation set.

    Attributes:
        version: Of this record's layout.
        task: The job's task.
        job: What both helpers hold too.
        dataset_size: How many reports the dataset has, fake ones included.
        optimizer: The optimizer.
        schedule: The learning rate's.
        adaptive_clip: How the clip bound moves from round to round; None where it is the job's in all.
        eval_every: Evaluate after every so many rounds, and before the first and after the last one.
        is_until_budget: Whether the job's rounds are all that its budget held when it was submitted, so that
            it stops with its budget.
        num_parameters: How many numbers it trains; None of a plan from before this was kept.
    """

    version: Literal[1] = 1
    task: Task
    job: JobSpec
    dataset_size: Annotated[int, Field(ge=1)]
    optimizer: Optimizer
    schedule: Schedule
    eval_every: Annotated[int, Field(ge=1)]
    adaptive_clip: AdaptiveClip | None = None
    is_until_budget: bool = False
    num_parameters: Annotated[int | None, Field(ge=1, exclude_if=lambda number: number is None)] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.task.task_id != self.job.task_id:
            raise ValueError("the job belongs to another task")
        # Helpers go by the job, the ad server by this: either alone would scale noise or steps wrongly.
        if self.job.is_clip_adaptive != (self.adaptive_clip is not None):
            raise ValueError("adaptive_clip must be given exactly for jobs whose clip is adaptive")
        # A warm-up that outlasts the job never reaches the rate that was asked for.
        if self.schedule.kind is ScheduleKind.LINEAR_WARMUP and self.schedule.warmup_rounds > self.job.rounds:
            raise ValueError("warmup_rounds must be at most the job's rounds")
        return self

    @property
    def denominator(self) -> float:
        """The divisor of a round's sum.

        The expected batch size, the same in every round whatever the sample's size was.

        This is DP-FedAvg's f_f: a fixed denominator keeps the step's sensitivity at clip_norm / denominator,
        and tells nothing of the sample. Fake reports count in it, and add nothing to the sum.
        """
        return self.job.sampling_rate * self.dataset_size

    def noise_norm(self, num_parameters: int, clip: Clip | None = None) -> float:
        """Return the root mean square L2 norm of both helpers' noise in a mean gradient, in its units.

        An adaptive job has it of each round's `clip`.
        """
        scale = self.job.round_units(self.task, clip)
        return noise_norm(self.task, scale, num_parameters=num_parameters, denominator=self.denominator)

    def is_evaluated(self, rounds_done: int) -> bool:
        """Return whether the model is evaluated after so many rounds."""
        return rounds_done % self.eval_every == 0 or rounds_done == self.job.rounds
