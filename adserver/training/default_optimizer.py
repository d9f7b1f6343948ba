"""The optimizer and the rounds that a job does not name: by the rules of `adserver.training.defaults`.

    why_no_rule(submission, task)        # empty: momentum under a cosine schedule, at
    choose_rate(submission, rows=6_500, epsilon=3.0, parameters=241)
    find_rounds(submission, task, model, rows=6_500)

The rules were measured with momentum .9, a cosine schedule and one clip bound, and are for such jobs alone.
"""

from dataclasses import replace
from typing import Final

from adserver.records.defaults import MOMENTUM
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from adserver.training.cost import job_epsilons
from adserver.training.defaults import ROUNDS, choose_learning_rate, choose_rounds
from maskedlark.canonical import build
from maskedlark.errors import InvalidTask
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.task import Task

# Times the rule's rate, which was best within a factor of three on every table that it was measured on
_FAR: Final = 10
# Between two layers of weights, they make what the layers compute more than one of them could.
_BENDING: Final = frozenset(
    {"Clip", "Elu", "Gelu", "LSTM", "GRU", "LeakyRelu", "PRelu", "Relu", "Sigmoid", "Softplus", "Tanh"}
)
# Of weights, they scale and shift what is bent, and are no layer
_ELEMENTWISE: Final = frozenset({"Add", "Div", "Mul", "Sub"})


def why_no_rule(submission: Submission, task: Task) -> str:
    """Return what about a job the rule is not for; empty if it gives a rate."""
    optimizer, schedule = submission.optimizer, submission.schedule
    if task.mechanism is Mechanism.NONE:
        return "the task adds no noise, and the rule goes by epsilon"
    if optimizer is not None and not _is_of_rule(optimizer.kind, optimizer.momentum):
        return f"the optimizer is {optimizer.kind.value}, and the rule is for momentum {MOMENTUM:g}"
    if schedule is None and optimizer is not None:
        return "the schedule is constant, and the rule is for cosine"
    if schedule is not None and schedule.kind is not ScheduleKind.COSINE:
        return f"the schedule is {schedule.kind.value}, and the rule is for cosine"
    if submission.is_clip_per_layer or submission.noise is StepNoise.CORRELATED:
        return "the rule is for one clip bound of the whole gradient and independent noise"
    return ""


def check_rule(submission: Submission, task: Task) -> None:
    """Refuse a job without an optimizer for which the rule has no rate.

    Raises:
        InvalidTask
    """
    if submission.optimizer is None and (why := why_no_rule(submission, task)):
        raise InvalidTask(
            f"learning_rate has no default here: {why}: give one (learning_rate=, --learning-rate)"
        )


def choose_rate(submission: Submission, *, rows: int, epsilon: float, parameters: int) -> float:
    """Return the rule's rate for a job that it is for.

    Args:
        submission: The job.
        rows: Reports of its dataset.
        epsilon: What it costs against the ad server, for one report (`epsilon_of_report`).
        parameters: That it trains.
    """
    rate = choose_learning_rate(
        rows=rows,
        epsilon=epsilon,
        parameters=parameters,
        network=None,
        heads=len(submission.loss.heads) if isinstance(submission.loss, Heads) else 1,
    )
    if submission.clip_norm is None or submission.adaptive_clip is not None:
        return rate
    # A fixed bound divides no gradient, while the rule's rate is of gradients over the bound.
    return float(f"{rate / submission.clip_norm:.2g}")


def has_hidden_layer(model: Model) -> bool:
    """Return whether trained weights follow an activation of what other trained weights compute."""
    weighed, bent = {one.name for one in model.parameters}, set[str]()
    weights = frozenset(weighed)
    for node in model.nodes:
        is_bent = not bent.isdisjoint(node.inputs)
        if is_bent and not weights.isdisjoint(node.inputs) and node.operator not in _ELEMENTWISE:
            return True
        if not weighed.isdisjoint(node.inputs):
            weighed.update(node.outputs)
            if is_bent or node.operator in _BENDING:
                bent.update(node.outputs)
    return False


def has_tables(model: Model) -> bool:
    """Return whether a model looks up rows of trained weights."""
    weights = {one.name for one in model.parameters}
    return any(node.operator == "Gather" and node.inputs[0] in weights for node in model.nodes)


def find_rounds(
    submission: Submission, task: Task, model: Model, *, rows: int, is_trained: bool = False
) -> int:
    """Return the rounds of a job that names none, and is not until its budget.

    They are 120 where the rule of more was not measured: for weights that know the labels, a part of a model,
    smaller batches, and jobs without a rule for the rate; and beside a noise multiplier, whose epsilon, by
    which the rule goes, depends on the rounds.

    Args:
        submission: The job.
        task: Its task.
        model: What it trains.
        rows: Reports of its dataset.
        is_trained: Whether the weights know something of the labels.
    """
    epsilon, is_of_trained = submission.epsilon, is_trained or submission.train or submission.freeze
    is_measured = submission.batch_size is None and not is_of_trained and not why_no_rule(submission, task)
    if epsilon is None or not is_measured:
        return ROUNDS
    return choose_rounds(
        rows=rows,
        epsilon=epsilon_of_report(epsilon, task),
        has_hidden_layer=has_hidden_layer(model),
        has_tables=has_tables(model),
    )


def epsilon_of_report(epsilon: float, task: Task) -> float:
    """Return the epsilon at which as much noise would be added if it were of one report.

    The rules go by that noise, which hides all that a person reports.
    """
    return epsilon / task.reports_per_user


def warn_of_rate(submission: Submission, plan: TrainingPlan, *, parameters: int) -> str:
    """Return a line if a job's own rate is far above the rule's, where it has one; else empty.

    Args:
        submission: The job.
        plan: What became of it.
        parameters: That it trains.
    """
    if submission.optimizer is None or why_no_rule(submission, plan.task):
        return ""
    epsilon = submission.epsilon or job_epsilons(plan, plan.job.rounds).ad_server
    of_report = epsilon_of_report(epsilon, plan.task)
    usual = choose_rate(submission, rows=plan.dataset_size, epsilon=of_report, parameters=parameters)
    return describe_far_rate(submission.optimizer.learning_rate, usual)


def describe_far_rate(rate: float, usual: float) -> str:
    """Return a line if a rate is far above the rule's; else empty."""
    if rate <= _FAR * usual:
        return ""
    return (
        f"learning rate {rate:g} is {rate / usual:,.0f} times the rule's, {usual:g}: noise is multiplied "
        "by it too, and a model that moves so far mostly learns nothing"
    )


def steps_at(submission: Submission, rate: float) -> tuple[Optimizer, Schedule]:
    """Return the optimizer and the schedule of a job at a learning rate."""
    if submission.optimizer is None:
        made = Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=rate)
        return made, submission.schedule or Schedule(kind=ScheduleKind.COSINE)
    return replace(submission.optimizer, learning_rate=rate), submission.schedule or Schedule()


def read_steps(
    kind: OptimizerKind | str | None, rate: float | None, momentum: float, schedule: Schedule | None
) -> tuple[Optimizer | None, Schedule | None]:
    """Return optimizer and schedule as a person names them; no optimizer leaves its rate to the rule.

    A rate alone changes the rule's rate, and neither its momentum nor its cosine.

    Raises:
        InvalidTask: there is no such optimizer, another than the rule's has no rate, or a number is out of
            its range.
    """
    if kind is not None and kind not in list(OptimizerKind):
        # An optimizer of torch shows all its parameters
        given = repr(kind) if isinstance(kind, str) else f"an object of {type(kind).__name__}"
        raise InvalidTask(
            f"optimizer must be {' or '.join(OptimizerKind)}, not {given}: its rate is the learning rate"
        )
    if rate is not None:
        if kind is None:
            kind, schedule = OptimizerKind.MOMENTUM, schedule or Schedule(kind=ScheduleKind.COSINE)
        return build(Optimizer, {"kind": kind, "learning_rate": rate, "momentum": momentum}), schedule
    if not _is_of_rule(kind or OptimizerKind.MOMENTUM, momentum):
        raise InvalidTask(
            f"learning_rate has a default for momentum {MOMENTUM:g} alone: give a rate (learning_rate=, "
            "--learning-rate), or leave out optimizer and momentum"
        )
    return None, schedule


def _is_of_rule(kind: OptimizerKind | str, momentum: float) -> bool:
    return kind == OptimizerKind.MOMENTUM and momentum == MOMENTUM
