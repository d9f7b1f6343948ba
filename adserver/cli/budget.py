"""`adserver budget`: what is spent, reserved and left of each dataset, by the ad server's own records."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.options import JsonOption
from adserver.cli.target import server_of
from adserver.views.printing import print_json
from maskedlark.privacy.relation import Relation
from maskedlark.terminal.budget_options import (
    PlannedBatch,
    PlannedNoise,
    PlannedRounds,
    RelationOption,
    print_budgets,
    read_planned_job,
)
from maskedlark.terminal.options import option, takes

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer


@takes(server=server_of)
def _budget_command(
    *,
    server: "AdServer",
    task: Annotated[str, option("Show only datasets of the task whose id starts so.", metavar="ID")] = "",
    dataset: Annotated[str, option("Show only the dataset whose id starts so.", metavar="ID")] = "",
    rounds: PlannedRounds = 0,
    batch_size: PlannedBatch = None,
    noise_multiplier: PlannedNoise = 1.0,
    relation: RelationOption = Relation.ZERO,
    plot: Annotated[
        Path | None,
        option(
            "Also draw how both epsilons of one dataset grew, job by job, to this .png file.", dir_okay=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the spent, reserved and remaining part of each dataset's two budgets.

    The budgets are of telling whether a report adds anything; with --relation label, also show the cost
    of telling one real label from another. With --rounds, also show the budgets after a planned job.
    """
    from maskedlark.terminal.budget_view import PLAN_DEVICES, budget_json

    planned = read_planned_job(rounds, batch_size, noise_multiplier)
    budgets = server.budgets(task=task, dataset=dataset, planned=planned, relation=relation)
    if planned is not None and budgets and all(one.dataset.is_person for one in budgets):
        raise typer.BadParameter(
            f"--rounds plans a job over a dataset, and the task is one of updates: use {PLAN_DEVICES}"
        )
    if plot is not None:
        if len(budgets) != 1:
            raise typer.BadParameter(
                f"--plot draws one dataset, but {len(budgets)} match: name one with --dataset"
            )
        # Over the admin API a use has its cost but not its charges, from which the curve is computed
        if any(one.spent.ad_server and not one.use.spent for one in budgets[0].uses):
            raise typer.BadParameter(
                "--plot does not work with --url, because it needs each charge of a dataset: give "
                "--data on the ad server's machine"
            )
        from adserver.views.budget_plot import write_plot  # matplotlib takes a second to import

        write_plot(budgets[0], plot)
    if as_json:
        print_json([budget_json(one) for one in budgets])
    else:
        print_budgets(budgets)
        if budgets:
            typer.echo("by the ad server's records: the helpers decide, by theirs (`lark-helper budget`)")
