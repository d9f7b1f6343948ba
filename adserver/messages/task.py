"""Tasks: in a list, with their settings, and as a client asks for a new one."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import ConfigDict, Field, ValidationError
from pydantic_core import to_json

from adserver.messages.base import Message, RequestBody, Whole, first_fault
from maskedlark.canonical import Bytes16, decode, encode
from maskedlark.encoding.encoder import Encoder, read_encoder
from maskedlark.errors import InvalidTask
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism, NoiseDivision
from maskedlark.reports.task import LabelSpace, Task, TaskBundle
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.reports.updates import UpdateForm

_OF_TASK: Final = (
    "name", "origin", "expires_at", "min_batch_size", "epsilon", "collusion_epsilon", "mechanism", "unit",
)  # fmt: skip
# The store loads SQLAlchemy, which a remote client does without.
if TYPE_CHECKING:
    from adserver.store.reports import ReportCounts
    from adserver.store.tasks import StoredTask


class TaskSummary(Message):
    """A task and how many reports it has."""

    task_id: bytes
    name: str
    origin: str
    expires_at: Whole
    waiting: Whole
    sealed: Whole
    dropped: Whole
    expired: Whole

    @classmethod
    def of(cls, stored: "StoredTask", counts: "ReportCounts") -> Self:
        """Describe a task."""
        return cls(**_facts(stored, counts))

    def counts(self) -> "ReportCounts":
        """Return the counts as the store has them."""
        from adserver.store.reports import ReportCounts

        return ReportCounts(**pick_attributes(self, ("waiting", "sealed", "dropped", "expired")))


class TaskItem(TaskSummary):
    """A task in a list of the admin API."""

    created_at: float
    min_batch_size: Whole
    epsilon: float
    collusion_epsilon: float
    mechanism: Mechanism
    unit: PrivacyUnit
    is_of_updates: bool


class TaskDetail(TaskItem):
    """A task with the bundle that browsers are served."""

    bundle: str

    @classmethod
    def of(cls, stored: "StoredTask", counts: "ReportCounts") -> Self:
        """Describe a task."""
        return cls(**_facts(stored, counts), bundle=encode(stored.bundle).decode())

    def verify(self) -> "StoredTask":
        """Return the task of the bundle, after verifying its signatures.

        Raises:
            InvalidTask: they are not its helpers'.
        """
        from adserver.store.tasks import StoredTask

        bundle = decode(TaskBundle, self.bundle.encode())
        # Here and not only there: that helpers signed a task is not for an ad server to say.
        bundle.verify()
        return StoredTask(task_id=bundle.task.task_id, bundle=bundle, created_at=self.created_at)


class TaskEncoder(Message):
    """The encoder that a task names, as its canonical JSON; null if it names none."""

    encoder: str | None

    @classmethod
    def of(cls, encoder: Encoder | None) -> Self:
        """Describe an encoder."""
        return cls(encoder=None if encoder is None else encode(encoder).decode())

    def verify(self, task: Task) -> Encoder | None:
        """Return the encoder.

        Raises:
            InvalidTask: it is not the one that the task names.
        """
        found = None if self.encoder is None else read_encoder(self.encoder.encode())
        if (found and found.digest) != task.encoder:
            raise InvalidTask("the answer's encoder is not the one that the task names")
        return found


def _facts(stored: "StoredTask", counts: "ReportCounts") -> dict[str, Any]:
    task = stored.bundle.task
    return {
        **asdict(counts),
        **pick_attributes(task, _OF_TASK),
        "task_id": stored.task_id,
        "created_at": stored.created_at,
        "is_of_updates": task.updates is not None,
    }


class CreateTask(RequestBody):
    """A task to create. docs/reference/task.md describes every field."""

    model_config = ConfigDict(val_json_bytes="hex", ser_json_bytes="hex")

    name: str
    origin: str
    min_batch_size: int
    epsilon: float
    clip_norm: float | None = Field(
        None, description="Required without `measurement`; then the default is 1."
    )
    encoder: str | None = Field(
        None,
        description="The output of `browser-sim encode --fit`, as text. The task contains its digest, and the"
        " ad server serves it to browsers.",
    )
    num_features: int | None = Field(None, description="Default: the encoder's number of features.")
    labels: LabelSpace | None = Field(
        None,
        description="Default: the encoder's. With an encoder without a label, those that pages give as "
        "numbers; without any, such a task only measures.",
    )
    days: float = Field(
        30.0, description="Days that the task lasts; instead of `expires_at`.", ge=0.0, le=1e7
    )
    salt: Bytes16 | None = Field(
        None,
        description="16 random bytes in hex. Equal settings with an equal salt are the same task: a client "
        "that lost the response repeats the request with it. Default: drawn by the ad server.",
    )
    num_decoys: int | None = Field(None, description="Default: all labels except the real one.")
    fake_report_rate: float = 0.0
    feature_epsilon: float | None = None
    mechanism: Mechanism = Mechanism.GAUSSIAN
    noise: NoiseDivision = NoiseDivision.FULL
    norm: Norm | None = Field(None, description="Default: the one that the mechanism requires.")
    frac_bits: int = 32
    collusion_epsilon: float | None = Field(None, description="Default: twice `epsilon`.")
    delta: float = 1e-5
    max_dataset_size: int = 1 << 20
    time_bucket_s: int = Field(3_600, ge=1)
    starts_at: int | None = Field(
        None, description="Unix seconds; default: the start of the current time bucket."
    )
    expires_at: int | None = Field(None, description="Unix seconds; instead of `days`.")
    measurement: dict[str, Any] | None = Field(
        None, description="The same as in the measurement file of `adserver task create`."
    )
    unit: PrivacyUnit = PrivacyUnit.REPORT
    reports_per_user: int = 1
    updates: UpdateForm | None = Field(None, description="For federated training; the unit is then user.")
    proof: bool | None = Field(None, description="Default: true, or false with `updates`.")

    @classmethod
    def of(cls, fields: Mapping[str, Any], encoder: Encoder | None) -> Self:
        """Convert a task's fields, except its helpers, to the form in which they are sent.

        Raises:
            InvalidTask: one is of another type.
        """
        # By way of JSON, so that what is checked is what the server will read.
        sent = {**fields, "encoder": None if encoder is None else encode(encoder).decode()}
        try:
            return cls.model_validate_json(to_json(sent, bytes_mode="hex", inf_nan_mode="constants"))
        except ValidationError as error:
            raise InvalidTask(first_fault(error)) from None

    def settings(self) -> dict[str, Any]:
        """Return the fields that were sent, as `Client.create_task` takes them; others keep their defaults.

        Raises:
            InvalidTask: the text is not an encoder.
        """
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        given = {name: value for name, value in sent.items() if value is not None}
        if self.encoder is not None:
            given["encoder"] = read_encoder(self.encoder.rstrip("\n").encode())
        return given
