"""Fixtures of more than one folder."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from playwright.sync_api import Browser

from maskedlark.runtime import library_env
from tests.browser_sim.js.chromium import chromium
from tests.postgres import Postgres, running_postgres
from tests.ray_environment import tell_ray
from tests.s3 import leading_to, running_s3

tell_ray()  # before any test imports it
library_env.settle()  # as every command does, before a test imports numpy
# torch's threads wait for each other by spinning: ten times the work on cores that other workers use.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# How long an example takes says more about the machine than about the code. CI gets the same ones each time.
settings.register_profile(
    "no deadline",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="MASKEDLARK_SAME_EXAMPLES" in os.environ,
)
settings.load_profile("no deadline")

_LONG_RUN_S: Final = 1_800.0


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Whole pages and the longest runs may take longer than what hangs elsewhere."""
    for item in items:
        is_long = any(item.get_closest_marker(name) for name in ("long", "page"))
        if is_long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LONG_RUN_S))


@pytest.fixture(autouse=True)
def _log_ends_with_the_test() -> Iterator[None]:
    """Remove the log that a server's command began in this process: later ones would be told to be JSON."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [one for one in root.handlers if one not in before]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL server for the whole run."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server that speaks S3, which is where object storage is for this test."""
    with running_s3() as endpoint:
        for name, value in leading_to(endpoint).items():
            monkeypatch.setenv(name, value)
        yield endpoint


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a process, of the dashboard and of the client."""
    with chromium() as launched:
        yield launched


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each engine that a store runs on: what uses it is a contract of both."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.sqlite3'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()
