"""Fixtures of more than one folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from playwright.sync_api import Browser

from tests.browser_sim.js.chromium import chromium
from tests.postgres import Postgres, running_postgres
from tests.ray_environment import tell_ray
from tests.s3 import leading_to, running_s3

tell_ray()  # before any test imports it

# How long an example takes says more about the machine than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


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
