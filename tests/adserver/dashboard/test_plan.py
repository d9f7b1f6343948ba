"""The page that divides a budget: its sliders ask at once, and it shows what `job plan` finds."""

import re
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext

from adserver.dashboard.plan_page import PlanForm
from adserver.messages.plan import PlanMessage
from adserver.records.access import Scope
from adserver.records.submissions import PlanConstraints, PlanRequest
from adserver.training.defaults import ROUNDS
from tests.adserver.job_world import MODEL, RECORDS
from tests.adserver.painted import OF, SHOP_OF, SHOP_REPORTS
from tests.adserver.visits import PATHS, Shown, Visit
from tests.patience import HANGS_S


def planned(visit: Visit, **changes: Any) -> PlanMessage:
    """What the command finds of the same wish."""
    open_wish = PlanConstraints(rounds=None, batch_size=None, noise_multiplier=None)
    request = PlanRequest(
        gradient_norm=0.2 * OF.of.task.clip_norm,
        task=OF.of.task.task_id.hex(),
        **{"num_parameters": 40, "wish": open_wish, "reports": 200, "jobs": 2, "tests": 3, **changes},
    )
    return PlanMessage.of(visit.of.client.server.plan(request), request)


def wait_for_plan(visit: Visit) -> None:
    visit.page.wait_for_selector("#division .tile")


def path(**changes: int) -> str:
    return "&".join([PATHS["plan"], *(f"{name}={value}" for name, value in changes.items())])


def test_it_shows_what_the_command_finds(visit: Visit) -> None:
    visit.open(path())
    wait_for_plan(visit)
    usual = PlanConstraints(rounds=ROUNDS, batch_size=None, noise_multiplier=None)
    found, text = planned(visit), visit.page.inner_text("#division")
    assert found.tests is not None
    assert found.recommended.submit in text
    assert f"--epsilon {found.tests.epsilon:.3g}" in text
    worth = [one.recommended.steps_worth or 0.0 for one in (found, planned(visit, wish=usual))]
    assert f"{max(worth):.3g} steps without noise" in re.sub(r"\s+", " ", text)
    # Rounds beyond the epochs that are searched may be worth more
    assert ("keep the default" in text) is (worth[1] >= worth[0])


def test_it_marks_the_job_that_submit_takes_by_itself(visit: Visit) -> None:
    visit.open(path())
    wait_for_plan(visit)
    usual = planned(visit, wish=PlanConstraints(rounds=ROUNDS, batch_size=None, noise_multiplier=None))
    row = visit.page.locator("#division tbody tr", has_text="▶")
    assert row.locator("td").nth(0).inner_text() == str(ROUNDS)
    assert row.locator("td").nth(2).inner_text() == f"{usual.recommended.noise_multiplier:.4g}"
    assert f"adserver job submit {usual.recommended.submit}" in visit.page.inner_text("#division")


def test_reports_are_by_default_as_many_as_the_newest_dataset_has(visit: Visit) -> None:
    visit.open(f"/plan?task={OF.of.task.task_id.hex()}&jobs=2&tests=3&weights=40")
    wait_for_plan(visit)
    assert visit.page.get_attribute("input[name=reports]", "placeholder") == str(RECORDS)
    assert planned(visit, reports=RECORDS).recommended.submit in visit.page.inner_text("#division")


def test_weights_are_by_default_as_many_as_the_newest_job_trains_whose_page_has_them(visit: Visit) -> None:
    visit.open(f"/plan?task={OF.of.task.task_id.hex()}&jobs=2&tests=3&reports=200")
    wait_for_plan(visit)
    assert visit.page.get_attribute("input[name=weights]", "placeholder") == str(MODEL.num_parameters)
    found = planned(visit, num_parameters=MODEL.num_parameters)
    assert found.recommended.submit in visit.page.inner_text("#division")
    visit.open(f"/plan?task={SHOP_OF.task.task_id.hex()}")
    assert visit.page.get_attribute("input[name=weights]", "placeholder") == "10000"
    visit.open(PATHS["job"])
    told = visit.page.inner_text("#facts")
    assert f"{MODEL.num_parameters} parameters that it trains" in told
    assert f"{OF.of.task.clip_norm:g} of each gradient" in told


def test_another_task_is_planned_by_its_own_numbers(visit: Visit) -> None:
    visit.open(f"/plan?task={OF.of.task.task_id.hex()}")
    with visit.page.expect_navigation():
        visit.page.locator("select[name=task]").select_option(SHOP_OF.task.task_id.hex())
    assert visit.page.get_attribute("input[name=reports]", "placeholder") == str(SHOP_REPORTS)


def test_what_is_being_computed_is_said(shown: Shown, context: BrowserContext) -> None:
    go = Event()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PlanForm, "divide", lambda *_: {"refusal": str(go.wait(HANGS_S))})
        visit = shown.visit(context)
        visit.open(path(weights=41))
        assert visit.page.locator("#division progress").is_visible()
        assert "for 2 jobs" in visit.page.inner_text("#division")
        go.set()
        visit.page.wait_for_selector("#division .over")


def test_a_slider_says_its_number_and_asks_at_once_without_losing_the_focus(visit: Visit) -> None:
    visit.open(path())
    wait_for_plan(visit)
    first = visit.page.inner_text("#division")
    slider = visit.page.locator("#jobs")
    slider.focus()
    with visit.page.expect_response(lambda one: "jobs=3" in one.url):
        visit.page.keyboard.press("ArrowRight")
    assert visit.page.inner_text("output[for=jobs]") == "3"
    visit.page.wait_for_selector(f"text={planned(visit, jobs=3).recommended.submit}")
    assert visit.page.inner_text("#division") != first
    assert visit.page.evaluate("document.activeElement.id") == "jobs"
    assert "jobs=3" in visit.page.url
    assert visit.complaints == []


def test_without_evaluations_all_of_the_budget_is_the_jobs(visit: Visit) -> None:
    visit.open(path())
    wait_for_plan(visit)
    with visit.page.expect_response(lambda one: "tests=0" in one.url):
        visit.page.locator("#tests").fill("0")
        visit.page.locator("#tests").dispatch_event("change")
    visit.page.wait_for_selector("text=none is planned")


def test_without_javascript_the_button_plans(shown: Shown, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        visit = shown.visit(context, Scope.READ)
        visit.open(path())
        visit.page.locator("#jobs").fill("4")
        visit.page.get_by_role("button", name="Plan").click()
        assert "jobs=4" in visit.page.url
    finally:
        context.close()


def test_without_javascript_a_plan_is_shown_once_it_is_found(shown: Shown, browser: Browser) -> None:
    go = Event()
    context = browser.new_context(java_script_enabled=False)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(PlanForm, "divide", lambda *_: {"refusal": str(go.wait(HANGS_S))})
            visit = shown.visit(context)
            visit.open(path(weights=42))
            assert visit.page.locator("#division progress").is_visible()
            go.set()
            visit.page.wait_for_selector("#division .over")
        # Then it is loaded no more
        assert visit.page.locator("meta[http-equiv=refresh]").count() == 0
    finally:
        context.close()


def test_what_does_not_fit_or_is_no_number_is_said(visit: Visit) -> None:
    visit.open(PATHS["plan that does not fit"])
    visit.page.wait_for_selector("#division .over")
    assert visit.open("/plan?jobs=many").status == 422
    assert visit.open("/plan?jobs=51").status == 422
    visit.open(path(weights=10**400))
    visit.page.wait_for_selector("#division .over")
    for name, number in (("test_share", 10**400), ("epsilon", 1e-300), ("gradient", 1e-320)):
        visit.open("&".join([PATHS["plan"], f"{name}={number}"]))
        visit.page.wait_for_selector("#division .over")
    for field, number, said in (
        ("reports", 3, "A dataset of 3 reports is too small for a round: it needs at least the task's"),
        ("weights", 0, "Weights of the model is 0: expected 1 to 67,108,864"),
        ("epsilon", 0, " is 0.0: expected a number above 0"),
        ("gradient", 0, "Mean gradient is 0.0: expected a part of the clip bound"),
        ("gradient", 2, "Mean gradient is 2.0: expected a part of the clip bound, above 0 and at most 1"),
        ("jobs", -3, "Jobs is -3: expected 1 to 50"),
        ("test_share", 0, "The evaluations' part of ε is 0: expected 1 to 99 %"),
    ):
        visit.open("&".join([PATHS["plan"], f"{field}={number}"]))
        visit.page.wait_for_selector("#division .over")
        assert said in visit.page.inner_text("#division"), field
    assert visit.page.locator("input[name=epsilon]").get_attribute("min") == "0.001"
    assert visit.open("/plan?task=ffff").status == 404
