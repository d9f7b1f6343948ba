"""What the API does with queries and evaluations: ask them, and show them with their answers."""

from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from adserver.admin.operation import MOST_MODEL_BYTES, ApiRequest, get, post
from adserver.admin.paging import page_json
from adserver.admin.read_endpoints import AFTER, LIMIT
from adserver.admin.schemas import page_of, record
from adserver.measuring.evaluator import read_evaluation
from adserver.measuring.measurer import read_query
from adserver.records.defaults import DEFAULT_BINS
from adserver.store.datasets import Dataset
from adserver.store.paging import PageMarker
from adserver.store.queries import AskedQuery
from adserver.views.asked_query import query_summary
from adserver.views.evaluation import evaluation_json
from adserver.views.query import result_json
from maskedlark.errors import JobReason, JobRefused
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.reports.measurement import MAX_KEYS, MAX_VALUES
from maskedlark.reports.task import Task

QUERIES_SHOWN: Final = (QuerySpec.kind, DiscoverySpec.kind)
EVALUATIONS_SHOWN: Final = (EvaluationSpec.kind,)
_ITEM: Final = {
    "query_id": "string",
    "kind": "string",
    "task_id": "string",
    "dataset_id": "string",
    "asked_at": "number",
    "is_answered": "boolean",
    "about": "string",
}
_RESULT: Final = {"query_id": "string", "dataset_id": "string", "records": "integer", "epsilon": "object?"}


_QueryId = Annotated[
    str,
    Field(
        pattern="^([0-9a-fA-F]{32})?$",
        description="An idempotency id chosen by the client, 16 random bytes in hex. Repeating a request with"
        " the same id returns the same answer and is charged once. A different request with a used "
        "id is refused with 409, query_changed.",
    ),
]


class CodesBetween(BaseModel):
    """All codes of a key from the first to the last one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    first: int
    last: int


class QueryBody(BaseModel):
    """A query; see `adserver aggregate` for what each field means."""

    model_config = ConfigDict(extra="forbid", strict=True)

    values: list[str] = Field([], max_length=2 * MAX_VALUES)
    histograms: list[str] = Field([], max_length=2 * MAX_VALUES)
    group_by: list[str] = Field([], max_length=MAX_KEYS)
    where: dict[str, str | int] = Field({}, max_length=MAX_KEYS)
    domains: dict[str, list[str | int] | CodesBetween] = Field({}, max_length=MAX_KEYS)
    discover: bool = False
    roll_up: bool = False
    epsilon: float | None = None
    dataset: str = Field("", description="The start of its id; may be omitted if there is only one.")
    query_id: _QueryId = ""


class EvaluationBody(BaseModel):
    """An evaluation of a model, or of a job's latest weights."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Base64Bytes | None = Field(None, description="An ONNX file, in base64.", repr=False)
    job: str = Field("", description="The start of the id of a job; instead of a model.")
    bins: int = DEFAULT_BINS
    epsilon: float | None = None
    dataset: str = Field("", description="The start of its id; may be omitted if there is only one.")
    query_id: _QueryId = ""


def item(asked: AskedQuery) -> dict[str, Any]:
    """Return a query as an item of a list."""
    return asdict(query_summary(asked))


def _page(asked: ApiRequest, kinds: tuple[str, ...]) -> dict[str, Any]:
    return page_json(
        asked,
        asked.site.queries.page,
        lambda one: PageMarker(at=one.asked_at, key=one.spec.query_id),
        item,
        kinds=kinds,
    )


def list_queries(asked: ApiRequest) -> dict[str, Any]:
    """Return a page of queries, newest first."""
    return _page(asked, QUERIES_SHOWN)


def list_evaluations(asked: ApiRequest) -> dict[str, Any]:
    """Return a page of evaluations, newest first."""
    return _page(asked, EVALUATIONS_SHOWN)


def show_query(asked: ApiRequest) -> dict[str, Any]:
    """Return one query with its stored answer. It spends nothing: the helpers are not called."""
    found = _found(asked, asked["query"], QUERIES_SHOWN)
    return {**item(found), "result": _result(asked, found)}


def show_evaluation(asked: ApiRequest) -> dict[str, Any]:
    """Return one evaluation with its stored answer."""
    found = _found(asked, asked["evaluation"], EVALUATIONS_SHOWN)
    return {**item(found), "result": _result(asked, found)}


def _found(asked: ApiRequest, prefix: str, kinds: tuple[str, ...]) -> AskedQuery:
    found = asked.site.queries.asked(prefix)
    if found.spec.kind not in kinds:
        raise JobRefused(JobReason.UNKNOWN_QUERY, f"this id belongs to a release of kind {found.spec.kind}")
    return found


def _result(asked: ApiRequest, found: AskedQuery) -> dict[str, Any] | None:
    """Decode a stored answer; None if there is none."""
    spec, store = found.spec, asked.site.queries
    answer = store.answer(spec.query_id)
    if answer is None or isinstance(spec, DiscoverySpec):
        return None
    dataset, task = _over(asked, found)
    if isinstance(spec, EvaluationSpec):
        evaluation = store.find(spec.query_id.hex(), EvaluationSpec)
        return evaluation_json(read_evaluation(task, dataset, evaluation, answer))
    query = store.find(spec.query_id.hex(), QuerySpec)
    return result_json(read_query(task, dataset, query, answer))


def _over(asked: ApiRequest, found: AskedQuery) -> tuple[Dataset, Task]:
    dataset = asked.site.datasets.find(found.spec.dataset_id.hex())
    return dataset, asked.site.tasks.find(dataset.task_id.hex()).bundle.task


def ask_query(asked: ApiRequest) -> dict[str, Any]:
    """Sum values over groups of a dataset's reports. It is charged to the dataset's budget."""
    body: QueryBody = asked.body
    return result_json(asked.site.client.aggregate(*body.values, **body.model_dump(exclude={"values"})))


def ask_evaluation(asked: ApiRequest) -> dict[str, Any]:
    """Evaluate a model on a dataset's reports. It is charged to the dataset's budget."""
    body: EvaluationBody = asked.body
    return evaluation_json(asked.site.client.evaluate(**dict(body)))


_PAGE: Final = page_of(record(**_ITEM))
_ONE: Final = record(**_ITEM, result="object?")
QUERIES: Final = (
    get("/queries", "List queries, newest first", list_queries, _PAGE, LIMIT, AFTER),
    post(
        "/queries",
        "Sum values over groups of a dataset's reports, charged to its budget",
        ask_query,
        record(**_RESULT, columns="object*", rows="object*"),
        body=QueryBody,
        status=201,
        most_bytes=MOST_MODEL_BYTES,
    ),
    get("/queries/{query}", "Show one query with its stored answer", show_query, _ONE),
    get("/evaluations", "List evaluations, newest first", list_evaluations, _PAGE, LIMIT, AFTER),
    post(
        "/evaluations",
        "Evaluate a model on a dataset's reports, charged to its budget",
        ask_evaluation,
        record(**_RESULT, metrics="object"),
        body=EvaluationBody,
        status=201,
        most_bytes=MOST_MODEL_BYTES,
    ),
    get("/evaluations/{evaluation}", "Show one evaluation with its stored answer", show_evaluation, _ONE),
)
"""The operations on queries and evaluations."""
