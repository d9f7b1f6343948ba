"""What the API does with jobs: list, show, plan, submit, cancel, resume, and their rounds and curves."""

import math
from collections.abc import Callable
from typing import Any, Final

from adserver.admin.operation import MOST_MODEL_BYTES, ApiRequest, QueryParameter, get, post
from adserver.admin.paging import page_json
from adserver.admin.read_endpoints import AFTER, LIMIT
from adserver.admin.schemas import OBJECT, alike, page_of, record
from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import JobRecord
from adserver.records.job_state import JobEvent, JobState, possible
from adserver.store.paging import PageMarker
from adserver.training.planning import plan_job
from adserver.training.submission_body import PlanBody, SubmissionBody
from adserver.training.submitting import submit_job
from adserver.views.job import job_json, next_command
from adserver.views.plan import plan_json
from adserver.views.record import figures_json, record_json
from maskedlark.errors import InvalidTask

MOST_ROUNDS: Final = 1_000
DEFAULT_ROUNDS: Final = 200
CURVE_POINTS: Final = 400
_RECORD: Final = {
    **alike("string", "job_id", "plan", "state", "task_id", "task"),
    **alike("string?", "reason", "cause"),
    **alike("integer", "rounds", "rounds_done"),
    "rounds_charged": "integer?",
    "submitted_at": "number",
    "is_closed": "boolean",
}
_FIGURES: Final = record(
    rounds_done="integer",
    finished_at_s="number",
    **alike("number?", "learning_rate", "gradient_norm", "noise_to_signal", "loss", "accuracy"),
)
_ROUNDS: Final = {"type": "array", "items": _FIGURES}


def list_jobs(asked: ApiRequest) -> dict[str, Any]:
    """Return a page of jobs, newest first."""
    state = asked["state"]
    if state and state not in set(JobState):
        raise InvalidTask(f"`state` must be one of {', '.join(JobState)}")
    return page_json(
        asked,
        asked.site.jobs.page,
        lambda one: PageMarker(at=one.submitted_at_s, key=one.job_id),
        record_json,
        state=JobState(state) if state else None,
    )


def job_shown(asked: ApiRequest, job: JobRecord) -> dict[str, Any]:
    """Return one job with its cost and the possible next acts."""
    evaluated = asked.site.jobs.last_evaluated(job.job_id)
    return {
        **job_json(job, () if evaluated is None else (evaluated,)),
        **record_json(job),
        "can": [event.value for event in (JobEvent.CANCEL, JobEvent.RESUME) if possible(job.state, event)],
        "next_command": next_command(job),
    }


def show_job(asked: ApiRequest) -> dict[str, Any]:
    """Return one job."""
    return job_shown(asked, asked.site.jobs.find(asked["job"]))


def submit(asked: ApiRequest) -> dict[str, Any]:
    """Check a job and queue it; the server runs it."""
    body: SubmissionBody = asked.body
    site = asked.site
    job_id = submit_job(site.engine, site.data, body.submission())
    return job_shown(asked, site.jobs.get(job_id))


def plan(asked: ApiRequest) -> dict[str, Any]:
    """Return what fits a dataset's budgets; it spends nothing."""
    body: PlanBody = asked.body
    return plan_json(*plan_job(asked.site.engine, body.request()))


def cancel(asked: ApiRequest) -> dict[str, Any]:
    """Stop a job for good."""
    return _change(asked, asked.site.jobs.cancel)


def resume(asked: ApiRequest) -> dict[str, Any]:
    """Queue a refused or failed job again."""
    return _change(asked, asked.site.jobs.resume)


def _change(asked: ApiRequest, change: Callable[[bytes], None]) -> dict[str, Any]:
    job_id = asked.site.jobs.find(asked["job"]).job_id
    change(job_id)
    return job_shown(asked, asked.site.jobs.get(job_id))


def rounds(asked: ApiRequest) -> dict[str, Any]:
    """Return some of a job's rounds, in order."""
    job, limit = asked.site.jobs.find(asked["job"]), asked["limit"]
    found = asked.site.jobs.history(job.job_id, after_rounds=asked["after_rounds"], limit=limit + 1)
    return {
        "items": [figures_json(one) for one in found[:limit]],
        "next_after_rounds": found[limit - 1].rounds_done if len(found) > limit else None,
    }


def curves(asked: ApiRequest) -> dict[str, Any]:
    """Return a bounded number of a job's rounds, evenly over all of them."""
    return curves_of(asked, asked.site.jobs.find(asked["job"]), asked["points"])


def curves_of(asked: ApiRequest, job: JobRecord, points: int) -> dict[str, Any]:
    """Return the rounds that a picture of a job shows."""
    shown = rounds_shown(rounds_done=job.rounds_done, eval_every=job.plan.eval_every, most=points)
    return {
        "job_id": job.job_id.hex(),
        "rounds_done": job.rounds_done,
        "is_federated": isinstance(job.plan, FederatedPlan),
        "points": [figures_json(one) for one in asked.site.jobs.figures_at(job.job_id, shown)],
    }


def rounds_shown(*, rounds_done: int, eval_every: int, most: int) -> list[int]:
    """Return, ascending, the numbers of rounds that represent a job's whole curve.

    They are even steps over all rounds, and even steps over those that were evaluated.

    >>> len(rounds_shown(rounds_done=1_000_000, eval_every=20_000, most=500)) <= 2 * 500 + 2
    True

    Args:
        rounds_done: How far the job is.
        eval_every: How often it evaluates.
        most: About how many points each kind of curve has.
    """
    step = max(1, math.ceil(rounds_done / most))
    evaluated = eval_every * max(1, math.ceil(rounds_done / (eval_every * most)))
    return sorted({*range(0, rounds_done + 1, step), *range(0, rounds_done + 1, evaluated), rounds_done})


def _number(
    name: str, about: str, default: int, *, low: int | None = None, high: int | None = None
) -> QueryParameter:
    return QueryParameter(name=name, about=about, kind="integer", default=default, low=low, high=high)


_SHOWN: Final = record(**_RECORD, can="string*", next_command="string?")
JOBS: Final = (
    get(
        "/jobs",
        "List jobs, newest first",
        list_jobs,
        page_of(record(**_RECORD)),
        LIMIT,
        AFTER,
        QueryParameter(name="state", about="Only jobs in this state.", default=""),
    ),
    post(
        "/jobs",
        "Check a job and queue it",
        submit,
        _SHOWN,
        body=SubmissionBody,
        status=201,
        most_bytes=MOST_MODEL_BYTES,
    ),
    post(
        "/jobs/plan",
        "Find the noise, batch size or rounds that fit a dataset's budgets, without spending any",
        plan,
        record(
            task_id="string",
            dataset_size="integer",
            delta="number",
            epsilon_budget="number",
            collusion_epsilon_budget="number",
            recommended=OBJECT,
            alternatives="object*",
        ),
        body=PlanBody,
        most_bytes=MOST_MODEL_BYTES,
    ),
    get("/jobs/{job}", "One job", show_job, _SHOWN),
    post("/jobs/{job}/cancel", "Cancel a job for good", cancel, _SHOWN),
    post("/jobs/{job}/resume", "Queue a stopped job again", resume, _SHOWN),
    get(
        "/jobs/{job}/rounds",
        "List a job's rounds, in order",
        rounds,
        record(items=_ROUNDS, next_after_rounds="integer?"),
        _number("limit", "The most rows to return.", DEFAULT_ROUNDS, low=1, high=MOST_ROUNDS),
        _number("after_rounds", "`next_after_rounds` of the previous page.", -1),
    ),
    get(
        "/jobs/{job}/curves",
        "List a bounded number of a job's rounds, spread evenly over all of them",
        curves,
        record(job_id="string", rounds_done="integer", is_federated="boolean", points=_ROUNDS),
        _number("points", "About how many rounds to return.", CURVE_POINTS, low=2, high=MOST_ROUNDS),
    ),
)
"""The operations on jobs."""
