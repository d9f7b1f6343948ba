"""What several tests of the front door begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adserver.store.local.jobs import LocalJobs
from adserver.store.local.schema import default_local_url, open_local
from maskedlark.randomness import seeded
from tests.maskedlark.federated.local_world import draws_job, line_job


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[LocalJobs]:
    """A job of each kind that runs without helpers."""
    engine = open_local(default_local_url(tmp_path))
    made = LocalJobs(engine, lambda: 1.0, lambda: seeded(4, "first instances"))
    made.submit(line_job(), seed=0)
    made.submit(draws_job(), seed=0)
    yield made
    engine.dispose()
