"""A dataset's budgets in words for people, and as JSON for programs; `budget_table` draws them.

The same at the ad server and at both helpers.
"""

import math
from typing import Any, Final

from maskedlark.frozen import pick_attributes
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.budget import CostedUse, DatasetBudget, Forecast, Standing

SIZES: Final = ("rounds", "batch_size", "noise_multiplier")
"""What JSON says of a planned job."""
USE_FIELDS: Final = (
    "what", "state", "rounds_answered", "rounds_held", "noise_multiplier", "sampling_rate"
)  # fmt: skip
"""What JSON says of a use as it is."""


def budget_json(budget: DatasetBudget) -> dict[str, Any]:
    """Return both budgets as JSON; infinite epsilons, and all of a task without noise, are null."""
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
        "next_epsilon": budget.next_epsilon,
        "uses": [_use_json(one) for one in budget.uses],
        "labels": None if budget.labels is None else _epsilons_json(budget.labels),
        "planned": None if budget.forecast is None else _forecast_json(budget.forecast),
    }


def next_line(budget: DatasetBudget) -> str:
    """Say what a next job or query may ask for; empty where that was not found."""
    found, owner = budget.next_epsilon, budget.dataset.task.unit.budget_owner
    if found is None:
        return ""
    if not found:
        return f"no next job or query fits: use another {owner}"
    if budget.dataset.is_person:
        release = "a next job whose rounds take all devices"
    elif budget.dataset.task.mechanism is Mechanism.GAUSSIAN:
        release = "a next query, or a job whose rounds take all reports,"
    else:
        # Rounds of Laplace noise cost more together than one round of the same epsilon
        release = "a next query, or a job of one round of all reports,"
    return f"{release} may ask for epsilon up to {number(found)} within both budgets"


def forecast_line(forecast: Forecast) -> str:
    """Describe a planned job's effect on the budgets in one sentence."""
    alone, first, second = forecast.alone, forecast.ad_server, forecast.colluding
    return (
        f"the planned job {'fits' if forecast.fits else 'does NOT fit'}: alone it costs epsilon "
        f"{number(alone.ad_server)} against the ad server and {number(alone.colluding)} against the ad "
        f"server with one helper; with it {number(first.held)} of {number(first.budget)} and "
        f"{number(second.held)} of {number(second.budget)} are held"
    )


def number(value: float) -> str:
    """Format an epsilon."""
    return "∞" if math.isinf(value) else f"{value:.4g}"


def _standing_json(standing: Standing) -> dict[str, float | None]:
    values = pick_attributes(standing, ("budget", "spent", "reserved", "held", "left"))
    if math.isinf(standing.held):
        # Without noise no part is finite: a number that is left would look like a promise.
        values |= {"spent": math.inf, "reserved": math.inf, "left": math.inf}
    return {name: _finite(value) for name, value in values.items()}


def _forecast_json(forecast: Forecast) -> dict[str, Any]:
    return {
        **pick_attributes(forecast.job, SIZES),
        "alone": _epsilons_json(forecast.alone),
        "ad_server": _standing_json(forecast.ad_server),
        "colluding": _standing_json(forecast.colluding),
        "fits": forecast.fits,
    }


def _use_json(one: CostedUse) -> dict[str, Any]:
    return {
        "id": one.use.use_id.hex(),
        **pick_attributes(one.use, USE_FIELDS),
        "spent_alone": _epsilons_json(one.spent),
        "held_alone": _epsilons_json(one.held),
    }


def _epsilons_json(epsilons: Epsilons) -> dict[str, float | None]:
    """Return two epsilons as JSON; null for infinity."""
    return {"ad_server": _finite(epsilons.ad_server), "colluding": _finite(epsilons.colluding)}


def _finite(value: float) -> float | None:
    """Return a number for JSON; None for one that is not finite."""
    return value if math.isfinite(value) else None
