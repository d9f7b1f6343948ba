"""`adserver local`: jobs that need no helpers, because each device noises its own updates.

The strategies are LINE's averaging and draw and discard; `adserver serve` takes the updates.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adserver.cli.federated import read_settings, read_widths
from adserver.cli.options import DataOption, JobArgument, JsonOption, LocalDatabaseOption, OneJobOption
from adserver.views.printing import print_json, print_table
from maskedlark.errors import InvalidTask
from maskedlark.terminal.options import option, takes

if TYPE_CHECKING:
    from adserver.store.local.jobs import LocalJobs
    from maskedlark.federated.local_job import LocalJob, LocalSettings

_JOB_ID_BYTES: Final = 16
STOPPED_EARLY: Final = 1

local_app = typer.Typer(
    no_args_is_help=True,
    help="Train without helpers: devices add noise to their own updates (LINE, draw and discard).",
)


StrategyOption = Annotated[str, option("The strategy: line or draw-and-discard.")]
SettingsOption = Annotated[
    Path, option("JSON file with the strategy's settings.", exists=True, dir_okay=False)
]
LayersOption = Annotated[
    str, option("Layer widths of the model, for example 784,10; exactly two for draw-and-discard.")
]


def local_jobs_of(*, data: DataOption, local_database: LocalDatabaseOption = None) -> "LocalJobs":
    """Open the jobs without helpers of the ad server that the options name."""
    from adserver.store.local.jobs import LocalJobs
    from adserver.store.local.schema import default_local_url, open_local

    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LocalJobs(open_local(local_database or default_local_url(data)), time.time)


@local_app.command("plan")
def plan_command(
    *,
    strategy: StrategyOption,
    settings: SettingsOption,
    layers: LayersOption,
    updates_each: Annotated[int, option("Number of updates that a person sends.", min=1)] = 1,
    as_json: JsonOption = False,
) -> None:
    """Check a job and show its cost to a person and its noise, without storing anything."""
    from adserver.views.local import forecast_json, print_local_forecast
    from maskedlark.federated.local_forecast import forecast

    expected = forecast(_job(strategy, settings, layers), updates_each=updates_each)
    print_json(forecast_json(expected)) if as_json else print_local_forecast(expected)


@local_app.command("submit")
@takes(jobs=local_jobs_of)
def submit_command(
    *,
    jobs: "LocalJobs",
    strategy: StrategyOption,
    settings: SettingsOption,
    layers: LayersOption,
    model_seed: Annotated[int, option("line: seed for the model's first weights.", min=0)] = 0,
    spam_test: Annotated[
        bool,
        option(
            "draw-and-discard: reject models that are too far from the instances; for jobs with much noise.",
            "--spam-test",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a job, open it to devices, and print the id that devices need."""
    from adserver.views.local import local_json

    job = _job(strategy, settings, layers)
    jobs.submit(job, seed=model_seed, is_tested=spam_test)
    if as_json:
        print_json(local_json(jobs, jobs.get(job.job_id)))
    else:
        typer.echo(job.job_id.hex())


@local_app.command("list")
@takes(jobs=local_jobs_of)
def list_command(*, jobs: "LocalJobs", as_json: JsonOption = False) -> None:
    """List all jobs without helpers, the oldest first."""
    from adserver.views.local import local_json, print_local_jobs

    found = jobs.all()
    if as_json:
        print_json([local_json(jobs, one) for one in found])
    else:
        print_local_jobs(jobs, found)


@local_app.command("show")
@takes(jobs=local_jobs_of)
def show_command(*, jobs: "LocalJobs", job: JobArgument = "", as_json: JsonOption = False) -> None:
    """Show a job's settings, the cost of an update to its device, and the number of updates."""
    from adserver.views.local import local_json

    told = local_json(jobs, jobs.find(job))
    if as_json:
        print_json(told)
    else:
        print_table(("", ""), list(told.items()))


@local_app.command("watch")
@takes(jobs=local_jobs_of)
def watch_command(*, jobs: "LocalJobs", job: JobArgument = "", as_json: JsonOption = False) -> None:
    """Follow a job until it is done or closed. The exit status is 1 unless LINE took its last step.

    Draw and discard has no last step: it continues until it is closed.
    """
    from adserver.store.local.jobs import LocalState
    from adserver.views.local import local_json, watch

    job_id = jobs.find(job).job.job_id
    state = watch(jobs, job_id, is_shown=not as_json)
    stored = jobs.get(job_id)
    told = local_json(jobs, stored)
    print_json(told) if as_json else print_table(("", ""), list(told.items()))
    if state is not LocalState.DONE:
        raise typer.Exit(STOPPED_EARLY)


@local_app.command("cancel")
@takes(jobs=local_jobs_of)
def cancel_command(*, jobs: "LocalJobs", job: JobArgument = "") -> None:
    """Stop accepting updates for a job. Its model is kept."""
    found = jobs.find(job).job
    jobs.close(found.job_id)
    typer.echo(
        f"closed after {jobs.accepted(found)} updates; `adserver local export` can still export its model"
    )


@local_app.command("resume")
@takes(jobs=local_jobs_of)
def resume_command(*, jobs: "LocalJobs", job: JobArgument = "") -> None:
    """Reopen a cancelled job to devices. It continues with its current round or instances."""
    found = jobs.find(job).job
    jobs.reopen(found.job_id)
    typer.echo(f"reopened after {jobs.accepted(found)} updates")


@local_app.command("export")
@takes(jobs=local_jobs_of)
def export_command(
    *,
    jobs: "LocalJobs",
    out: Annotated[Path, typer.Argument(metavar="OUT", dir_okay=False, help="The .npz file to write.")],
    job: OneJobOption = "",
) -> None:
    """Write a job's current model: its parameters as a flat array, and its layer widths."""
    import numpy as np

    found = jobs.find(job).job
    np.savez(out, parameters=jobs.parameters(found), widths=np.array(found.widths))


def _job(strategy: str, settings: Path, layers: str) -> "LocalJob":
    """Create a job of these settings, checked.

    Raises:
        InvalidTask, InvalidModel: naming the setting.
    """
    from maskedlark.canonical import build
    from maskedlark.federated.draw_and_discard import DrawAndDiscard
    from maskedlark.federated.local_job import local_job
    from maskedlark.federated.strategies.line import Line

    kinds: dict[str, type[LocalSettings]] = {"line": Line, "draw-and-discard": DrawAndDiscard}
    if strategy not in kinds:
        raise InvalidTask(f"--strategy is {strategy!r}: without helpers, expected one of {', '.join(kinds)}")
    given = dict(read_settings(settings, rounds=None, noise_multiplier=None))
    if strategy == "line":
        given = {"sampling_rate": 1.0, "noise_multiplier": 0.0, **given}
    return local_job(os.urandom(_JOB_ID_BYTES), build(kinds[strategy], given), read_widths(layers))
