"""The options of both `budget` commands that plan a job, and how they print what they found."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from maskedlark.privacy.relation import Relation
from maskedlark.terminal.options import option, panel
from maskedlark.terminal.whole_table import print_whole

if TYPE_CHECKING:
    from maskedlark.releases.budget import DatasetBudget, PlannedJob

_planned = panel("A planned job")

PlannedRounds = Annotated[
    int, _planned("The planned job's rounds; 0 for no planned job.", "--rounds", min=0, max=1_000_000)
]
PlannedBatch = Annotated[
    float | None,
    _planned("The planned job's expected batch size.", "--batch-size", show_default="the whole dataset"),
]
PlannedNoise = Annotated[
    float, _planned("The planned job's noise, divided by the clip norm.", "--noise-multiplier")
]
RelationOption = Annotated[
    Relation,
    option("label: also show what is held costs if one real label is to be told from another."),
]


def read_planned_job(rounds: int, batch_size: float | None, noise_multiplier: float) -> "PlannedJob | None":
    """Return the job that the options describe, or None without rounds."""
    from maskedlark.releases.budget import PlannedJob

    if not rounds:
        return None
    return PlannedJob(
        rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier, is_allocated=True
    )


def print_budgets(budgets: "Sequence[DatasetBudget]") -> None:
    """Print a table for each dataset."""
    from maskedlark.terminal.budget_table import budget_table

    if not budgets:
        typer.echo("no dataset is committed yet")
    for one in budgets:
        print_whole(budget_table(one))
