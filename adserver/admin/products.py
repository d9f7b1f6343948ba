"""What the API makes and hands out: tasks, datasets of the reports that wait, models that were trained."""

from base64 import b64encode
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from adserver.admin.operation import ApiRequest, QueryParameter, get, post
from adserver.admin.read_endpoints import DATASET, TASK_SHOWN, dataset_item, task_shown
from adserver.admin.schemas import record
from adserver.collecting.task_body import TaskBody
from adserver.records.access import Scope
from adserver.records.exported_model import InputForm
from maskedlark.encoding.encoder import MAX_ENCODER_BYTES
from maskedlark.errors import InvalidTask


class SealBody(BaseModel):
    """A dataset to be made; see `adserver dataset seal` for what each field means."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str = Field("", description="The start of its id; may be omitted if there is only one.")
    max_reports: int | None = Field(None, ge=1, le=1 << 40)
    allow_small: bool = False


def seal(asked: ApiRequest) -> dict[str, Any]:
    """Make the waiting reports of a task a dataset at both helpers; the answer comes when it is committed."""
    body: SealBody = asked.body
    return dataset_item(
        asked.site.client.seal(
            body.task, max_reports=body.max_reports, allow_small=body.allow_small, progress=False
        )
    )


def export(asked: ApiRequest) -> dict[str, Any]:
    """Return a job's latest model as an ONNX file, in base64."""
    takes = asked["takes"]
    if takes not in set(InputForm):
        raise InvalidTask(f"`takes` must be one of {', '.join(InputForm)}")
    job = asked.site.client.job(asked["job"])
    made = job.exported(InputForm(takes))
    return {
        "job_id": job.job_id.hex(),
        "rounds_done": made.rounds_done,
        "model": b64encode(made.encoded).decode(),
    }


def create_task(asked: ApiRequest) -> dict[str, Any]:
    """Make a task: both helpers check it against their floors and sign it.

    The ad server checks the settings as `adserver task create` does.
    """
    body: TaskBody = asked.body
    return task_shown(asked, asked.site.client.create_task(**body.settings()))


PRODUCTS: Final = (
    post(
        "/tasks",
        "Create a task that both helpers sign",
        create_task,
        TASK_SHOWN,
        body=TaskBody,
        status=201,
        needs=Scope.TASKS,
        most_bytes=4 * MAX_ENCODER_BYTES,  # as text in JSON
    ),
    post(
        "/datasets",
        "Seal the waiting reports of a task into a dataset at both helpers",
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
        QueryParameter(
            name="takes",
            about="The graph's input: scaled (float32, each byte divided by 256), bytes, or the task's "
            "columns.",
            default=InputForm.SCALED.value,
        ),
    ),
)
"""The operations that make something of what the store holds."""
