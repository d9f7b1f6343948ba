"""A dataset's budgets as a table with bars: what people see of `budget_view`, which loads without rich."""

import math
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from maskedlark.releases.budget import DatasetBudget, Standing
from maskedlark.terminal.budget_view import (
    FIELDS,
    LABEL_FROM_LABEL,
    NO_NOISE,
    forecast_line,
    next_line,
    standing_table,
    stopped_lines,
    title_line,
    use_lines,
    use_table,
)

_BAR_CELLS: Final = 22


def budget_table(budget: DatasetBudget) -> RenderableType:
    """Build both budgets with bars, then their charges."""
    parts: list[RenderableType] = [Text(title_line(budget), "bold")]
    if budget.is_noisy:
        parts.append(_standings(budget))
        if budget.labels is not None:
            parts.append(Text(LABEL_FROM_LABEL))
    else:
        parts.append(Text(NO_NOISE, "yellow"))
    if line := next_line(budget):
        parts.append(Text(line))
    if budget.uses:
        head, rows = use_table(budget)
        table = _table(head, left=2)
        for row in rows:
            table.add_row(*row)
        parts.append(table)
    parts += map(Text, stopped_lines(budget))
    parts += [Text(line, "dim") for line in use_lines(budget)]
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
    head, rows = standing_table(budget)
    table = _table(head, left=1)
    table.add_column("█spent ▒reserved ░left", no_wrap=True)
    for row, of in zip(rows, FIELDS, strict=True):
        table.add_row(*row, _bar(getattr(budget, of)))
    return table


def _table(head: Sequence[str], *, left: int) -> Table:
    """Return an empty table whose first columns are words, and whose others numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(head):
        if place < left:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right")
    return table
