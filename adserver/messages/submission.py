"""A job to queue, as a client sends it."""

from typing import Any, Self

from pydantic import Field

from adserver.messages.base import File, RequestBody
from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.releases.sampling import StepNoise


class SamplingRequest(RequestBody):
    """How a job draws its samples and its noise; the part that submissions and plans share."""

    is_allocated: bool = True
    is_sample_public: bool = False
    noise: StepNoise = StepNoise.INDEPENDENT
    carried: int | None = Field(None, ge=1, le=63)

    def sampling(self) -> dict[str, Any]:
        """Return these fields alone, by name."""
        return pick_attributes(self, SamplingRequest.model_fields)


class SubmitJob(SamplingRequest):
    """A job to queue; see `adserver job submit` for each field's meaning."""

    model: File = Field(description="An ONNX file, in base64; training begins at its weights.", repr=False)
    loss: str
    rounds: int | None = Field(
        None, ge=1, description="Without it, as many as fit beside the noise multiplier."
    )
    batch_size: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    eval_set: File | None = Field(None, description="An .npz of features and labels, in base64.", repr=False)
    eval_every: int | None = Field(None, ge=1)
    clip_norm: float | None = None
    adaptive_clip: AdaptiveClip | None = None
    is_clip_per_layer: bool = False
    dataset: str = Field("", description="The start of its id; not needed if there is only one.")
    task: str = Field("", description="The start of its id; by default the dataset's.")

    @classmethod
    def of(cls, submission: Submission) -> Self:
        """Convert a submission to the form in which it is sent."""
        return cls(**pick_attributes(submission, cls.model_fields))

    def value(self) -> Submission:
        """Return the submission that was sent."""
        return Submission(**dict(self))
