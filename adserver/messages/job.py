"""Jobs: in a list, in full, and their rounds."""

from typing import TYPE_CHECKING, Self

from adserver.messages.base import Message, Whole
from adserver.records.federated_plan import FederatedPlan, read_device_instructions
from adserver.records.job_record import JobRecord, Stop
from adserver.records.job_state import STOPPED, JobEvent, JobState, possible
from adserver.records.plans import read_plan
from adserver.records.round_figures import RoundFigures
from adserver.training.cost import epsilons_of_federated, job_epsilons
from maskedlark.canonical import encode
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.task_kinds import PrivacyUnit

if TYPE_CHECKING:
    from typing import Any


class JobProgress(Message):
    """A job's progress, the same for jobs of all kinds."""

    job_id: bytes
    task_id: bytes
    state: JobState
    reason: str | None
    cause: str | None
    submitted_at: float
    rounds: Whole
    rounds_done: Whole
    is_closed: bool


class JobItem(JobProgress):
    """Everything that is stored of a job; its plan is canonical JSON."""

    plan: str
    rounds_charged: Whole | None
    task: str
    name: str
    note: str

    @classmethod
    def of(cls, job: JobRecord) -> Self:
        """Describe a job."""
        return cls(**_plan_fields(job))

    def value(self) -> JobRecord:
        """Return the job.

        Raises:
            ValueError: its plan has not as many rounds as are done.
        """
        plan = read_plan(self.plan.encode())
        if self.rounds_done > plan.job.rounds:
            raise ValueError("rounds_done is more than the rounds of the plan")
        return JobRecord(
            plan=plan,
            submitted_at_s=self.submitted_at,
            stop=None if self.reason is None else Stop(reason=self.reason, cause=self.cause or ""),
            lease_until_s=0.0,
            **pick_attributes(self, ("state", "rounds_done", "is_closed", "rounds_charged", "name", "note")),
        )


class JobFacts(JobProgress):
    """A job with its cost and latest figures. Epsilons are of the rounds done, and null without noise."""

    mechanism: Mechanism
    delta: float
    epsilon_spent: float | None
    collusion_epsilon_spent: float | None
    loss: float | None
    accuracy: float | None
    name: str
    note: str


class TrainingJobFacts(JobFacts):
    """A job over a dataset."""

    dataset_id: bytes
    is_until_budget: bool
    loss_name: str
    expected_batch_size: float
    sampling_rate: float
    dataset_size: Whole
    optimizer: str
    learning_rate: float
    schedule: str
    noise_multiplier: float
    carried: Whole | None
    trained: tuple[str, ...] | None


class FederatedJobFacts(JobFacts):
    """A job on devices. Its epsilons are a person's."""

    strategy: str
    devices: Whole
    least_devices: Whole
    window_s: float
    sampling_rate: float
    cover: float | None
    widths: tuple[Whole, ...]
    parameters: Whole
    noise_multiplier: float
    unit: PrivacyUnit


class _Acts(JobItem):
    """What may be done with a job."""

    can: tuple[JobEvent, ...]
    next_command: str | None


class TrainingJobDetail(_Acts, TrainingJobFacts):
    """A job over a dataset, with everything that is stored of it."""


class FederatedJobDetail(_Acts, FederatedJobFacts):
    """A job on devices, with everything that is stored of it."""


JobDetail = TrainingJobDetail | FederatedJobDetail


class RoundsPage(Message):
    """Some of a job's rounds, in order; `next_after_rounds` is null on the last page."""

    items: tuple[RoundFigures, ...]
    next_after_rounds: Whole | None


class Curves(Message):
    """A bounded number of a job's rounds, evenly over all of them."""

    job_id: bytes
    rounds_done: Whole
    is_federated: bool
    points: tuple[RoundFigures, ...]


def job_facts(job: JobRecord, evaluated: RoundFigures | None) -> TrainingJobFacts | FederatedJobFacts:
    """Describe a job, with its last evaluated round if there is one."""
    facts = _facts(job, evaluated)
    return FederatedJobFacts(**facts) if isinstance(job.plan, FederatedPlan) else TrainingJobFacts(**facts)


def job_detail(job: JobRecord, evaluated: RoundFigures | None) -> JobDetail:
    """Describe a job with everything that is stored of it, and what may be done with it."""
    found = {
        **_facts(job, evaluated),
        **_plan_fields(job),
        "can": tuple(one for one in (JobEvent.CANCEL, JobEvent.RESUME) if possible(job.state, one)),
        "next_command": _next_command(job),
    }
    return FederatedJobDetail(**found) if isinstance(job.plan, FederatedPlan) else TrainingJobDetail(**found)


def _next_command(job: JobRecord) -> str | None:
    """Return the command to type next; None while there is nothing to do."""
    name = job.job_id.hex()[:12]
    if job.state in (JobState.REFUSED, JobState.FAILED):
        return f"adserver job resume {name}"
    if job.state in STOPPED and job.rounds_done:
        return f"adserver model export trained.onnx --job {name}"
    return None


def _plan_fields(job: JobRecord) -> "dict[str, Any]":
    return {
        "job_id": job.job_id,
        "task_id": job.plan.job.task_id,
        "reason": job.stop.reason if job.stop else None,
        "cause": job.stop.cause if job.stop else None,
        "submitted_at": job.submitted_at_s,
        "rounds": job.plan.job.rounds,
        "plan": encode(job.plan).decode(),
        "task": job.plan.task.name,
        **pick_attributes(job, ("state", "rounds_done", "is_closed", "rounds_charged", "name", "note")),
    }


def _facts(job: JobRecord, evaluated: RoundFigures | None) -> "dict[str, Any]":
    plan, task = job.plan, job.plan.task
    epsilons = None
    if task.mechanism is not Mechanism.NONE:
        if isinstance(plan, FederatedPlan):
            epsilons = epsilons_of_federated(plan, job.rounds_done)
        else:
            epsilons = job_epsilons(plan, job.rounds_done)
    found = {
        **_plan_fields(job),
        "mechanism": task.mechanism,
        "delta": task.delta,
        "epsilon_spent": epsilons.ad_server if epsilons else None,
        "collusion_epsilon_spent": epsilons.colluding if epsilons else None,
        "loss": evaluated.loss if evaluated else None,
        "accuracy": evaluated.accuracy if evaluated else None,
    }
    if isinstance(plan, FederatedPlan):
        strategy, model = read_device_instructions(plan.job)
        phase = plan.job.phase(min(job.rounds_done, plan.job.rounds - 1))
        return {
            **found,
            **pick_attributes(plan, ("least_devices", "window_s")),
            **pick_attributes(phase, ("sampling_rate", "noise_multiplier")),
            "strategy": strategy.kind,
            "devices": strategy.devices,
            "cover": task.updates.cover if task.updates else None,
            "widths": tuple(model.widths),
            "parameters": model.size,
            "unit": task.unit,
        }
    return {
        **found,
        **pick_attributes(plan, ("is_until_budget", "dataset_size")),
        **pick_attributes(
            plan.job, ("dataset_id", "sampling_rate", "noise_multiplier", "carried", "trained")
        ),
        "loss_name": plan.job.loss.value,
        "expected_batch_size": plan.denominator,
        "optimizer": plan.optimizer.kind.value,
        "learning_rate": plan.optimizer.learning_rate,
        "schedule": plan.schedule.kind.value,
    }
