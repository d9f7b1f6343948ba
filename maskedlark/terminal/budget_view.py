"""A dataset's budgets in words for people, and as JSON for programs; `budget_table` draws them.

The same at the ad server and at both helpers.
"""

import math
from typing import Any, Final

from maskedlark.frozen import pick_attributes
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.budget import CostedUse, DatasetBudget, Forecast, Standing
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.terminal.plural import plural

SIZES: Final = ("rounds", "batch_size", "noise_multiplier")
"""What JSON says of a planned job."""
USE_FIELDS: Final = (
    "what", "state", "rounds_answered", "rounds_held", "noise_multiplier", "sampling_rate", "devices"
)  # fmt: skip
"""What JSON says of a use as it is."""

FIELDS: Final = ("ad_server", "colluding")
"""The budgets of a dataset."""
LABEL_FROM_LABEL: Final = "label: what is held costs so much to tell one real label of a report from another"
NO_NOISE: Final = "this task adds no noise: nothing is private, and there is no budget"
NOT_ADDITIVE: Final = "Each job's own epsilons are its cost alone; together, jobs cost less than the sum."
MORE_THAN_LEFT: Final = "which is more than is left, since several epsilons compose to less than their sum"
PLAN_DEVICES: Final = "`adserver job plan --strategy`"
"""The command that plans a job on devices."""
DISCOVERY: Final = (
    "(0) is a discovery of groups (aggregate --discover): helpers see keys without it, and its noise hides "
    "them from the ad server alone"
)
_ID_DIGITS: Final = 12
# The ad server alone, and together with either one of the helpers.
_ADVERSARIES: Final = ("ad server", "with one helper")


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


def title_line(budget: DatasetBudget) -> str:
    """Say what the budgets are of."""
    dataset, task = budget.dataset, budget.dataset.task
    if dataset.is_person:
        of = f"a person in task {task.name!r}"
        zeroed = "all updates of one person"
    else:
        most = task.reports_per_user
        is_of_user = task.unit is PrivacyUnit.USER
        zeroed = f"one person, with up to {plural(most, 'report')}" if is_of_user else "one report"
        named = dataset.dataset_id.hex()[:_ID_DIGITS]
        of = f"dataset {named} of {task.name!r}: {plural(dataset.size, 'report')}"
    return f"{of}, epsilons at delta {task.delta:.2g}, of zeroing {zeroed}"


def standing_table(budget: DatasetBudget) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the two rows of what is spent, reserved and left of both budgets."""
    labels = budget.labels
    head = ("against the", "spent", "reserved", "left", "budget", *(["label"] if labels is not None else []))
    rows: list[tuple[str, ...]] = []
    for name, of in zip(_ADVERSARIES, FIELDS, strict=True):
        one: Standing = getattr(budget, of)
        shown = [one.spent, one.reserved, one.left, one.budget]
        shown += [] if labels is None else [getattr(labels, of)]
        rows.append((name, *map(number, shown)))
    return head, rows


def use_table(budget: DatasetBudget) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and a row for each job or query."""
    head = ("job or query", "state", "rounds", "batch", "noise", "epsilon", "(with one helper)")
    rows: list[tuple[str, ...]] = [
        (
            one.use.use_id.hex()[:_ID_DIGITS],
            one.use.state,
            f"{one.use.rounds_answered}/{one.use.rounds_held}",
            # Jobs of one task may have different devices
            f"{one.use.sampling_rate * (one.use.devices or budget.dataset.size):,.0f}",
            f"{one.use.noise_multiplier:.4g}",
            _of(one.spent.ad_server, one.held.ad_server),
            f"({_of(one.spent.colluding, one.held.colluding)})",
        )
        for one in budget.uses
    ]
    return head, rows


def use_lines(budget: DatasetBudget) -> list[str]:
    """Return the lines below the table of jobs and queries."""
    if not budget.is_noisy:
        return []
    is_seen = any(one.held.ad_server and not one.held.colluding for one in budget.uses)
    return [*([DISCOVERY] if is_seen else []), *([NOT_ADDITIVE] if len(budget.uses) > 1 else [])]


def stopped_lines(budget: DatasetBudget) -> list[str]:
    """Say of each job that stopped, and that a person may resume, that it still reserves budget."""
    # States of an ad server's jobs: at a helper such a job is open
    stopped = [one.use for one in budget.uses if one.use.state in ("refused", "failed")]
    return [
        f"job {name} is {use.state} and still reserves {plural(left, 'round')}: `adserver job show {name}` "
        f"says why, and whether to resume it; `adserver job cancel {name}` releases that"
        for use in stopped
        if (left := use.rounds_held - use.rounds_answered) and (name := use.use_id.hex()[:_ID_DIGITS])
    ]


def next_line(budget: DatasetBudget) -> str:
    """Say what a next job or query may ask for, and why where it is more than is left.

    Empty where that was not found.
    """
    found, left, owner = budget.next_epsilon, budget.ad_server.left, budget.dataset.task.unit.budget_owner
    if found is None:
        return ""
    if not found:
        return f"no next job or query fits: use another {owner}"
    if budget.dataset.is_person:
        release = "a next job with sampling_rate 1"
    elif budget.dataset.task.mechanism is Mechanism.GAUSSIAN:
        release = "a next query, or a job whose rounds take all reports,"
    else:
        # Rounds of Laplace noise cost more together than one round of the same epsilon
        release = "a next query, or a job of one round of all reports,"
    # As they are shown, since the sentence would contradict two equal numbers
    is_more = found > left and number(found) != number(left)
    why = f", {MORE_THAN_LEFT}" if is_more else ""
    other = f"; {PLAN_DEVICES} finds what any other may" if budget.dataset.is_person else ""
    return f"{release} may ask for epsilon up to {number(found)} within both budgets{why}{other}"


def forecast_line(forecast: Forecast) -> str:
    """Describe a planned job's effect on the budgets in one sentence."""
    alone, first, second = forecast.alone, forecast.ad_server, forecast.colluding
    return (
        f"the planned job, with a noise multiplier of {forecast.job.noise_multiplier:.4g}, "
        f"{'fits' if forecast.fits else 'does NOT fit'}: alone it costs epsilon "
        f"{number(alone.ad_server)} against the ad server and {number(alone.colluding)} against the ad "
        f"server with one helper; with it {number(first.held)} of {number(first.budget)} and "
        f"{number(second.held)} of {number(second.budget)} are held"
    )


def number(value: float) -> str:
    """Format an epsilon."""
    return "∞" if math.isinf(value) else f"{value:.4g}"


def _of(spent: float, held: float) -> str:
    return number(spent) if spent == held else f"{number(spent)} of {number(held)}"


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
