"""A federated job as people and programs see it."""

from typing import TYPE_CHECKING, Any

import typer

from adserver.records.federated_plan import FederatedPlan, read_device_instructions
from adserver.records.job_record import JobRecord
from adserver.records.round_figures import RoundFigures
from adserver.training.cost import epsilons_of_federated, privacy_line_of_federated
from adserver.views.printing import print_table, short
from adserver.views.record import life_json
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.terminal.budget_view import epsilons_json, number

if TYPE_CHECKING:
    from adserver.training.federated.forecast import FederatedForecast


def job_facts(job: JobRecord, epsilons: Epsilons | None, evaluated: RoundFigures | None) -> dict[str, Any]:
    """Return the JSON fields that jobs of all kinds share."""
    return {
        **life_json(job),
        "mechanism": job.plan.task.mechanism.value,
        "delta": job.plan.task.delta,
        "epsilon_spent": epsilons.ad_server if epsilons else None,
        "collusion_epsilon_spent": epsilons.colluding if epsilons else None,
        "loss": evaluated.loss if evaluated else None,
        "accuracy": evaluated.accuracy if evaluated else None,
    }


def json_of_federated(job: JobRecord, plan: FederatedPlan, evaluated: RoundFigures | None) -> dict[str, Any]:
    """Return a federated job as JSON. Epsilons are a person's, of the rounds done, and null without noise."""
    is_noisy = plan.task.mechanism is not Mechanism.NONE
    epsilons = epsilons_of_federated(plan, job.rounds_done) if is_noisy else None
    strategy, model = read_device_instructions(plan.job)
    phase = plan.job.phase(min(job.rounds_done, plan.job.rounds - 1))
    return {
        **job_facts(job, epsilons, evaluated),
        "strategy": strategy.kind,
        "devices": strategy.devices,
        "least_devices": plan.least_devices,
        "window_s": plan.window_s,
        "sampling_rate": phase.sampling_rate,
        "cover": plan.task.updates.cover if plan.task.updates else None,
        "widths": list(model.widths),
        "parameters": model.size,
        "noise_multiplier": phase.noise_multiplier,
        "unit": plan.task.unit.value,
    }


def rows_of_federated(job: JobRecord, plan: FederatedPlan) -> list[tuple[str, object]]:
    """Return a federated job's settings as rows of a table."""
    return [
        ("job", job.job_id.hex()),
        *_settings_rows(plan, job.rounds_done),
        ("privacy so far", privacy_line_of_federated(plan, job.rounds_done)),
    ]


def _settings_rows(plan: FederatedPlan, rounds_done: int) -> list[tuple[str, object]]:
    strategy, model = read_device_instructions(plan.job)
    phase = plan.job.phase(min(rounds_done, plan.job.rounds - 1))
    return [
        ("task", f"{plan.task.name} ({short(plan.job.task_id)})"),
        (
            "strategy",
            f"{strategy.kind}, {strategy.devices} devices,"
            f" each drawn with probability {phase.sampling_rate:g}",
        ),
        ("model", f"{'-'.join(map(str, model.widths))}: {model.size} parameters"),
        (
            "rounds",
            f"{rounds_done} of {plan.job.rounds}, of at least {plan.least_devices} devices"
            f" and {plan.window_s:g} s",
        ),
    ]


def print_forecast(found: "FederatedForecast") -> None:
    """Print a forecast for people, with the command that submits the job."""
    task = found.plan.task
    rows = [row for row in _settings_rows(found.plan, rounds_done=0) if row[0] != "task"]
    if task.mechanism is Mechanism.NONE:
        rows.append(("privacy", "no noise: no privacy"))
    else:
        phases = ", ".join(f"{one.rounds} at {one.noise_multiplier:.4g}" for one in found.plan.job.phases)
        rows += [
            ("noise of each helper over the clip bound, by rounds", phases),
            ("epsilon of a person, alone", _pair(found.alone)),
            (
                "with what is held on the task",
                f"{_pair(found.together)} of {number(task.epsilon)} ({number(task.collusion_epsilon)})",
            ),
            ("if devices' coins leaked", _pair(found.leaked)),
            ("noise over the longest mean update", f"{found.noise_to_signal:.3g}"),
        ]
    print_table(("", ""), rows)
    typer.echo(f"epsilons are at delta {task.delta:.2g}, those in brackets with either helper")
    typer.echo(f"submit it with: {_submit_options(found)}")


def forecast_json(found: "FederatedForecast") -> dict[str, Any]:
    """Return a forecast as JSON. Without noise the epsilons are null."""
    task, job = found.plan.task, found.plan.job
    strategy, model = read_device_instructions(job)
    return {
        "task_id": job.task_id.hex(),
        "strategy": strategy.kind,
        "devices": strategy.devices,
        "parameters": model.size,
        "rounds": job.rounds,
        "phases": [
            pick_attributes(one, ("rounds", "sampling_rate", "noise_multiplier")) for one in job.phases
        ],
        "unit": task.unit.value,
        "delta": task.delta,
        "epsilon_budget": task.epsilon,
        "collusion_epsilon_budget": task.collusion_epsilon,
        "alone": epsilons_json(found.alone),
        "together": epsilons_json(found.together),
        "coins_leaked": epsilons_json(found.leaked),
        "noise_norm": found.noise_norm,
        "noise_to_signal": found.noise_to_signal,
        "submit": _submit_options(found),
    }


def _submit_options(found: "FederatedForecast") -> str:
    """Return the options of `adserver job submit` that give this job's rounds and noise."""
    strategy, _ = read_device_instructions(found.plan.job)
    noise = f" --noise-multiplier {strategy.noise_multiplier!r}" if strategy.noise_multiplier else ""
    return f"--rounds {found.plan.job.rounds}{noise}"


def _pair(epsilons: Epsilons) -> str:
    return f"{number(epsilons.ad_server)} ({number(epsilons.colluding)})"
