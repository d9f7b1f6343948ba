"""The endpoints that create tasks, seal datasets and export models."""

from typing import Annotated, Final

from fastapi import Query
from pydantic import Field

from adserver.admin.guarded_route import Context, Parameters, guarded_router
from adserver.messages.dataset import DatasetItem, SealDataset
from adserver.messages.evidence import EvidenceList, EvidenceMessage
from adserver.messages.site import ModelMessage, RefreshedKeys
from adserver.messages.task import CreateTask, TaskDetail
from adserver.records.access import Scope
from adserver.records.exported_model import InputForm, ModelWeights
from maskedlark.encoding.encoder import MAX_ENCODER_BYTES

reading = guarded_router(Scope.READ)
operating = guarded_router(Scope.OPERATE)
creating_tasks = guarded_router(Scope.TASKS, most_bytes=4 * MAX_ENCODER_BYTES)  # as text in JSON
ROUTERS: Final = (creating_tasks, operating, reading)


class _ExportParameters(Parameters):
    """The form of a model to export, and its weights."""

    takes: InputForm = Field(
        InputForm.SCALED,
        description="The graph's input: scaled (float32, each byte divided by 256), bytes, or the task's "
        "columns.",
    )
    weights: ModelWeights = Field(
        ModelWeights.LATEST,
        description="The latest weights, or those that did best on the job's evaluation set.",
    )


@creating_tasks.post("/tasks", summary="Create a task that both helpers sign", status_code=201)
def _create_task(context: Context, body: CreateTask) -> TaskDetail:
    """Create a task: both helpers check it against their floors and sign it.

    The ad server checks the settings as `adserver task create` does.
    """
    made = context.client.create_task(**body.settings())
    return TaskDetail.of(made, context.reports.counts(made.task_id))


@reading.get("/tasks/{task}/statements", summary="What both helpers say, and signed, of each release")
def _statements(context: Context, task: str) -> EvidenceList:
    """Ask both helpers what each job and query of a task cost, and check their signatures."""
    return EvidenceList(items=tuple(map(EvidenceMessage.of, context.server.statements(task))))


@operating.post(
    "/datasets",
    summary="Seal the waiting reports of a task into a dataset at both helpers",
    status_code=201,
)
def _seal(context: Context, body: SealDataset) -> DatasetItem:
    """Seal the waiting reports of a task at both helpers; the answer comes when the dataset is committed."""
    return DatasetItem.of(
        context.server.seal(body.task, max_reports=body.max_reports, allow_small=body.allow_small)
    )


@operating.post("/datasets/{dataset}/abandon", summary="Abandon a dataset that a helper refuses to commit")
def _abandon(context: Context, dataset: str) -> DatasetItem:
    """Return a dataset as it was; its reports wait to be sealed again.

    Reports that the other helper committed are used up: it drops them from the next dataset.
    """
    return DatasetItem.of(context.server.abandon(dataset))


@operating.post("/tasks/refresh-keys", summary="Fetch the helpers' current HPKE keys into the tasks' bundles")
def _refresh_keys(context: Context) -> RefreshedKeys:
    """Return how many tasks have new keys. A running server does this every minute."""
    return RefreshedKeys(tasks=context.server.refresh_keys())


@reading.get("/jobs/{job}/model", summary="A job's model as an ONNX file, in base64")
def _export(context: Context, job: str, of: Annotated[_ExportParameters, Query()]) -> ModelMessage:
    """Return a job's model as an ONNX file, in base64."""
    job_id = context.jobs.find(job).job_id
    made = context.server.export(job_id, of.takes, of.weights)
    return ModelMessage(job_id=job_id, rounds_done=made.rounds_done, model=made.encoded)
