"""A stored job as the admin API sends it, so that another machine shows it with the functions used here."""

from dataclasses import fields
from typing import Any, Final

from adserver.records.job_record import JobRecord, Stop
from adserver.records.job_state import JobState
from adserver.records.plans import read_plan
from adserver.records.round_figures import RoundFigures
from maskedlark.canonical import encode

_FIGURES: Final = tuple(field.name for field in fields(RoundFigures))


def life_json(job: JobRecord) -> dict[str, Any]:
    """Return the JSON fields of a job's progress, for jobs of all kinds."""
    return {
        "job_id": job.job_id.hex(),
        "task_id": job.plan.job.task_id.hex(),
        "state": job.state.value,
        "reason": job.stop.reason if job.stop else None,
        "cause": job.stop.cause if job.stop else None,
        "submitted_at": job.submitted_at_s,
        "rounds": job.plan.job.rounds,
        "rounds_done": job.rounds_done,
        "is_closed": job.is_closed,
    }


def record_json(job: JobRecord) -> dict[str, Any]:
    """Return everything that is stored of a job; its plan as canonical JSON in a string."""
    return {
        **life_json(job),
        "plan": encode(job.plan).decode(),
        "rounds_charged": job.rounds_charged,
        "task": job.plan.task.name,
    }


def record_from_json(sent: dict[str, Any]) -> JobRecord:
    """Read a job from the JSON that `record_json` made."""
    return JobRecord(
        plan=read_plan(sent["plan"].encode()),
        submitted_at_s=sent["submitted_at"],
        state=JobState(sent["state"]),
        stop=None if sent["reason"] is None else Stop(reason=sent["reason"], cause=sent["cause"]),
        rounds_done=sent["rounds_done"],
        is_closed=sent["is_closed"],
        rounds_charged=sent["rounds_charged"],
        lease_until_s=0.0,
    )


def figures_json(figures: RoundFigures) -> dict[str, Any]:
    """Return a round's figures as JSON."""
    return {
        name: getattr(figures, name) for name in _FIGURES
    }  # `asdict` copies each number, which takes time


def figures_from_json(sent: dict[str, Any]) -> RoundFigures:
    """Read a round's figures from the JSON that `figures_json` made."""
    return RoundFigures(**sent)
