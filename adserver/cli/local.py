"""`adserver local`: jobs that need no helpers, because each device noises its own updates.

The strategies are LINE's averaging and draw and discard; `adserver serve` takes the updates.
"""

import math
import os
import time
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from adserver.cli.federated import read_settings, read_widths
from adserver.cli.options import DataOption, JsonOption, LocalDatabaseOption
from adserver.store.local_jobs import LocalJobs, StoredLocalJob
from adserver.store.local_schema import default_local_url, open_local
from adserver.views.printing import moment, print_json, print_table, short
from maskedlark.canonical import build
from maskedlark.errors import InvalidTask
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalSettings, cost_of, local_job, read_local_job
from maskedlark.federated.strategies.line import Line
from maskedlark.terminal.options import option

_STRATEGIES: Final[dict[str, type[LocalSettings]]] = {"line": Line, "draw-and-discard": DrawAndDiscard}
_JOB_ID_BYTES: Final = 16

local_app = typer.Typer(
    no_args_is_help=True,
    help="Jobs that need no helpers: devices noise their own updates (LINE, draw and discard).",
)
JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job, by the start of its id; not needed if there is only one."),
]


@local_app.command("submit")
def submit_command(
    *,
    data: DataOption,
    strategy: Annotated[str, option("line or draw-and-discard.")],
    settings: Annotated[Path, option("JSON: the strategy's settings.", exists=True, dir_okay=False)],
    layers: Annotated[str, option("Widths of the model, as 784,10; two of draw-and-discard.")],
    model_seed: Annotated[int, option("line: of the model's first weights.", min=0)] = 0,
    spam_test: Annotated[
        bool,
        option(
            "draw-and-discard: refuse models too far from the instances; for jobs with much noise.",
            "--spam-test",
        ),
    ] = False,
    local_database: LocalDatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a job and open it to devices. Prints its id, which devices are given."""
    if strategy not in _STRATEGIES:
        raise InvalidTask(f"a strategy without helpers is one of {', '.join(_STRATEGIES)}, not {strategy!r}")
    given = dict(read_settings(settings, rounds=None, noise_multiplier=None))
    if strategy == "line":
        given = {"sampling_rate": 1.0, "noise_multiplier": 0.0, **given}
    job = local_job(os.urandom(_JOB_ID_BYTES), build(_STRATEGIES[strategy], given), read_widths(layers))
    jobs = _jobs(data, local_database)
    jobs.submit(job, seed=model_seed, is_tested=spam_test)
    if as_json:
        print_json(_told(jobs, jobs.get(job.job_id)))
    else:
        typer.echo(job.job_id.hex())


@local_app.command("list")
def list_command(
    data: DataOption, local_database: LocalDatabaseOption = None, as_json: JsonOption = False
) -> None:
    """List all jobs without helpers, the oldest first."""
    jobs = _jobs(data, local_database)
    told = [_told(jobs, one) for one in jobs.all()]
    if as_json:
        print_json(told)
        return
    columns = ("job", "strategy", "state", "updates", "epsilon of an update", "submitted")
    rows = [
        (
            short(one.job.job_id),
            one.job.kind,
            shown["state"],
            shown["updates"],
            f"{shown['epsilon']} a {shown['unit']}",
            moment(one.submitted_at),
        )
        for one, shown in zip(jobs.all(), told, strict=True)
    ]
    print_table(columns, rows)


@local_app.command("show")
def show_command(
    data: DataOption,
    job: JobArgument = "",
    local_database: LocalDatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job: its settings, what an update costs its device, and how many came."""
    jobs = _jobs(data, local_database)
    told = _told(jobs, jobs.find(job))
    if as_json:
        print_json(told)
    else:
        print_table(("", ""), list(told.items()))


@local_app.command("cancel")
def cancel_command(
    data: DataOption, job: JobArgument = "", local_database: LocalDatabaseOption = None
) -> None:
    """Take no more updates of a job; its model stays."""
    jobs = _jobs(data, local_database)
    found = jobs.find(job).job
    jobs.close(found.job_id)
    typer.echo(f"closed after {jobs.accepted(found)} updates; `adserver local export` still has its model")


@local_app.command("export")
def export_command(
    data: DataOption,
    out: Annotated[Path, typer.Argument(metavar="OUT", dir_okay=False, help="The .npz file to write.")],
    job: Annotated[
        str, option("The job, by the start of its id; not needed if there is only one.", metavar="ID")
    ] = "",
    local_database: LocalDatabaseOption = None,
) -> None:
    """Write a job's model as it is now: parameters, flat, and the model's widths."""
    jobs = _jobs(data, local_database)
    found = jobs.find(job).job
    np.savez(out, parameters=jobs.parameters(found), widths=np.array(found.widths))


def _jobs(data: Path, local_database: str | None) -> LocalJobs:
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LocalJobs(open_local(local_database or default_local_url(data)), time.time)


def _told(jobs: LocalJobs, stored: StoredLocalJob) -> dict[str, Any]:
    """A job for programs. Epsilons are null without noise."""
    settings, model = read_local_job(stored.job)
    cost = cost_of(stored.job)
    told: dict[str, Any] = {
        "job_id": stored.job.job_id.hex(),
        "strategy": stored.job.kind,
        "state": _state(jobs, stored),
        "submitted_at": stored.submitted_at,
        "widths": list(stored.job.widths),
        "parameters": model.size,
        "updates": jobs.accepted(stored.job),
        "unit": cost.unit,
        "epsilon": _finite(cost.epsilon),
        "epsilon_of_a_whole_update": _finite(cost.whole_update),
        "delta": cost.delta,
    }
    if isinstance(settings, Line):
        rounds_done = jobs.rounds.state(stored.job.job_id).rounds_done
        return told | {"rounds": settings.rounds, "rounds_done": rounds_done, "devices": settings.devices}
    return told | {
        "instances": settings.instances,
        "in_flight": round(jobs.instances.job(stored.job.job_id).in_flight, 3),
    }


def _state(jobs: LocalJobs, stored: StoredLocalJob) -> str:
    """Done after the last round of LINE; closed if somebody cancelled it; open to devices otherwise."""
    settings, _ = read_local_job(stored.job)
    if isinstance(settings, Line) and jobs.rounds.asked(stored.job.job_id, settings) is None:
        return "done"
    return "open" if stored.is_open else "closed"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
