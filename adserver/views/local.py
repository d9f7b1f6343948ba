"""A job without helpers as people and programs see it: facts, a forecast, and the live view of `watch`."""

import time
from collections.abc import Callable
from typing import Any, Final

from adserver.store.local.jobs import LocalJobs, LocalState, StoredLocalJob
from adserver.views.printing import moment, print_table, progress_bars, short
from maskedlark.federated.local_forecast import LocalForecast
from maskedlark.federated.local_job import LocalCost, cost_of, read_local_job
from maskedlark.federated.strategies.line import Line
from maskedlark.frozen import pick_attributes
from maskedlark.terminal.budget_view import finite, number

_POLL_S: Final = 0.3


def local_json(jobs: LocalJobs, stored: StoredLocalJob) -> dict[str, Any]:
    """Return a job as JSON. Epsilons are null without noise."""
    settings, model = read_local_job(stored.job)
    told: dict[str, Any] = {
        "job_id": stored.job.job_id.hex(),
        "strategy": stored.job.kind,
        "state": jobs.state(stored).value,
        "submitted_at": stored.submitted_at,
        "widths": list(stored.job.widths),
        "parameters": model.size,
        "updates": jobs.accepted(stored.job),
        **_cost_json(cost_of(stored.job)),
    }
    if isinstance(settings, Line):
        rounds_done = jobs.rounds.state(stored.job.job_id).rounds_done
        return told | {"rounds": settings.rounds, "rounds_done": rounds_done, "devices": settings.devices}
    in_flight = jobs.instances.job(stored.job.job_id).in_flight
    return told | {"instances": settings.instances, "in_flight": round(in_flight, 3)}


def print_local_jobs(jobs: LocalJobs, stored: tuple[StoredLocalJob, ...]) -> None:
    """Print all jobs as a table."""
    columns = ("job", "strategy", "state", "updates", "epsilon of an update", "submitted")
    rows = []
    for one in stored:
        told = local_json(jobs, one)
        cost = f"{told['epsilon']} a {told['unit']}"
        name = short(one.job.job_id)
        rows.append((name, one.job.kind, told["state"], told["updates"], cost, moment(one.submitted_at)))
    print_table(columns, rows)


def forecast_json(found: LocalForecast) -> dict[str, Any]:
    """Return a job that is not submitted yet as JSON. Epsilons are null without noise."""
    return {
        **_cost_json(found.cost),
        "person_epsilon": finite(found.person_epsilon),
        **pick_attributes(found, ("updates_each", "upload_bytes", "update_noise", "model_noise", "updates")),
    }


def print_local_forecast(found: LocalForecast) -> None:
    """Print a forecast of a job without helpers for people."""
    cost, each = found.cost, found.updates_each
    of_what = (
        "an instance about the mean of all" if found.updates is None else "the mean of a round's updates"
    )
    rows: list[tuple[str, object]] = [
        (f"epsilon of one update, a {cost.unit}", number(cost.epsilon)),
        ("epsilon of a whole update", number(cost.whole_update)),
        (f"epsilon of a person who sends {each}", number(found.person_epsilon)),
        ("delta", f"{cost.delta:.2g}"),
        ("noise of one update, a coordinate", f"{found.update_noise:.4g}"),
        (f"noise of {of_what}", f"{found.model_noise:.4g}"),
        ("bytes of an update", found.upload_bytes),
        ("updates until it is done", "it has no end" if found.updates is None else found.updates),
    ]
    print_table(("", ""), rows)


def watch(
    jobs: LocalJobs, job_id: bytes, *, is_shown: bool, sleep: Callable[[float], None] = time.sleep
) -> LocalState:
    """Follow a job, from any process, until it is done or closed; shows its progress on standard error.

    Returns:
        How it ended.
    """
    settings, _ = read_local_job(jobs.get(job_id).job)
    rounds = settings.rounds if isinstance(settings, Line) else None
    with progress_bars(is_shown=is_shown) as bars:
        bar = bars.add_task("", total=rounds)
        while True:
            stored = jobs.get(job_id)
            state = jobs.state(stored)
            done = jobs.accepted(stored.job) if rounds is None else jobs.rounds.state(job_id).rounds_done
            bars.update(bar, completed=done, description=state.value)
            if state is not LocalState.OPEN:
                return state
            sleep(_POLL_S)


def _cost_json(cost: LocalCost) -> dict[str, Any]:
    return {
        "unit": cost.unit,
        "epsilon": finite(cost.epsilon),
        "epsilon_of_a_whole_update": finite(cost.whole_update),
        "delta": cost.delta,
    }
