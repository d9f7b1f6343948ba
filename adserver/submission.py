"""From what a person asks for to a job that the helpers will accept: everything that can be checked here is checked before it is stored."""

import math
from dataclasses import dataclass, field
from typing import Final

from adserver.datasets import Dataset, DatasetState
from adserver.eval_set import read_eval_set
from adserver.job_privacy import job_epsilons
from adserver.plan import Optimizer, Schedule, TrainingPlan
from maskedlark import canonical
from maskedlark.accounting import fitting_noise_multiplier
from maskedlark.adaptive_clip import AdaptiveClip
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.job import JobSpec, check_sums_fit, multiplier_for_each_helper, sampling_numerator
from maskedlark.model.graph import Model
from maskedlark.model.losses import check_loss, loss_named
from maskedlark.model.onnx_file import parse
from maskedlark.noise import Mechanism
from maskedlark.pair import SAMPLING_DENOMINATOR
from maskedlark.task import LabelKind, Task

JOB_ID_BYTES: Final = 16
_EVALUATIONS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a person asks for.

    Attributes:
        model: An ONNX file; training begins at its weights.
        loss: A name of `maskedlark.model.graph.Loss`.
        rounds: How many.
        batch_size: Expected reports in a round; None: the whole dataset in every round.
        epsilon: What all rounds together may cost against the ad server, at the task's delta; or
        noise_multiplier: each helper's noise over the sensitivity. One of the two in a task with noise, none in one without.
        optimizer: The optimizer.
        schedule: Its learning rate's.
        eval_set: An .npz file, or None.
        eval_every: Rounds between evaluations; None: about fifty evaluations in all.
        adaptive_clip: How the clip bound follows a quantile of the gradients' norms; None: it is the task's.
        is_clip_per_layer: Whether each layer's gradient is clipped by itself.
    """

    model: bytes = field(repr=False)
    loss: str
    rounds: int
    batch_size: float | None
    epsilon: float | None
    noise_multiplier: float | None
    optimizer: Optimizer
    schedule: Schedule
    eval_set: bytes | None = field(repr=False)
    eval_every: int | None
    adaptive_clip: AdaptiveClip | None = None
    is_clip_per_layer: bool = False


def plan_job(submission: Submission, *, task: Task, dataset: Dataset, job_id: bytes, now_s: float) -> TrainingPlan:
    """Check a submission against its task and dataset, and fix its noise.

    Raises:
        InvalidTask: a number is out of its range.
        InvalidModel: the model or its loss is not acceptable.
        JobRefused: UNKNOWN_DATASET, TASK_EXPIRED, OVERFLOW, NOISE_OUT_OF_RANGE, BUDGET_EXHAUSTED, or MALFORMED for settings that
            do not go together.
    """
    model = parse(submission.model, num_features=task.num_features)
    loss = loss_named(submission.loss)
    check_loss(model, loss, task.labels.size if task.labels.kind is LabelKind.CLASSES else None)
    if submission.eval_set is not None:
        read_eval_set(submission.eval_set).check_fits(model, loss)
    _check_usable(task, dataset, now_s)
    rate = _sampling_numerator(submission, task, dataset)
    settings = {
        "job_id": job_id,
        "task_id": task.task_id,
        "dataset_id": dataset.dataset_id,
        "model_digest": model.digest,
        "loss": loss,
        "rounds": submission.rounds,
        "sampling_numerator": rate,
        "noise_multiplier": 0.0,
        "is_clip_per_layer": submission.is_clip_per_layer,
        "is_clip_adaptive": submission.adaptive_clip is not None,
    }
    canonical.build(JobSpec, settings)  # refuses numbers out of range before the accountant sees them
    job = canonical.build(JobSpec, {**settings, "noise_multiplier": _noise_multiplier(submission, task, rate / SAMPLING_DENOMINATOR)})
    plan = canonical.build(
        TrainingPlan,
        {
            "task": task,
            "job": job,
            "dataset_size": dataset.size,
            "optimizer": submission.optimizer,
            "schedule": submission.schedule,
            "adaptive_clip": submission.adaptive_clip,
            "eval_every": submission.eval_every or max(1, submission.rounds // _EVALUATIONS),
        },
    )
    _check_helpers_would_accept(plan, model)
    return plan


def _check_usable(task: Task, dataset: Dataset, now_s: float) -> None:
    if now_s >= task.expires_at:
        raise JobRefused(JobReason.TASK_EXPIRED, f"the task {task.name!r} has expired: helpers take no more jobs of it")
    if dataset.task_id != task.task_id:
        raise JobRefused(JobReason.UNKNOWN_DATASET, "the dataset is of another task")
    if dataset.state is not DatasetState.COMMITTED:
        raise JobRefused(JobReason.UNKNOWN_DATASET, f"the dataset is {dataset.state}: finish it with `adserver dataset seal`")


def _sampling_numerator(submission: Submission, task: Task, dataset: Dataset) -> int:
    """The sampling rate of the asked-for batch size."""
    batch_size = float(dataset.size) if submission.batch_size is None else submission.batch_size
    if not task.min_batch_size <= batch_size <= dataset.size:  # also false for NaN
        raise JobRefused(
            JobReason.MALFORMED,
            f"a batch of {batch_size:g} reports is not within the task's min_batch_size {task.min_batch_size} and the dataset's "
            f"{dataset.size}: smaller ones would be noise only",
        )
    return sampling_numerator(expected_batch_size=batch_size, dataset_size=dataset.size)


def _noise_multiplier(submission: Submission, task: Task, sampling_rate: float) -> float:
    """The noise that was asked for, or the least that keeps within the epsilon that was."""
    epsilon, multiplier = submission.epsilon, submission.noise_multiplier
    if task.mechanism is Mechanism.NONE:
        if epsilon is not None or multiplier is not None:
            raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, "the task has no noise: give neither an epsilon nor a noise multiplier")
        return 0.0
    if multiplier is not None and epsilon is None:
        return multiplier
    if epsilon is None or multiplier is not None:
        raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, "a task with noise needs either an epsilon or a noise multiplier")
    if not 0 < epsilon < math.inf:
        raise InvalidTask(f"epsilon is positive and finite, not {epsilon}")
    needed = fitting_noise_multiplier(
        min(epsilon, task.epsilon),
        task.delta,
        mechanism=task.mechanism,
        sampling_rate=sampling_rate,
        rounds=submission.rounds,
        already=(),
        collusion_epsilon=task.collusion_epsilon,
    )
    return multiplier_for_each_helper(task, needed)


def _check_helpers_would_accept(plan: TrainingPlan, model: Model) -> None:
    """Refuse here what both helpers would refuse: sums that could wrap, and a cost above a dataset's whole budget."""
    task, job = plan.task, plan.job
    check_sums_fit(task, job, records=plan.dataset_size, num_parameters=model.num_parameters)
    if task.mechanism is Mechanism.NONE:
        return
    cost = job_epsilons(plan, job.rounds)
    if cost.ad_server > task.epsilon or cost.colluding > task.collusion_epsilon:
        raise JobRefused(
            JobReason.BUDGET_EXHAUSTED,
            f"the job costs epsilon {cost.ad_server:.4g} ({cost.colluding:.4g} with one helper), a dataset of this task has "
            f"{task.epsilon:.4g} ({task.collusion_epsilon:.4g}): use more noise, fewer rounds or smaller batches",
        )
