"""What parties show of a budget is what helpers compare with it."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from maskedlark.errors import InvalidTask
from maskedlark.privacy.accounting import spent, spent_in_turn
from maskedlark.privacy.sample_size import EXPOSURE
from maskedlark.releases.budget import (
    BudgetedDataset,
    BudgetUse,
    DatasetBudget,
    PlannedJob,
    Standing,
)
from maskedlark.releases.job import JobSpec
from maskedlark.releases.query import Measure
from maskedlark.reports.task import Task
from maskedlark.terminal.budget_table import _bar, budget_table
from maskedlark.terminal.budget_view import (
    DISCOVERY,
    MORE_THAN_LEFT,
    NO_NOISE,
    NOT_ADDITIVE,
    budget_json,
    next_line,
)
from tests import charge_builders
from tests.builders import job_spec, world
from tests.maskedlark.query_specs import discovery, query

SIZE = 1_000
TASK = world(mechanism="gaussian").task
SPLIT = world(mechanism="gaussian", noise="split").task
QUIET = world(mechanism="none").task


def spec_of(task: Task = TASK, **changes: Any) -> JobSpec:
    usual = {"rounds": 50, "sampling_numerator": 1 << 29, "noise_multiplier": 2.0}
    return job_spec(task.task_id, **{**usual, **changes})


def dataset(task: Task = TASK) -> BudgetedDataset:
    return BudgetedDataset(dataset_id=bytes(32), task=task, size=SIZE)


def use(task: Task = TASK, *, answered: int = 20, is_open: bool = True, **changes: Any) -> BudgetUse:
    return BudgetUse.of_job(
        task, spec_of(task, **changes), state="running", rounds_answered=answered, is_open=is_open
    )


def test_an_open_job_holds_all_its_rounds_and_a_closed_one_those_that_it_was_answered() -> None:
    running = DatasetBudget.of(dataset(), [use(is_open=True)])
    closed = DatasetBudget.of(dataset(), [use(is_open=False)])
    assert running.ad_server.spent == pytest.approx(spent([spec_of().charge(TASK, 20)], TASK.delta).ad_server)
    assert running.ad_server.held == pytest.approx(spent([spec_of().charge(TASK, 50)], TASK.delta).ad_server)
    assert closed.ad_server.held == closed.ad_server.spent == running.ad_server.spent
    assert closed.ad_server.reserved == 0.0


@settings(max_examples=15, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 40), st.booleans(), st.sampled_from([3.0, 10.0, 40.0])), max_size=3
    )
)
def test_spent_reserved_and_left_add_up_to_the_budget_or_the_held_is_beyond_it(
    jobs: list[tuple[int, bool, float]],
) -> None:
    uses = [use(answered=done, is_open=is_open, noise_multiplier=noise) for done, is_open, noise in jobs]
    budget = DatasetBudget.of(dataset(), uses)
    for one in (budget.ad_server, budget.colluding):
        assert 0 <= one.spent <= one.held
        assert (
            one.left == 0
            if not one.is_kept
            else one.spent + one.reserved + one.left == pytest.approx(one.budget)
        )


def test_a_split_task_is_shown_at_what_each_helper_really_adds() -> None:
    whole, split = DatasetBudget.of(dataset(), [use()]), DatasetBudget.of(dataset(SPLIT), [use(SPLIT)])
    assert split.ad_server.held > whole.ad_server.held
    assert split.colluding.held > whole.colluding.held


def test_a_query_is_spent_at_once() -> None:
    of = world(
        mechanism="gaussian",
        measurement={"min_cell_count": 2, "keys": (), "values": ({"name": "spend", "low": 0, "high": 10},)},
    )
    measures = (Measure(value="spend", scale=1 << 16),)
    spec = query(of, measures=measures, noise_multiplier=4.0, threshold_noise_multiplier=12.0)
    task = of.task
    budget = DatasetBudget.of(dataset(task), [BudgetUse.of_query(task, spec)])
    assert (
        budget.ad_server.spent
        == budget.ad_server.held
        == pytest.approx(spent(spec.charges(task), task.delta).ad_server)
    )


def test_a_planned_job_is_added_to_what_is_held_and_to_nothing_that_is_spent() -> None:
    planned = PlannedJob(rounds=30, batch_size=125.0, noise_multiplier=5.0)
    budget = DatasetBudget.of(dataset(), [use()], planned)
    assert budget.forecast is not None
    new = charge_builders.gaussian(5.0, rate=0.125, rounds=30, exposure=EXPOSURE)
    both = spent_in_turn([[spec_of().charge(TASK, 50)], [new]], TASK.delta)
    assert (budget.forecast.ad_server.held, budget.forecast.colluding.held) == (
        both.ad_server,
        both.colluding,
    )
    assert budget.forecast.ad_server.spent == budget.ad_server.spent
    assert budget.forecast.alone == spent([new], TASK.delta)
    assert budget.forecast.fits == (
        both.ad_server <= TASK.epsilon and both.colluding <= TASK.collusion_epsilon
    )


@pytest.mark.parametrize(("noise", "fits"), [(0.1, False), (200.0, True)])
def test_a_forecast_says_whether_both_budgets_hold_it(noise: float, fits: bool) -> None:
    budget = DatasetBudget.of(dataset(), [], PlannedJob(rounds=10, batch_size=None, noise_multiplier=noise))
    assert budget.forecast is not None
    assert budget.forecast.fits is fits
    assert ("does NOT fit" not in shown(budget)) is fits
    assert f"{budget.forecast.ad_server.held:.4g} of {TASK.epsilon:g} and " in shown(budget)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batch_size": 0.0}, "batch_size is"),
        ({"batch_size": SIZE + 1.0}, "batch_size is"),
        ({"batch_size": math.nan}, "batch_size is"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_planned_numbers_out_of_range_are_refused(changes: dict[str, Any], reason: str) -> None:
    planned = {"rounds": 1, "batch_size": 10.0, "noise_multiplier": 1.0, **changes}
    with pytest.raises(InvalidTask, match=reason):
        DatasetBudget.of(dataset(), [], PlannedJob(**planned))


def test_a_task_without_noise_has_no_budget_to_show() -> None:
    quiet = [use(QUIET, noise_multiplier=0.0)]
    budget = DatasetBudget.of(
        dataset(QUIET), quiet, PlannedJob(rounds=1, batch_size=None, noise_multiplier=1.0)
    )
    assert (budget.is_noisy, budget.forecast) == (False, None)
    assert NO_NOISE in shown(budget)
    assert budget_json(budget)["ad_server"] == {
        "budget": QUIET.epsilon,
        "spent": None,
        "reserved": None,
        "held": None,
        "left": None,
    }


def test_a_budget_is_shown_in_a_line_without_keys() -> None:
    line = repr(DatasetBudget.of(dataset(), [use()]))
    assert line.startswith("DatasetBudget(")
    assert f"{SIZE} reports, held " in line
    assert len(line) < 160


def test_json_holds_only_finite_numbers_and_every_use() -> None:
    made = json.loads(
        json.dumps(budget_json(DatasetBudget.of(dataset(), [use(), use(job_id=b"b" * 16)])), allow_nan=False)
    )
    assert [one["id"] for one in made["uses"]] == ["6a" * 16, "62" * 16]
    assert made["ad_server"]["held"] > made["uses"][0]["held_alone"]["ad_server"]


@given(spent_part=st.floats(0, 1), reserved=st.floats(0, 1), cells=st.integers(2, 60))
def test_a_bar_is_as_long_as_it_should_be_and_full_only_when_nothing_is_left(
    spent_part: float, reserved: float, cells: int
) -> None:
    standing = Standing(budget=2.0, spent=2 * spent_part, held=2 * spent_part + reserved)
    drawn = _bar(standing, cells).plain
    assert len(drawn) == cells
    assert (standing.left == 0) == ("░" not in drawn)
    assert ("█" in drawn) == (standing.spent > 0)


def test_what_a_next_release_may_ask_is_said_of_the_jobs_for_which_it_holds() -> None:
    laplace = world(mechanism="laplace", norm="l1").task
    for of, release in (
        (dataset(), "a next query, or a job whose rounds take all reports,"),
        (dataset(laplace), "a next query, or a job of one round of all reports,"),
        (replace(dataset(), is_person=True), "a next job with sampling_rate 1"),
    ):
        budget = DatasetBudget.of(of, [])
        assert next_line(budget) == ""
        told = next_line(replace(budget, next_epsilon=1.25))
        other = "; `adserver job plan --strategy` finds what any other may" if of.is_person else ""
        assert told == f"{release} may ask for epsilon up to 1.25 within both budgets{other}"
    whole = DatasetBudget.of(dataset(), [])
    for left, why in ((1.5, ""), (1.25, ""), (1.24999, ""), (0.75, f", {MORE_THAN_LEFT}")):
        standing = replace(
            whole.ad_server, spent=whole.ad_server.budget - left, held=whole.ad_server.budget - left
        )
        line = next_line(replace(whole, ad_server=standing, next_epsilon=1.25))
        assert line.partition(" within both budgets")[2] == why
    spent_up = replace(whole, next_epsilon=0.0)
    assert next_line(spent_up) == "no next job or query fits: use another dataset"


def shown(budget: Any) -> str:
    console = Console(width=400)
    with console.capture() as captured:
        console.print(budget_table(budget))
    return captured.get()


def test_a_discovery_that_costs_nothing_with_one_helper_is_explained() -> None:
    of = world(mechanism="gaussian")
    noise = {"noise_multiplier": 5.0}
    asked = BudgetUse.of_query(of.task, query(of, threshold_noise_multiplier=5.0, **noise))
    found = BudgetUse.of_query(of.task, discovery(of, query_id=b"d" * 16, **noise))
    both = DatasetBudget.of(dataset(of.task), [asked, found])
    assert both.uses[1].spent.colluding == 0 < both.uses[1].spent.ad_server
    *_, first, second = shown(both).splitlines()
    assert (first.strip(), second.strip()) == (DISCOVERY, NOT_ADDITIVE)
    assert DISCOVERY not in shown(DatasetBudget.of(dataset(), [asked, use()]))


def test_a_budget_says_whether_it_is_of_a_report_or_of_a_person() -> None:
    of_people = world(mechanism="gaussian", unit="user", reports_per_user=18).task
    assert "epsilons at delta 1e-05, of zeroing one report\n" in shown(DatasetBudget.of(dataset(), []))
    assert ", of zeroing one person, with up to 18 reports\n" in shown(
        DatasetBudget.of(dataset(of_people), [])
    )
