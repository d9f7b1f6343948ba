"""What a helper keeps in memory between calls, within bounds: prepared shares until they are committed, and opened datasets."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from maskedlark.dataset import OpenedDataset, PreparedShares
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused

MAX_PREPARED_PER_TASK: Final = 2
MAX_PREPARED: Final = 64
PREPARED_BYTES: Final = 4 << 30
"""Room for the preparations of all tasks together, unless the operator says otherwise."""
KEPT_S: Final = 600.0
"""How long a finished preparation keeps its room, whoever else needs it: its commit follows within this time or is not to come."""
RETRY_AFTER_S: Final = 5.0
OPENED_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """The name that an ad server gave to a preparation, within its task."""

    task_id: bytes
    name: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A finished preparation, the room that it takes, and when it was finished."""

    prepared: PreparedShares
    num_bytes: int
    since: float


class PreparedShelf:
    """Prepared shares by handle, and the room that all preparations share, finished or not.

    Past the bounds on their number the oldest are forgotten: nothing was used up, they can be prepared again. Who finds no room is told
    to come again: it does not push out what another one is about to commit.
    """

    def __init__(self, capacity_bytes: int, clock: Callable[[], float]) -> None:
        self._capacity = capacity_bytes
        self._clock = clock
        self._lock = Lock()
        self._prepared: OrderedDict[Handle, _Kept] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """How much of the room is taken."""
        return self._num_bytes

    def take(self, num_bytes: int, *, held: int) -> None:
        """Take room for a preparation that goes on, before it is filled.

        Args:
            num_bytes: How much more.
            held: What the same preparation took before.

        Raises:
            JobRefused(DATASET_TOO_LARGE): it needs more than there is for all together, so it will never fit.
            HelperUnavailable: others take what it needs; it says when to ask again.
        """
        if held + num_bytes > self._capacity:
            raise JobRefused(
                JobReason.DATASET_TOO_LARGE,
                f"this helper has room for {self._capacity} bytes of preparations (--max-preparing-bytes): seal several smaller datasets",
            )
        with self._lock:
            while self._num_bytes + num_bytes > self._capacity and self._is_oldest_abandoned():
                self._num_bytes -= self._prepared.popitem(last=False)[1].num_bytes
            if self._num_bytes + num_bytes > self._capacity:
                raise HelperUnavailable("other preparations take the room there is for them; ask again", retry_after_s=RETRY_AFTER_S)
            self._num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Free the room of a preparation that was not finished."""
        with self._lock:
            self._num_bytes -= num_bytes

    def put(self, handle: Handle, prepared: PreparedShares, num_bytes: int) -> None:
        """Keep a finished preparation with the room that was taken for it; an earlier one of the same handle is replaced."""
        with self._lock:
            self._forget(handle)
            self._prepared[handle] = _Kept(prepared=prepared, num_bytes=num_bytes, since=self._clock())
            of_task = [known for known in self._prepared if known.task_id == handle.task_id]
            for known in of_task[:-MAX_PREPARED_PER_TASK]:
                self._forget(known)
            while len(self._prepared) > MAX_PREPARED:
                self._forget(next(iter(self._prepared)))

    def get(self, handle: Handle) -> PreparedShares | None:
        """The preparation of a handle, if it is still kept."""
        with self._lock:
            kept = self._prepared.get(handle)
            return None if kept is None else kept.prepared

    def drop(self, handle: Handle) -> None:
        """Forget one preparation, and free its room."""
        with self._lock:
            self._forget(handle)

    def _forget(self, handle: Handle) -> None:
        """Under the lock."""
        kept = self._prepared.pop(handle, None)
        self._num_bytes -= kept.num_bytes if kept else 0

    def _is_oldest_abandoned(self) -> bool:
        """Under the lock: whether the oldest finished preparation has waited for its commit for too long."""
        oldest = next(iter(self._prepared.values()), None)
        return oldest is not None and self._clock() - oldest.since >= KEPT_S


class OpenedShelf:
    """The opened datasets that were used last, up to a number of bytes; the last one always stays."""

    def __init__(self, capacity_bytes: int = OPENED_BYTES) -> None:
        self._capacity = capacity_bytes
        self._lock = Lock()
        self._opened: OrderedDict[bytes, OpenedDataset] = OrderedDict()

    def put(self, dataset: OpenedDataset) -> None:
        """Keep one dataset, and forget the least recently used past the capacity."""
        with self._lock:
            self._opened[dataset.dataset_id] = dataset
            self._opened.move_to_end(dataset.dataset_id)
            while len(self._opened) > 1 and sum(map(_num_bytes, self._opened.values())) > self._capacity:
                self._opened.popitem(last=False)

    def get(self, dataset_id: bytes) -> OpenedDataset | None:
        """The dataset of an id, if it is still kept."""
        with self._lock:
            if dataset_id in self._opened:
                self._opened.move_to_end(dataset_id)
            return self._opened.get(dataset_id)


def _num_bytes(dataset: OpenedDataset) -> int:
    shares = dataset.shares
    measured = shares.measured.keys.nbytes + shares.measured.value_shares.nbytes if shares.measured else 0
    return dataset.report_ids.nbytes + shares.features.nbytes + shares.labels.nbytes + shares.mask_shares.nbytes + measured
