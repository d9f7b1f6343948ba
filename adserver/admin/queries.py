"""The endpoints of queries and evaluations: ask them, and show them with their answers."""

from functools import partial
from typing import Annotated, Final

from fastapi import Query

from adserver.admin.admin_context import AdminContext
from adserver.admin.guarded_route import MOST_MODEL_BYTES, Context, guarded_router
from adserver.admin.paging import PageParameters, list_page
from adserver.measuring.evaluator import read_evaluation
from adserver.measuring.measurer import read_query
from adserver.messages.base import ListPage
from adserver.messages.evaluation import AskEvaluation, EvaluationDetail, EvaluationMessage
from adserver.messages.query import AskQuery, QueryDetail, QueryItem, ResultMessage
from adserver.records.access import Scope
from adserver.store.datasets import Dataset
from adserver.store.paging import PageMarker
from adserver.store.queries import AskedQuery
from adserver.views.asked_query import query_summary
from maskedlark.errors import JobReason, JobRefused
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec
from maskedlark.reports.task import Task

QUERIES_SHOWN: Final = (QuerySpec.kind, DiscoverySpec.kind)
EVALUATIONS_SHOWN: Final = (EvaluationSpec.kind,)
reading = guarded_router(Scope.READ)
asking = guarded_router(Scope.OPERATE, most_bytes=MOST_MODEL_BYTES)
ROUTERS: Final = (reading, asking)


def item(context: AdminContext, asked: AskedQuery) -> QueryItem:
    """Return a query as an item of a list."""
    return QueryItem.model_validate(query_summary(asked, context.tasks.task(asked.spec.task_id)))


def _page(context: AdminContext, page: PageParameters, kinds: tuple[str, ...]) -> ListPage[QueryItem]:
    return list_page(
        page,
        context.queries.page,
        lambda one: PageMarker(at=one.asked_at, key=one.spec.query_id),
        partial(item, context),
        kinds=kinds,
    )


@reading.get("/queries", summary="List queries, newest first")
def _list_queries(context: Context, page: Annotated[PageParameters, Query()]) -> ListPage[QueryItem]:
    """Return a page of queries, newest first."""
    return _page(context, page, QUERIES_SHOWN)


@asking.post(
    "/queries",
    summary="Sum values over groups of a dataset's reports, charged to its budget",
    status_code=201,
)
def _ask_query(context: Context, body: AskQuery) -> ResultMessage:
    """Sum values over groups of a dataset's reports. It is charged to the dataset's budget."""
    return ResultMessage.of(context.server.aggregate(**body.model_dump()))


@reading.get("/queries/{query}", summary="Show one query with its stored answer")
def show_query(context: Context, query: str) -> QueryDetail:
    """Return one query with its stored answer. It spends nothing: the helpers are not called."""
    found = _found(context, query, QUERIES_SHOWN)
    result, answer = None, context.queries.answer(found.spec.query_id)
    if answer is not None and not isinstance(found.spec, DiscoverySpec):
        dataset, task = _over(context, found)
        spec = context.queries.find(found.spec.query_id.hex(), QuerySpec)
        result = ResultMessage.of(
            read_query(
                task,
                dataset,
                spec,
                answer,
                context.queries.discovery_before(found.spec.query_id),
                encoder=context.tasks.encoder(task.task_id),
            )
        )
    return QueryDetail(**dict(item(context, found)), result=result)


@reading.get("/evaluations", summary="List evaluations, newest first")
def _list_evaluations(context: Context, page: Annotated[PageParameters, Query()]) -> ListPage[QueryItem]:
    """Return a page of evaluations, newest first."""
    return _page(context, page, EVALUATIONS_SHOWN)


@asking.post(
    "/evaluations", summary="Evaluate a model on a dataset's reports, charged to its budget", status_code=201
)
def _ask_evaluation(context: Context, body: AskEvaluation) -> EvaluationMessage:
    """Evaluate a model on a dataset's reports. It is charged to the dataset's budget."""
    return EvaluationMessage.of(context.server.evaluate(**dict(body)))


@reading.get("/evaluations/{evaluation}", summary="Show one evaluation with its stored answer")
def show_evaluation(context: Context, evaluation: str) -> EvaluationDetail:
    """Return one evaluation with its stored answer."""
    found = _found(context, evaluation, EVALUATIONS_SHOWN)
    result, answer = None, context.queries.answer(found.spec.query_id)
    if answer is not None:
        dataset, task = _over(context, found)
        spec = context.queries.find(found.spec.query_id.hex(), EvaluationSpec)
        result = EvaluationMessage.of(
            read_evaluation(
                task,
                dataset,
                spec,
                answer,
                was_trained_on=context.jobs.has_trained(dataset.task_id, dataset.dataset_id or b""),
            )
        )
    return EvaluationDetail(**dict(item(context, found)), result=result)


def _found(context: AdminContext, prefix: str, kinds: tuple[str, ...]) -> AskedQuery:
    found = context.queries.find_any(prefix)
    if found.spec.kind not in kinds:
        raise JobRefused(JobReason.UNKNOWN_QUERY, f"this id belongs to a release of kind {found.spec.kind}")
    return found


def _over(context: AdminContext, found: AskedQuery) -> tuple[Dataset, Task]:
    dataset = context.datasets.find(found.spec.dataset_id.hex())
    return dataset, context.tasks.find(dataset.task_id.hex()).bundle.task
