"""The database of jobs without helpers."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.local_jobs import opened


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = opened(database_url)
    yield made
    made.dispose()
