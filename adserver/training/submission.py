"""From what a person asks for to a job that the helpers will accept.

Everything that can be checked here is checked before it is stored.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from adserver.budgets.headroom import JobLimits, check_batch, default_batch_size
from adserver.records.defaults import CLIP_QUANTILE
from adserver.records.submissions import Submission, check_label
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from adserver.store.datasets import Dataset
from adserver.training.default_optimizer import (
    check_rule,
    choose_rate,
    epsilon_of_report,
    find_rounds,
    steps_at,
)
from adserver.training.eval_set import read_eval_set
from adserver.training.model_file import parse_chosen
from maskedlark import canonical
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.exactness import why_general
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, TrainedLoss, check_tables, check_trained, trained_loss
from maskedlark.model.onnx_file import trained_names
from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.job import JobSpec
from maskedlark.releases.samples import Samples
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import LabelKind

_EVALUATIONS: Final = 50


def plan_job(
    submission: Submission,
    *,
    task: Task,
    dataset: Dataset,
    job_id: bytes,
    now_s: float,
    already: Sequence[Charge] = (),
    is_trained: bool = False,
) -> TrainingPlan:
    """Check a submission against its task and dataset, and fix its noise, or its rounds.

    Args:
        submission: What is asked for.
        task: Its task.
        dataset: Its dataset.
        job_id: 16 random bytes.
        now_s: Unix seconds.
        already: What is spent or reserved on the dataset.
        is_trained: Whether the weights know something of the labels, which the rule of rounds is not for.

    Raises:
        InvalidTask: a number is out of its range, or the rule has no learning rate for the job.
        InvalidModel: the model or its loss is not acceptable.
        JobRefused: UNKNOWN_DATASET, TASK_EXPIRED, OVERFLOW, NOISE_OUT_OF_RANGE, BUDGET_EXHAUSTED, or
            MALFORMED for settings that do not go together.
    """
    check_settings(submission, task)
    model, loss = _model_to_train(submission, task)
    _check_usable(task, dataset, now_s)
    if submission.rounds is None and not submission.is_until_budget:
        rounds = find_rounds(submission, task, model, rows=dataset.size, is_trained=is_trained)
        submission = replace(submission, rounds=rounds)
    batch_size = submission.batch_size
    if batch_size is None:
        batch_size = default_batch_size(dataset.size)
    check_batch(task, batch_size, dataset.size)
    settings = {
        "job_id": job_id,
        "model_digest": model.digest,
        "trained": trained_names(model),
        "loss": loss,
        **_job_settings(submission, task, dataset, batch_size),
    }
    canonical.build(JobSpec, settings)  # refuses numbers out of range before the accountant sees them
    fixed = _fix_open_settings(submission, task, dataset, batch_size, already)
    job = canonical.build(
        JobSpec,
        {
            **settings,
            "rounds": fixed.rounds,
            "noise_multiplier": fixed.noise_multiplier,
            # Fitted again, to the rounds that may have been found just now.
            "carried": _samples(submission, task, dataset, batch_size, fixed.rounds).carried,
        },
    )
    _check_path(model, loss, task, job)
    optimizer, schedule = _steps(submission, task, dataset, job, model)
    plan = canonical.build(
        TrainingPlan,
        {
            "task": task,
            "job": job,
            "dataset_size": dataset.size,
            "optimizer": optimizer,
            "schedule": schedule,
            "adaptive_clip": _adaptive_clip(submission, task),
            "eval_every": submission.eval_every or max(1, job.rounds // _EVALUATIONS),
            "is_until_budget": submission.is_until_budget,
            "num_parameters": model.num_parameters,
        },
    )
    # Last, since it needs the noise.
    job.check_sums_fit(task, records=dataset.size, num_parameters=model.num_parameters)
    return plan


def check_settings(submission: Submission, task: Task) -> None:
    """Check all of a submission that needs neither its model, which takes long to export, nor its dataset.

    Raises:
        InvalidTask, InvalidModel, JobRefused: as `plan_job`.
    """
    check_label(submission.name, submission.note)
    loss = trained_loss(submission.loss)
    if isinstance(loss, Heads):
        check_tables(loss, _count_classes(task))
    if submission.eval_set is not None:
        read_eval_set(submission.eval_set).check_encoder(task.encoder)
    check_rule(submission, task)
    _check_noise(submission, task)
    # The ranges of its numbers, whatever the model, the dataset and the samples will be
    settings = {
        "job_id": bytes(16),
        "task_id": task.task_id,
        "dataset_id": bytes(32),
        "model_digest": bytes(32),
        "loss": loss,
        "sampling_numerator": SAMPLING_DENOMINATOR,
        **_fixed_settings(submission, task),
    }
    canonical.build(JobSpec, settings).clip(task)


def _check_noise(submission: Submission, task: Task) -> None:
    """Check that a job names what decides its noise and its length, and nothing that contradicts it."""
    epsilon, multiplier, wrong = submission.epsilon, submission.noise_multiplier, ""
    if submission.is_until_budget and submission.rounds is not None:
        raise InvalidTask("expected at most one of rounds and until_budget (--rounds, --until-budget)")
    if task.mechanism is Mechanism.NONE:
        if submission.is_until_budget:
            wrong = "the task adds no noise, so no budget ends the job: leave out until_budget"
        elif epsilon is not None or multiplier is not None:
            wrong = "the task adds no noise: leave out epsilon and noise multiplier"
    elif submission.is_until_budget:
        if multiplier is None:
            wrong = "a job that runs until its budget is spent requires a noise multiplier: give one"
    elif (epsilon is None) == (multiplier is None):
        wrong = "the task adds noise: give exactly one of epsilon and noise multiplier"
    if wrong:
        raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, wrong)
    if submission.carried is not None and submission.noise is StepNoise.INDEPENDENT:
        raise JobRefused(JobReason.MALFORMED, "`carried` requires correlated noise: add `--noise correlated`")


def _count_classes(task: Task) -> int | None:
    return task.labels.size if task.labels.kind is LabelKind.CLASSES else None


def _steps(
    submission: Submission, task: Task, dataset: Dataset, job: JobSpec, model: Model
) -> tuple[Optimizer, Schedule]:
    """Return the optimizer and the schedule: those that are given, or the rule's at the job's epsilon."""
    if submission.optimizer is not None:
        return steps_at(submission, submission.optimizer.learning_rate)
    epsilon = submission.epsilon or spent([job.charge(task, job.rounds)], task.delta).ad_server
    rate = choose_rate(
        submission,
        rows=dataset.size,
        epsilon=epsilon_of_report(epsilon, task),
        parameters=model.num_parameters,
    )
    return steps_at(submission, rate)


def _check_path(model: Model, loss: TrainedLoss, task: Task, job: JobSpec) -> None:
    """Refuse what helpers would refuse of a model on the general path, with what forces it there.

    Raises:
        JobRefused(MALFORMED)
    """
    reasons = why_general(model, loss)
    is_hidden = job.is_sample_secret and task.mechanism is not Mechanism.NONE
    if reasons and (is_hidden or job.carried is not None):
        raise JobRefused(
            JobReason.MALFORMED,
            f"the model trains on the general path, where samples are no secret: {'; '.join(reasons)}; or "
            "submit it with --public-samples (public_samples=True) and independent noise, which takes more "
            "noise",
        )


def _model_to_train(submission: Submission, task: Task) -> tuple[Model, TrainedLoss]:
    """Return the model as it is trained and its loss, checked against the task's labels and the eval set."""
    model = parse_chosen(
        submission.model, num_features=task.num_features, train=submission.train, freeze=submission.freeze
    )
    loss = trained_loss(submission.loss)
    check_trained(model, loss, _count_classes(task))
    if submission.eval_set is not None:
        read_eval_set(submission.eval_set).check_fits(model, loss)
    return model, loss


def _job_settings(
    submission: Submission, task: Task, dataset: Dataset, batch_size: float
) -> dict[str, object]:
    """Return the requested settings of a job's dataset, samples, noise and clip."""
    samples = _samples(submission, task, dataset, batch_size, submission.rounds or 1)
    return {
        "task_id": task.task_id,
        "dataset_id": dataset.dataset_id,
        "sampling_numerator": samples.sampling_numerator,
        "epoch_steps": samples.epoch_steps,
        "is_sample_public": samples.is_public,
        "carried": samples.carried,
        **_fixed_settings(submission, task),
    }


def _fixed_settings(submission: Submission, task: Task) -> dict[str, object]:
    """Return the requested settings of a job that depend on nothing else."""
    return {
        "rounds": 1 if submission.rounds is None else submission.rounds,
        "noise_multiplier": submission.noise_multiplier or 0.0,
        "is_clip_per_layer": submission.is_clip_per_layer,
        "is_clip_adaptive": _adaptive_clip(submission, task) is not None,
        "clip_norm": submission.clip_norm,
    }


def _adaptive_clip(submission: Submission, task: Task) -> AdaptiveClip | None:
    """Return how the bound moves: as asked for, or by default unless one bound in all rounds is asked for."""
    is_fixed = (
        submission.clip_norm is not None
        or submission.is_clip_per_layer
        or submission.noise is StepNoise.CORRELATED
        or task.mechanism is Mechanism.NONE  # a lower bound only adds bias there
    )
    return submission.adaptive_clip or (None if is_fixed else AdaptiveClip(quantile=CLIP_QUANTILE))


def _samples(submission: Submission, task: Task, dataset: Dataset, batch_size: float, rounds: int) -> Samples:
    """Return how the job samples and how its noise is correlated."""
    samples = Samples.of(
        task,
        batch_size=batch_size,
        dataset_size=dataset.size,
        is_allocated=submission.is_allocated,
        is_public=submission.is_sample_public,
    )
    if submission.noise is StepNoise.INDEPENDENT:
        return samples
    momentum = submission.inertia
    return samples.carrying(task, rounds=rounds, momentum=momentum, carried=submission.carried)


@frozen
class _Fixed:
    """What a job's settings become once nothing is left open."""

    rounds: int
    noise_multiplier: float


def _check_usable(task: Task, dataset: Dataset, now_s: float) -> None:
    if now_s >= task.expires_at:
        raise JobRefused(
            JobReason.TASK_EXPIRED,
            f"the task {task.name!r} has expired, so helpers accept no more jobs for it: use another task",
        )
    dataset.check_usable(task.task_id)


def _fix_open_settings(
    submission: Submission, task: Task, dataset: Dataset, batch_size: float, already: Sequence[Charge]
) -> _Fixed:
    """Find the noise or the rounds that were left open, and check that the job fits both budgets.

    All that is held already counts. `_check_noise` holds for the submission.
    """
    rounds, multiplier = submission.rounds, submission.noise_multiplier
    if task.mechanism is Mechanism.NONE and rounds is not None:
        return _Fixed(rounds=rounds, noise_multiplier=0.0)
    room = JobLimits(
        task=task,
        dataset_size=dataset.size,
        already=already,
        epsilon=submission.epsilon,
        momentum=submission.inertia,
        **submission.sampling(),
    )
    if rounds is None:
        if multiplier is None:
            raise AssertionError("checked: a job until its budget has a noise multiplier")
        rounds = room.rounds_for(noise_multiplier=multiplier, batch_size=batch_size)
    elif multiplier is None:
        multiplier = room.noise_asked_for(rounds=rounds, batch_size=batch_size)
    else:
        room.check(rounds=rounds, batch_size=batch_size, noise_multiplier=multiplier)
    return _Fixed(rounds=rounds, noise_multiplier=multiplier)
