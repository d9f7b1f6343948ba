"""A job to find, and the jobs that fit."""

from shlex import quote
from typing import Self

from pydantic import Field

from adserver.budgets.comparison import Comparison
from adserver.budgets.headroom import MOST_JOBS, Cost, JobLimits, Limit, default_batch_size
from adserver.budgets.planned_tests import MOST_TESTS, PlannedTests
from adserver.budgets.planner import Option, Plan
from adserver.messages.base import File, Message, Whole
from adserver.messages.budget import EpsilonsMessage
from adserver.messages.submission import (
    COLUMNS_CHECKED,
    HeadSetting,
    SamplingRequest,
    loss_received,
    loss_sent,
)
from adserver.records.defaults import MOMENTUM, TEST_SHARE
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.submissions import PlanConstraints, PlanRequest
from adserver.records.training_plan import Schedule
from adserver.training.defaults import ROUNDS
from adserver.training.planning import MOST_REPORTS, GeneralPath, Planned
from maskedlark.frozen import pick_attributes
from maskedlark.model.limits import MOST_PARAMETERS
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.sampling import Sampling, StepNoise
from maskedlark.reports.task import Task

_SAME = (
    "rounds", "batch_size", "noise_multiplier", "carried", "noise_norm", "noise_to_signal", "weight_noise",
    "core_seconds",
)  # fmt: skip
_COSTS = ("alone", "planned", "together")
_ASKED = (
    "model", "num_parameters", "epsilon", "gradient_norm", "momentum", "learning_rate", "schedule",
    "clip_norm", "train", "freeze", "dataset", "reports", "task", "jobs", "tests", "test_share",
    "are_columns_checked",
)  # fmt: skip
_TESTS = ("count", "epsilon", "noise_multiplier", "count_noise")
_ROOM = ("momentum", "schedule", "clip_norm", "jobs", "is_allocated", "is_sample_public")
_FIXED = ("rounds", "batch_size", "noise_multiplier", "max_epochs")


class OptionMessage(Message):
    """A job that fits."""

    rounds: Whole
    batch_size: float
    noise_multiplier: float
    carried: Whole | None
    noise_norm: float
    noise_to_signal: float = Field(
        description="The least possible where no gradient norm is expected: often a tenth of a job's own."
    )
    weight_noise: float | None
    core_seconds: float | None
    steps_worth: float | None = Field(description="Null where no gradient norm is expected.")
    alone: EpsilonsMessage
    planned: EpsilonsMessage
    together: EpsilonsMessage
    limited_by: Limit
    submit: str

    @classmethod
    def of(cls, option: Option, planned: Planned, request: PlanRequest) -> Self:
        """Describe an option of a plan."""
        return cls(
            **pick_attributes(option, _SAME),
            steps_worth=option.steps_worth if planned.plan.is_norm_known else None,
            **pick_attributes(option.cost, _COSTS),
            limited_by=option.limit,
            submit=submit_options(option, planned, request),
        )

    def value(self) -> Option:
        """Return the option."""
        cost = Cost(**{name: getattr(self, name).value() for name in _COSTS})
        return Option(**pick_attributes(self, _SAME), cost=cost, limit=self.limited_by)


class ComparisonMessage(Message):
    """The recommended job with either kind of noise, and with larger batches where collusion binds."""

    independent: OptionMessage | None
    correlated: OptionMessage | None
    refusal: str
    larger: tuple[OptionMessage, ...] = ()

    @classmethod
    def of(cls, compared: Comparison, planned: Planned, request: PlanRequest) -> Self:
        """Describe a comparison."""
        both = (compared.independent, compared.correlated)
        independent, correlated = (option and OptionMessage.of(option, planned, request) for option in both)
        return cls(
            independent=independent,
            correlated=correlated,
            refusal=compared.refusal,
            larger=tuple(OptionMessage.of(one, planned, request) for one in compared.larger),
        )

    def value(self) -> Comparison:
        """Return the comparison."""
        return Comparison(
            independent=None if self.independent is None else self.independent.value(),
            correlated=None if self.correlated is None else self.correlated.value(),
            refusal=self.refusal,
            larger=tuple(one.value() for one in self.larger),
        )


class PlannedTestsMessage(Message):
    """Private evaluations that share the budget: each is asked with `epsilon`."""

    count: Whole
    epsilon: float
    noise_multiplier: float
    count_noise: float
    cost: EpsilonsMessage

    @classmethod
    def of(cls, tests: PlannedTests) -> Self:
        """Describe the evaluations."""
        return cls(**pick_attributes(tests, _TESTS), cost=tests.cost)

    def value(self) -> PlannedTests:
        """Return the evaluations."""
        return PlannedTests(**pick_attributes(self, _TESTS), cost=self.cost.value())


class GeneralPathMessage(Message):
    """Why a model trains on the general path, and how many times the noise it needs there."""

    reasons: tuple[str, ...]
    noise_factor: float | None


class PlanMessage(Message):
    """What fits a dataset's budgets. Without noise the epsilons are null."""

    task_id: bytes
    dataset_size: Whole
    mechanism: Mechanism
    delta: float
    epsilon_budget: float
    collusion_epsilon_budget: float
    epsilon_asked: float | None
    assumed_gradient_norm: float
    is_norm_known: bool
    learning_rate: float | None
    momentum: float
    schedule: Schedule
    clip_norm: float | None
    is_allocated: bool
    is_sample_public: bool
    jobs: Whole
    tests: PlannedTestsMessage | None
    recommended: OptionMessage
    alternatives: tuple[OptionMessage, ...]
    compared: ComparisonMessage | None = None
    general_path: GeneralPathMessage | None = None
    refusal: str = Field("", description="Why a job of `epsilon_asked` is refused; empty if it is not.")
    warnings: tuple[str, ...] = Field(
        (), description="What may be wrong with the model and the learning rate, a line each."
    )
    rule_rate: float | None = Field(
        None, description="The recommended job's learning rate if it names none; null where it has to."
    )

    @classmethod
    def of(cls, planned: Planned, request: PlanRequest) -> Self:
        """Describe a plan, and how to submit each of its jobs with what the request chose."""
        plan, room, task = planned.plan, planned.room, planned.room.task
        return cls(
            **pick_attributes(room, _ROOM),
            task_id=task.task_id,
            dataset_size=planned.room.dataset_size,
            mechanism=task.mechanism,
            delta=task.delta,
            epsilon_budget=task.epsilon,
            collusion_epsilon_budget=task.collusion_epsilon,
            epsilon_asked=planned.room.epsilon,
            assumed_gradient_norm=plan.gradient_norm,
            is_norm_known=plan.is_norm_known,
            learning_rate=plan.learning_rate,
            tests=room.tests and PlannedTestsMessage.of(room.tests),
            recommended=OptionMessage.of(plan.recommended, planned, request),
            alternatives=tuple(OptionMessage.of(one, planned, request) for one in plan.alternatives),
            compared=planned.compared and ComparisonMessage.of(planned.compared, planned, request),
            general_path=planned.general and GeneralPathMessage(**planned.general._asdict()),
            refusal=planned.refusal,
            warnings=planned.warnings,
            rule_rate=planned.rule_rate,
        )

    def value(self, task: Task) -> Planned:
        """Return the plan, and the limits within which it was found."""
        plan = Plan(
            recommended=self.recommended.value(),
            alternatives=tuple(one.value() for one in self.alternatives),
            gradient_norm=self.assumed_gradient_norm,
            is_norm_known=self.is_norm_known,
            learning_rate=self.learning_rate,
        )
        room = JobLimits(
            **pick_attributes(self, _ROOM),
            task=task,
            dataset_size=self.dataset_size,
            epsilon=self.epsilon_asked,
            tests=None if self.tests is None else self.tests.value(),
        )
        general = None if self.general_path is None else GeneralPath(**dict(self.general_path))
        compared = None if self.compared is None else self.compared.value()
        return Planned(plan, room, compared, general, self.refusal, self.warnings, self.rule_rate)


class PlanJob(SamplingRequest):
    """A job to find; see `adserver job plan` for each field's meaning."""

    model: File | None = Field(None, description="An ONNX file, in base64; or", repr=False)
    num_parameters: int | None = Field(
        None, ge=1, le=MOST_PARAMETERS, description="How many weights the model will have."
    )
    rounds: int | None = Field(None, ge=1)
    batch_size: float | None = None
    noise_multiplier: float | None = None
    max_epochs: int | None = Field(None, ge=1, le=10_000)
    epsilon: float | None = None
    loss: str | tuple[HeadSetting, ...] | None = None
    are_columns_checked: bool = COLUMNS_CHECKED
    gradient_norm: float | None = None
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    learning_rate: float | None = Field(None, gt=0.0, description="To predict the error of the weights.")
    schedule: Schedule = Schedule(kind=ScheduleKind.COSINE)
    clip_norm: float | None = None
    train: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    dataset: str = Field("", description="The start of its id; not needed if there is only one.")
    reports: int | None = Field(
        None, ge=1, le=MOST_REPORTS, description="Instead of a dataset: how many reports it will have."
    )
    task: str = Field("", description="With reports: the start of the task's id.")
    jobs: int = Field(1, ge=1, le=MOST_JOBS, description="How many equal jobs share the budget.")
    tests: int = Field(0, ge=0, le=MOST_TESTS, description="How many private evaluations share it.")
    test_share: float = Field(
        TEST_SHARE, gt=0.0, lt=1.0, description="The part of the budget of all evaluations."
    )

    @classmethod
    def of(cls, request: PlanRequest) -> Self:
        """Convert a request to the form in which it is sent."""
        return cls(
            **request.sampling(),
            **pick_attributes(request.wish, _FIXED),
            **pick_attributes(request, _ASKED),
            loss=None if request.loss is None else loss_sent(request.loss),
        )

    def value(self) -> PlanRequest:
        """Return the request that was sent."""
        return PlanRequest(
            **self.sampling(),
            **pick_attributes(self, _ASKED),
            loss=None if self.loss is None else loss_received(self.loss, self.model),
            wish=PlanConstraints(**pick_attributes(self, _FIXED)),
        )


def submit_options(option: Option, planned: Planned, request: PlanRequest) -> str:
    """Return the options of `adserver job submit` that give exactly this job.

    A learning rate that has no default, and that the request does not name, is `RATE`.
    """
    settings = submit_settings(option, planned, request)
    return " ".join(part for name, value in settings.items() for part in _options(name, value))


def submit_settings(option: Option, planned: Planned, request: PlanRequest) -> dict[str, object]:
    """Return the settings that give exactly this job, by the names that `Client.train` has for them.

    The numbers of the learning rate's schedule are settings of their own, as on a command line. The rate is
    None where it has no default for this job and the request does not name it.
    """
    room, rate = planned.room, planned.plan.learning_rate
    settings: dict[str, object] = pick_attributes(option, ("rounds", "batch_size", "noise_multiplier"))
    if option == planned.plan.recommended and planned.is_by_epsilon(request):
        settings = _settings_by_epsilon(settings, planned, request)
    if option.carried:
        settings |= {"noise": StepNoise.CORRELATED.value, "carried": option.carried}
    if not room.is_allocated:
        settings["sampling"] = Sampling.POISSON.value
    if room.is_sample_public:
        settings["public_samples"] = True
    if room.clip_norm is not None:
        settings["clip_norm"] = room.clip_norm
    is_of_rule = room.momentum == MOMENTUM and room.schedule == Schedule(kind=ScheduleKind.COSINE)
    if rate is not None or option.carried or not is_of_rule:
        settings |= {"learning_rate": rate, "optimizer": OptimizerKind.SGD.value}
        if room.momentum:
            settings |= {"optimizer": OptimizerKind.MOMENTUM.value, "momentum": room.momentum}
        settings |= {"schedule": room.schedule.kind.value, **schedule_settings(room.schedule)}
    settings |= {name: list(chosen) for name in ("train", "freeze") if (chosen := getattr(request, name))}
    if not request.are_columns_checked:
        settings["check_columns"] = False
    if request.dataset:
        settings["dataset"] = request.dataset
    return settings


def _settings_by_epsilon(
    settings: dict[str, object], planned: Planned, request: PlanRequest
) -> dict[str, object]:
    """Return what gives the same job by its epsilon, without what a job has by itself."""
    given: dict[str, object] = {"epsilon": request.epsilon}
    # Without a model the plan does not know the rule's rounds, and with something else it does not go by it
    is_of_rule = request.model is not None and request.gradient_norm is None
    if (
        not is_of_rule
        or settings["rounds"] != ROUNDS
        or (request.wish.rounds, request.wish.max_epochs) != (None, None)
    ):
        given["rounds"] = settings["rounds"]
    if settings["batch_size"] != default_batch_size(planned.room.dataset_size):
        given["batch_size"] = settings["batch_size"]
    return given


def schedule_settings(schedule: Schedule) -> dict[str, object]:
    """Return the numbers of a schedule's kind by name."""
    match schedule.kind:
        case ScheduleKind.CONSTANT:
            return {}
        case ScheduleKind.COSINE:
            return pick_attributes(schedule, ("final_factor",))
        case ScheduleKind.STEP:
            return pick_attributes(schedule, ("step_rounds", "step_factor"))
        case ScheduleKind.LINEAR_WARMUP:
            return pick_attributes(schedule, ("warmup_rounds",))


def _options(name: str, value: object) -> list[str]:
    """Return a setting as options of the command."""
    flag = f"--{name.replace('_', '-')}"
    match value:
        case None:
            return [f"{flag} RATE"]
        case True:
            return [flag]
        case False:  # of `check_columns` alone
            return ["--any-columns"]
        case list():
            return [f"{flag} {quote(str(one))}" for one in value]
    return [f"{flag} {_spell(value)}"]


def _spell(value: object) -> str:
    # With all digits: a rounded number would be another job, which may no longer fit.
    return f"{value:.17g}" if isinstance(value, float) and value.is_integer() else str(value)
