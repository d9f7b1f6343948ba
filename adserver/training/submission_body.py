"""A submission as JSON: what `POST /api/v1/jobs` takes and a client on another machine sends.

body = SubmissionBody.of(submission, dataset="3f")
body.submission()       # the same submission at the ad server
"""

import base64
from typing import Self

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
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


class SubmissionBody(_Body):
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
    is_allocated: bool = True
    is_sample_public: bool = False
    noise: StepNoise = StepNoise.INDEPENDENT
    carried: int | None = Field(None, ge=1, le=63)
    dataset: str = Field("", description="The start of its id; not needed if there is only one.")
    task: str = Field("", description="The start of its id; by default the dataset's.")

    @classmethod
    def of(cls, submission: Submission, *, dataset: str, task: str = "") -> Self:
        """A submission as it is sent."""
        clip, optimizer, schedule = submission.adaptive_clip, submission.optimizer, submission.schedule
        return cls(
            model=base64.b64encode(submission.model),
            loss=submission.loss,
            rounds=submission.rounds,
            batch_size=submission.batch_size,
            epsilon=submission.epsilon,
            noise_multiplier=submission.noise_multiplier,
            optimizer=OptimizerBody(
                kind=optimizer.kind, learning_rate=optimizer.learning_rate, momentum=optimizer.momentum
            ),
            schedule=ScheduleBody(
                kind=schedule.kind,
                final_factor=schedule.final_factor,
                step_rounds=schedule.step_rounds,
                step_factor=schedule.step_factor,
                warmup_rounds=schedule.warmup_rounds,
            ),
            eval_set=None if submission.eval_set is None else base64.b64encode(submission.eval_set),
            eval_every=submission.eval_every,
            adaptive_clip=None
            if clip is None
            else AdaptiveClipBody(
                quantile=clip.quantile, learning_rate=clip.learning_rate, initial=clip.initial
            ),
            is_clip_per_layer=submission.is_clip_per_layer,
            is_allocated=submission.is_allocated,
            is_sample_public=submission.is_sample_public,
            noise=submission.noise,
            carried=submission.carried,
            dataset=dataset,
            task=task,
        )

    def submission(self) -> Submission:
        """The submission that was sent.

        Raises:
            InvalidTask: a number is out of its range.
        """
        clip = self.adaptive_clip
        return Submission(
            model=self.model,
            loss=self.loss,
            rounds=self.rounds,
            batch_size=self.batch_size,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            optimizer=build(Optimizer, self.optimizer.model_dump()),
            schedule=build(Schedule, self.schedule.model_dump()),
            eval_set=self.eval_set,
            eval_every=self.eval_every,
            adaptive_clip=None if clip is None else build(AdaptiveClip, clip.model_dump()),
            is_clip_per_layer=self.is_clip_per_layer,
            is_allocated=self.is_allocated,
            is_sample_public=self.is_sample_public,
            noise=self.noise,
            carried=self.carried,
        )


class PlanBody(_Body):
    """A job to be found; see `adserver job plan` for what each field means."""

    model: Base64Bytes = Field(description="An ONNX file, in base64.", repr=False)
    rounds: int | None = Field(None, ge=1)
    batch_size: float | None = None
    noise_multiplier: float | None = None
    max_epochs: int = Field(10, ge=1, le=10_000)
    epsilon: float | None = None
    loss: str | None = None
    gradient_norm: float | None = None
    is_allocated: bool = True
    is_sample_public: bool = False
    noise: StepNoise = StepNoise.INDEPENDENT
    carried: int | None = Field(None, ge=1, le=63)
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    dataset: str = Field("", description="The start of its id; not needed if there is only one.")
