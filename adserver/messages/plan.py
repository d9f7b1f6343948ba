"""A job to find, and the jobs that fit."""

from typing import Self

from pydantic import Field

from adserver.budgets.comparison import Comparison
from adserver.budgets.headroom import Cost, JobLimits, Limit
from adserver.budgets.planner import Option, Plan
from adserver.messages.base import File, Message, Whole
from adserver.messages.budget import EpsilonsMessage
from adserver.messages.submission import HeadSetting, SamplingRequest, loss_received, loss_sent
from adserver.records.submissions import PlanConstraints, PlanRequest
from adserver.training.planning import GeneralPath, Planned
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.task import Task

_SAME = ("rounds", "batch_size", "noise_multiplier", "carried", "noise_norm", "noise_to_signal")
_ASKED = ("model", "epsilon", "gradient_norm", "momentum", "dataset")
_FIXED = ("rounds", "batch_size", "noise_multiplier", "max_epochs")


class OptionMessage(Message):
    """A job that fits."""

    rounds: Whole
    batch_size: float
    noise_multiplier: float
    carried: Whole | None
    noise_norm: float
    noise_to_signal: float
    steps_worth: float
    alone: EpsilonsMessage
    together: EpsilonsMessage
    limited_by: Limit
    submit: str

    @classmethod
    def of(cls, option: Option) -> Self:
        """Describe an option."""
        return cls(
            **pick_attributes(option, (*_SAME, "steps_worth")),
            **pick_attributes(option.cost, ("alone", "together")),
            limited_by=option.limit,
            submit=submit_options(option),
        )

    def value(self) -> Option:
        """Return the option."""
        cost = Cost(alone=self.alone.value(), together=self.together.value())
        return Option(**pick_attributes(self, _SAME), cost=cost, limit=self.limited_by)


class ComparisonMessage(Message):
    """The recommended job with either kind of noise."""

    independent: OptionMessage | None
    correlated: OptionMessage | None
    refusal: str

    @classmethod
    def of(cls, compared: Comparison) -> Self:
        """Describe a comparison."""
        both = (compared.independent, compared.correlated)
        independent, correlated = (option and OptionMessage.of(option) for option in both)
        return cls(independent=independent, correlated=correlated, refusal=compared.refusal)

    def value(self) -> Comparison:
        """Return the comparison."""
        return Comparison(
            independent=None if self.independent is None else self.independent.value(),
            correlated=None if self.correlated is None else self.correlated.value(),
            refusal=self.refusal,
        )


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
    recommended: OptionMessage
    alternatives: tuple[OptionMessage, ...]
    compared: ComparisonMessage | None = None
    general_path: GeneralPathMessage | None = None

    @classmethod
    def of(cls, planned: Planned) -> Self:
        """Describe a plan."""
        plan, task = planned.plan, planned.room.task
        return cls(
            task_id=task.task_id,
            dataset_size=planned.room.dataset_size,
            mechanism=task.mechanism,
            delta=task.delta,
            epsilon_budget=task.epsilon,
            collusion_epsilon_budget=task.collusion_epsilon,
            epsilon_asked=planned.room.epsilon,
            assumed_gradient_norm=plan.gradient_norm,
            recommended=OptionMessage.of(plan.recommended),
            alternatives=tuple(map(OptionMessage.of, plan.alternatives)),
            compared=planned.compared and ComparisonMessage.of(planned.compared),
            general_path=planned.general and GeneralPathMessage(**planned.general._asdict()),
        )

    def value(self, task: Task) -> Planned:
        """Return the plan, and the limits within which it was found."""
        plan = Plan(
            recommended=self.recommended.value(),
            alternatives=tuple(one.value() for one in self.alternatives),
            gradient_norm=self.assumed_gradient_norm,
        )
        room = JobLimits(task=task, dataset_size=self.dataset_size, epsilon=self.epsilon_asked)
        general = None if self.general_path is None else GeneralPath(**dict(self.general_path))
        return Planned(plan, room, None if self.compared is None else self.compared.value(), general)


class PlanJob(SamplingRequest):
    """A job to find; see `adserver job plan` for each field's meaning."""

    model: File = Field(description="An ONNX file, in base64.", repr=False)
    rounds: int | None = Field(None, ge=1)
    batch_size: float | None = None
    noise_multiplier: float | None = None
    max_epochs: int = Field(10, ge=1, le=10_000)
    epsilon: float | None = None
    loss: str | tuple[HeadSetting, ...] | None = None
    gradient_norm: float | None = None
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    dataset: str = Field("", description="The start of its id; not needed if there is only one.")

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
            loss=None if self.loss is None else loss_received(self.loss),
            wish=PlanConstraints(**pick_attributes(self, _FIXED)),
        )


def submit_options(option: Option) -> str:
    """Return the options of `adserver job submit` that give exactly this job."""
    return (
        f"--rounds {option.rounds} --batch-size {option.batch_size:.17g} --noise-multiplier"
        f" {option.noise_multiplier!r}"
        + (f" --noise correlated --carried {option.carried}" if option.carried else "")
    )
