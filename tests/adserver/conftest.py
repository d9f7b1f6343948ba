"""What all tests of the ad server do: they watch that shared state is used under its lock."""

from collections.abc import Iterator
from typing import Final

import pytest

from adserver.ingest.intake import Intake
from adserver.ingest.local_app import LocalIntake
from adserver.store.group_commit import GroupCommit
from tests.held_locks import Guarded, watched

UNDER_LOCKS: Final = (
    Guarded(Intake, "_lock", ("_logged_s",), ("_counts",)),
    Guarded(LocalIntake, "_lock", ("counts",)),
    Guarded(LocalIntake, "_calibrating", ("_tests",)),
    Guarded(GroupCommit, "_guard", ("_queue", "_is_served")),
)


@pytest.fixture(scope="session")
def unguarded() -> Iterator[list[str]]:
    """The uses of shared state without its lock, so far."""
    with watched(UNDER_LOCKS) as found:
        yield found


@pytest.fixture(autouse=True)
def _shared_state_is_used_under_its_lock(unguarded: list[str]) -> Iterator[None]:
    unguarded.clear()
    yield
    assert not unguarded
