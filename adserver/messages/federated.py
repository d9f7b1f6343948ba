"""Jobs on devices: one to queue, and what one would cost."""

from typing import Any, Self

from pydantic import Field

from adserver.messages.base import File, Message, RequestBody, Whole
from adserver.messages.budget import EpsilonsMessage
from adserver.records.defaults import MOST_JOB_NAME, MOST_JOB_NOTE
from adserver.records.federated_plan import FederatedPlan, read_device_instructions
from adserver.records.plans import read_plan
from adserver.records.submissions import FederatedSubmission
from adserver.training.federated.forecast import FederatedForecast
from maskedlark.canonical import encode
from maskedlark.frozen import pick_attributes
from maskedlark.reports.task_kinds import PrivacyUnit


class SubmitFederatedJob(RequestBody):
    """A job on devices to queue; see `adserver job submit` for each field's meaning."""

    kind: str
    settings: dict[str, Any] = Field({}, description="The strategy's.")
    widths: tuple[int, ...] = ()
    epsilon: float | None = None
    window_s: float
    least_devices: int | None = Field(None, ge=1)
    model: File | None = Field(None, description="An ONNX file, in base64.", repr=False)
    seed: int = 0
    eval_set: File | None = Field(None, description="An .npz of features and labels, in base64.", repr=False)
    eval_every: int | None = Field(None, ge=1)
    task: str = Field("", description="The start of its id; not needed if there is only one.")
    name: str = Field("", description="What you call the job.", max_length=MOST_JOB_NAME)
    note: str = Field("", description="What you want to remember of it.", max_length=MOST_JOB_NOTE)

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
        strategy, model = read_device_instructions(job)
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
            submit=submit_options(found),
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


def submit_options(found: FederatedForecast) -> str:
    """Return the options of `adserver job submit` that give this job's rounds and noise."""
    strategy, _ = read_device_instructions(found.plan.job)
    noise = f" --noise-multiplier {strategy.noise_multiplier!r}" if strategy.noise_multiplier else ""
    return f"--rounds {found.plan.job.rounds}{noise}"
