"""The browser's demo in Chromium: an ad is clicked, something is bought, what each party sees is shown."""

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from playwright.sync_api import Page, expect

from docs.tutorial.browser_demo import CAMPAIGNS, Stage, running
from maskedlark.numbers.field import MODULUS
from tests.browser_sim.js.chromium import chromium, chromium_path

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


def look(folder: Path) -> list[str]:
    """Play, and compare what the page shows with what the parties hold; the campaigns that it measures."""
    with played(folder) as (page, stage):
        assert stage.last is not None
        shares = [
            [int(text) for text in page.locator(f".helper{role} .share").all_inner_texts()] for role in (0, 1)
        ]
        did_not, bought, spent = ((first + second) % MODULUS for first, second in zip(*shares, strict=True))
        assert (did_not, bought, spent) == (0, 1, 110)
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
        taken.wait_for_timeout(1500)
        taken.screenshot(path=given.picture, full_page=True)
