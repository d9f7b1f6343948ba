"""A query is refused by its plan where both helpers would refuse it, and the plan says what fits."""

from dataclasses import replace

import pytest

from adserver.budgets.asked_epsilon import epsilon_left
from adserver.budgets.query_room import why_query_refused
from adserver.quickstart.budget_check import unsigned_task
from adserver.quickstart.measurement import plan_measurement
from adserver.quickstart.measurement_forecast import plan_measured_query
from adserver.quickstart.settings import DataSettings, Measured, MeasureSettings, TaskSettings
from helper.ledger.records import Reservation
from helper.ledger.spending import check_fits
from maskedlark.errors import JobRefused
from maskedlark.privacy.accounting import Epsilons
from maskedlark.releases.budget import BudgetedDataset, BudgetUse, CostedUse, DatasetBudget
from maskedlark.releases.query import QuerySpec
from tests.adserver.quickstart.test_budget_check import VISITS

PLAN = plan_measurement(
    VISITS, DataSettings(), MeasureSettings(values=(Measured(column="paid", most=6),), keys=("region",))
)
assert PLAN is not None
TASK = unsigned_task(TaskSettings(min_batch_size=20), measurement=PLAN.declared)


def query(epsilon: float, number: int = 0) -> QuerySpec:
    assert PLAN is not None
    return replace(plan_measured_query(PLAN, TASK, epsilon, 400), query_id=bytes([number]) * 16)


def budget_after(*epsilons: float) -> DatasetBudget:
    """The budget of a dataset that answered queries of these epsilons."""
    uses = [BudgetUse.of_query(TASK, query(one)) for one in epsilons]
    held = [charge for use in uses for charge in use.held]
    dataset = BudgetedDataset(dataset_id=bytes(32), task=TASK, size=400)
    return replace(DatasetBudget.of(dataset, uses), next_epsilon=epsilon_left(TASK, held))


def does_helper_refuse(before: tuple[float, ...], epsilon: float) -> bool:
    held = [Reservation(spec=query(one, 1 + place), rounds=1) for place, one in enumerate(before)]
    try:
        check_fits(TASK, held, Reservation(spec=query(epsilon), rounds=1))
    except JobRefused:
        return True
    return False


@pytest.mark.parametrize("before", [(), (3.0,), (2.0,), (0.5, 0.5), (3.9,)])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.3, 2.36, 2.4, 3.26, 3.3, 3.9, 4.0])
def test_a_plan_is_refused_where_a_helper_refuses_the_query(
    before: tuple[float, ...], epsilon: float
) -> None:
    refusal = why_query_refused(query(epsilon).charges(TASK), budget_after(*before))
    assert bool(refusal) is does_helper_refuse(before, epsilon)


def test_what_the_refusal_names_fits() -> None:
    budget = budget_after(3.0)
    refusal = why_query_refused(query(3.9).charges(TASK), budget)
    assert budget.next_epsilon is not None
    left = f"{budget.next_epsilon:g}"
    assert refusal.endswith(
        f"which leaves {left}: ask for epsilon {left} (--epsilon {left}, epsilon={left}), or use another "
        "dataset"
    )
    assert not does_helper_refuse((3.0,), float(left))


def test_nothing_is_left_where_no_noise_fits() -> None:
    used_up = replace(budget_after(3.9, 0.1), next_epsilon=0.0)
    refusal = why_query_refused(query(1.0).charges(TASK), used_up)
    assert refusal.endswith("which leaves nothing: use another dataset")


def test_without_the_charges_of_what_is_held_only_what_is_clearly_more_is_refused() -> None:
    whole = budget_after(3.0)
    cost = Epsilons(ad_server=3.0, colluding=4.2)
    sent = replace(
        whole,
        uses=tuple(
            CostedUse(use=replace(one.use, spent=(), held=()), spent=cost, held=cost) for one in whole.uses
        ),
    )
    assert why_query_refused(query(3.9).charges(TASK), sent) == why_query_refused(
        query(3.9).charges(TASK), whole
    )
    assert not why_query_refused(query(2.35).charges(TASK), sent)


def test_a_budget_without_noise_refuses_nothing() -> None:
    assert not why_query_refused(query(4.0).charges(TASK), replace(budget_after(3.9), next_epsilon=None))
