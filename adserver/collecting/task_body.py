"""What a client on another machine sends to have a task made: the task's settings, as JSON.

body = TaskBody.of(fields, encoder)      # what `POST /api/v1/tasks` takes
body.settings()     # what `adserver.client.Client.create_task` takes at the ad server
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from maskedlark.canonical import Bytes16, encode
from maskedlark.encoding.encoder import Encoder, read_encoder
from maskedlark.errors import InvalidTask
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism, NoiseDivision
from maskedlark.reports.task import LabelSpace
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.reports.updates import UpdateForm


class TaskBody(BaseModel):
    """A task to be made. docs/reference/task.md has every field, and what it is by default."""

    model_config = ConfigDict(
        extra="forbid", strict=True, val_json_bytes="hex", ser_json_bytes="hex", allow_inf_nan=False
    )

    name: str
    origin: str
    min_batch_size: int
    clip_norm: float
    epsilon: float
    encoder: str | None = Field(
        None,
        description="The output of `browser-sim encode --fit`, as text. The task contains its digest, and the"
        " ad server serves it to browsers.",
    )
    num_features: int | None = Field(None, description="Default: the encoder's number of features.")
    labels: LabelSpace | None = Field(None, description="Default: the encoder's.")
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
        told = {**fields, "encoder": None if encoder is None else encode(encoder).decode()}
        try:
            return cls.model_validate_json(to_json(told, bytes_mode="hex", inf_nan_mode="constants"))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise InvalidTask(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def settings(self) -> dict[str, Any]:
        """Return the fields that were sent, as `Client.create_task` takes them; others keep their defaults.

        Raises:
            InvalidTask: the text is not an encoder.
        """
        told = {name: getattr(self, name) for name in self.model_fields_set}
        given = {name: value for name, value in told.items() if value is not None}
        if self.encoder is not None:
            given["encoder"] = read_encoder(self.encoder.rstrip("\n").encode())
        return given
