"""What is left of datasets' budgets, for the operator's gauge: asked for at each scrape, computed only where something has changed."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Final

from helper.budget_report import BudgetReport
from helper.ledger import Position
from maskedlark.accounting import Charge, spent
from maskedlark.budget import Dataset

MAX_DATASETS: Final = 200
SCRAPE_S: Final = 1.0
"""A computation that has begun is finished; after so long no other one is begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLeft:
    """One dataset's, against the ad server.

    Attributes:
        dataset_id: 32 bytes.
        held: What all its jobs and queries are charged or have reserved.
        epsilon: What a new one may add; never negative.
    """

    dataset_id: bytes
    held: tuple[Charge, ...]
    epsilon: float


class BudgetsLeft:
    """What one ledger leaves. Safe to share between threads."""

    def __init__(self, report: BudgetReport, position: Callable[[], Position], monotonic: Callable[[], float] = monotonic) -> None:
        """Of the ledger that `report` reads and that stands at `position`; `monotonic` gives seconds."""
        self._report = report
        self._position = position
        self._monotonic = monotonic
        self._lock = Lock()
        self._left: dict[bytes, BudgetLeft] = {}
        self._whole_at: Position | None = None

    def current(self) -> tuple[BudgetLeft, ...]:
        """Of up to 200 datasets that a job or query ran over, those of open jobs first.

        Guarantees: what is there is true of the ledger; a dataset for which there was no time yet is missing until a later call.
        """
        with self._lock:
            position = self._position()
            if position != self._whole_at:
                self._whole_at = position if self._renew() else None
            return tuple(self._left.values())

    def _renew(self) -> bool:
        """Look at each dataset again; whether there was time for all."""
        deadline_s = self._monotonic() + SCRAPE_S
        before, self._left = self._left, {}
        is_whole = True
        for dataset in self._report.charged(MAX_DATASETS):
            held = tuple(charge for use in self._report.uses(dataset) for charge in use.held)
            left = before.get(dataset.dataset_id)
            if left is None or left.held != held:
                if self._monotonic() >= deadline_s:
                    is_whole = False
                    continue
                left = _left(dataset, held)
            self._left[dataset.dataset_id] = left
        return is_whole


def _left(dataset: Dataset, held: tuple[Charge, ...]) -> BudgetLeft:
    task = dataset.task
    return BudgetLeft(dataset_id=dataset.dataset_id, held=held, epsilon=max(0.0, task.epsilon - spent(held, task.delta).ad_server))
