"""From what a person asks of devices to a federated job.

Everything that can be checked here is, before it is stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adserver.budgets.asked_epsilon import check_epsilon, check_granted, epsilon_left
from adserver.records.federated_plan import FederatedPlan
from adserver.records.submissions import FederatedSubmission
from adserver.training.eval_set import read_eval_set
from adserver.training.federated.model import read_submitted_model
from maskedlark import canonical
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.federated import strategies
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.graph_model import GraphModel
from maskedlark.federated.strategy import Strategy
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.accounting import Charge, smallest_fitting, spent_in_turn
from maskedlark.privacy.adaptive_clip import LEAST_BOUND
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.instructions import check_fits, update_job, update_round
from maskedlark.releases.update import UpdateJob, UpdateRound, form_of
from maskedlark.reports.task import Task

_EVALUATIONS = 50
# The most that a strategy's noise_multiplier may be.
_MOST_NOISE = 1e6
_ROUNDING = 1 + 1e-9


def plan_federated(
    submission: FederatedSubmission,
    *,
    task: Task,
    job_id: bytes,
    now_s: float,
    already: Sequence[Charge] = (),
    takes_less: bool = False,
) -> FederatedPlan:
    """Check a submission against its task, and fix its noise.

    Args:
        submission: What is asked for.
        task: Its task.
        job_id: 16 random bytes.
        now_s: Unix seconds.
        already: What is spent or reserved on the task.
        takes_less: Whether the job takes what is left where that is less than its epsilon.

    Raises:
        InvalidTask: a setting is wrong, out of its range, or not the task's.
        InvalidModel: there is no such model.
        JobRefused(TASK_EXPIRED, OVERFLOW, NOISE_OUT_OF_RANGE, BUDGET_EXHAUSTED)
        JobRefused(MALFORMED): the evaluation set is no such file, or does not fit the model.
    """
    if submission.is_tested:
        raise InvalidTask(
            "is_tested is for draw-and-discard without helpers: leave it out, since nobody sees the single "
            "updates that helpers sum"
        )
    if now_s >= task.expires_at:
        raise JobRefused(
            JobReason.TASK_EXPIRED,
            f"the task {task.name!r} has expired, so helpers accept no more rounds for it: use another task",
        )
    submitted = read_submitted_model(submission.model, submission.widths, task, seed=submission.seed)
    model = submitted.model
    strategy = _strategy(submission, task)
    check_fits(task, strategy, model)
    if submission.eval_set is not None:
        parsed = parse(submitted.file, num_features=task.num_features)
        examples = read_eval_set(submission.eval_set)
        examples.check_fits(parsed, Loss.CROSS_ENTROPY)
        examples.check_encoder(task.encoder)
    strategy = _with_noise(submission, task, strategy, model, job_id=job_id, already=already)
    job = update_job(job_id=job_id, task_id=task.task_id, strategy=strategy, model=model)
    # Its sizes are those of every round; the noise of each is checked below.
    first = strategy.next_round(strategy.start(submitted.initial_parameters(seed=submission.seed)))
    if first is None:
        raise InvalidTask("the strategy's settings contain no rounds: set rounds")
    update_round(job, first).check(task, records=task.max_dataset_size)
    _check_room(task, strategy.devices, job)
    _check_noise(task, strategy, job)
    charges = job.charges(task, job.rounds)
    together = [*([one] for one in already), charges]
    _check_budget(task, together)
    if submission.epsilon is not None and not takes_less:
        check_granted(
            submission.epsilon,
            task,
            left=epsilon_left(task, already, _charges_by_noise(task, strategy, model, job_id=job_id)),
            together=spent_in_turn(together, task.delta),
        )
    return canonical.build(
        FederatedPlan,
        {
            "task": task,
            "federated": job,
            "window_s": submission.window_s,
            "least_devices": _least_devices(submission, task, strategy),
            "seed": submission.seed,
            "eval_every": submission.eval_every or max(1, job.rounds // _EVALUATIONS),
        },
    )


def _strategy(submission: FederatedSubmission, task: Task) -> Strategy:
    """Return the strategy of a submission, completed with the task's settings."""
    form = task.updates
    if form is None:
        raise InvalidTask(
            "the task declares no updates, which federated jobs require: create a task with --updates"
        )
    cls = strategies.strategy_class(submission.kind)
    given = dict(submission.settings)
    bound = given.pop("bound", {})
    if not isinstance(bound, Mapping):
        raise InvalidTask("bound must be an object of settings")
    decided = {
        "clip_norm": task.clip_norm,
        "frac_bits": task.frac_bits,
        "is_weight_summed": form.has_weight,
        "is_counted": form.has_clip_count,
    }
    settings = {"noise_multiplier": 0.0, "cover_rate": form.cover, **given, "bound": {**decided, **bound}}
    strategy: Strategy = canonical.build(cls, settings)
    return strategy


def _with_noise(
    submission: FederatedSubmission,
    task: Task,
    strategy: Strategy,
    model: DenseModel | GraphModel,
    *,
    job_id: bytes,
    already: Sequence[Charge],
) -> Strategy:
    """Return the strategy with the least noise that its epsilon and the task's budgets allow."""
    is_given = "noise_multiplier" in submission.settings
    if task.mechanism is Mechanism.NONE:
        if is_given or submission.epsilon is not None:
            raise JobRefused(
                JobReason.NOISE_OUT_OF_RANGE, "the task adds no noise: leave out epsilon and noise multiplier"
            )
        return strategy
    if is_given == (submission.epsilon is not None):
        raise JobRefused(
            JobReason.NOISE_OUT_OF_RANGE,
            "the task adds noise: give exactly one of epsilon and noise multiplier",
        )
    if submission.epsilon is None:
        return strategy
    check_epsilon(submission.epsilon, task)

    charges = _charges_by_noise(task, strategy, model, job_id=job_id)

    def least(epsilon: float, already: Sequence[Charge]) -> float:
        return smallest_fitting(
            charges, epsilon, task.delta, already=already, collusion_epsilon=task.collusion_epsilon
        )

    # The epsilon is of this job alone; the budget counts it with all that is held.
    alone = least(submission.epsilon, ())
    return _renoise(strategy, max(alone, least(task.epsilon, already)) if already else alone)


def _renoise(strategy: Strategy, multiplier: float) -> Strategy:
    """Return a strategy with another noise multiplier."""
    return canonical.build(
        type(strategy), {**_plain(strategy), "noise_multiplier": min(multiplier, _MOST_NOISE)}
    )


def _charges_by_noise(
    task: Task, strategy: Strategy, model: DenseModel | GraphModel, *, job_id: bytes
) -> Callable[[float], Sequence[Charge]]:
    """Return what a job is charged as, by its noise multiplier."""
    # Phases scale with the multiplier, so they are laid out once and not for each that is tried
    at_one = update_job(job_id=job_id, task_id=task.task_id, strategy=_renoise(strategy, 1.0), model=model)

    def charges(multiplier: float) -> Sequence[Charge]:
        phases = [
            replace(one, noise_multiplier=min(_MOST_NOISE, one.noise_multiplier * multiplier))
            for one in at_one.phases
        ]
        return [one.charge(task, one.rounds) for one in phases]

    return charges


def _plain(strategy: Strategy) -> dict[str, Any]:
    return {name: getattr(strategy, name) for name in type(strategy).__dataclass_fields__}


def _least_devices(submission: FederatedSubmission, task: Task, strategy: Strategy) -> int:
    """Return how many devices a round waits for.

    Raises:
        InvalidTask: it would be only noise, or never end.
    """
    fewest, devices = task.min_batch_size, strategy.devices
    if devices < fewest:
        raise InvalidTask(
            f"devices is {devices} in the strategy's settings: expected at least the task's min_batch_size, "
            f"{fewest}, since a round of fewer devices would be only noise"
        )
    least = fewest if submission.least_devices is None else submission.least_devices
    if not fewest <= least <= devices:
        raise InvalidTask(
            f"least_devices (--least-devices) is {least}: expected at least the task's min_batch_size, "
            f"{fewest}, since a round of fewer devices would be only noise, and at most devices in the "
            f"strategy's settings, {devices}, since no round would end"
        )
    return least


def _check_room(task: Task, devices: int, job: UpdateJob) -> None:
    """Refuse more devices than a round of the task holds: the rest would be cut off, and still be paid for.

    Devices that are neither drawn nor send cover take no room.
    """
    cover = form_of(task).cover
    answers = max(devices * (one.sampling_rate + (1.0 - one.sampling_rate) * cover) for one in job.phases)
    most = task.max_dataset_size
    if answers > most * _ROUNDING:
        raise InvalidTask(
            f"devices is {devices} in the strategy's settings, of which {answers:.10g} are expected to "
            f"answer a round, but a round of task {task.name!r} holds {most} at most (its "
            "max_dataset_size): use fewer devices, or a task with a larger --max-dataset-size"
        )


def _check_noise(task: Task, strategy: Strategy, job: UpdateJob) -> None:
    """Refuse noise that some later round could not hold: helpers would refuse that round, half-way.

    A bound that follows a quantile may become as small as `LEAST_BOUND` of the largest.
    """
    least = strategy.bound.clip_norm * (1.0 if strategy.quantile is None else LEAST_BOUND)
    index = 0
    for phase in job.phases:
        for clip_norm in (strategy.bound.clip_norm, least):
            one = UpdateRound(job=job, round_index=index, content_digest=bytes(32), clip_norm=clip_norm)
            try:
                one.noise_units(task)
            except ValueError as error:  # the bound itself is less than a unit
                raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, f"clip bound {clip_norm:g}: {error}") from None
            except JobRefused as refusal:
                raise JobRefused(
                    refusal.reason, f"round {index}, clip bound {clip_norm:g}: {refusal}"
                ) from None
        index += phase.rounds


def _check_budget(task: Task, jobs: Sequence[Sequence[Charge]]) -> None:
    if task.mechanism is Mechanism.NONE:
        return
    cost = spent_in_turn(jobs, task.delta)
    if cost.ad_server > task.epsilon or cost.colluding > task.collusion_epsilon:
        raise JobRefused(
            JobReason.BUDGET_EXHAUSTED,
            "together with all other reservations, the rounds would cost epsilon "
            f"{cost.ad_server:.4g} of {task.epsilon:.4g} against the ad server and "
            f"{cost.colluding:.4g} of {task.collusion_epsilon:.4g} against the ad server with one helper: "
            "use more noise, fewer rounds, or another task",
        )
