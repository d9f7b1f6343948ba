"""A federated job as people and programs see it."""

from typing import TYPE_CHECKING

import typer

from adserver.records.federated_plan import FederatedPlan, read_device_instructions
from adserver.records.job_record import JobRecord
from adserver.training.cost import privacy_line_of_federated
from adserver.views.printing import print_table, short
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.terminal.budget_view import number

if TYPE_CHECKING:
    from adserver.training.federated.forecast import FederatedForecast


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
    from adserver.messages.federated import submit_options

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
    typer.echo(f"submit it with: {submit_options(found)}")


def _pair(epsilons: Epsilons) -> str:
    return f"{number(epsilons.ad_server)} ({number(epsilons.colluding)})"
