"""A job to queue, as a client sends it."""

from typing import Any, Final, Self

from pydantic import Field

from adserver.messages.base import File, RequestBody
from adserver.records.defaults import MOST_JOB_NAME, MOST_JOB_NOTE
from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.pipeline import names_of_outputs
from maskedlark.frozen import pick_attributes
from maskedlark.model.heads import Heads
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.releases.sampling import StepNoise

COLUMNS_CHECKED: Final = Field(
    True, description="Whether a model is refused that looks up numbers, or one byte of an id, in a table."
)
"""The field of a submission and of a plan."""


class SamplingRequest(RequestBody):
    """How a job draws its samples and its noise; the part that submissions and plans share."""

    is_allocated: bool = True
    is_sample_public: bool = False
    noise: StepNoise = StepNoise.INDEPENDENT
    carried: int | None = Field(None, ge=1, le=63)

    def sampling(self) -> dict[str, Any]:
        """Return these fields alone, by name."""
        return pick_attributes(self, SamplingRequest.model_fields)


class HeadSetting(RequestBody):
    """One head of a job: an output of the model, and what each label code means for it."""

    name: str = Field("", description="What results call it; by default the output's name.")
    output: str = Field(
        "",
        description="An output of the model, or one column of an output: logits[1]. Not needed if the model "
        "has one output.",
    )
    loss: str = "binary_cross_entropy_with_logits"
    targets: tuple[float | None, ...] = Field(
        description="One for each label code; null where the code says nothing about this head."
    )
    weights: tuple[float, ...] | None = Field(
        None, description="One for each label code; what its loss is multiplied with."
    )


def loss_sent(loss: str | Heads) -> str | tuple[HeadSetting, ...]:
    """Return a loss in the form in which it is sent."""
    return loss if isinstance(loss, str) else tuple(HeadSetting(**head.setting()) for head in loss.heads)


def loss_received(sent: str | tuple[HeadSetting, ...], model: bytes | None) -> str | Heads:
    """Return the loss that was sent; a head that names no output reads the only one of the model.

    Raises:
        InvalidTask: a head is not valid.
    """
    if isinstance(sent, str):
        return sent
    settings = (head.model_dump(exclude=set() if head.output else {"output"}) for head in sent)
    return Heads.of(settings, () if model is None else names_of_outputs(model))


class SubmitJob(SamplingRequest):
    """A job to queue; see `adserver job submit` for each field's meaning."""

    model: File = Field(description="An ONNX file, in base64; training begins at its weights.", repr=False)
    loss: str | tuple[HeadSetting, ...] = Field(
        description="A loss, or several heads of one model: their losses are summed."
    )
    rounds: int | None = Field(
        None,
        ge=1,
        description="Without it 120 or 300, by reports, epsilon and the model's layers.",
    )
    is_until_budget: bool = Field(
        False,
        description="Whether it runs as many rounds as fit beside its noise multiplier, until the budget, or "
        "epsilon, is spent; instead of rounds.",
    )
    batch_size: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    optimizer: Optimizer | None = Field(
        None,
        description="Without it momentum, at a rate by reports, epsilon and parameters, under a cosine "
        "schedule.",
    )
    schedule: Schedule | None = Field(
        None, description="Without it constant, or cosine if there is no optimizer either."
    )
    eval_set: File | None = Field(None, description="An .npz of features and labels, in base64.", repr=False)
    eval_every: int | None = Field(None, ge=1)
    clip_norm: float | None = None
    adaptive_clip: AdaptiveClip | None = None
    is_clip_per_layer: bool = False
    train: tuple[str, ...] = Field(
        (), description="Parameters to train, by name or pattern such as head.*; empty: all."
    )
    freeze: tuple[str, ...] = Field(
        (), description="Parameters among them that keep their values, by name or pattern."
    )
    is_standardised: bool = Field(
        True,
        description="Whether features of an untrained model are centred and scaled by the evaluation set.",
    )
    are_columns_checked: bool = COLUMNS_CHECKED
    dataset: str = Field("", description="The start of its id; not needed if there is only one.")
    task: str = Field("", description="The start of its id; by default the dataset's.")
    # Bounded, since both are stored and shown in every list.
    name: str = Field("", description="What you call the job.", max_length=MOST_JOB_NAME)
    note: str = Field("", description="What you want to remember of it.", max_length=MOST_JOB_NOTE)

    @classmethod
    def of(cls, submission: Submission) -> Self:
        """Convert a submission to the form in which it is sent."""
        found = pick_attributes(submission, cls.model_fields)
        return cls(**{**found, "loss": loss_sent(submission.loss)})

    def value(self) -> Submission:
        """Return the submission that was sent.

        Raises:
            InvalidTask: a head is not valid.
        """
        return Submission(**{**dict(self), "loss": loss_received(self.loss, self.model)})
