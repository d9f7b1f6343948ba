"""The state of an ad server around its data: intake, helpers, certificates, grants, models, problems."""

from dataclasses import fields, replace

from pydantic import Field

from adserver.messages.base import File, Message, RequestBody, Whole
from adserver.records.exported_model import CalibratedModel, ExportedModel, InputForm, ModelWeights
from adserver.records.summaries import HelperSummary, IntakeSummary
from maskedlark.frozen import pick_attributes


class IntakeMessage(Message):
    """The number of reports by outcome since the server started. Reports have no times and no senders."""

    since: float
    accepted: Whole
    duplicates: Whole
    rejected: dict[str, Whole]

    def value(self) -> IntakeSummary:
        """Return the counts."""
        return IntakeSummary(**dict(self))


class RefreshedKeys(Message):
    """How many tasks have new HPKE keys in their bundles."""

    tasks: Whole


class KeyMessage(Message):
    """One of a helper's HPKE keys, and when this ad server first saw it."""

    key_id: Whole
    suite: str
    first_seen_at: float


class HelperMessage(Message):
    """The last known state of a helper."""

    role: Whole
    address: str
    is_well: bool | None
    cause: str
    answered_at: float | None
    latency_ms: float | None
    name: str | None
    software_digest: str | None
    version: str | None
    tasks: Whole | None
    datasets: Whole | None
    open_jobs: Whole | None
    rounds_answered: Whole | None
    keys: tuple[KeyMessage, ...]
    keys_not_after: Whole | None

    def value(self) -> HelperSummary:
        """Return the state."""
        state = HelperSummary(**pick_attributes(self, (one.name for one in fields(HelperSummary))))
        # A state that contradicts itself is not taken for a good one
        return replace(state, is_well=False) if self.cause else state


class CertificateMessage(Message):
    """A certificate that this server shows, or trusts a peer by."""

    whose: str
    names: tuple[str, ...]
    sha256: str
    ends_at: float
    file: str


class HelpersMessage(Message):
    """Both helpers, and the certificates between the parties."""

    helpers: tuple[HelperMessage, ...]
    certificates: tuple[CertificateMessage, ...]


class ModelMessage(Message):
    """A job's model as an ONNX file."""

    job_id: bytes
    rounds_done: Whole
    model: File = Field(repr=False)

    def value(self) -> ExportedModel:
        """Return the model."""
        return ExportedModel(encoded=self.model, rounds_done=self.rounds_done)


class CalibrateModel(RequestBody):
    """What a job's model is calibrated by: an earlier evaluation, or labelled records."""

    evaluation: str = Field(
        "", description="The start of the id of an evaluation of the same weights of the job."
    )
    panel: File | None = Field(
        None, description="Instead: an .npz of features and labels, in base64.", repr=False
    )
    takes: InputForm = Field(InputForm.SCALED, description="The graph's input: scaled, bytes or columns.")
    weights: ModelWeights = Field(
        ModelWeights.LATEST,
        description="The latest weights, or those that did best on the job's evaluation set.",
    )


class CalibratedModelMessage(ModelMessage):
    """A job's model, and what its logit was multiplied by and increased by."""

    scale: float
    shift: float
    warning: str = ""

    def to_calibrated_model(self) -> CalibratedModel:
        """Return the calibrated model."""
        return CalibratedModel(
            exported=self.value(), scale=self.scale, shift=self.shift, warning=self.warning
        )


class Problem(Message):
    """A refusal as problem details (RFC 9457); docs/reference/errors.md lists `error` and `reason`."""

    type: str
    title: str
    status: Whole
    detail: str
    error: str
    reason: str
    is_retryable: bool | None = None
    charged: str | None = None
    remedy: str | None = None
