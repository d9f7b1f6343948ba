"""A Chromium that is killed again and again while it reports, at an intake that loses answers.

Nothing is lost, and nothing counts twice, where the browser keeps what it was given: a log that Chromium left
torn, and would drop with all that stands in it, is mended between two starts.

python -m tests.browser_sim.js.kills --kills 50
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Error, Page, Playwright, sync_playwright

from tests.browser_sim.js.chromium import ARGUMENTS, chromium_path
from tests.browser_sim.js.sent_reports import SentReports
from tests.browser_sim.js.site import Answer, Seen, Site
from tests.browser_sim.js.torn_logs import mend
from tests.browser_sim.js.vault_sites import Sites, rows_kept, three_sites
from tests.builders import world
from tests.patience import HANGS_S

LOST_ANSWERS: Final = 0.3
BURST: Final = 400
HOUR: Final = 3_600
_POLLS: Final = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run.

    Attributes:
        kills: SIGKILLs of the whole browser.
        acknowledged: Impressions of which the page was told that they are kept.
        reported: Different impressions that came to the intake.
        lost: Acknowledged ones that never came.
        doubled: Ones that would count twice.
        unasked: Reported ones that no page ever gave.
        uploads: Requests, with those that were sent again.
        torn: Kills that left a torn log.
    """

    kills: int
    acknowledged: int
    reported: int
    lost: int
    doubled: int
    unasked: int
    uploads: int
    torn: int


class KilledBrowser:
    """Chromium with a profile that lasts, as a process group of its own."""

    def __init__(self, playwright: Playwright, profile: Path) -> None:
        (profile / "DevToolsActivePort").unlink(missing_ok=True)
        for name in ("SingletonLock", "SingletonCookie", "SingletonSocket"):
            (profile / name).unlink(missing_ok=True)
        command = [
            chromium_path(),
            "--headless",
            *ARGUMENTS,
            f"--user-data-dir={profile}",
            "--remote-debugging-port=0",
        ]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [*command, "about:blank"], stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            self.browser: Browser = playwright.chromium.connect_over_cdp(
                f"http://127.0.0.1:{self._port(profile)}", timeout=1_000 * HANGS_S
            )
        except BaseException:
            self.kill()
            raise

    def _port(self, profile: Path) -> str:
        file = profile / "DevToolsActivePort"
        for _ in range(_POLLS):
            if file.exists() and file.read_text().strip():
                return file.read_text().split()[0]
            time.sleep(0.02)
        raise AssertionError("Chromium does not start")

    @property
    def page(self) -> Page:
        page = self.browser.contexts[0].new_page()
        page.set_default_timeout(1_000 * HANGS_S)
        return page

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def run(kills: int, seed: int) -> Outcome:
    """Kill `kills` times, each time in the midst of a burst of impressions; then let the browser finish."""
    dice = random.Random(seed)
    now = int(time.time())
    of = world(starts_at=now - HOUR, expires_at=now + 30 * 24 * HOUR)

    def disturb(_seen: Seen) -> Answer | str | None:
        return None if dice.random() < LOST_ANSWERS else "answer"

    sent = SentReports(of=of, disturb=disturb)
    acknowledged: list[int] = []
    given = torn = 0

    def noted(number: int) -> None:
        acknowledged.append(number)

    with ExitStack() as running:
        profile = Path(tempfile.mkdtemp(prefix="maskedlark-kills-"))
        running.callback(shutil.rmtree, profile, ignore_errors=True)
        host = running.enter_context(Site({}, handler=sent))
        trusted = [one.verify_key.hex() for one in of.task.helpers]
        sites = running.enter_context(three_sites(intake=host.origin, trusted=trusted))
        playwright = running.enter_context(sync_playwright())
        for _ in range(kills):
            killed = KilledBrowser(playwright, profile)
            try:
                page = opened(killed.page, sites, host, trusted)
                page.expose_function("acknowledged", noted)
                burst(page, first=given)
                given += BURST
                page.wait_for_timeout(dice.uniform(0, 1500))
            finally:
                killed.kill()
            torn += mend(profile)
        last = KilledBrowser(playwright, profile)
        try:
            finish(opened(last.page, sites, host, trusted))
        finally:
            last.kill()
    features, _labels = sent.found()
    numbers = [int.from_bytes(row.tobytes(), "little") for row in features]
    return Outcome(
        kills=kills,
        acknowledged=len(set(acknowledged)),
        reported=len(set(numbers)),
        lost=len(set(acknowledged) - set(numbers)),
        doubled=len(numbers) - len(set(numbers)),
        unasked=sum(number >= given for number in numbers),
        uploads=len(sent.bodies),
        torn=torn,
    )


def opened(page: Page, sites: Sites, host: Site, trusted: list[str]) -> Page:
    given = {"bundle": f"{host.origin}/bundle", "trustedHelpers": trusted, "consent": True, "maxDelayS": 0.5}
    assert sites.open(page, sites.publisher, **given)
    return page


def burst(page: Page, *, first: int) -> None:
    """Begin a burst, and do not wait for it."""
    try:
        page.evaluate(
            """([first, count]) => {
              void (async () => {
                for (let number = first; number < first + count; number++) {
                  const features = new Uint8Array(Uint32Array.of(number).buffer);
                  await lark.saveImpression({ features, matchValue: number, lifetimeDays: 1e-6 });
                  await acknowledged(number);
                }
              })();
            }""",
            [first, BURST],
        )
    except Error as error:  # pragma: no cover # the browser may be slow to answer under load
        raise AssertionError("the burst did not begin") from error


def finish(page: Page) -> None:
    """Wait until the vault holds nothing any more."""
    frame = next(one for one in page.frames if one.url.endswith("/vault.html"))
    for _ in range(_POLLS):
        left = rows_kept(frame)
        if left == 0:
            return
        page.wait_for_timeout(200)
    raise AssertionError(f"the vault still holds {left} rows")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    given = parser.parse_args()
    print(json.dumps({"seed": given.seed, **asdict(run(given.kills, given.seed))}))


if __name__ == "__main__":
    main()
