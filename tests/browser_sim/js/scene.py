"""A vault with its intake, and one person's browser."""

import time
from typing import Any

from playwright.sync_api import Frame, Page

from tests.browser_sim.js.sent_reports import SentReports
from tests.browser_sim.js.site import Site
from tests.browser_sim.js.vault_sites import Sites, kept
from tests.builders import World, world

HOUR = 3_600
WAIT_MS = 60_000


def open_world(**changes: Any) -> World:
    """A task that is open at the time of this machine."""
    now = int(time.time())
    return world(starts_at=now - HOUR, expires_at=now + 30 * 24 * HOUR, **changes)


class Scene:
    """A vault with its intake, and one person's browser."""

    def __init__(self, sites: Sites, sent: SentReports, host: Site, page: Page) -> None:
        self.sites, self.sent, self.host, self.page = sites, sent, host, page
        self.options: dict[str, Any] = {}

    def open(self, site: Site | None = None, **options: Any) -> bool:
        trusted = [one.verify_key.hex() for one in self.sent.of.task.helpers]
        given = {
            "bundle": f"{self.host.origin}/bundle",
            "trustedHelpers": trusted,
            "consent": True,
            "maxDelayS": 0,
        }
        return self.sites.open(
            self.page, site or self.sites.publisher, **{**given, **self.options, **options}
        )

    def call(self, name: str, **options: Any) -> Any:
        given = {key: value for key, value in options.items() if key != "features"}
        features = [int(byte) for byte in options.get("features", ())]
        script = """async ([name, given, features]) => lark[name](
            features.length ? { ...given, features: Uint8Array.from(features) } : given)"""
        return self.page.evaluate(script, [name, given, features])

    def await_reports(self, count: int) -> None:
        """Wait until the intake has so many; it is asked, not timed."""
        for _ in range(WAIT_MS // 20):
            if len(self.sent.reports) >= count:
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"{len(self.sent.reports)} of {count} reports came")

    def kept(self) -> dict[str, int]:
        """How many rows the vault's storage holds."""
        return kept(self.vault)

    def skip_days(self, days: float) -> None:
        """Put the vault's clock forward, and have it do what is due by then; returns when that is done."""
        shift = "(ms) => { const now = Date.now; Date.now = () => now() + ms; }"
        self.vault.evaluate(shift, 24 * HOUR * 1000 * days)
        self.turn()

    def turn(self) -> None:
        """Have the vault do what is due."""
        self.vault.evaluate("async () => (await window.engine).run()")

    @property
    def vault(self) -> Frame:
        """The vault's frame in the page."""
        return next(frame for frame in self.page.frames if frame.url.endswith("/vault.html"))
