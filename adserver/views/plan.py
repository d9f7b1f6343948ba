"""A plan as people and programs see it."""

from typing import Final

import typer

from adserver.budgets.comparison import Comparison
from adserver.budgets.headroom import JobLimits
from adserver.budgets.planner import Option, Plan
from adserver.messages.plan import submit_options
from adserver.training.planning import GeneralPath
from adserver.views.printing import print_table
from maskedlark.escape import escape
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.task import Task
from maskedlark.terminal.budget_view import number

GENERAL_PATH: Final = (
    "the model trains on the general path, a hundred times slower, and with samples charged as public"
)


def print_plan(
    plan: Plan,
    room: JobLimits,
    compared: Comparison | None = None,
    general: GeneralPath | None = None,
) -> None:
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
        "; in parentheses with one helper colluding; of zeroing one report (of one label against another:"
        " `adserver budget --relation label`)"
    )
    typer.echo(f"{held}, at delta {task.delta:.2g}")
    if compared is not None:
        _print_comparison(compared)
    if general is not None:
        _print_general_path(general)
    public = " --public-samples" if general is not None and task.mechanism is not Mechanism.NONE else ""
    typer.echo(f"submit the marked one with: {submit_options(best)}{public}")


def _print_general_path(general: GeneralPath) -> None:
    """Print why a model is not exact, and what that costs."""
    typer.echo(f"{GENERAL_PATH}:")
    for reason in general.reasons:
        typer.echo(f"  {escape(reason)}")
    if general.noise_factor is not None:
        typer.echo(f"on the exact path the marked job would need 1/{general.noise_factor:.3g} of the noise")


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
    typer.echo(
        "ratio of correlated noise: of independent noise that leaves the weights the same error; it has one"
        " clip bound in all rounds (--clip-norm) and needs a model on the exact path"
    )


def _row(option: Option, *, is_best: bool) -> tuple[object, ...]:
    cost = option.cost
    return (
        "▶" if is_best else "",
        option.rounds,
        f"{option.batch_size:,.0f}",
        f"{option.noise_multiplier:.4g}" + (" correlated" if option.carried else ""),
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
