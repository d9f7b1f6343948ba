"""What the API does with jobs: list, show, plan, submit, cancel, resume, and their rounds and curves."""

from typing import Any, Final

from adserver.admin.look import AFTER, LIMIT
from adserver.admin.operation import Asked, Operation, Parameter
from adserver.admin.paging import page_json, place_in
from adserver.admin.schemas import OBJECT, page_of, record
from adserver.budgets.planner import Wish
from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_state import JobEvent, JobState, possible
from adserver.store.jobs import JobRecord
from adserver.store.paging import Place
from adserver.training.curve_points import rounds_shown
from adserver.training.planning import PlanRequest, planned
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
    "job_id": "string",
    "plan": "string",
    "submitted_at": "number",
    "state": "string",
    "reason": "string?",
    "cause": "string?",
    "rounds": "integer",
    "rounds_done": "integer",
    "is_closed": "boolean",
    "rounds_charged": "integer?",
    "task_id": "string",
    "task": "string",
}
_FIGURES: Final = record(
    rounds_done="integer",
    finished_at_s="number",
    learning_rate="number?",
    gradient_norm="number?",
    noise_to_signal="number?",
    loss="number?",
    accuracy="number?",
)
_ROUNDS: Final = {"type": "array", "items": _FIGURES}


def list_jobs(asked: Asked) -> dict[str, Any]:
    """A page of jobs, the newest first."""
    limit, state = asked["limit"], asked["state"]
    if state and state not in set(JobState):
        raise InvalidTask(f"a job's state is one of {', '.join(JobState)}")
    found = asked.site.jobs.page(
        limit=limit + 1, before=place_in(asked["after"]), state=JobState(state) if state else None
    )
    return page_json(found, limit, lambda one: Place(at=one.submitted_at_s, key=one.job_id), record_json)


def job_shown(asked: Asked, job: JobRecord) -> dict[str, Any]:
    """One job, with what it has spent and what can be done about it."""
    evaluated = asked.site.jobs.last_evaluated(job.job_id)
    return {
        **job_json(job, () if evaluated is None else (evaluated,)),
        **record_json(job),
        "can": [event.value for event in (JobEvent.CANCEL, JobEvent.RESUME) if possible(job.state, event)],
        "next_command": next_command(job),
    }


def show_job(asked: Asked) -> dict[str, Any]:
    """One job."""
    return job_shown(asked, asked.site.jobs.find(asked["job"]))


def submit(asked: Asked) -> dict[str, Any]:
    """Check a job and queue it; the server runs it."""
    body: SubmissionBody = asked.body
    site = asked.site
    dataset = site.datasets.find(body.dataset)
    task = site.tasks.find(body.task) if body.task else None
    job_id = submit_job(site.engine, site.data, body.submission(), dataset, task=task)
    return job_shown(asked, site.jobs.get(job_id))


def plan(asked: Asked) -> dict[str, Any]:
    """What fits a dataset's budgets; it spends nothing."""
    body: PlanBody = asked.body
    wish = Wish(
        rounds=body.rounds,
        batch_size=body.batch_size,
        noise_multiplier=body.noise_multiplier,
        max_epochs=body.max_epochs,
    )
    request = PlanRequest(
        model=body.model,
        wish=wish,
        epsilon=body.epsilon,
        loss=body.loss,
        gradient_norm=body.gradient_norm,
        is_allocated=body.is_allocated,
        is_sample_public=body.is_sample_public,
        noise=body.noise,
        carried=body.carried,
        momentum=body.momentum,
    )
    return plan_json(*planned(asked.site.engine, request, asked.site.datasets.find(body.dataset)))


def cancel(asked: Asked) -> dict[str, Any]:
    """Stop a job for good."""
    found = asked.site.jobs.find(asked["job"])
    asked.site.jobs.cancel(found.job_id)
    return job_shown(asked, asked.site.jobs.get(found.job_id))


def resume(asked: Asked) -> dict[str, Any]:
    """Queue a refused or failed job again."""
    found = asked.site.jobs.find(asked["job"])
    asked.site.jobs.resume(found.job_id)
    return job_shown(asked, asked.site.jobs.get(found.job_id))


def rounds(asked: Asked) -> dict[str, Any]:
    """Some of a job's rounds, in order."""
    job, limit = asked.site.jobs.find(asked["job"]), asked["limit"]
    found = asked.site.jobs.history(job.job_id, after_rounds=asked["after_rounds"], limit=limit + 1)
    return {
        "items": [figures_json(one) for one in found[:limit]],
        "next_after_rounds": found[limit - 1].rounds_done if len(found) > limit else None,
    }


def curves(asked: Asked) -> dict[str, Any]:
    """A bounded number of a job's rounds, evenly over all of them."""
    return curves_of(asked, asked.site.jobs.find(asked["job"]), asked["points"])


def curves_of(asked: Asked, job: JobRecord, points: int) -> dict[str, Any]:
    """The rounds that a picture of a job shows."""
    shown = rounds_shown(rounds_done=job.rounds_done, eval_every=job.plan.eval_every, most=points)
    return {
        "job_id": job.job_id.hex(),
        "rounds_done": job.rounds_done,
        "is_federated": isinstance(job.plan, FederatedPlan),
        "points": [figures_json(one) for one in asked.site.jobs.figures_at(job.job_id, shown)],
    }


_SHOWN: Final = record(**_RECORD, can="string*", next_command="string?")
_OF_ONE: Final = {"cancel": (cancel, "Stop a job for good"), "resume": (resume, "Queue a stopped job again")}
JOBS: Final = (
    Operation(
        method="GET",
        path="/jobs",
        summary="Jobs, the newest first",
        act=list_jobs,
        answers=page_of(record(**_RECORD)),
        parameters=(LIMIT, AFTER, Parameter(name="state", about="Only jobs in this state.", default="")),
    ),
    Operation(
        method="POST",
        path="/jobs",
        summary="Check a job and queue it",
        act=submit,
        answers=_SHOWN,
        body=SubmissionBody,
        status=201,
    ),
    Operation(
        method="POST",
        path="/jobs/plan",
        summary="Find the noise, batch size or rounds that fit a dataset's budgets; it spends nothing",
        act=plan,
        answers=record(
            task_id="string",
            dataset_size="integer",
            delta="number",
            epsilon_budget="number",
            collusion_epsilon_budget="number",
            recommended=OBJECT,
            alternatives="object*",
        ),
        body=PlanBody,
    ),
    Operation(method="GET", path="/jobs/{job}", summary="One job", act=show_job, answers=_SHOWN),
    *(
        Operation(method="POST", path=f"/jobs/{{job}}/{name}", summary=about, act=act, answers=_SHOWN)
        for name, (act, about) in _OF_ONE.items()
    ),
    Operation(
        method="GET",
        path="/jobs/{job}/rounds",
        summary="A job's rounds, in order",
        act=rounds,
        answers=record(items=_ROUNDS, next_after_rounds="integer?"),
        parameters=(
            Parameter(
                name="limit",
                about="How many at most.",
                kind="integer",
                default=DEFAULT_ROUNDS,
                low=1,
                high=MOST_ROUNDS,
            ),
            Parameter(
                name="after_rounds",
                about="What the page before gave as `next_after_rounds`.",
                kind="integer",
                default=-1,
            ),
        ),
    ),
    Operation(
        method="GET",
        path="/jobs/{job}/curves",
        summary="A bounded number of a job's rounds, evenly over all of them",
        act=curves,
        answers=record(job_id="string", rounds_done="integer", is_federated="boolean", points=_ROUNDS),
        parameters=(
            Parameter(
                name="points",
                about="About how many.",
                kind="integer",
                default=CURVE_POINTS,
                low=2,
                high=MOST_ROUNDS,
            ),
        ),
    ),
)
"""The operations on jobs."""
