"""What all tests of the helper do: they watch that shared state is used under its lock."""

from collections.abc import Iterator
from typing import Final

import pytest

from helper.datasets.head_start import HeadStart
from helper.datasets.object_spool import ObjectWriter
from helper.datasets.preparation_room import PreparationRoom
from helper.datasets.shelves import OpenedShelf, PreparedShelf
from helper.gradient.exact.kernels.buffers import BufferShelf
from helper.ledger.budget_left import BudgetsLeft
from helper.ledger.witness import Witness
from helper.releases.attempts import Attempts
from helper.releases.jobs import Jobs
from helper.releases.noise_shelf import NoiseShelf
from helper.trust.keys import HelperKeys
from helper.trust.open_tasks import OpenTasks
from tests.held_locks import Guarded, watched

UNDER_LOCKS: Final = (
    Guarded(HeadStart, "_lock", ("_chunks", "_bytes")),
    Guarded(ObjectWriter, "_lock", ("_held", "_dropped")),
    Guarded(PreparationRoom, "_changed", ("_unanswered", "_taken_bytes", "_is_over")),
    Guarded(OpenedShelf, "_lock", ("_opened",)),
    Guarded(PreparedShelf, "_lock", ("_prepared", "_taken")),
    Guarded(BufferShelf, "_lock", ("_kept",)),
    Guarded(BudgetsLeft, "_renewing", ("_whole_at",), ("_left",)),
    Guarded(Witness, "_lock", ("_seen", "_write")),
    Guarded(Attempts, "_changed", ("_begun", "_due", "_closing")),
    Guarded(Jobs, "_lock", ("_running",)),
    Guarded(NoiseShelf, "_lock", ("_ahead",)),
    Guarded(HelperKeys, "_lock", ("_stamp",)),
    Guarded(OpenTasks, "_lock", ("_ends", "_read")),
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
