"""Pages and scenes of the client in Chromium."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser_sim.js.scene import Scene, open_world
from tests.browser_sim.js.sent_reports import SentReports
from tests.browser_sim.js.site import Site
from tests.browser_sim.js.vault_sites import three_sites
from tests.builders import World
from tests.patience import HANGS_S


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(ignore_https_errors=True)
    context.set_default_timeout(1_000 * HANGS_S)
    yield context.new_page()
    context.close()


@pytest.fixture
def scenes(browser: Browser) -> Iterator[Any]:
    with ExitStack() as running:

        def make(
            of: World | None = None,
            *,
            headers: dict[str, str] | None = None,
            vault: dict[str, Any] | None = None,
            **disturbed: Any,
        ) -> Scene:
            sent = SentReports(of=of or open_world(), **disturbed)
            host = running.enter_context(Site({}, handler=sent))
            trusted = [one.verify_key.hex() for one in sent.of.task.helpers]
            sites = running.enter_context(three_sites(intake=host.origin, trusted=trusted, **(vault or {})))
            context = browser.new_context(extra_http_headers=headers or {})
            context.set_default_timeout(1_000 * HANGS_S)
            running.callback(context.close)
            return Scene(sites, sent, host, context.new_page())

        yield make
