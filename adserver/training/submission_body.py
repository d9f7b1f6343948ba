"""What a client on another machine sends: a submission, or a request for a plan, as JSON.

body = SubmissionBody.of(submission, dataset="3f")      # what `POST /api/v1/jobs` takes
body.submission()       # the same submission at the ad server
"""

import base64
from dataclasses import asdict, fields
from typing import Any, Self

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from adserver.budgets.planner import Wish
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.planning import PlanRequest
from adserver.training.submission import Submission
from maskedlark.canonical import build
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.releases.sampling import StepNoise


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OptimizerBody(_Body):
    """How gradients become steps."""

    kind: OptimizerKind = OptimizerKind.SGD
    learning_rate: float
    momentum: float = 0.9


class ScheduleBody(_Body):
    """How the learning rate changes over the rounds; each number belongs to the kind that names it."""

    kind: ScheduleKind = ScheduleKind.CONSTANT
    final_factor: float = 0.0
    step_rounds: int = 100
    step_factor: float = 0.5
    warmup_rounds: int = 10


class AdaptiveClipBody(_Body):
    """How the clip bound follows a quantile of the gradients' norms."""

    quantile: float
    learning_rate: float = 0.2
    initial: float = 0.1


class _SamplingBody(_Body):
    is_allocated: bool = True
    is_sample_public: bool = False
    noise: StepNoise = StepNoise.INDEPENDENT
    carried: int | None = Field(None, ge=1, le=63)


class SubmissionBody(_SamplingBody):
    """A job to be queued; see `adserver job submit` for what each field means."""

    model: Base64Bytes = Field(
        description="An ONNX file, in base64; training begins at its weights.", repr=False
    )
    loss: str
    rounds: int | None = Field(
        None, ge=1, description="Without it, as many as fit beside the noise multiplier."
    )
    batch_size: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    optimizer: OptimizerBody
    schedule: ScheduleBody = ScheduleBody()
    eval_set: Base64Bytes | None = Field(
        None, description="An .npz of features and labels, in base64.", repr=False
    )
    eval_every: int | None = Field(None, ge=1)
    adaptive_clip: AdaptiveClipBody | None = None
    is_clip_per_layer: bool = False
    dataset: str = Field("", description="The start of its id; not needed if there is only one.")
    task: str = Field("", description="The start of its id; by default the dataset's.")

    @classmethod
    def of(cls, submission: Submission, *, dataset: str, task: str = "") -> Self:
        """A submission as it is sent."""
        return cls(**_sent(submission), dataset=dataset, task=task)

    def submission(self) -> Submission:
        """The submission that was sent.

        Raises:
            InvalidTask: a number is out of its range.
        """
        clip = self.adaptive_clip
        built = {
            "optimizer": build(Optimizer, self.optimizer.model_dump()),
            "schedule": build(Schedule, self.schedule.model_dump()),
            "adaptive_clip": None if clip is None else build(AdaptiveClip, clip.model_dump()),
        }
        return Submission(**_fields(self, Submission) | built)


class PlanBody(_SamplingBody):
    """A job to be found; see `adserver job plan` for what each field means."""

    model: Base64Bytes = Field(description="An ONNX file, in base64.", repr=False)
    rounds: int | None = Field(None, ge=1)
    batch_size: float | None = None
    noise_multiplier: float | None = None
    max_epochs: int = Field(10, ge=1, le=10_000)
    epsilon: float | None = None
    loss: str | None = None
    gradient_norm: float | None = None
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    dataset: str = Field("", description="The start of its id; not needed if there is only one.")

    @classmethod
    def of(cls, request: PlanRequest, dataset: str) -> Self:
        """A request as it is sent."""
        sent = _sent(request)
        return cls(**sent.pop("wish"), **sent, dataset=dataset)

    def request(self) -> PlanRequest:
        """The request that was sent."""
        return PlanRequest(wish=Wish(**_fields(self, Wish)), **_fields(self, PlanRequest, without="wish"))


def _sent(asked: Submission | PlanRequest) -> dict[str, Any]:
    """Field by field; files are in base64."""
    return {
        name: base64.b64encode(value) if isinstance(value, bytes) else value
        for name, value in asdict(asked).items()
    }


def _fields(body: BaseModel, made: type, *, without: str = "") -> dict[str, Any]:
    """What a body says of the fields of what is made of it."""
    return {one.name: getattr(body, one.name) for one in fields(made) if one.name != without}
