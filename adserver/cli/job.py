"""`adserver job`: plan, submit, list, show, watch, cancel, resume."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.federated import read_federated_options
from adserver.cli.heads import read_loss
from adserver.cli.options import DatasetOption, JobArgument, JsonOption, TaskOption, privacy, sampling_of
from adserver.cli.target import server_of
from adserver.records.job_state import JobState
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.sampling_options import SamplingOptions
from adserver.views.printing import print_json
from maskedlark.model.losses import Loss
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from adserver.records.job_record import JobRecord
    from adserver.records.round_figures import RoundFigures
    from adserver.records.submissions import FederatedSubmission

STOPPED_EARLY = 1
INTERRUPTED = 130

_training = panel("Training")
_evaluation = panel("Evaluation")


@takes(federated_job=read_federated_options, server=server_of, samples=sampling_of)
def submit_command(
    *,
    server: "AdServer",
    model: Annotated[
        Path | None,
        option("The model as an ONNX file; training starts from its weights.", exists=True, dir_okay=False),
    ] = None,
    loss: Annotated[Loss | None, _training("The loss to minimise.")] = None,
    heads: Annotated[
        Path | None,
        _training(
            "Instead of --loss: a .json file with the heads of the model, each with its output and a target "
            "for every label code.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        _training(
            "Learning rate of the optimizer, before the schedule; an adaptive clip divides the gradient by "
            "its bound first."
        ),
    ] = None,
    federated_job: "FederatedSubmission | None",
    task: TaskOption = "",
    dataset: DatasetOption = "",
    rounds: Annotated[
        int | None, _training("Number of optimizer steps; each sends one request to both helpers.", min=1)
    ] = None,
    batch_size: Annotated[
        float | None, _training("Expected number of reports in a round; default: the whole dataset.")
    ] = None,
    optimizer: Annotated[OptimizerKind, _training("The optimizer.")] = OptimizerKind.SGD,
    momentum: Annotated[float, _training("Momentum, for --optimizer momentum.")] = 0.9,
    schedule: Annotated[
        ScheduleKind, _training("The schedule of the learning rate over the rounds.")
    ] = ScheduleKind.CONSTANT,
    final_factor: Annotated[
        float, _training("For --schedule cosine: the last factor of the learning rate.")
    ] = 0.0,
    step_rounds: Annotated[int, _training("For --schedule step: rounds between steps.")] = 100,
    step_factor: Annotated[float, _training("For --schedule step: the factor of each step.")] = 0.5,
    warmup_rounds: Annotated[int, _training("Warm-up rounds, for --schedule linear-warmup.")] = 10,
    epsilon: Annotated[
        float | None, privacy("Epsilon that this job may cost against this ad server; determines the noise.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, privacy("Each helper's noise, divided by the clip norm; instead of --epsilon.")
    ] = None,
    until_budget: Annotated[
        bool,
        privacy(
            "Run as many rounds as fit with --noise-multiplier, until the budget (or --epsilon) is "
            "spent; instead of --rounds.",
            "--until-budget",
        ),
    ] = False,
    samples: SamplingOptions,
    per_layer_clip: Annotated[
        bool,
        privacy(
            "Clip each layer's gradient separately, to an equal share of the clip norm.", "--per-layer-clip"
        ),
    ] = False,
    clip_norm: Annotated[
        float | None,
        privacy(
            "The largest clip bound, at most the task's; without --adaptive-clip the bound of all rounds.",
            show_default="the task's",
        ),
    ] = None,
    adaptive_clip: Annotated[
        float | None,
        privacy(
            "Let the clip bound privately follow this quantile (0 to 1) of the gradients' norms, and divide "
            "the gradient by the bound before --learning-rate applies.",
            show_default="0.9, unless --clip-norm, --per-layer-clip or correlated noise fixes the bound",
        ),
    ] = None,
    clip_learning_rate: Annotated[float, privacy("For --adaptive-clip: learning rate of the bound.")] = 0.2,
    initial_clip: Annotated[
        float, privacy("For --adaptive-clip: the first bound, as a share of the largest.")
    ] = 0.1,
    eval_set: Annotated[
        Path | None,
        _evaluation("An .npz file of your own with features and labels.", exists=True, dir_okay=False),
    ] = None,
    eval_every: Annotated[int | None, _evaluation("Rounds between evaluations.", min=1)] = None,
    wait: Annotated[bool, option("Follow the job until it stops, like `job watch`.", "--wait")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a job, queue it for `adserver serve` to run, and print its id.

    `adserver job plan` shows in advance which jobs fit. A job is accepted only if the dataset's budgets can
    pay for it in addition to all other jobs.
    """
    from adserver.records.submissions import Submission
    from adserver.records.training_plan import Optimizer, Schedule
    from adserver.training.model_file import read_model
    from maskedlark.canonical import build
    from maskedlark.privacy.adaptive_clip import AdaptiveClip

    if federated_job is not None:
        _report_submission(server, server.submit(federated_job), wait=wait, as_json=as_json)
        return
    minimised = read_loss(loss, heads)
    if model is None or minimised is None or learning_rate is None:
        raise typer.BadParameter(
            "the job is incomplete: give --model, --loss or --heads, and --learning-rate, or --strategy"
        )
    if (rounds is None) != until_budget:
        raise typer.BadParameter("expected exactly one of --rounds and --until-budget")
    submission = Submission(
        model=read_model(model),
        loss=minimised,
        rounds=rounds,
        batch_size=batch_size,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        optimizer=build(Optimizer, {"kind": optimizer, "learning_rate": learning_rate, "momentum": momentum}),
        schedule=build(
            Schedule,
            {
                "kind": schedule,
                "final_factor": final_factor,
                "step_rounds": step_rounds,
                "step_factor": step_factor,
                "warmup_rounds": warmup_rounds,
            },
        ),
        eval_set=eval_set.read_bytes() if eval_set else None,
        eval_every=eval_every,
        is_clip_per_layer=per_layer_clip,
        clip_norm=clip_norm,
        adaptive_clip=None
        if adaptive_clip is None
        else build(
            AdaptiveClip,
            {"quantile": adaptive_clip, "learning_rate": clip_learning_rate, "initial": initial_clip},
        ),
        dataset=dataset,
        task=task,
        **samples.sampling(),
    )
    _report_submission(server, server.submit(submission), wait=wait, as_json=as_json)


@takes(server=server_of)
def list_command(*, server: "AdServer", as_json: JsonOption = False) -> None:
    """List all jobs, the oldest first."""
    from adserver.messages.job import job_facts
    from adserver.views.job import last_evaluated, print_jobs

    jobs = server.jobs()
    if as_json:
        print_json([job_facts(job, last_evaluated(server.history(job.job_id))) for job in jobs])
    else:
        print_jobs(jobs)


@takes(server=server_of)
def show_command(
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
def watch_command(*, job: JobArgument = "", server: "AdServer", as_json: JsonOption = False) -> None:
    """Follow a job until it stops. The exit status is 1 unless the job is done."""
    _follow(server, server.job(job).job_id, as_json=as_json)


@takes(server=server_of)
def cancel_command(*, job: JobArgument = "", server: "AdServer") -> None:
    """Cancel a job for good, within about a second, and release the budget of rounds that were not run."""
    found = server.job(job)
    server.cancel(found.job_id)
    typer.echo(
        f"cancelled after {found.rounds_done} rounds; `adserver model export` can still export its "
        "latest weights"
    )


@takes(server=server_of)
def resume_command(*, job: JobArgument = "", server: "AdServer") -> None:
    """Queue a refused or failed job again. It continues with the round at which it stopped."""
    found = server.job(job)
    server.resume(found.job_id)
    typer.echo(f"queued again, at round {found.rounds_done} of {found.plan.job.rounds}")


def _follow(server: "AdServer", job_id: bytes, *, as_json: bool) -> None:
    """Watch a job to its end, print what became of it, and exit with 1 unless it is done."""
    from adserver.views.job import watch

    try:
        job = watch(
            server, job_id, is_shown=not as_json, tell=lambda what: typer.echo(f"waiting: {what}", err=True)
        )
    except KeyboardInterrupt:
        name = job_id.hex()[:12]
        typer.echo(
            f"job {name} goes on at the ad server: `adserver job watch {name}` follows it again, "
            f"`adserver job cancel {name}` stops it",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    _show(job, server.history(job_id), as_json=as_json)
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
