"""A federated job as people and programs see it."""

from typing import Any

from adserver.records.federated_plan import FederatedPlan
from adserver.records.round_figures import RoundFigures
from adserver.store.jobs import JobRecord
from adserver.training.cost import federated_epsilons, federated_line
from adserver.views.printing import short
from maskedlark.privacy.noise import Mechanism
from maskedlark.releases.instructions import read_instructions


def federated_json(job: JobRecord, plan: FederatedPlan, evaluated: RoundFigures | None) -> dict[str, Any]:
    """A federated job for programs. Epsilons are of the rounds done, a person's, and null without noise."""
    is_noisy = plan.task.mechanism is not Mechanism.NONE
    epsilons = federated_epsilons(plan, job.rounds_done) if is_noisy else None
    strategy, model = read_instructions(plan.job)
    phase = plan.job.phase(min(job.rounds_done, plan.job.rounds - 1))
    return {
        "job_id": plan.job.job_id.hex(),
        "task_id": plan.job.task_id.hex(),
        "strategy": strategy.kind,
        "state": job.state.value,
        "reason": job.stop.reason if job.stop else None,
        "cause": job.stop.cause if job.stop else None,
        "submitted_at": job.submitted_at_s,
        "rounds": plan.job.rounds,
        "rounds_done": job.rounds_done,
        "devices": strategy.devices,
        "least_devices": plan.least_devices,
        "window_s": plan.window_s,
        "sampling_rate": phase.sampling_rate,
        "cover": plan.task.updates.cover if plan.task.updates else None,
        "widths": list(model.widths),
        "parameters": model.size,
        "mechanism": plan.task.mechanism.value,
        "noise_multiplier": phase.noise_multiplier,
        "unit": plan.task.unit.value,
        "delta": plan.task.delta,
        "epsilon_spent": epsilons.ad_server if epsilons else None,
        "collusion_epsilon_spent": epsilons.colluding if epsilons else None,
        "loss": evaluated.loss if evaluated else None,
        "accuracy": evaluated.accuracy if evaluated else None,
        "is_closed": job.is_closed,
    }


def federated_rows(job: JobRecord, plan: FederatedPlan) -> list[tuple[str, object]]:
    """A federated job's settings, for a table."""
    strategy, model = read_instructions(plan.job)
    phase = plan.job.phase(min(job.rounds_done, plan.job.rounds - 1))
    return [
        ("job", job.job_id.hex()),
        ("task", f"{plan.task.name} ({short(plan.job.task_id)})"),
        (
            "strategy",
            f"{strategy.kind}, {strategy.devices} devices,"
            f" each drawn with probability {phase.sampling_rate:g}",
        ),
        ("model", f"{'-'.join(map(str, model.widths))}: {model.size} parameters"),
        (
            "rounds",
            f"{job.rounds_done} of {plan.job.rounds}, of at least {plan.least_devices} devices"
            f" and {plan.window_s:g} s",
        ),
        ("privacy so far", federated_line(plan, job.rounds_done)),
    ]
