"""What a client on another machine sends: a submission, or a request for a plan, as JSON.

body = SubmissionBody.of(submission, dataset="3f")      # what `POST /api/v1/jobs` takes
body.submission()       # the same submission at the ad server
"""

from base64 import b64encode
from dataclasses import asdict, fields
from typing import Any, Self

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from adserver.records.submissions import PlanConstraints, PlanRequest, Submission
from adserver.records.training_plan import Optimizer, Schedule
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.releases.sampling import StepNoise


class _SamplingBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

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
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    eval_set: Base64Bytes | None = Field(
        None, description="An .npz of features and labels, in base64.", repr=False
    )
    eval_every: int | None = Field(None, ge=1)
    adaptive_clip: AdaptiveClip | None = None
    is_clip_per_layer: bool = False
    dataset: str = Field("", description="The start of its id; not needed if there is only one.")
    task: str = Field("", description="The start of its id; by default the dataset's.")

    @classmethod
    def of(cls, submission: Submission, *, dataset: str, task: str = "") -> Self:
        """Convert a submission to the form in which it is sent."""
        return cls(**_sent(submission) | {"dataset": dataset, "task": task})

    def submission(self) -> Submission:
        """Convert back to the submission that was sent."""
        return Submission(**_fields(self, Submission))


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
        """Convert a request to the form in which it is sent."""
        sent = _sent(request)
        return cls(**asdict(sent.pop("wish")), **sent | {"dataset": dataset})

    def request(self) -> PlanRequest:
        """Convert back to the request that was sent."""
        return PlanRequest(
            wish=PlanConstraints(**_fields(self, PlanConstraints)),
            **_fields(self, PlanRequest, without="wish"),
        )


def _sent(asked: Submission | PlanRequest) -> dict[str, Any]:
    """Return the fields to send; files are in base64."""
    given = {one.name: getattr(asked, one.name) for one in fields(asked)}
    return {name: b64encode(value) if isinstance(value, bytes) else value for name, value in given.items()}


def _fields(body: BaseModel, made: type, *, without: str = "") -> dict[str, Any]:
    """Return the fields that a body contributes to the object made of it."""
    return {one.name: getattr(body, one.name) for one in fields(made) if one.name != without}
