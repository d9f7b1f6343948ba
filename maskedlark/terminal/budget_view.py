"""A dataset's budgets for people, as a table with bars, and for programs, as JSON.

The same at the ad server and at both helpers.
"""

import math
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from maskedlark.frozen import named
from maskedlark.privacy.accounting import Epsilons
from maskedlark.releases.budget import CostedUse, DatasetBudget, Forecast, Standing

_BAR_CELLS: Final = 28
_ID_DIGITS: Final = 12
SIZES: Final = ("rounds", "batch_size", "noise_multiplier")
"""What JSON says of a planned job."""
USE_FIELDS: Final = (
    "what", "state", "rounds_answered", "rounds_held", "noise_multiplier", "sampling_rate"
)  # fmt: skip
"""What JSON says of a use as it is."""
_ADVERSARIES: Final = ("ad server", "with a helper")
"""The ad server alone, and colluding with either one of the helpers."""
NO_NOISE: Final = "no noise is added in this task: nothing is private, and no budget is kept"
NOT_ADDITIVE: Final = (
    "Each job's own epsilons are what it would cost alone; together they cost less than their sum."
)


def budget_table(budget: DatasetBudget) -> RenderableType:
    """Both budgets with bars, then what takes of them."""
    dataset, task = budget.dataset, budget.dataset.task
    if dataset.is_person:
        of = f"a person in task {task.name!r}: {dataset.size} devices"
    else:
        of = f"dataset {dataset.dataset_id.hex()[:_ID_DIGITS]} of {task.name!r}: {dataset.size} reports"
    title = Text(f"{of}, epsilons at delta {task.delta:.2g}", "bold")
    parts: list[RenderableType] = [title]
    if budget.is_noisy:
        parts.append(_standings(budget))
    else:
        parts.append(Text(NO_NOISE, "yellow"))
    if budget.uses:
        parts.append(_uses(budget))
    if budget.is_noisy and len(budget.uses) > 1:
        parts.append(Text(NOT_ADDITIVE, "dim"))
    if budget.forecast is not None:
        parts.append(Text(forecast_line(budget.forecast), "bold"))
    return Group(*parts)


def budget_json(budget: DatasetBudget) -> dict[str, Any]:
    """Both budgets as JSON for programs; infinite epsilons, and all of a task without noise, are null."""
    dataset, task = budget.dataset, budget.dataset.task
    return {
        "dataset_id": None if dataset.is_person else dataset.dataset_id.hex(),
        "unit": task.unit.value,
        "task_id": task.task_id.hex(),
        "task": task.name,
        "reports": dataset.size,
        "mechanism": task.mechanism.value,
        "delta": task.delta,
        "ad_server": _standing_json(budget.ad_server),
        "colluding": _standing_json(budget.colluding),
        "uses": [_use_json(one) for one in budget.uses],
        "planned": None if budget.forecast is None else _forecast_json(budget.forecast),
    }


def forecast_line(forecast: Forecast) -> str:
    """What a planned job would bring the budgets to, in one sentence."""
    moves = (
        f"{name} {number(one.held)} of {number(one.budget)}"
        for name, one in zip(_ADVERSARIES, (forecast.ad_server, forecast.colluding), strict=True)
    )
    verdict = "fits" if forecast.fits else "does NOT fit"
    alone = f"{number(forecast.alone.ad_server)} ({number(forecast.alone.colluding)} with one helper)"
    return (
        f"the planned job {verdict}: it costs epsilon {alone} alone, and brings what is held to: "
        + ", ".join(moves)
    )


def bar(standing: Standing, cells: int = _BAR_CELLS) -> Text:
    """The spent, the reserved and the left of a budget as a bar.

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
    table.add_column("█ spent ▒ reserved ░ left", no_wrap=True)
    for name, one in zip(_ADVERSARIES, (budget.ad_server, budget.colluding), strict=True):
        table.add_row(
            name, *(number(value) for value in (one.spent, one.reserved, one.left, one.budget)), bar(one)
        )
    return table


def _uses(budget: DatasetBudget) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("job or query", "state"):
        table.add_column(name, overflow="fold")
    for name in ("rounds", "batch", "noise", "epsilon", "(with a helper)"):
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


def number(value: float) -> str:
    """An epsilon for people."""
    return "∞" if math.isinf(value) else f"{value:.4g}"


def _standing_json(standing: Standing) -> dict[str, float | None]:
    values = named(standing, ("budget", "spent", "reserved", "held", "left"))
    if math.isinf(standing.held):
        values |= {"spent": math.inf, "reserved": math.inf, "left": math.inf}
    return {name: finite(value) for name, value in values.items()}


def _forecast_json(forecast: Forecast) -> dict[str, Any]:
    return {
        **named(forecast.job, SIZES),
        "alone": epsilons_json(forecast.alone),
        "ad_server": _standing_json(forecast.ad_server),
        "colluding": _standing_json(forecast.colluding),
        "fits": forecast.fits,
    }


def _use_json(one: CostedUse) -> dict[str, Any]:
    return {
        "id": one.use.use_id.hex(),
        **named(one.use, USE_FIELDS),
        "spent_alone": epsilons_json(one.spent),
        "held_alone": epsilons_json(one.held),
    }


def epsilons_json(epsilons: Epsilons) -> dict[str, float | None]:
    """Two epsilons for programs; null for infinity."""
    return {"ad_server": finite(epsilons.ad_server), "colluding": finite(epsilons.colluding)}


def finite(value: float) -> float | None:
    """A number for programs; None for one that is not finite."""
    return value if math.isfinite(value) else None
