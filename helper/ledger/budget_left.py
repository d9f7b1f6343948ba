"""What is left of datasets' budgets, for the operator's gauge.

Asked for at each scrape, computed only where something has changed.
"""

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Final

from helper.ledger.budget_report import BudgetReport
from helper.ledger.ledger import Ledger
from helper.ledger.records import Position, Reservation
from helper.ledger.spending import left
from maskedlark.frozen import frozen
from maskedlark.releases.budget import BudgetedDataset

MAX_DATASETS: Final = 200
SCRAPE_S: Final = 1.0
"""After so long no other dataset is looked at.

A computation that has begun is finished, for the next scrape if this one does not wait.
"""


@frozen
class _BudgetLeft:
    """One dataset's, against the ad server.

    Attributes:
        dataset_id: 32 bytes.
        held: What all its jobs and queries are charged or have reserved.
        epsilon: What a new one may add; never negative.
    """

    dataset_id: bytes
    held: tuple[Reservation, ...]
    epsilon: float


class BudgetsLeft:
    """What one ledger leaves. Safe to share between threads."""

    def __init__(self, ledger: Ledger, monotonic: Callable[[], float] = monotonic) -> None:
        """Measure a ledger; `monotonic` is a clock in seconds that never goes back."""
        self._ledger = ledger
        self._report = BudgetReport(ledger.engine)
        self._monotonic = monotonic
        self._renewing = Lock()
        self._left: dict[bytes, _BudgetLeft] = {}
        self._whole_at: Position | None = None

    def current(self) -> tuple[_BudgetLeft, ...]:
        """Return the figures of up to 200 used datasets, those of open jobs first.

        Guarantees: a dataset for which there was no time yet is missing until a later call. The others were
            true when they were looked at: now, or, while another thread looks, at its last time. So no call
            waits for another one's.
        """
        # A second scrape takes the figures as they are: it would only wait to see the same.
        if self._renewing.acquire(blocking=False):
            try:
                position = self._ledger.position()
                if position != self._whole_at:
                    self._whole_at = position if self._renew() else None
            finally:
                self._renewing.release()
        return tuple(self._left.values())

    def _renew(self) -> bool:
        """Look at each dataset again, the longest unseen ones first; whether there was time for all."""
        deadline_s = self._monotonic() + SCRAPE_S
        datasets = self._report.find_charged(MAX_DATASETS)
        kept = {one.dataset_id for one in datasets}
        left = {dataset_id: one for dataset_id, one in self._left.items() if dataset_id in kept}
        places = {dataset_id: place for place, dataset_id in enumerate(left)}
        is_whole = True
        for dataset in sorted(datasets, key=lambda one: places.get(one.dataset_id, -1)):
            if self._monotonic() >= deadline_s:
                is_whole = False
                break
            looked_at = self._of(dataset)
            left.pop(dataset.dataset_id, None)  # to be the last one in order
            left[dataset.dataset_id] = looked_at
        self._left = left
        return is_whole

    def _of(self, dataset: BudgetedDataset) -> _BudgetLeft:
        held = self._ledger.reservations(dataset.dataset_id)
        before = self._left.get(dataset.dataset_id)
        # The accountant is asked only where something was charged, reserved or given back.
        if before is not None and before.held == held:
            return before
        return _BudgetLeft(dataset_id=dataset.dataset_id, held=held, epsilon=left(dataset.task, held))
