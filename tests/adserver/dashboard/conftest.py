"""The dashboard in Chromium: one server for the tests of a module."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, BrowserContext

from adserver.ingest.http_server import HttpServer
from adserver.records.defaults import MOST_JOB_NAME, MOST_JOB_NOTE
from tests.adserver.job_world import RECORDS, plan_for
from tests.adserver.painted import OF, PANEL, Painted, painted
from tests.adserver.visits import Shown, Visit
from tests.patience import HANGS_S

LONG_NOTE = ("from the warm model of the panel of March; " * 6).strip()
UNBROKEN: Final = {bytes([8]) * 16: ("Ü", "W"), bytes([9]) * 16: ("W", "Ü")}
"""Jobs whose names and notes have the most letters, and no space: by the letter of each."""


@contextmanager
def serving(of: Painted, browser: Browser) -> Iterator[Shown]:
    with of.door() as door:
        server = HttpServer(door, "127.0.0.1:0", None, headers=())
        try:
            server.wait_until_started()
            yield Shown(of=of, browser=browser, server=server)
        finally:
            server.stop()
    of.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Shown]:
    with serving(painted(Path(tmp_path_factory.mktemp("painted")) / "adserver"), browser) as made:
        yield made


@pytest.fixture(scope="module")
def of_two_datasets(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Shown]:
    """The same with a job over another dataset, of a long name and note, and two of `UNBROKEN` ones."""
    of = painted(Path(tmp_path_factory.mktemp("painted")) / "adserver")
    plan = plan_for(OF, job_id=b"\7" * 16)
    plan = replace(plan, job=replace(plan.job, dataset_id=bytes(32)))
    name = "two hidden layers, run 12 of the spring"
    of.jobs.submit(plan, name=name, note=LONG_NOTE, eval_set_digest=PANEL)
    of.round(b"\7" * 16, 0)
    for job_id, (name, note) in UNBROKEN.items():
        plan = plan_for(OF, job_id=job_id, batch_size=float(RECORDS), noise_multiplier=30.0)
        of.jobs.submit(plan, name=name * MOST_JOB_NAME, note=note * MOST_JOB_NOTE, eval_set_digest=PANEL)
        of.round(job_id, 0)
    with serving(of, browser) as made:
        yield made


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
