"""A job on devices as people see it, with helpers or without."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import JobRecord
from adserver.records.local_plan import LocalPlan
from adserver.training.cost import privacy_line
from adserver.views.printing import print_table, short
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.terminal.budget_view import number
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.training.federated.forecast import FederatedForecast
    from maskedlark.federated.local_forecast import LocalForecast


def rows_of_devices(job: JobRecord, plan: FederatedPlan | LocalPlan) -> list[tuple[str, object]]:
    """Return a job on devices as rows of a table, without its state."""
    if isinstance(plan, LocalPlan):
        return _rows_of_local(job, plan)
    return [
        ("job", job.job_id.hex()),
        *_settings_rows(plan, job.rounds_done),
        ("privacy so far", privacy_line(plan, job.rounds_done)),
    ]


def _rows_of_local(job: JobRecord, plan: LocalPlan) -> list[tuple[str, object]]:
    """Return a job without helpers as rows of a table."""
    from maskedlark.federated.draw_and_discard import DrawAndDiscard
    from maskedlark.federated.local_job import cost_of

    settings, model = plan.read_instructions()
    cost = cost_of(plan.local)
    rows: list[tuple[str, object]] = [("job", job.job_id.hex())]
    if isinstance(settings, DrawAndDiscard):
        rows.append(("strategy", f"{plan.local.kind}, {settings.instances} instances"))
        rows.append(("updates in flight", f"{job.in_flight:.3g}"))
    else:
        rows.append(("strategy", f"{plan.local.kind}, {plural(settings.devices, 'device')} in a round"))
        rows.append(("rounds", job.progress))
    return [
        *rows,
        ("model", _describe_model(plan.local.widths, model.size)),
        ("updates", job.updates),
        (f"epsilon of one update, of each {cost.unit}", number(cost.epsilon)),
        ("epsilon of a whole update", f"{number(cost.whole_update)} at delta {cost.delta:.2g}"),
    ]


def _settings_rows(plan: FederatedPlan, rounds_done: int) -> list[tuple[str, object]]:
    strategy, model = plan.read_instructions()
    # A job that is done shows its last phase
    phase = plan.job.phase(min(rounds_done, plan.job.rounds - 1))
    return [
        ("task", f"{plan.task.name} ({short(plan.job.task_id)})"),
        (
            "strategy",
            f"{strategy.kind}, {plural(strategy.devices, 'device')},"
            f" each drawn with probability {phase.sampling_rate:g}",
        ),
        ("model", _describe_model(model.widths, model.size)),
        (
            "rounds",
            f"{rounds_done} of {plan.job.rounds}, of at least {plural(plan.least_devices, 'device')}"
            f" and {plan.window_s:g} s",
        ),
    ]


def _describe_model(widths: Sequence[int], size: int) -> str:
    return f"{'-'.join(map(str, widths))}: {plural(size, 'parameter')}"


def print_forecast(found: "FederatedForecast | LocalForecast") -> None:
    """Print a forecast for people; with helpers, with the command that submits the job."""
    from maskedlark.federated.local_forecast import LocalForecast

    if isinstance(found, LocalForecast):
        print_table(("", ""), _rows_of_local_forecast(found))
        return
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
            # Where every device takes part, coins tell nothing
            *([("if devices' coins leaked", _pair(found.leaked))] if found.leaked != found.alone else []),
            ("noise over the longest mean update", f"{found.noise_to_signal:.3g}"),
        ]
    print_table(("", ""), rows)
    typer.echo(
        f"epsilons are at delta {task.delta:.2g}, those in parentheses against the ad server with one helper"
    )
    typer.echo(f"submit it with: {found.submit_options}")


def _pair(epsilons: Epsilons) -> str:
    return f"{number(epsilons.ad_server)} ({number(epsilons.colluding)})"


def _rows_of_local_forecast(found: "LocalForecast") -> list[tuple[str, object]]:
    cost, each = found.cost, found.updates_each
    mean = "an instance about the mean of all" if found.updates is None else "the mean of a round's updates"
    return [
        (f"epsilon of one update, of each {cost.unit}", number(cost.epsilon)),
        ("epsilon of a whole update", number(cost.whole_update)),
        (f"epsilon of a person who sends {each}", number(found.person_epsilon)),
        ("delta", f"{cost.delta:.2g}"),
        ("noise of one update, a coordinate", f"{found.update_noise:.4g}"),
        (f"noise of {mean}", f"{found.model_noise:.4g}"),
        ("bytes of an update", found.upload_bytes),
        ("updates until it is done", "it has no end" if found.updates is None else found.updates),
    ]
