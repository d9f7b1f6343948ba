"""What all tests of the ad server do: they watch that shared state is used under its lock."""

from adserver.ingest.intake import Intake
from adserver.ingest.local_app import LocalIntake
from adserver.store.group_commit import GroupCommit
from tests.held_locks import Guarded, guards, shared_state_is_used_under_its_lock

__all__ = ["shared_state_is_used_under_its_lock", "unguarded"]

unguarded = guards(
    Guarded(Intake, "_lock", ("_logged_s",), ("_counts",)),
    Guarded(LocalIntake, "_lock", ("counts",)),
    Guarded(LocalIntake, "_calibrating", ("_tests",)),
    Guarded(GroupCommit, "_guard", ("_queue", "_is_served")),
)
