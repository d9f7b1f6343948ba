"""How a dataset's two epsilons grew, job after job, as a picture.

Solid what is spent, dashed what is reserved, dotted the budgets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Charge, Epsilons, spent
from maskedlark.releases.budget import DatasetBudget
from maskedlark.runtime.durable_file import write_durably
from maskedlark.terminal.pictures import as_png, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ADVERSARIES: Final = {
    "ad_server": "against the ad server",
    "colluding": "against the ad server with one helper",
}
# Of each job's curve
_POINTS: Final = 12


@frozen
class _Point:
    """What so many releases on a dataset cost."""

    rounds: int
    epsilons: Epsilons
    is_spent: bool


def write_plot(budget: DatasetBudget, path: Path) -> None:
    """Draw a dataset's budgets into a PNG.

    Raises:
        JobRefused(NOISE_OUT_OF_RANGE): the task has no noise, and so no budget.
    """
    if not budget.is_noisy:
        raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, "the task has no noise: there is no budget to draw")
    figure = new_figure(9, 3.6)
    points = _growth(budget)
    for axes, (whom, title) in zip(figure.subplots(1, 2), _ADVERSARIES.items(), strict=True):
        limit, epsilons = getattr(budget, whom).budget, [getattr(one.epsilons, whom) for one in points]
        _draw(axes, title, limit, points, epsilons)
    dataset = budget.dataset
    of = "a person" if dataset.is_person else f"dataset {dataset.dataset_id.hex()[:12]}"
    figure.suptitle(
        f"{of} of {dataset.task.name}, delta {dataset.task.delta:.2g}",
        fontsize=11,
        parse_math=False,
    )
    write_durably(path, as_png(figure))


def _growth(budget: DatasetBudget) -> tuple[_Point, ...]:
    """Return the dataset's epsilons after more and more releases.

    All spent ones in the order of the uses, then all reserved ones.
    """
    delta = budget.dataset.task.delta
    uses = [one.use for one in budget.uses]
    reserved = [charge for use in uses for charge in _beyond(use.spent, use.held)]
    points = [_Point(rounds=0, epsilons=spent([], delta), is_spent=True)]
    so_far: list[Charge] = []
    for charges, is_spent in (([charge for use in uses for charge in use.spent], True), (reserved, False)):
        for charge in charges:
            done = sum(one.rounds for one in so_far)
            for rounds in _steps(charge.rounds):
                # All charges anew for each point: epsilons do not add up, only charges do
                epsilons = spent([*so_far, replace(charge, rounds=rounds)], delta)
                points.append(_Point(rounds=done + rounds, epsilons=epsilons, is_spent=is_spent))
            so_far.append(charge)
    return tuple(points)


def _beyond(spent_charges: Sequence[Charge], held: Sequence[Charge]) -> Iterator[Charge]:
    """Yield what is reserved beyond what is spent, charge by charge.

    A job has one of each, a query has nothing reserved.
    """
    for index, charge in enumerate(held):
        left = charge.rounds - (spent_charges[index].rounds if index < len(spent_charges) else 0)
        if left:
            yield replace(charge, rounds=left)


def _steps(rounds: int) -> list[int]:
    """Return up to `_POINTS` numbers of rounds, evenly spaced up to all."""
    # An epsilon takes a moment to compute, and a thousand rounds look no smoother than twelve
    return sorted({max(1, round(rounds * step / _POINTS)) for step in range(1, _POINTS + 1)})


def _draw(
    axes: "Axes", title: str, limit: float, points: Sequence[_Point], epsilons: Sequence[float]
) -> None:
    """Draw one adversary's curve under its budget."""
    turn = sum(one.is_spent for one in points)
    rounds = [one.rounds for one in points]
    axes.plot(rounds[:turn], epsilons[:turn], color="tab:red", label="spent")
    # From the last spent point on, so that the lines meet
    axes.plot(rounds[turn - 1 :], epsilons[turn - 1 :], color="tab:orange", linestyle="--", label="reserved")
    axes.axhline(limit, color="black", linewidth=1, linestyle=":", label="budget")
    axes.set(
        xlabel="releases on the dataset", ylabel="epsilon", ylim=(0, 1.08 * limit), xlim=(0, max(1, *rounds))
    )
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
