"""What fits a dataset's budgets, before anything is spent.

plan, room, compared = plan_job(engine, PlanRequest(model=encoded, wish=PlanConstraints(rounds=100)))

The dataset may be planned too: with `reports`, and `jobs` and `tests` that share its budget, the plan says
what an epsilon will buy before anything is collected.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from sqlalchemy import Engine

from adserver.budgets.comparison import Comparison, compare
from adserver.budgets.headroom import JobLimits, default_batch_size
from adserver.budgets.planned_tests import PlannedTests, plan_tests
from adserver.budgets.planner import OnProgress, Option, Plan, Planner
from adserver.budgets.reservations import Budgets
from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.submissions import PlanConstraints, PlanRequest, Submission
from adserver.records.training_plan import Optimizer
from adserver.store.datasets import DatasetStore
from adserver.store.tasks import TaskStore
from adserver.training.column_uses import warn_of_columns
from adserver.training.default_optimizer import (
    choose_rate,
    describe_far_rate,
    epsilon_of_report,
    find_rounds,
    why_no_rule,
)
from adserver.training.defaults import ROUNDS
from adserver.training.model_file import parse_chosen, prepare_model, require_fitting_loss, warn_of_loss
from adserver.training.panel_note import is_noted_trained
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.model.core_seconds import round_seconds
from maskedlark.model.exactness import why_general
from maskedlark.model.graph import Model
from maskedlark.model.heads import check_trained, trained_loss
from maskedlark.model.limits import MOST_PARAMETERS
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.release import check_holds_labels
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import LabelKind, PrivacyUnit

MOST_REPORTS: Final = 1 << 40


class GeneralPath(NamedTuple):
    """What a model that trains on the general path costs: its samples are charged as public.

    Attributes:
        reasons: What forces it there.
        noise_factor: The noise of the recommended job over that of the same job with secret samples; None
            where no such job fits.
    """

    reasons: tuple[str, ...]
    noise_factor: float | None


class Planned(NamedTuple):
    """A plan, the room that it was found in, its job with either kind of noise, and its path if general.

    Attributes:
        refusal: Why a job that asks for the whole epsilon is refused, in words, where the budgets leave it
            less; else empty.
        warnings: What may be wrong with the model's columns and loss, and with the rate, a line each.
        rule_rate: The learning rate of the recommended job if it names none; None where the rule has none.
    """

    plan: Plan
    room: JobLimits
    compared: Comparison | None = None
    general: GeneralPath | None = None
    refusal: str = ""
    warnings: tuple[str, ...] = ()
    rule_rate: float | None = None

    def is_by_epsilon(self, asked: PlanRequest) -> bool:
        """Return whether the recommended job has the noise of one that names the epsilon asked for."""
        is_shared = self.room.jobs > 1 or self.room.tests is not None
        is_open = asked.wish.noise_multiplier is None and not self.plan.recommended.carried
        return asked.epsilon is not None and is_open and not is_shared and not self.refusal


class _Found(NamedTuple):
    """What a plan is of: a dataset that there is, or one that is planned."""

    task: Task
    encoder: Encoder | None
    dataset_size: int
    already: Sequence[Charge]


def plan_job(engine: Engine, asked: PlanRequest, progress: OnProgress | None = None) -> Planned:
    """Find what fits into a dataset's budget next to all that is reserved. It spends nothing.

    The job is recommended with the kind of noise that is worth more, unless the samples are public.
    The samples of a model on the general path are charged as public, whatever is asked.

    Raises:
        InvalidModel, InvalidTask, JobRefused: what is wrong, or that nothing fits.
    """
    found = _find(engine, asked)
    parsed, reasons, warnings = _model_of(asked, found)
    sampling = asked.sampling() | ({"is_sample_public": True} if reasons else {})
    room = JobLimits(
        task=found.task,
        dataset_size=found.dataset_size,
        already=found.already,
        epsilon=asked.epsilon,
        momentum=asked.momentum,
        schedule=asked.schedule,
        clip_norm=asked.clip_norm,
        jobs=asked.jobs,
        **sampling,
    )
    room = replace(room, tests=_tests_of(asked, room))
    planner = Planner(
        room=room,
        num_parameters=_num_parameters(asked, parsed),
        gradient_norm=asked.gradient_norm,
        learning_rate=asked.learning_rate,
        round_seconds=None
        if parsed is None
        else _round_seconds(parsed, found.task, is_general=bool(reasons)),
    )
    wish = _fill(asked, room, parsed)
    plan = planner.plan(wish) if progress is None else planner.plan(wish, progress)
    compared = compare(planner, plan.recommended)
    # A model on the general path needs public samples, and has no correlated noise.
    if compared is not None and compared.better is not None and not sampling["is_sample_public"]:
        plan = plan.recommending(compared.better)
    general = GeneralPath(reasons, _noise_factor(room, plan.recommended)) if reasons else None
    refusal = _why_not_granted(room, plan.recommended)
    planned = Planned(plan, room, compared, general, refusal, warnings)
    rate = _rule_rate(asked, planned, num_parameters=planner.num_parameters)
    if rate is not None and asked.learning_rate is not None:
        warnings += tuple(filter(None, [describe_far_rate(asked.learning_rate, rate)]))
    return planned._replace(warnings=warnings, rule_rate=rate)


def _rule_rate(asked: PlanRequest, planned: Planned, *, num_parameters: int) -> float | None:
    """Return the learning rate of the recommended job if it names none; None where the rule has none."""
    room, best = planned.room, planned.plan.recommended
    epsilon = asked.epsilon
    if epsilon is None or not planned.is_by_epsilon(asked):
        epsilon = best.cost.alone.ad_server
    noise = StepNoise.CORRELATED if best.carried else StepNoise.INDEPENDENT
    job = replace(_job_of(asked, room, epsilon), noise=noise)
    if why_no_rule(job, room.task):
        return None
    of_report = epsilon_of_report(epsilon, room.task)
    return choose_rate(job, rows=room.dataset_size, epsilon=of_report, parameters=num_parameters)


def _fill(asked: PlanRequest, room: JobLimits, model: Model | None) -> PlanConstraints:
    """Return what is fixed; where nothing is and no gradient norm is expected, rounds as of `job submit`.

    Without that norm nothing says how many rounds are worth most.
    """
    wish = asked.wish
    is_open = wish.rounds is None and wish.batch_size is None and wish.noise_multiplier is None
    if not is_open or asked.gradient_norm is not None:
        return wish
    rounds = _rounds_of_rule(asked, room, model)
    return replace(wish, rounds=rounds if wish.max_epochs is None else min(rounds, wish.max_epochs))


def _rounds_of_rule(asked: PlanRequest, room: JobLimits, model: Model | None) -> int:
    """Return the rounds of a job that names none, at the epsilon that each job has."""
    if model is None or asked.model is None:
        return ROUNDS
    epsilon = room.epsilon
    if epsilon is None or room.jobs > 1 or room.tests is not None:
        # Rounds of all reports have the same epsilon in any number
        batch_size = default_batch_size(room.dataset_size)
        noise = room.noise_for(rounds=ROUNDS, batch_size=batch_size)
        cost = room.cost(rounds=ROUNDS, batch_size=batch_size, noise_multiplier=noise)
        epsilon = cost.alone.ad_server
    is_trained = is_noted_trained(asked.model)
    job = _job_of(asked, room, epsilon)
    return find_rounds(job, room.task, model, rows=room.dataset_size, is_trained=is_trained)


def _job_of(asked: PlanRequest, room: JobLimits, epsilon: float) -> Submission:
    """Return the job that is planned as the rules of rounds and rate take it."""
    return Submission(
        model=asked.model or b"",
        loss=asked.loss or "",
        rounds=None,
        batch_size=None,
        epsilon=epsilon,
        noise_multiplier=None,
        # The rules go by its momentum, whatever its rate
        optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=1.0, momentum=room.momentum),
        schedule=room.schedule,
        eval_set=None,
        eval_every=None,
        clip_norm=room.clip_norm,
        train=asked.train,
        freeze=asked.freeze,
        **room.sampling(),
    )


def _why_not_granted(room: JobLimits, option: Option) -> str:
    samples = replace(room, noise=StepNoise.CORRELATED, carried=option.carried) if option.carried else room
    return samples.why_not_granted(
        rounds=option.rounds, batch_size=option.batch_size, noise_multiplier=option.noise_multiplier
    )


def _find(engine: Engine, asked: PlanRequest) -> _Found:
    tasks, budgets = TaskStore(engine), Budgets(engine=engine, clock=time.time)
    if asked.reports is None:
        dataset = DatasetStore(engine).find(asked.dataset)
        task = tasks.find(dataset.task_id.hex()).bundle.task
        return _Found(
            task, tasks.encoder(task.task_id), dataset.size, budgets.reservations_of_dataset(dataset)
        )
    if asked.dataset:
        raise InvalidTask("expected one of dataset and reports: reports are of a dataset that is planned")
    if not 1 <= asked.reports <= MOST_REPORTS:
        raise InvalidTask(f"reports must be 1 to {MOST_REPORTS}, not {asked.reports}")
    task = tasks.find(asked.task).bundle.task
    check_holds_labels(task)
    # A person has one budget in all datasets of a task; a report only in its own, which is new here.
    held = budgets.reservations_of_task(task) if task.unit is PrivacyUnit.USER else ()
    return _Found(task, tasks.encoder(task.task_id), asked.reports, held)


def _model_of(asked: PlanRequest, found: _Found) -> tuple[Model | None, tuple[str, ...], tuple[str, ...]]:
    """Return the model, if it is given, what forces it to the general path, and what may be wrong with it."""
    if (asked.model is None) == (asked.num_parameters is None):
        raise InvalidTask("expected exactly one of model and num_parameters")
    if asked.model is None:
        if asked.train or asked.freeze:
            raise InvalidTask("train and freeze choose among a model's parameters: give the model")
        return None, (), ()
    task, encoder = found.task, found.encoder
    file = prepare_model(
        asked.model,
        num_features=task.num_features,
        encoder=encoder,
        are_columns_checked=asked.are_columns_checked,
    ).file
    warnings = list(() if encoder is None else warn_of_columns(file, encoder))
    parsed = parse_chosen(file, num_features=task.num_features, train=asked.train, freeze=asked.freeze)
    loss = None if asked.loss is None else trained_loss(asked.loss)
    if loss is not None:
        classes = task.labels.size if task.labels.kind is LabelKind.CLASSES else None
        check_trained(parsed, loss, classes)
        require_fitting_loss(parsed, loss)
        warnings += filter(None, [warn_of_loss(parsed, loss, classes)])
    return parsed, why_general(parsed, loss), tuple(warnings)


def _num_parameters(asked: PlanRequest, parsed: Model | None) -> int:
    count = asked.num_parameters if parsed is None else parsed.num_parameters
    if count is None or not 1 <= count <= MOST_PARAMETERS:
        raise InvalidTask(f"num_parameters must be 1 to {MOST_PARAMETERS}, the largest model")
    return count


def _tests_of(asked: PlanRequest, room: JobLimits) -> PlannedTests | None:
    if asked.tests == 0:
        return None
    return plan_tests(room.task, count=asked.tests, share=asked.test_share, epsilon=asked.epsilon)


def _round_seconds(parsed: Model, task: Task, *, is_general: bool) -> Callable[[float], float]:
    """Return one helper's processor time of a round by its expected batch."""

    def seconds(batch_size: float) -> float:
        path = "general" if is_general else "exact"
        return round_seconds(parsed, path, records=round(batch_size), candidates=task.num_candidates)

    return seconds


def _noise_factor(room: JobLimits, job: Option) -> float | None:
    """Return a job's noise with public samples over that with secret ones."""
    if room.task.mechanism is Mechanism.NONE:
        return None
    try:
        public, secret = (
            replace(room, is_sample_public=is_public, noise=StepNoise.INDEPENDENT, carried=None).noise_for(
                rounds=job.rounds, batch_size=job.batch_size
            )
            for is_public in (True, False)
        )
    except JobRefused:
        return None
    return public / secret
