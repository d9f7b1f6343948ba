"""The dashboard in Chromium: one server for the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext

from adserver.ingest.http_server import HttpServer
from tests.adserver.painted import painted
from tests.adserver.visits import Shown, Visit
from tests.patience import HANGS_S


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Shown]:
    of = painted(Path(tmp_path_factory.mktemp("painted")) / "adserver")
    with of.door() as door:
        server = HttpServer(door, "127.0.0.1:0", None, headers=())
        try:
            server.wait_until_started()
            yield Shown(of=of, browser=browser, server=server)
        finally:
            server.stop()
    of.close()


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context()
    made.set_default_timeout(1_000 * HANGS_S)
    yield made
    made.close()


@pytest.fixture
def visit(shown: Shown, context: BrowserContext) -> Visit:
    return shown.visit(context)
