"""A plan as people and programs see it."""

from typing import Any

import typer

from adserver.budgets.comparison import Comparison
from adserver.budgets.headroom import JobLimits
from adserver.budgets.planner import Option, Plan
from adserver.views.printing import print_table
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.accounting import Epsilons
from maskedlark.reports.task import Task
from maskedlark.terminal.budget_view import SIZES, epsilons_json, number


def print_plan(plan: Plan, room: JobLimits, compared: Comparison | None = None) -> None:
    """Print the table of what fits, with the recommended row marked, and how to submit it."""
    task, best = room.task, plan.recommended
    is_clip = plan.gradient_norm == task.clip_norm
    print_table(
        (
            "",
            "rounds",
            "batch",
            "noise",
            "epsilon",
            "dataset",
            "ratio",
            "worth",
            "limit",
        ),
        [_row(option, is_best=option == best) for option in plan.alternatives],
    )
    assumed = "its largest, the clip norm, so the ratio is the least possible" if is_clip else "as you expect"
    typer.echo(
        "ratio, of noise to signal: both helpers' noise on a round's mean gradient, over a gradient of norm"
        f" {plan.gradient_norm:g} ({assumed})"
    )
    typer.echo("worth: so many steps without noise are predicted to gain as much, each at its best length")
    held = (
        f"epsilon: of this job alone; dataset: what that has spent or reserved with the job, of {_both(task)}"
        "; in parentheses with one helper colluding"
    )
    typer.echo(f"{held}, at delta {task.delta:.2g}")
    if compared is not None:
        _print_comparison(compared)
    typer.echo(f"submit the marked one with: {submit_options(best)}")


def _print_comparison(compared: Comparison) -> None:
    """Print the marked job with either noise."""
    both = {"independent": compared.independent, "correlated": compared.correlated}
    rows = [
        (
            name,
            f"{option.noise_multiplier:.4g}",
            _both(option.cost.alone),
            _both(option.cost.together),
            f"{option.noise_to_signal:.3g}",
            f"{option.steps_worth:.3g}",
        )
        for name, option in both.items()
        if option is not None
    ]
    if compared.refusal:
        missing = next(name for name, option in both.items() if option is None)
        typer.echo(f"{missing} noise is not possible here: {compared.refusal}")
        return
    typer.echo("the marked job with either noise, each the least that fits:")
    print_table(("noise", "multiplier", "epsilon", "dataset", "ratio", "worth"), rows)
    typer.echo("ratio of correlated noise: of independent noise that leaves the weights the same error")


def submit_options(option: Option) -> str:
    """Return the options of `adserver job submit` that give exactly this job."""
    return (
        f"--rounds {option.rounds} --batch-size {option.batch_size:.17g} --noise-multiplier"
        f" {option.noise_multiplier!r}"
        + (f" --noise correlated --carried {option.carried}" if option.carried else "")
    )


def plan_json(plan: Plan, room: JobLimits, compared: Comparison | None = None) -> dict[str, Any]:
    """Return a plan as JSON. Without noise the epsilons are null."""
    task = room.task
    return {
        "task_id": task.task_id.hex(),
        "dataset_size": room.dataset_size,
        "mechanism": task.mechanism.value,
        "delta": task.delta,
        "epsilon_budget": task.epsilon,
        "collusion_epsilon_budget": task.collusion_epsilon,
        "epsilon_asked": room.epsilon,
        "assumed_gradient_norm": plan.gradient_norm,
        "recommended": _option_json(plan.recommended),
        "alternatives": [_option_json(option) for option in plan.alternatives],
        "compared": compared and _comparison_json(compared),
    }


def _comparison_json(compared: Comparison) -> dict[str, Any]:
    return {
        "independent": compared.independent and _option_json(compared.independent),
        "correlated": compared.correlated and _option_json(compared.correlated),
        "refusal": compared.refusal,
    }


def _row(option: Option, *, is_best: bool) -> tuple[object, ...]:
    cost = option.cost
    return (
        "▶" if is_best else "",
        option.rounds,
        f"{option.batch_size:,.0f}",
        f"{option.noise_multiplier:.4g}",
        _both(cost.alone),
        _both(cost.together),
        f"{option.noise_to_signal:.3g}",
        f"{option.steps_worth:.3g}",
        option.limit.value,
    )


def _both(epsilons: Epsilons | Task) -> str:
    """Format the epsilon against the ad server, and in parentheses that with a helper."""
    alone, colluding = (
        (epsilons.epsilon, epsilons.collusion_epsilon)
        if isinstance(epsilons, Task)
        else (epsilons.ad_server, epsilons.colluding)
    )
    return f"{number(alone)} ({number(colluding)})"


def _option_json(option: Option) -> dict[str, Any]:
    return {
        **pick_attributes(option, (*SIZES, "carried", "noise_norm", "noise_to_signal", "steps_worth")),
        "alone": epsilons_json(option.cost.alone),
        "together": epsilons_json(option.cost.together),
        "limited_by": option.limit.value,
        "submit": submit_options(option),
    }
