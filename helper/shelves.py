"""What a helper keeps in memory between calls, within bounds: prepared shares until they are committed, and opened datasets."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final

from maskedlark.dataset import OpenedDataset, PreparedShares

MAX_PREPARED_PER_TASK: Final = 2
MAX_PREPARED: Final = 8
OPENED_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """The name that an ad server gave to a preparation, within its task."""

    task_id: bytes
    name: bytes


class PreparedShelf:
    """Prepared shares by handle. Past the bounds the oldest are forgotten: nothing was used up, they can be prepared again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._prepared: OrderedDict[Handle, PreparedShares] = OrderedDict()

    def put(self, handle: Handle, prepared: PreparedShares) -> None:
        """Keep one preparation; an earlier one of the same handle is replaced."""
        with self._lock:
            self._prepared.pop(handle, None)
            self._prepared[handle] = prepared
            of_task = [known for known in self._prepared if known.task_id == handle.task_id]
            for known in of_task[:-MAX_PREPARED_PER_TASK]:
                del self._prepared[known]
            while len(self._prepared) > MAX_PREPARED:
                self._prepared.popitem(last=False)

    def get(self, handle: Handle) -> PreparedShares | None:
        """The preparation of a handle, if it is still kept."""
        with self._lock:
            return self._prepared.get(handle)

    def drop(self, handle: Handle) -> None:
        """Forget one preparation."""
        with self._lock:
            self._prepared.pop(handle, None)


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
