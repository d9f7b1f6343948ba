"""`adserver budget`: what is spent, reserved and left of each dataset, by the ad server's own records."""

import time
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from adserver.budgets.held import Budgets
from adserver.cli.options import DatabaseOption, DataOption, JsonOption, open_store
from adserver.views.printing import print_json
from maskedlark.releases.budget import PlannedJob
from maskedlark.terminal.budget_view import budget_json, budget_table

_PLANNED: Final = "A planned job"


def budget_command(
    *,
    data: DataOption,
    task: Annotated[
        str, typer.Option(metavar="ID", help="Only datasets of this task, by the start of its id.")
    ] = "",
    dataset: Annotated[
        str, typer.Option(metavar="ID", help="Only this dataset, by the start of its id.")
    ] = "",
    rounds: Annotated[
        int,
        typer.Option(
            min=0, max=1_000_000, rich_help_panel=_PLANNED, help="Its rounds; 0 for no planned job."
        ),
    ] = 0,
    batch_size: Annotated[
        float | None,
        typer.Option(rich_help_panel=_PLANNED, help="Its expected batch.", show_default="the whole dataset"),
    ] = None,
    noise_multiplier: Annotated[
        float, typer.Option(rich_help_panel=_PLANNED, help="Its noise over the clip norm.")
    ] = 1.0,
    plot: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Also draw how both epsilons grew, job by job, into this PNG, of one dataset.",
        ),
    ] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is spent, reserved and left of each dataset's two budgets.

    With --rounds, also what a planned job would bring them to.
    """
    planned = (
        PlannedJob(
            rounds=rounds,
            batch_size=batch_size,
            noise_multiplier=noise_multiplier,
            is_allocated=True,
        )
        if rounds
        else None
    )
    budgets = Budgets(engine=open_store(data, database), clock=time.time).of_all(
        task=task, dataset=dataset, planned=planned
    )
    if plot is not None:
        if len(budgets) != 1:
            raise typer.BadParameter(
                f"--plot draws one dataset, and {len(budgets)} are asked for: name it with --dataset"
            )
        from adserver.views.budget_plot import write_plot  # matplotlib takes a second to import

        write_plot(budgets[0], plot)
    if as_json:
        print_json([budget_json(one) for one in budgets])
    elif not budgets:
        typer.echo("no dataset is committed yet")
    for one in [] if as_json else budgets:
        Console().print(budget_table(one))
