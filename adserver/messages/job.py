"""Jobs: in a list, in full, and their rounds."""

from typing import TYPE_CHECKING, Final, Self

from adserver.messages.base import Amount, Message, Whole
from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import JobRecord, Stop
from adserver.records.job_state import STOPPED, JobEvent, JobState
from adserver.records.local_plan import LocalPlan
from adserver.records.plans import read_plan
from adserver.records.round_figures import NOT_EVALUATED, RoundFigures
from adserver.records.scored_loss import scored_loss
from adserver.records.training_plan import TrainingPlan
from adserver.training.cost import job_epsilons
from maskedlark.canonical import encode
from maskedlark.frozen import pick_attributes
from maskedlark.model.losses import Loss
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.task_kinds import PrivacyUnit

if TYPE_CHECKING:
    from typing import Any

    from maskedlark.federated.local_job import LocalCost

_PROBABILITIES: Final = (Loss.BINARY_CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
_STORED: Final = (
    "state", "rounds_done", "is_closed", "rounds_charged", "name", "note", "updates", "in_flight",
    "eval_set_digest",
)  # fmt: skip
_EVALUATED: Final = ("loss", "calibrated_loss", "accuracy", "auc", "auc_low", "auc_high")


class JobProgress(Message):
    """A job's progress, the same for jobs of all kinds. Without helpers there is no task.

    A job of draw and discard has no rounds either: it goes on until it is closed.
    """

    job_id: bytes
    task_id: bytes | None
    state: JobState
    reason: str | None
    cause: str | None
    submitted_at: float
    rounds: Whole | None
    rounds_done: Whole
    is_closed: bool


class LostJobMessage(Message):
    """A job that only helpers held, and that they closed."""

    job_id: bytes
    rounds_charged: Whole


class JobItem(JobProgress):
    """Everything that is stored of a job; its plan is canonical JSON."""

    plan: str
    rounds_charged: Whole | None
    task: str
    name: str
    note: str
    updates: Whole | None = None
    in_flight: float | None = None
    eval_set_digest: bytes | None = None

    @classmethod
    def of(cls, job: JobRecord) -> Self:
        """Describe a job."""
        return cls(**_plan_fields(job))

    def value(self) -> JobRecord:
        """Return the job.

        Raises:
            ValueError: its plan has not as many rounds as are done.
        """
        found = JobRecord(
            plan=read_plan(self.plan.encode()),
            submitted_at_s=self.submitted_at,
            stop=None if self.reason is None else Stop(reason=self.reason, cause=self.cause or ""),
            lease_until_s=0.0,  # not sent: leases are between the workers
            **pick_attributes(self, _STORED),
        )
        # Costs and phases are computed by this number, and have none beyond the plan.
        if found.rounds is not None and self.rounds_done > found.rounds:
            raise ValueError("rounds_done is more than the rounds of the plan")
        return found


class JobFacts(JobProgress):
    """A job with its cost and latest figures. Epsilons are of the rounds done, and null without noise.

    The AUC's interval, of 99 %, is for people like those of the evaluation set. `calibrated_loss` is what
    calibration would leave of the loss, by which the best weights are chosen; null but for two classes.
    """

    mechanism: Mechanism
    delta: float
    epsilon_spent: float | None
    collusion_epsilon_spent: float | None
    loss: float | None
    calibrated_loss: float | None
    accuracy: float | None
    auc: float | None
    auc_low: float | None
    auc_high: float | None
    name: str
    note: str


class TrainingJobFacts(JobFacts):
    """A job over a dataset.

    `clip_norm` bounds each gradient; of an adaptive job it is the largest bound that a round may have.
    `parameters` are the numbers that it trains; null of a job from before they were counted.
    """

    dataset_id: bytes
    is_until_budget: bool
    loss_name: str
    expected_batch_size: float
    sampling_rate: float
    dataset_size: Whole
    optimizer: str
    learning_rate: float
    schedule: str
    clip_norm: float
    is_clip_adaptive: bool
    is_clip_per_layer: bool
    parameters: Whole | None
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


class LocalJobFacts(JobProgress):
    """A job without helpers: its updates, and what one costs its device. Epsilons are null without noise."""

    strategy: str
    devices: Whole | None
    instances: Whole | None
    widths: tuple[Whole, ...]
    parameters: Whole
    updates: Whole
    in_flight: float | None
    unit: str
    epsilon: Amount
    epsilon_of_a_whole_update: Amount
    delta: float
    name: str
    note: str


class _Acts(JobItem):
    """What may be done with a job."""

    can: tuple[JobEvent, ...]
    next_command: str | None
    calibrate_command: str | None


class TrainingJobDetail(_Acts, TrainingJobFacts):
    """A job over a dataset, with everything that is stored of it."""


class FederatedJobDetail(_Acts, FederatedJobFacts):
    """A job on devices, with everything that is stored of it."""


class LocalJobDetail(LocalJobFacts, _Acts):
    """A job without helpers, with everything that is stored of it."""

    updates: Whole


JobDetail = TrainingJobDetail | FederatedJobDetail | LocalJobDetail


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


def job_facts(
    job: JobRecord, evaluated: RoundFigures | None
) -> TrainingJobFacts | FederatedJobFacts | LocalJobFacts:
    """Describe a job, with its last evaluated round if there is one."""
    facts = _facts(job, evaluated)
    match job.plan:
        case TrainingPlan():
            return TrainingJobFacts(**facts)
        case FederatedPlan():
            return FederatedJobFacts(**facts)
        case LocalPlan():
            return LocalJobFacts(**facts)


def job_detail(job: JobRecord, evaluated: RoundFigures | None) -> JobDetail:
    """Describe a job with everything that is stored of it, and what may be done with it."""
    found = {
        **_facts(job, evaluated),
        **_plan_fields(job),
        "can": tuple(one for one in (JobEvent.CANCEL, JobEvent.RESUME) if job.state.allows(one)),
        "next_command": _next_command(job),
        "calibrate_command": calibrate_command(job),
    }
    match job.plan:
        case TrainingPlan():
            return TrainingJobDetail(**found)
        case FederatedPlan():
            return FederatedJobDetail(**found)
        case LocalPlan():
            return LocalJobDetail(**found)


def cost_fields(cost: "LocalCost") -> "dict[str, Any]":
    """Return what an update of a job without helpers costs, by the names that messages give it."""
    return {
        "unit": cost.unit,
        "epsilon": cost.epsilon,
        "epsilon_of_a_whole_update": cost.whole_update,
        "delta": cost.delta,
    }


def _next_command(job: JobRecord) -> str | None:
    """Return the command to type next; None while there is nothing to do."""
    name = job.job_id.hex()[:12]
    if job.state in (JobState.REFUSED, JobState.FAILED):
        is_lasting = job.stop is not None and job.stop.is_lasting
        return f"adserver job {'cancel' if is_lasting else 'resume'} {name}"
    if job.state in STOPPED and (job.rounds_done or job.updates):
        return f"adserver model export trained.onnx --job {name}"
    return None


def calibrate_command(job: JobRecord) -> str | None:
    """Return the command that calibrates a job's model on rows of one's own; None if it gives no probability.

    Exported weights are not calibrated: clipping and noise leave predictions that add up to too little or
    too much.
    """
    if not isinstance(job.plan, TrainingPlan):
        return None
    # A job does not say how many outputs its model has: one, or a pair of them
    of_one, of_pair = (scored_loss(job.plan.job.loss, outputs) for outputs in (1, 2))
    is_pair = of_pair is Loss.CROSS_ENTROPY and job.plan.task.labels.size == 2
    if not is_pair and of_one not in _PROBABILITIES:
        return None
    return f"adserver model calibrate calibrated.onnx --job {job.job_id.hex()[:12]} --panel PANEL.npz"


def _plan_fields(job: JobRecord) -> "dict[str, Any]":
    return {
        "job_id": job.job_id,
        "task_id": job.plan.task.task_id if job.plan.task else None,
        "reason": job.stop.reason if job.stop else None,
        "cause": job.stop.cause if job.stop else None,
        "submitted_at": job.submitted_at_s,
        "rounds": job.rounds,
        "plan": encode(job.plan).decode(),
        "task": job.task_name,
        **pick_attributes(job, _STORED),
    }


def _facts(job: JobRecord, evaluated: RoundFigures | None) -> "dict[str, Any]":
    plan = job.plan
    if isinstance(plan, LocalPlan):
        return _local_facts(job, plan)
    task = plan.task
    epsilons = None if task.mechanism is Mechanism.NONE else job_epsilons(plan, job.rounds_done)
    found = {
        **_plan_fields(job),
        "mechanism": task.mechanism,
        "delta": task.delta,
        "epsilon_spent": epsilons.ad_server if epsilons else None,
        "collusion_epsilon_spent": epsilons.colluding if epsilons else None,
        **pick_attributes(evaluated or NOT_EVALUATED, _EVALUATED),
    }
    if isinstance(plan, FederatedPlan):
        strategy, model = plan.read_instructions()
        # A job that is done is in no phase: it shows its last one.
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
        **pick_attributes(plan.job, ("is_clip_adaptive", "is_clip_per_layer")),
        "clip_norm": plan.job.clip(plan.task).bound,
        "parameters": plan.num_parameters,
        "loss_name": plan.job.loss.value,
        "expected_batch_size": plan.denominator,
        "optimizer": plan.optimizer.kind.value,
        "learning_rate": plan.optimizer.learning_rate,
        "schedule": plan.schedule.kind.value,
    }


def _local_facts(job: JobRecord, plan: LocalPlan) -> "dict[str, Any]":
    from maskedlark.federated.local_job import cost_of

    settings, model = plan.read_instructions()
    return {
        **_plan_fields(job),
        **cost_fields(cost_of(plan.local)),
        "strategy": plan.local.kind,
        "devices": getattr(settings, "devices", None),
        "instances": getattr(settings, "instances", None),
        "widths": plan.local.widths,
        "parameters": model.size,
    }
