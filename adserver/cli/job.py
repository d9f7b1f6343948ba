"""`adserver job`: plan, submit, list, show, compare, watch, cancel, close, resume."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.federated import read_federated_options
from adserver.cli.options import JobArgument, JsonOption
from adserver.cli.submission import submission_of
from adserver.cli.target import connected_server_of, server_of
from adserver.records.job_state import JobState
from adserver.records.typed_ids import check_whole, whole_job_id
from adserver.views.printing import print_json
from maskedlark.terminal.options import option, takes
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from adserver.records.job_record import JobRecord
    from adserver.records.round_figures import RoundFigures
    from adserver.records.submissions import FederatedSubmission, Submission

STOPPED_EARLY = 1
# 128 and the number of SIGINT, as shells report it
INTERRUPTED = 130


@takes(federated_job=read_federated_options, server=server_of, submission=submission_of)
def _submit_command(
    *,
    server: "AdServer",
    submission: "Submission | None",
    federated_job: "FederatedSubmission | None",
    name: Annotated[str, option("What you call the job; helpers do not see it.")] = "",
    note: Annotated[str, option("What you want to remember of it; helpers do not see it.")] = "",
    wait: Annotated[bool, option("Follow the job until it stops, like `job watch`.", "--wait")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a job, queue it for `adserver serve` to run or open it to devices, and print its id.

    `adserver job plan` shows in advance which jobs fit, and `adserver job rehearse` what they are worth. A
    job is accepted only if the dataset's budgets can pay for it in addition to all other jobs.
    """
    from adserver.views.plan import tell_path

    asked = federated_job or submission
    if asked is None:
        raise typer.BadParameter("the job is incomplete: give --model and --loss or --heads, or --strategy")
    asked = replace(asked, name=name, note=note)
    made = server.submit(asked)
    # After the submission, so that a refused job says nothing of how it would be computed
    if not as_json:
        tell_path(asked, made.plan, lambda task: server.encoder(task.hex()))
    _report_submission(server, made, wait=wait, as_json=as_json)


@takes(server=server_of)
def _list_command(*, server: "AdServer", as_json: JsonOption = False) -> None:
    """List all jobs, the oldest first."""
    from adserver.messages.job import job_facts
    from adserver.views.job import last_evaluated, print_jobs

    jobs = server.jobs()
    if as_json:
        print_json([job_facts(job, last_evaluated(server.history(job.job_id))) for job in jobs])
    else:
        print_jobs(jobs)


@takes(server=server_of)
def _show_command(
    *,
    job: JobArgument = "",
    server: "AdServer",
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Also draw the job's curves to this .png file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job's settings, progress and spent budget."""
    found = server.job(job)
    history = server.history(found.job_id)
    if plot is not None:
        from adserver.views.curves import write_plot

        write_plot(found, history, plot)
    _show(found, history, as_json=as_json)


@takes(server=server_of)
def _compare_command(
    *,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="The starts of the jobs' ids or names; default: all jobs."),
    ] = None,
    server: "AdServer",
    as_json: JsonOption = False,
) -> None:
    """Show jobs side by side: settings, cost, and loss on their evaluation sets at the end and at best.

    Jobs of different evaluation sets or datasets are shown with a warning.
    """
    from adserver.views.job_comparison import compare_jobs, print_comparison

    rows = compare_jobs(server, jobs or ())
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_comparison(rows)


@takes(server=server_of)
def _watch_command(*, job: JobArgument = "", server: "AdServer", as_json: JsonOption = False) -> None:
    """Follow a job until it stops. The exit status is 1 unless the job is done.

    A job of draw and discard has no last step: it continues until it is cancelled.
    """
    _follow(server, server.job(job).job_id, as_json=as_json)


@takes(server=server_of)
def _cancel_command(*, job: JobArgument = "", server: "AdServer") -> None:
    """Cancel a job for good, within about a second, and release the budget of rounds that were not run.

    A job without helpers is closed to devices; `adserver job resume` opens it again.
    """
    found = server.job(job)
    job_id = found.job_id
    check_whole(job_id, found.name, job)
    server.cancel(job_id)
    found = server.job(job_id.hex())
    typer.echo(
        f"job {job_id.hex()[:12]}: {found.state} after {found.progress}; `adserver model export` can still "
        "export its latest weights"
    )


@takes(server=connected_server_of)
def _close_command(
    *,
    job: Annotated[str, typer.Argument(help="The job's whole id.")],
    server: "AdServer",
) -> None:
    """Close a job at both helpers that this ad server no longer has, as after a backup was restored.

    It releases the budget that the helpers reserve for the job's further rounds; answered rounds stay
    charged. A job that `adserver job list` shows is cancelled instead. `lark-helper budget --json` lists the
    ids of open jobs.
    """
    charged = server.close_lost_job(whole_job_id(job))
    stays = plural(charged, "round stays", "rounds stay")
    typer.echo(f"job {job[:12]}: closed at both helpers; {stays} charged there")


@takes(server=server_of)
def _resume_command(*, job: JobArgument = "", server: "AdServer") -> None:
    """Queue a refused or failed job again, or open a closed one to devices. It continues where it stopped."""
    found = server.job(job)
    check_whole(found.job_id, found.name, job)
    server.resume(found.job_id)
    done = "opened" if found.plan.task is None else "queued"
    typer.echo(f"job {found.job_id.hex()[:12]}: {done} again, after {found.progress}")


def _follow(server: "AdServer", job_id: bytes, *, as_json: bool) -> None:
    """Watch a job to its end, print what became of it, and exit with 1 unless it is done."""
    from adserver.views.job import watch

    try:
        job = watch(
            server, job_id, is_shown=not as_json, tell=lambda what: typer.echo(f"waiting: {what}", err=True)
        )
    # The job belongs to the server: to stop watching it must not look like stopping it
    except KeyboardInterrupt:
        name = job_id.hex()[:12]
        typer.echo(
            f"job {name} goes on at the ad server: `adserver job watch {name}` follows it again, "
            f"`adserver job cancel {name}` stops it",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    _show(job, server.history(job_id), as_json=as_json)
    # So that a script that waits for a model stops where there is none
    if job.state is not JobState.DONE:
        raise typer.Exit(STOPPED_EARLY)


def _show(job: "JobRecord", history: "tuple[RoundFigures, ...]", *, as_json: bool) -> None:
    from adserver.messages.job import job_facts
    from adserver.views.job import last_evaluated, print_job

    if as_json:
        print_json(job_facts(job, last_evaluated(history)))
    else:
        print_job(job, history)


def _report_submission(server: "AdServer", job: "JobRecord", *, wait: bool, as_json: bool) -> None:
    """Print the id of a submitted job, or follow it."""
    from adserver.messages.job import job_facts

    if wait:
        _follow(server, job.job_id, as_json=as_json)
    elif as_json:
        print_json(job_facts(job, None))
    else:
        typer.echo(job.job_id.hex())
