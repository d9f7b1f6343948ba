"""An epsilon is granted whole, or refused with what is left: jobs that ask are in test_submission.py."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from adserver.budgets.asked_epsilon import check_epsilon, check_granted, epsilon_left, round_down
from adserver.budgets.headroom import JobLimits
from adserver.quickstart.budget_check import unsigned_task
from adserver.quickstart.measurement import plan_measurement
from adserver.quickstart.measurement_forecast import plan_measured_query
from adserver.quickstart.settings import DataSettings, Measured, MeasureSettings, TaskSettings
from helper.ledger.records import Reservation
from helper.ledger.spending import check_fits
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.privacy.accounting import Charge, Epsilons
from maskedlark.releases.release import charge_of
from maskedlark.reports.task import Task
from tests.adserver.quickstart.test_measurement import table
from tests.builders import world

TASK = world(epsilon=4.0, collusion_epsilon=8.0).task


@pytest.mark.parametrize(
    ("number", "rounded"), [(2.2899, 2.28), (0.012399, 0.0123), (123.9, 123.0), (0.0, 0.0)]
)
def test_what_is_left_is_rounded_down_so_that_it_fits(number: float, rounded: float) -> None:
    assert round_down(number) == pytest.approx(rounded)
    assert round_down(number) <= number


def test_no_epsilon_is_offered_where_none_is_left() -> None:
    together = Epsilons(ad_server=4.0, colluding=6.0)
    with pytest.raises(JobRefused, match=r"next to .*, 4 in all leave this job 0: use another dataset"):
        check_granted(1.0, TASK, left=0.0, together=together)


@pytest.mark.parametrize("epsilon", [2.37, 2.38])
def test_a_number_that_is_left_is_granted_however_it_is_rounded(epsilon: float) -> None:
    check_granted(epsilon, TASK, left=2.37, together=Epsilons(ad_server=4.0, colluding=5.9))


@pytest.mark.parametrize("epsilon", [2.39, 2.45, 2.5])
def test_more_than_is_left_is_refused_with_what_is_left(epsilon: float) -> None:
    with pytest.raises(JobRefused, match=r"leave this job 2\.37: ask for epsilon 2\.37 "):
        check_granted(epsilon, TASK, left=2.37, together=Epsilons(ad_server=4.0, colluding=5.9))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan"), 4.01])
def test_an_epsilon_that_nothing_could_cost_is_refused(epsilon: float) -> None:
    with pytest.raises(InvalidTask, match="epsilon"):
        check_epsilon(epsilon, TASK)


def noisy(*, collusion_epsilon: float, mechanism: str = "gaussian") -> Task:
    return world(
        mechanism=mechanism,
        norm="l1" if mechanism == "laplace" else "l2",
        min_batch_size=10,
        epsilon=4.0,
        collusion_epsilon=collusion_epsilon,
    ).task


def refused_with(task: Task, already: Sequence[Charge], epsilon: float, *, rounds: int = 1) -> float | None:
    """Return the epsilon that a refused job is told it could have; None if it is granted."""
    limits = JobLimits(task=task, dataset_size=500, already=already, epsilon=epsilon)
    try:
        limits.noise_asked_for(rounds=rounds, batch_size=500.0)
    except JobRefused as refusal:
        found = re.search(r"leaves? this job ([0-9.]+):", str(refusal))
        return 0.0 if found is None else float(found[1])
    return None


@pytest.mark.parametrize("collusion_epsilon", [4.0, 5.0, 8.0])
@pytest.mark.parametrize("spent", [(3.0,), (6.0,), (2.5, 9.0), (20.0,) * 5])
def test_what_is_left_is_what_a_refusal_names_and_what_is_granted(
    collusion_epsilon: float, spent: tuple[float, ...]
) -> None:
    task = noisy(collusion_epsilon=collusion_epsilon)
    already = [charge_of(task, noise) for noise in spent]
    left = epsilon_left(task, already)
    assert 0 < left < task.epsilon
    for rounds in (1, 7, 120):
        for more in (1.01, 1.03, 1.1):
            if more * left < task.epsilon:
                assert refused_with(task, already, more * left, rounds=rounds) == left
        for written in (left, round(left + 0.01, 2)):
            assert refused_with(task, already, written, rounds=rounds) is None


def test_all_of_a_budget_is_left_of_which_nothing_is_held() -> None:
    task = noisy(collusion_epsilon=8.0)
    assert epsilon_left(task, []) == task.epsilon
    assert refused_with(task, [], task.epsilon) is None


def test_no_more_is_left_of_a_new_budget_than_that_against_collusion_allows() -> None:
    task = noisy(collusion_epsilon=4.0)
    left = epsilon_left(task, [])
    assert left < 0.75 * task.epsilon
    assert refused_with(task, [], task.epsilon, rounds=7) == left
    assert refused_with(task, [], left, rounds=7) is None


@pytest.mark.parametrize("batch_size", [100.0, 250.0])
def test_a_job_of_samples_is_refused_more_than_is_left_for_it(batch_size: float) -> None:
    task = noisy(collusion_epsilon=8.0)
    limits = JobLimits(task=task, dataset_size=500, already=[charge_of(task, 3.0)])
    left = limits.epsilon_left(rounds=7, batch_size=batch_size)

    def ask(epsilon: float) -> float:
        return replace(limits, epsilon=epsilon).noise_asked_for(rounds=7, batch_size=batch_size)

    assert ask(left) > 0
    with pytest.raises(JobRefused, match=f"this job {left:g}: ask for epsilon {left:g} "):
        ask(1.03 * left)


def test_with_laplace_noise_what_is_left_is_for_one_round_and_more_rounds_get_less() -> None:
    task = noisy(collusion_epsilon=8.0, mechanism="laplace")
    already = [charge_of(task, 3.0)]
    left = epsilon_left(task, already)
    assert refused_with(task, already, left) is None
    of_many = refused_with(task, already, left, rounds=120)
    assert of_many is not None
    assert 0 < of_many < 0.9 * left


def test_a_query_that_asks_for_what_is_left_fits_the_ledger() -> None:
    visits = table(paid=[row % 7 for row in range(400)])
    plan = plan_measurement(
        visits, DataSettings(), MeasureSettings(values=(Measured(column="paid", most=6),))
    )
    assert plan is not None
    task = unsigned_task(TaskSettings(), measurement=plan.declared)

    def query(epsilon: float, number: int) -> Reservation:
        asked = plan_measured_query(plan, task, epsilon, len(visits))
        return Reservation(spec=replace(asked, query_id=bytes([number]) * 16), rounds=1)

    before: list[Reservation] = []
    for number, epsilon in enumerate((1.0, 2.0, 0.3)):
        before.append(query(epsilon, number))
        left = epsilon_left(task, [charge for one in before for charge in one.spec.charges(task, 1)])
        check_fits(task, before, query(left, 100))
        with pytest.raises(JobRefused) as refused:
            check_fits(task, before, query(min(4.0, 1.2 * left), 100))
        advised = re.search(r"fits at epsilon ([0-9.]+)", str(refused.value))
        assert advised is not None
        assert round_down(float(advised[1])) == pytest.approx(left, rel=0.011)


def test_nothing_is_left_of_a_budget_that_is_spent() -> None:
    task = noisy(collusion_epsilon=8.0)
    assert epsilon_left(task, [charge_of(task, 0.5)]) == 0.0
