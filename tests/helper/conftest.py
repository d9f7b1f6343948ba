"""What all tests of the helper do: they watch that shared state is used under its lock."""

from helper.datasets.fair_cache import FairCache
from helper.datasets.prefetch_quota import PrefetchQuota
from helper.datasets.preparation_cache import PreparationCache
from helper.datasets.preparation_quota import PreparationQuota
from helper.datasets.segment_writer import ObjectWriter
from helper.datasets.storage_quota import StorageQuota
from helper.datasets.vault import Vault
from helper.gradient.exact.kernels.buffers import BufferShelf
from helper.ledger.budget_left import BudgetsLeft
from helper.ledger.witness import Witness
from helper.releases.attempts import Attempts
from helper.releases.jobs import RunningJobs
from helper.releases.work_quota import WorkQuota
from helper.trust.keys import HelperKeys
from helper.trust.tasks import _OpenTasks
from tests.held_locks import Guarded, guards, shared_state_is_used_under_its_lock

__all__ = ["shared_state_is_used_under_its_lock", "unguarded"]

unguarded = guards(
    Guarded(PrefetchQuota, "_lock", ("_chunks", "_bytes")),
    Guarded(ObjectWriter, "_lock", ("_held", "_dropped")),
    Guarded(PreparationQuota, "_changed", ("_unanswered", "_taken_bytes", "_is_over")),
    Guarded(FairCache, "_lock", ("_kept", "_taken")),
    Guarded(PreparationCache, "_lock", ("_prepared", "_taken")),
    Guarded(BufferShelf, "_lock", ("_kept",)),
    Guarded(BudgetsLeft, "_renewing", ("_whole_at",), ("_left",)),
    Guarded(Witness, "_lock", ("_seen", "_write")),
    Guarded(Attempts, "_changed", ("_begun", "_due", "_closing")),
    Guarded(RunningJobs, "_lock", ("_running",)),
    Guarded(WorkQuota, "_changed", ("_computing",)),
    Guarded(HelperKeys, "_lock", ("_stamp",)),
    Guarded(_OpenTasks, "_lock", ("_ends", "_read")),
    Guarded(StorageQuota, "_lock", ("_held", "_sums")),
    Guarded(Vault, "_counting", ("_is_counted",)),
)
