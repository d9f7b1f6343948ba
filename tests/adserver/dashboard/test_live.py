"""A page follows the server by itself: what is new shows, a server that is gone is said, and it goes on.

The page's clock is held by the test, so nothing here depends on how fast the machine is.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from adserver.dashboard.pages import YOUNG_S
from adserver.ingest.http_server import HttpServer
from adserver.quickstart.ports import free_ports
from adserver.records.job_state import JobState
from tests.adserver.painted import painted, silent
from tests.adserver.visits import PATHS, Shown, Visit

AWAKE_MS = 2_000
HIDDEN_MS = 15_000
WITHIN_MS = 5_000
PATIENCE_MS = 30_000
RUNNING = bytes([2]) * 16


@pytest.fixture
def held(visit: Visit) -> Visit:
    """A visit whose page's timers run when the test says so."""
    hold(visit.page)
    return visit


def hold(page: Page) -> None:
    """Stop the clock of what the page opens from now on (an installed one runs), and count its timers."""
    page.clock.install()
    page.clock.pause_at(1_000 * (time.time() + 1.0))
    page.add_init_script("""{
        const later = setTimeout;
        globalThis.timers = 0;
        globalThis.setTimeout = (...what) => { timers += 1; return later(...what); };
    }""")


def wait_until(page: Page, condition: str) -> None:
    """Wait until a JavaScript condition holds in the page.

    `Page.wait_for_function` evaluates a string inside the page from its second try on, and the page's own
    content security policy forbids that.
    """
    for _ in range(PATIENCE_MS // 20):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"not within {PATIENCE_MS} ms: {condition}")


def poll(visit: Visit) -> int:
    """Let the page's time pass until it asks again, and wait until it has taken the answer; its status."""
    timers = visit.page.evaluate("timers")
    with visit.page.expect_response(lambda one: one.request.resource_type == "fetch") as answer:
        visit.page.clock.run_for(AWAKE_MS)
    wait_until(visit.page, f"timers > {timers}")
    return answer.value.status


def test_what_has_not_changed_is_not_sent_again(held: Visit) -> None:
    held.open(PATHS["job"])
    assert poll(held) == 200
    assert [poll(held) for _ in range(3)] == [304, 304, 304]


def test_a_round_shows_with_the_next_look(held: Visit) -> None:
    held.open(PATHS["job"])
    first = held.page.locator("#curves tbody tr").first.locator("td").first
    before = int(first.inner_text())
    held.of.round(RUNNING, before + 1)
    assert AWAKE_MS + 1_000 * YOUNG_S < 3_000  # a page is at most so old when it is looked at
    held.page.wait_for_timeout(1_000 * YOUNG_S)  # the server's own clock is not held
    poll(held)
    wait_until(held.page, f"document.querySelector('#curves tbody td').textContent == '{before + 1}'")
    held.page.wait_for_selector(f"#tiles svg[aria-label^='{before + 1} of']")


def test_only_the_parts_that_changed_are_replaced(held: Visit) -> None:
    held.open(PATHS["overview"])
    held.page.evaluate("document.querySelector('#waiting h2').mine = 'kept'")
    held.of.seen = (held.of.seen[0], silent(held.of.seen[1]))
    held.page.wait_for_timeout(1_000 * YOUNG_S)
    poll(held)
    held.page.wait_for_selector("text=Needs a look")
    held.page.wait_for_selector(".state.unwell")
    assert held.page.evaluate("document.querySelector('#waiting h2').mine") == "kept"


def test_a_hidden_page_asks_seldom_and_at_once_when_it_is_seen(held: Visit) -> None:
    held.open(PATHS["jobs"])
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s})"
    held.page.evaluate(hide % "true")
    poll(held)
    count = held.polls()
    held.page.clock.run_for(HIDDEN_MS - AWAKE_MS)
    assert held.polls() == count
    poll(held)
    held.page.evaluate(hide % "false")
    with held.page.expect_response(lambda one: one.request.resource_type == "fetch"):
        held.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_a_page_whose_login_is_over_says_so(held: Visit) -> None:
    held.open(PATHS["jobs"])
    held.page.context.clear_cookies()
    with held.page.expect_navigation():
        held.page.clock.run_for(AWAKE_MS)
    assert "not logged in" in held.page.content()


@pytest.fixture
def alone(tmp_path: Path, browser: Browser, context: BrowserContext) -> Iterator[tuple[Shown, Visit]]:
    """A server that a test may end and start again at the same port."""
    of = painted(tmp_path / "adserver")
    with of.door() as door:
        shown = Shown(
            of=of, browser=browser, server=HttpServer(door, f"127.0.0.1:{free_ports(1)[0]}", None, headers=())
        )
        try:
            shown.server.wait_until_started()
            visit = shown.visit(context)
            hold(visit.page)
            yield shown, visit
        finally:
            shown.server.stop()
    of.close()


def is_stale(page: Page) -> bool:
    return page.locator("#stale").is_visible()


def test_a_server_that_is_gone_is_said_and_the_page_goes_on_by_itself(alone: tuple[Shown, Visit]) -> None:
    shown, visit = alone
    visit.open(PATHS["job"])
    poll(visit)
    assert not is_stale(visit.page)
    port = shown.server.port
    shown.server.stop()
    with visit.page.expect_event("requestfailed"):
        visit.page.clock.run_for(AWAKE_MS)
    visit.page.wait_for_selector("#stale", state="visible")
    visit.page.evaluate("globalThis.isSame = true")
    shown.of.round(RUNNING, 38)
    with shown.of.door() as door:
        shown.server = HttpServer(door, f"127.0.0.1:{port}", None, headers=())
        shown.server.wait_until_started()
        poll(visit)
        visit.page.wait_for_selector("#stale", state="hidden")
        wait_until(visit.page, "document.querySelector('#curves tbody td').textContent == '38'")
    assert visit.page.evaluate("globalThis.isSame") is True


def test_a_running_job_is_cancelled_by_keyboard_while_rounds_come(alone: tuple[Shown, Visit]) -> None:
    _shown, visit = alone
    visit.open(PATHS["job"])
    poll(visit)
    rounds = iter(range(38, 60))

    def look(focused: str) -> None:
        """Let a round show, and find the focus where it was."""
        visit.of.round(RUNNING, done := next(rounds))
        visit.page.wait_for_timeout(1_000 * YOUNG_S)
        assert poll(visit) == 200
        visit.page.wait_for_selector(f"#tiles svg[aria-label^='{done} of']")
        assert visit.page.evaluate("document.activeElement.id") == focused

    visit.page.locator("#to-cancel").focus()
    look("to-cancel")
    visit.page.keyboard.press("Enter")
    look("to-cancel")
    visit.page.keyboard.press("Tab")
    look("cancel-it")
    # A part that differs keeps the focus, too
    visit.page.evaluate("document.querySelector('#acts').append('changed')")
    look("cancel-it")
    assert "changed" not in visit.page.inner_text("#acts")
    with visit.page.expect_navigation():
        visit.page.keyboard.press("Enter")
    assert visit.of.jobs.get(RUNNING).state == "cancelled"


def test_a_long_jobs_rounds_are_thinned_and_said_to_be(alone: tuple[Shown, Visit]) -> None:
    _shown, visit = alone
    job = visit.of.job(7, JobState.RUNNING, rounds=2_000, done=0)
    for done in (800, 1_096, 1_101):
        visit.of.round(job, done)
    visit.open(f"/jobs/{job.hex()}")
    assert visit.page.locator("#curves tbody td:first-child").all_inner_texts() == [
        "1,101", "1,096", "800", "0",
    ]  # fmt: skip
    assert "4 of 1,101 rounds, spread evenly" in visit.page.inner_text("#rounds")
    visit.page.wait_for_selector(".uplot canvas")
    # Evaluated last, in the page's own way to write numbers
    assert visit.page.locator("[data-chart=loss] .u-legend .u-value").first.inner_text() == "1,096"


def test_a_server_that_hangs_is_said_within_five_seconds(alone: tuple[Shown, Visit]) -> None:
    _shown, visit = alone
    visit.open(PATHS["jobs"])
    poll(visit)
    visit.page.route("**/jobs", lambda _route: None)  # an answer that never comes
    with visit.page.expect_request("**/jobs"):
        visit.page.clock.run_for(AWAKE_MS)
    visit.page.clock.run_for(WITHIN_MS - AWAKE_MS - 1)
    visit.page.wait_for_selector("#stale", state="visible")
