"""What several tests of the front door begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adserver.store.database import default_url
from maskedlark.randomness import seeded
from tests.local_jobs import LocalJobs, opened
from tests.maskedlark.federated.local_world import draws_job, line_job


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[LocalJobs]:
    """A job of each kind that runs without helpers."""
    engine = opened(default_url(tmp_path))
    made = LocalJobs(engine, seeded(4, "first instances"))
    made.submit(line_job())
    made.submit(draws_job())
    yield made
    engine.dispose()
