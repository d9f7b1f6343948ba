"""`adserver job rehearse`: a job trained on examples of one's own, before anything is spent."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.options import JsonOption, TaskOption
from adserver.cli.submission import submission_of
from adserver.cli.target import server_of
from adserver.views.printing import check_parts, print_json
from maskedlark.runtime.durable_file import write_durably
from maskedlark.terminal.options import panel, takes

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer
    from adserver.records.submissions import Submission

_rehearsal = panel("Rehearsal")


@takes(
    server=server_of,
    submission=submission_of,
    # Each of several epsilons decides the noise here; the examples stand for dataset and evaluation set
    without=["epsilon", "noise_multiplier", "until_budget", "eval_set", "eval_every", "dataset"],
)
def _rehearse_command(
    *,
    server: "AdServer",
    submission: "Submission | None",
    examples: Annotated[
        Path,
        _rehearsal(
            "An .npz file of your own with features and labels, as of `job submit --eval-set`.",
            exists=True,
            dir_okay=False,
        ),
    ],
    reports: Annotated[int, _rehearsal("Planned number of reports in the dataset.", min=1)],
    epsilon: Annotated[
        list[float] | None, _rehearsal("Epsilon of the job; may be repeated.", show_default="0.5, 1, 3")
    ] = None,
    also_rate: Annotated[
        list[float] | None,
        _rehearsal(
            "Another learning rate to try beside the job's; may be repeated.",
            show_default="without --learning-rate a third of the default and three times it",
        ),
    ] = None,
    seeds: Annotated[int, _rehearsal("How often each training is repeated.", min=1, max=100)] = 4,
    workers: Annotated[
        int | None, _rehearsal("Processes to train in.", min=1, show_default="one a core")
    ] = None,
    warm_start: Annotated[
        Path | None,
        _rehearsal(
            "Also begin each job at weights trained on the examples, and write the model with such weights to"
            " this .onnx file: submit it with --model.",
            dir_okay=False,
        ),
    ] = None,
    with_default: Annotated[
        bool,
        _rehearsal(
            "Whether each job is compared with one of quickstart's default network, for the same budget.",
            "--with-default/--without-default",
        ),
    ] = True,
    plot: Annotated[
        Path | None, _rehearsal("Also draw score against epsilon to this .png file.", dir_okay=False)
    ] = None,
    task: TaskOption = "",
    as_json: JsonOption = False,
) -> None:
    """Train a job in the clear on labelled examples of your own, at each epsilon and rate. It spends nothing.

    The table has the job at each epsilon, the job without noise, training on the examples alone, and the job
    of quickstart's default network; with --warm-start also each job that begins at weights trained on the
    examples.
    """
    from adserver.messages.rehearsal import RehearsalMessage
    from adserver.training.eval_set import read_eval_set
    from adserver.training.rehearsal import Wish, add_own_rate, rehearse
    from adserver.views.rehearsal import (
        print_rehearsal,
        remarks_of_rehearsal,
        training_progress,
        write_plot,
    )

    if submission is None:
        raise typer.BadParameter("the job is incomplete: give --model and --loss or --heads")
    check_parts([plot] if plot else (), (".png",), "the rehearsal is")
    wish = Wish(
        reports=reports,
        epsilons=tuple(epsilon or (0.5, 1.0, 3.0)),
        learning_rates=add_own_rate(submission, also_rate or ()),
        seeds=seeds,
        workers=workers or os.cpu_count() or 1,
        is_warm=warm_start is not None,
        has_default=with_default,
    )
    # The task's clip, labels and floors are real; only the records are the owner's
    described = server.task(task).stored.bundle.task
    given = read_eval_set(examples.read_bytes())
    encoder = server.encoder(described.task_id.hex()) if described.encoder else None
    for remark in remarks_of_rehearsal(submission, described, given, encoder, seeds=seeds):
        typer.echo(str(remark), err=True)
    with training_progress("rehearsing", is_shown=not as_json) as progress:
        found = rehearse(submission, described, given, wish, progress, encoder=encoder)
    if as_json:
        print_json(RehearsalMessage.of(found).model_dump(mode="json"))
    else:
        print_rehearsal(found)
    if warm_start is not None and found.warm_model is not None:
        write_durably(warm_start, found.warm_model)
    if plot is not None:
        write_plot(found, plot)
