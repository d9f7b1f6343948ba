"""The browser's demo in Chromium: an ad is clicked, something is bought, what each party sees is shown."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from playwright.sync_api import Page, expect

from docs.tutorial.browser_demo import CAMPAIGNS, CROWD, POPULATION, Stage, running
from maskedlark.numbers.field import MODULUS
from tests.browser_sim.js.chromium import chromium, chromium_path
from tests.patience import HANGS_S

pytestmark = [pytest.mark.page, pytest.mark.slow]
PATIENCE_MS = 600_000
RADIO = 1
CUT = """(root) => ({
    wide: Math.max(root.scrollWidth - root.clientWidth, 0),
    high: Math.max(root.scrollHeight - root.clientHeight, 0),
})"""
"""By how much a frame's page is larger than the frame."""


@contextmanager
def played(folder: Path) -> Iterator[tuple[Page, Stage]]:
    """The stage after an ad for radios was clicked, one was bought, and the sums were asked for.

    Without fake reports, one of which could come after the purchase's and be what the page shows then.
    """
    with running(folder, fake_rate=0.0) as (stage, origins), chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1150})
        page.set_default_timeout(PATIENCE_MS)
        page.goto(origins["stage"])
        page.frame_locator("#publisher").locator(f"[data-product='{RADIO}']").click()
        shop = page.frame_locator("#shop")
        shop.get_by_text("Radio").wait_for()
        shop.locator("#buy").click()
        page.locator(".helper1 .share").first.wait_for()
        page.click("#measure")
        page.wait_for_selector("#chart:not([hidden])")
        yield page, stage


def test_an_ad_is_clicked_something_is_bought_and_every_partys_view_is_shown(tmp_path: Path) -> None:
    chromium_path()
    with ThreadPoolExecutor(1) as apart:  # playwright takes one driver a thread, and other tests have theirs
        assert apart.submit(look, tmp_path).result() == list(CAMPAIGNS)


def test_two_presses_are_one_measurement_whose_truth_is_of_its_reports(tmp_path: Path) -> None:
    with running(tmp_path) as (stage, origins), ThreadPoolExecutor(2) as people:
        press = partial(httpx.post, f"{origins['stage']}/api/measure", timeout=PATIENCE_MS / 1000)
        presses = [people.submit(press), people.submit(press)]
        first, same = (one.result().json() for one in presses)
        assert first == same
        assert httpx.get(f"{origins['stage']}/api/state").json()["result"] == first
        again = press().json()
        stage.worker.submit(stage.fill).result()  # after the one that the measurement left to be done
        assert stage.waiting == {"simulated": CROWD, "browsers": 0}
        waiting = list(stage.sent.values())[2 * CROWD :]
    truths = [sum(cell["truth"] for cell in result["cells"]) for result in (first, again)]
    assert sum(truths) + sum(one.spent for one in waiting) == sum(one.spent for one in stage.sent.values())
    for result in (first, again):
        assert result["reports"] == {"simulated": CROWD, "browsers": 0}
        assert result["budget"] == {"ad_server": 8.0, "colluding": 16.0}
        assert result["delta"] == 1e-5
        assert 0 < result["spent"]["ad_server"] <= result["spent"]["colluding"] < 16.0
        for cell in result["cells"]:
            # Ten standard deviations: a sum of other reports than those of the truth is further off
            assert abs(cell["value"] - cell["truth"]) < 4 * (cell["high"] - cell["value"])


def test_a_measurement_that_fails_says_why_and_can_be_asked_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chromium_path()
    with ThreadPoolExecutor(1) as apart:
        apart.submit(fail, tmp_path).result()
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("the measurement failed: Helper 0 at localhost:")


@pytest.mark.parametrize("line", ["are starting", "open http"])
def test_sigterm_ends_the_servers_and_leaves_no_keys(tmp_path: Path, line: str) -> None:
    """While they start, and when all runs."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "docs.tutorial.browser_demo", "--no-open"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stderr is not None
    try:
        assert any(line in one for one in demo.stderr)
        demo.terminate()
        assert demo.wait(HANGS_S) == 128 + signal.SIGTERM, demo.stderr.read()
        assert list(tmp_path.iterdir()) == []
        for _ in range(int(HANGS_S)):
            try:
                os.killpg(demo.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(1)  # until the kernel has put away the last
        pytest.fail("a server still runs")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(demo.pid, signal.SIGKILL)
        demo.wait()
        demo.stderr.close()


def fail(folder: Path) -> None:
    """Measure while a helper is away, again when it is back, and when the demo itself is gone."""
    with running(folder, fake_rate=0.9) as (stage, origins), chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(origins["stage"])
        button, status = page.locator("#measure"), page.locator("#status")
        see_a_fake(page)
        stage.fleet.kill("helper-0")
        button.click()
        expect(status).to_contain_text("No sums: Helper 0 at localhost:", timeout=PATIENCE_MS)
        expect(status).to_contain_text("start it again")
        expect(page.locator("#earlier")).to_be_hidden()
        expect(button).to_be_enabled()
        stage.fleet.start("helper-0")
        button.click()
        page.wait_for_selector("#chart:not([hidden])")
        expect(status).to_be_empty()
        page.route("**/api/measure", lambda route: route.abort())
        button.click()
        expect(status).to_contain_text("No sums: the demo's server is gone")
        expect(button).to_be_enabled()
        expect(page.locator("#earlier")).to_be_visible()
        page.reload()
        page.wait_for_selector("#chart:not([hidden])")


def see_a_fake(page: Page) -> None:
    """Click ads until the last report is a fake one; all that a helper reads of it is in the public table."""
    told = page.locator("#waiting")
    while not told.inner_text().startswith("A fake report"):
        page.frame_locator("#publisher").locator(f"[data-product='{RADIO}']").click()
        expect(page.locator("#coming")).to_contain_text("In this browser")
        page.wait_for_timeout(1_000)
    shown = page.locator("#helper1 dd").all_inner_texts()
    features = [int(one) for one in shown[0].split()]
    for column, value in enumerate(features):
        assert value in {row["features"][column] for row in POPULATION}
    assert len(features) == len(POPULATION[0]["features"])
    assert shown[1] in CAMPAIGNS


def look(folder: Path) -> list[str]:
    """Play, and compare what the page shows with what the parties hold; the campaigns that it measures."""
    with played(folder) as (page, stage):
        assert stage.last is not None
        shares = [
            [int(text) for text in page.locator(f".helper{role} .share").all_inner_texts()] for role in (0, 1)
        ]
        did_not, bought, spent = ((first + second) % MODULUS for first, second in zip(*shares, strict=True))
        assert (did_not, bought, spent) == (0, 1, 110)
        assert "bytes" in page.locator("#adserver").inner_text()
        assert page.locator("#adserver .cipher").first.inner_text() == stage.last["ciphertexts"][0]
        rows = page.locator("#table tbody tr")
        expect(rows).to_have_count(len(CAMPAIGNS))
        shown = [rows.nth(row).locator("td").all_inner_texts() for row in range(len(CAMPAIGNS))]
        for _name, noisy, _interval, truth in shown:
            assert abs(int(noisy) - int(truth)) < 0.5 * int(truth)
        page.set_viewport_size({"width": 390, "height": 1000})
        chart = page.locator("#chart svg")
        expect(chart).to_have_attribute("viewBox", f"0 0 {chart.evaluate('one => one.clientWidth')} 190")
        for site in ("publisher", "shop"):
            cut = page.frame_locator(f"#{site}").locator("html").evaluate(CUT)
            assert cut == {"wide": 0, "high": 0}, site
        return [name for name, *_ in shown]


if __name__ == "__main__":  # python -m tests.docs.test_browser_demo docs/img/browser-demo.png
    parser = argparse.ArgumentParser(description="Take the picture of docs/how-to/web-page.md.")
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory() as name, played(Path(name)) as (taken, _stage):
        taken.get_by_text(f"{CROWD} from simulated people, 0 from browsers").wait_for()
        taken.wait_for_timeout(1500)
        taken.screenshot(path=given.picture, full_page=True)
