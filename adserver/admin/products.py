"""What the API does with reports that wait and models that were trained: seal the ones, send the others."""

from base64 import b64encode
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from adserver.admin.look import DATASET, dataset_item
from adserver.admin.operation import Asked, Parameter, get, post
from adserver.admin.schemas import record
from adserver.records.exported_model import InputForm
from maskedlark.errors import InvalidTask


class SealBody(BaseModel):
    """A dataset to be made; see `adserver dataset seal` for what each field means."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field("", description="The start of its id; not needed if there is only one.")
    max_reports: int | None = Field(None, ge=1)
    allow_small: bool = False


def seal(asked: Asked) -> dict[str, Any]:
    """Make the waiting reports of a task a dataset at both helpers; the answer comes when it is committed."""
    body: SealBody = asked.body
    return dataset_item(
        asked.site.client.seal(
            body.task, max_reports=body.max_reports, allow_small=body.allow_small, progress=False
        )
    )


def export(asked: Asked) -> dict[str, Any]:
    """A job's latest model as an ONNX file, in base64."""
    takes = asked["takes"]
    if takes not in set(InputForm):
        raise InvalidTask(f"`takes` is one of {', '.join(InputForm)}")
    job = asked.site.client.job(asked["job"])
    made = job.exported(InputForm(takes))
    return {
        "job_id": job.job_id.hex(),
        "rounds_done": made.rounds_done,
        "model": b64encode(made.encoded).decode(),
    }


PRODUCTS: Final = (
    post(
        "/datasets",
        "Make the waiting reports of a task a dataset at both helpers",
        seal,
        record(**DATASET),
        body=SealBody,
        status=201,
    ),
    get(
        "/jobs/{job}/model",
        "A job's latest model as an ONNX file, in base64",
        export,
        record(job_id="string", rounds_done="integer", model="string"),
        Parameter(
            name="takes",
            about="What the graph takes: scaled (float32, each byte over 256), bytes, or the task's columns.",
            default=InputForm.SCALED.value,
        ),
    ),
)
"""The operations that make something of what the store holds."""
