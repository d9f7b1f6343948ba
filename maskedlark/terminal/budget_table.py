"""A dataset's budgets as a table with bars: what people see of `budget_view`, which loads without rich."""

import math
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from maskedlark.releases.budget import DatasetBudget, Standing
from maskedlark.terminal.budget_view import forecast_line, next_line, number
from maskedlark.terminal.plural import plural

_BAR_CELLS: Final = 22
_ID_DIGITS: Final = 12
# The ad server alone, and together with either one of the helpers.
_ADVERSARIES: Final = ("ad server", "with one helper")
_FIELDS: Final = ("ad_server", "colluding")
LABEL_FROM_LABEL: Final = "label: what is held costs so much to tell one real label of a report from another"
NO_NOISE: Final = "this task adds no noise: nothing is private, and there is no budget"
NOT_ADDITIVE: Final = "Each job's own epsilons are its cost alone; together, jobs cost less than the sum."


def budget_table(budget: DatasetBudget) -> RenderableType:
    """Build both budgets with bars, then their charges."""
    dataset, task = budget.dataset, budget.dataset.task
    if dataset.is_person:
        of = f"a person in task {task.name!r}: {plural(dataset.size, 'device')}"
        zeroed = "all updates of one person"
    else:
        zeroed = "one report"
        named = dataset.dataset_id.hex()[:_ID_DIGITS]
        of = f"dataset {named} of {task.name!r}: {plural(dataset.size, 'report')}"
    title = Text(f"{of}, epsilons at delta {task.delta:.2g}, of zeroing {zeroed}", "bold")
    parts: list[RenderableType] = [title]
    if budget.is_noisy:
        parts.append(_standings(budget))
        if budget.labels is not None:
            parts.append(Text(LABEL_FROM_LABEL))
    else:
        parts.append(Text(NO_NOISE, "yellow"))
    if line := next_line(budget):
        parts.append(Text(line))
    if budget.uses:
        parts.append(_uses(budget))
    if budget.is_noisy and len(budget.uses) > 1:
        parts.append(Text(NOT_ADDITIVE, "dim"))
    if budget.forecast is not None:
        parts.append(Text(forecast_line(budget.forecast), "bold"))
    return Group(*parts)


def _bar(standing: Standing, cells: int = _BAR_CELLS) -> Text:
    """Draw the spent, the reserved and the remaining part of a budget as a bar.

    Any spending shows, and a bar is full only when nothing is left.
    """
    whole = standing.budget
    held = cells if not standing.left else min(cells - 1, math.ceil(cells * standing.held / whole))
    spent = min(held, math.ceil(cells * min(standing.spent, whole) / whole))
    return Text.assemble(
        ("█" * spent, "red"), ("▒" * (held - spent), "yellow"), ("░" * (cells - held), "green")
    )


def _standings(budget: DatasetBudget) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("against the")
    for name in ("spent", "reserved", "left", "budget"):
        table.add_column(name, justify="right")
    labels = budget.labels
    if labels is not None:
        table.add_column("label", justify="right")
    table.add_column("█spent ▒reserved ░left", no_wrap=True)
    for name, of in zip(_ADVERSARIES, _FIELDS, strict=True):
        one: Standing = getattr(budget, of)
        shown = [one.spent, one.reserved, one.left, one.budget]
        shown += [] if labels is None else [getattr(labels, of)]
        table.add_row(name, *map(number, shown), _bar(one))
    return table


def _uses(budget: DatasetBudget) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("job or query", "state"):
        table.add_column(name, overflow="fold")
    for name in ("rounds", "batch", "noise", "epsilon", "(with one helper)"):
        table.add_column(name, justify="right")
    for one in budget.uses:
        use = one.use
        table.add_row(
            use.use_id.hex()[:_ID_DIGITS],
            use.state,
            f"{use.rounds_answered}/{use.rounds_held}",
            f"{use.sampling_rate * budget.dataset.size:,.0f}",
            f"{use.noise_multiplier:.4g}",
            _of(one.spent.ad_server, one.held.ad_server),
            f"({_of(one.spent.colluding, one.held.colluding)})",
        )
    return table


def _of(spent: float, held: float) -> str:
    return number(spent) if spent == held else f"{number(spent)} of {number(held)}"
