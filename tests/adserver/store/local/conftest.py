"""The database of jobs without helpers."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from adserver.store.local.schema import open_local


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    opened = open_local(database_url)
    yield opened
    opened.dispose()
