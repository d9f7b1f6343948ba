"""The page that divides a budget: its sliders ask at once, and it shows what `job plan` finds."""

import re
from typing import Any

from playwright.sync_api import Browser

from adserver.messages.plan import PlanMessage
from adserver.records.access import Scope
from adserver.records.submissions import PlanConstraints, PlanRequest
from tests.adserver.painted import OF
from tests.adserver.visits import PATHS, Shown, Visit


def planned(visit: Visit, **changes: Any) -> PlanMessage:
    """What the command finds of the same wish."""
    request = PlanRequest(
        num_parameters=40,
        wish=PlanConstraints(rounds=None, batch_size=None, noise_multiplier=None),
        gradient_norm=0.2 * OF.of.task.clip_norm,
        reports=200,
        task=OF.of.task.task_id.hex(),
        **{"jobs": 2, "tests": 3, **changes},
    )
    return PlanMessage.of(visit.of.client.server.plan(request))


def wait_for_plan(visit: Visit) -> None:
    visit.page.wait_for_selector("#division .tile")


def path(**changes: int) -> str:
    return "&".join([PATHS["plan"], *(f"{name}={value}" for name, value in changes.items())])


def test_it_shows_what_the_command_finds(visit: Visit) -> None:
    visit.open(path())
    wait_for_plan(visit)
    found, text = planned(visit), visit.page.inner_text("#division")
    assert found.tests is not None
    assert found.recommended.submit in text
    assert f"--epsilon {found.tests.epsilon:.3g}" in text
    assert f"{found.recommended.steps_worth:.3g} steps' worth" in re.sub(r"\s+", " ", text)


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
    assert visit.open("/plan?task=ffff").status == 404
