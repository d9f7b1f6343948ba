"""Budgets in a notebook."""

from dataclasses import replace

from adserver.views.budget import ShownBudget
from maskedlark.releases.budget import BudgetedDataset, BudgetUse, DatasetBudget
from maskedlark.terminal.budget_view import LABEL_FROM_LABEL, MORE_THAN_LEFT, NO_NOISE, next_line, title_line
from tests.builders import world
from tests.maskedlark.query_specs import query


def test_a_notebook_shows_the_budgets_and_what_takes_of_them() -> None:
    of = world(mechanism="gaussian")
    task = of.task
    dataset = BudgetedDataset(dataset_id=bytes(32), task=task, size=1_000)
    use = BudgetUse.of_query(task, query(of, noise_multiplier=5.0, threshold_noise_multiplier=5.0))
    budget = replace(DatasetBudget.of(dataset, [use]), next_epsilon=0.25)
    found = ShownBudget.show(budget)
    assert replace(found, next_epsilon=None) == ShownBudget.show(replace(budget, next_epsilon=None))
    assert repr(found) == repr(budget)
    told = found._repr_html_()
    assert told.startswith("<p>dataset 000000000000 of &#x27;")
    assert title_line(budget).endswith(", of zeroing one report")
    assert f"<td>ad server</td><td>{budget.ad_server.spent:.4g}</td>" in told
    assert f"<td>with one helper</td><td>{budget.colluding.spent:.4g}</td>" in told
    assert f"<p>{next_line(budget)}</p>" in told
    assert f"<td>{(b'q' * 6).hex()}</td><td>answered</td><td>1/1</td><td>1,000</td>" in told
    assert LABEL_FROM_LABEL not in told
    more = ShownBudget.show(replace(budget, next_epsilon=budget.ad_server.budget))
    assert (
        f"may ask for epsilon up to {more.ad_server.budget:.4g} within both budgets, {MORE_THAN_LEFT}</p>"
        in more._repr_html_()
    )


def test_a_notebook_names_the_job_that_stopped_and_reserves_budget() -> None:
    of = world(mechanism="gaussian")
    dataset = BudgetedDataset(dataset_id=bytes(32), task=of.task, size=1_000)
    answered = BudgetUse.of_query(of.task, query(of, noise_multiplier=5.0, threshold_noise_multiplier=5.0))
    for state, held, is_named in (("failed", 3, True), ("failed", 1, False), ("running", 3, False)):
        use = replace(answered, state=state, rounds_held=held)
        told = ShownBudget.show(DatasetBudget.of(dataset, [use]))._repr_html_()
        assert (f"job {use.use_id.hex()[:12]} is failed and still reserves 2 rounds" in told) is is_named


def test_a_notebook_shows_no_budget_where_there_is_no_noise() -> None:
    task = world(mechanism="none").task
    dataset = BudgetedDataset(dataset_id=bytes(32), task=task, size=1_000)
    told = ShownBudget.show(DatasetBudget.of(dataset, []))._repr_html_()
    assert NO_NOISE in told
    assert "<table>" not in told
