"""Jobs on devices: one to queue, and what one would cost."""

from typing import Any, Final, Self

from pydantic import Field

from adserver.messages.base import Amount, File, Message, RequestBody, Whole
from adserver.messages.budget import EpsilonsMessage
from adserver.messages.job import cost_fields
from adserver.records.defaults import MOST_JOB_NAME, MOST_JOB_NOTE
from adserver.records.federated_plan import FederatedPlan
from adserver.records.plans import read_plan
from adserver.records.submissions import FederatedSubmission
from adserver.training.federated.forecast import FederatedForecast
from maskedlark.canonical import encode
from maskedlark.federated.local_forecast import LocalForecast
from maskedlark.federated.local_job import LocalCost
from maskedlark.frozen import pick_attributes
from maskedlark.reports.task_kinds import PrivacyUnit

_SAME: Final = ("person_epsilon", "updates_each", "upload_bytes", "update_noise", "model_noise", "updates")


class SubmitFederatedJob(RequestBody):
    """A job on devices to queue; see `adserver job submit` for each field's meaning."""

    kind: str
    settings: dict[str, Any] = Field({}, description="The strategy's.")
    widths: tuple[int, ...] = ()
    epsilon: float | None = None
    window_s: float = 60.0
    least_devices: int | None = Field(None, ge=1)
    model: File | None = Field(None, description="An ONNX file, in base64.", repr=False)
    seed: int = 0
    eval_set: File | None = Field(None, description="An .npz of features and labels, in base64.", repr=False)
    eval_every: int | None = Field(None, ge=1)
    task: str = Field("", description="The start of its id; not needed if there is only one.")
    name: str = Field("", description="What you call the job.", max_length=MOST_JOB_NAME)
    note: str = Field("", description="What you want to remember of it.", max_length=MOST_JOB_NOTE)
    is_without_helpers: bool = False
    is_tested: bool = False
    updates_each: int = Field(1, ge=1)

    @classmethod
    def of(cls, submission: FederatedSubmission) -> Self:
        """Convert a submission to the form in which it is sent."""
        return cls(**pick_attributes(submission, cls.model_fields))

    def value(self) -> FederatedSubmission:
        """Return the submission that was sent."""
        return FederatedSubmission(**dict(self))


class PhaseMessage(Message):
    """Rounds of one sampling rate and noise."""

    rounds: Whole
    sampling_rate: float
    noise_multiplier: float


class FederatedForecastMessage(Message):
    """A job on devices that is not submitted yet. Without noise the epsilons are null."""

    task_id: bytes
    strategy: str
    devices: Whole
    parameters: Whole
    rounds: Whole
    phases: tuple[PhaseMessage, ...]
    unit: PrivacyUnit
    delta: float
    epsilon_budget: float
    collusion_epsilon_budget: float
    alone: EpsilonsMessage
    together: EpsilonsMessage
    coins_leaked: EpsilonsMessage
    noise_norm: float
    noise_to_signal: float
    submit: str
    plan: str = Field(description="What would be stored, as canonical JSON.")

    @classmethod
    def of(cls, found: FederatedForecast) -> Self:
        """Describe a forecast."""
        task, job = found.plan.task, found.plan.job
        strategy, model = found.plan.read_instructions()
        return cls(
            task_id=job.task_id,
            strategy=strategy.kind,
            devices=strategy.devices,
            parameters=model.size,
            rounds=job.rounds,
            phases=tuple(map(PhaseMessage.model_validate, job.phases)),
            unit=task.unit,
            delta=task.delta,
            epsilon_budget=task.epsilon,
            collusion_epsilon_budget=task.collusion_epsilon,
            coins_leaked=found.leaked,
            submit=found.submit_options,
            # The whole plan, so that a client prints from afar what it would print here.
            plan=encode(found.plan).decode(),
            **pick_attributes(found, ("alone", "together", "noise_norm", "noise_to_signal")),
        )

    def value(self) -> FederatedForecast:
        """Return the forecast.

        Raises:
            ValueError: the plan is of a job over a dataset.
        """
        plan = read_plan(self.plan.encode())
        if not isinstance(plan, FederatedPlan):
            raise ValueError("expected the plan of a federated job")
        return FederatedForecast(
            plan=plan,
            alone=self.alone.value(),
            together=self.together.value(),
            leaked=self.coins_leaked.value(),
            noise_norm=self.noise_norm,
        )


class LocalForecastMessage(Message):
    """A job without helpers that is not submitted yet. Without noise the epsilons are null.

    Attributes:
        unit: Whose `epsilon` is: an event's, a coordinate's, or a model's.
        person_epsilon: Of all `updates_each` updates of a person.
        updates: How many all rounds take; null of a job without rounds.
    """

    unit: str
    epsilon: Amount
    epsilon_of_a_whole_update: Amount
    delta: float
    person_epsilon: Amount
    updates_each: Whole
    upload_bytes: Whole
    update_noise: float
    model_noise: float
    updates: Whole | None

    @classmethod
    def of(cls, found: LocalForecast) -> Self:
        """Describe a forecast."""
        return cls(**cost_fields(found.cost), **pick_attributes(found, _SAME))

    def value(self) -> LocalForecast:
        """Return the forecast."""
        cost = LocalCost(self.epsilon, self.delta, self.unit, self.epsilon_of_a_whole_update)
        return LocalForecast(cost=cost, **pick_attributes(self, _SAME))


def forecast_message(
    found: FederatedForecast | LocalForecast,
) -> FederatedForecastMessage | LocalForecastMessage:
    """Describe a forecast of a job on devices, with helpers or without."""
    return (
        LocalForecastMessage.of(found)
        if isinstance(found, LocalForecast)
        else FederatedForecastMessage.of(found)
    )
