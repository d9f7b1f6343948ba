"""The endpoints of jobs: list, show, plan, submit, cancel, resume, and their rounds and curves."""

import math
from collections.abc import Callable
from typing import Annotated, Final

from fastapi import Query
from pydantic import Field

from adserver.admin.admin_context import AdminContext
from adserver.admin.guarded_route import MOST_MODEL_BYTES, Context, Parameters, guarded_router
from adserver.admin.paging import PageParameters, Typed, list_page
from adserver.messages.base import MOST_INTEGER, ListPage
from adserver.messages.federated import (
    FederatedForecastMessage,
    LocalForecastMessage,
    SubmitFederatedJob,
    forecast_message,
)
from adserver.messages.job import Curves, JobDetail, JobItem, LostJobMessage, RoundsPage, job_detail
from adserver.messages.plan import PlanJob, PlanMessage
from adserver.messages.site import CalibratedModelMessage, CalibrateModel
from adserver.messages.submission import SubmitJob
from adserver.records.access import Scope
from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobState
from adserver.records.typed_ids import check_whole, whole_job_id
from adserver.store.paging import PageMarker

MOST_ROUNDS: Final = 1_000
DEFAULT_ROUNDS: Final = 200
CURVE_POINTS: Final = 400
reading = guarded_router(Scope.READ)
operating = guarded_router(Scope.OPERATE)
sending_models = guarded_router(Scope.OPERATE, most_bytes=MOST_MODEL_BYTES)
ROUTERS: Final = (reading, operating, sending_models)


class _JobsParameters(PageParameters):
    """The part of the list of jobs to return."""

    state: JobState | None = Field(None, description="Only jobs in this state.")


class _RoundsParameters(Parameters):
    """The rounds to return."""

    limit: Typed = Field(DEFAULT_ROUNDS, description="The most rows to return.", ge=1, le=MOST_ROUNDS)
    after_rounds: Typed = Field(
        -1, description="`next_after_rounds` of the previous page.", ge=-MOST_INTEGER, le=MOST_INTEGER
    )


class _CurveParameters(Parameters):
    """The points of a curve to return."""

    points: Typed = Field(CURVE_POINTS, description="About how many rounds to return.", ge=2, le=MOST_ROUNDS)


@reading.get("/jobs", summary="List jobs, newest first")
def _list_jobs(context: Context, page: Annotated[_JobsParameters, Query()]) -> ListPage[JobItem]:
    """Return a page of jobs, newest first."""
    return list_page(
        page,
        context.jobs.page,
        lambda one: PageMarker(at=one.submitted_at_s, key=one.job_id),
        JobItem.of,
        state=page.state,
    )


def show_record(context: AdminContext, job: JobRecord) -> JobDetail:
    """Return one job with its cost and the possible next acts."""
    return job_detail(job, context.jobs.last_evaluated(job.job_id))


@reading.get("/jobs/{job}", summary="One job")
def _show_job(context: Context, job: str) -> JobDetail:
    """Return one job."""
    return show_record(context, context.jobs.find(job))


@sending_models.post("/jobs", summary="Check a job and queue it", status_code=201)
def _submit(context: Context, body: SubmitJob) -> JobDetail:
    """Check a job and queue it; the server runs it."""
    return show_record(context, context.server.submit(body.value()))


@sending_models.post(
    "/jobs/plan",
    summary="Find the noise, batch size or rounds that fit a dataset's budgets, without spending any",
)
def _plan(context: Context, body: PlanJob) -> PlanMessage:
    """Return what fits a dataset's budgets; it spends nothing."""
    request = body.value()
    return PlanMessage.of(context.server.plan(request), request)


@sending_models.post("/jobs/federated", summary="Check a job on devices and queue it", status_code=201)
def _submit_federated(context: Context, body: SubmitFederatedJob) -> JobDetail:
    """Check a job on devices and queue it, or open it to them; the server runs it."""
    return show_record(context, context.server.submit(body.value()))


@sending_models.post(
    "/jobs/federated/plan",
    summary="Find the noise or the rounds of a job on devices that fit, without spending any",
)
def _plan_federated(
    context: Context, body: SubmitFederatedJob
) -> FederatedForecastMessage | LocalForecastMessage:
    """Return what a job on devices would cost, with helpers or without; it spends nothing."""
    return forecast_message(context.server.plan(body.value()))


@sending_models.post(
    "/jobs/{job}/calibration",
    summary="A job's model, calibrated by an evaluation or a panel, as an ONNX file in base64",
)
def _calibrate(context: Context, job: str, body: CalibrateModel) -> CalibratedModelMessage:
    """Return a job's model with its logit scaled and shifted; nothing is charged or stored."""
    job_id = context.jobs.find(job).job_id
    made = context.server.calibrate(job_id, **dict(body))
    return CalibratedModelMessage(
        job_id=job_id,
        rounds_done=made.exported.rounds_done,
        model=made.exported.encoded,
        scale=made.scale,
        shift=made.shift,
        warning=made.warning,
    )


@operating.post("/jobs/{job}/cancel", summary="Cancel a job for good")
def _cancel(context: Context, job: str) -> JobDetail:
    """Stop a job for good."""
    return _change(context, job, context.jobs.cancel)


@operating.post(
    "/lost-jobs/{job}/close", summary="Close a job at both helpers that this ad server no longer has"
)
def _close_lost_job(context: Context, job: str) -> LostJobMessage:
    """Release what helpers reserve for a job of this whole id, as after a backup was restored."""
    job_id = whole_job_id(job)
    return LostJobMessage(job_id=job_id, rounds_charged=context.server.close_lost_job(job_id))


@operating.post("/jobs/{job}/resume", summary="Queue a stopped job again")
def _resume(context: Context, job: str) -> JobDetail:
    """Queue a refused or failed job again."""
    return _change(context, job, context.jobs.resume)


def _change(context: AdminContext, job: str, change: Callable[[bytes], None]) -> JobDetail:
    found = context.jobs.find(job)
    job_id = found.job_id
    check_whole(job_id, found.name, job)
    change(job_id)
    return show_record(context, context.jobs.get(job_id))


@reading.get("/jobs/{job}/rounds", summary="List a job's rounds, in order")
def _rounds(context: Context, job: str, page: Annotated[_RoundsParameters, Query()]) -> RoundsPage:
    """Return some of a job's rounds, in order."""
    job_id, limit = context.jobs.find(job).job_id, page.limit
    found = context.jobs.history(job_id, after_rounds=page.after_rounds, limit=limit + 1)
    return RoundsPage(
        items=found[:limit],
        next_after_rounds=found[limit - 1].rounds_done if len(found) > limit else None,
    )


@reading.get(
    "/jobs/{job}/curves", summary="List a bounded number of a job's rounds, spread evenly over all of them"
)
def _curves(context: Context, job: str, of: Annotated[_CurveParameters, Query()]) -> Curves:
    """Return a bounded number of a job's rounds, evenly over all of them."""
    return curves_of(context, context.jobs.find(job), of.points)


def curves_of(context: AdminContext, job: JobRecord, points: int) -> Curves:
    """Return the rounds that a picture of a job shows."""
    every = getattr(job.plan, "eval_every", 1)
    shown = _rounds_shown(rounds_done=job.rounds_done, eval_every=every, most=points)
    return Curves(
        job_id=job.job_id,
        rounds_done=job.rounds_done,
        is_federated=isinstance(job.plan, FederatedPlan),
        points=tuple(context.jobs.figures_at(job.job_id, shown)),
    )


def _rounds_shown(*, rounds_done: int, eval_every: int, most: int) -> list[int]:
    """Return, ascending, the numbers of rounds that represent a job's whole curve.

    They are even steps over all rounds, and even steps over those that were evaluated.

    >>> len(_rounds_shown(rounds_done=1_000_000, eval_every=20_000, most=500)) <= 2 * 500 + 2
    True

    Args:
        rounds_done: How far the job is.
        eval_every: How often it evaluates.
        most: About how many points each kind of curve has.
    """
    step = max(1, math.ceil(rounds_done / most))
    evaluated = eval_every * max(1, math.ceil(rounds_done / (eval_every * most)))
    return sorted({*range(0, rounds_done + 1, step), *range(0, rounds_done + 1, evaluated), rounds_done})
