"""`adserver budget`: what is spent, reserved and left of each dataset, by the ad server's own records."""

import time
from pathlib import Path
from typing import Annotated

import typer

from adserver.cli.options import JsonOption
from adserver.cli.target import Target, place_of
from adserver.views.printing import print_json
from maskedlark.terminal.budget_options import (
    PlannedBatch,
    PlannedNoise,
    PlannedRounds,
    print_budgets,
    read_planned_job,
)
from maskedlark.terminal.options import option, takes


@takes(at=place_of)
def budget_command(
    *,
    at: Target,
    task: Annotated[str, option("Only datasets of this task, by the start of its id.", metavar="ID")] = "",
    dataset: Annotated[str, option("Only this dataset, by the start of its id.", metavar="ID")] = "",
    rounds: PlannedRounds = 0,
    batch_size: PlannedBatch = None,
    noise_multiplier: PlannedNoise = 1.0,
    plot: Annotated[
        Path | None,
        option(
            "Also draw how both epsilons grew, job by job, into this PNG, of one dataset.", dir_okay=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is spent, reserved and left of each dataset's two budgets.

    With --rounds, also what a planned job would bring them to.
    """
    from adserver.budgets.reservations import Budgets
    from maskedlark.terminal.budget_view import budget_json

    planned = read_planned_job(rounds, batch_size, noise_multiplier)
    if at.far is not None:
        budgets = at.far.budgets(task=task, dataset=dataset, planned=planned)
    else:
        here = Budgets(engine=at.opened(), clock=time.time)
        budgets = here.of_all(task=task, dataset=dataset, planned=planned)
    if plot is not None:
        if len(budgets) != 1:
            raise typer.BadParameter(
                f"--plot draws one dataset, and {len(budgets)} are asked for: name it with --dataset"
            )
        if at.far is not None:
            raise typer.BadParameter("--plot needs each charge of a dataset: give --data, not --url")
        from adserver.views.budget_plot import write_plot  # matplotlib takes a second to import

        write_plot(budgets[0], plot)
    if as_json:
        print_json([budget_json(one) for one in budgets])
    else:
        print_budgets(budgets)
