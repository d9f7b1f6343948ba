"""Removes what is of no use any more: orphans, and datasets whose task is over.

    sweeper.sweep(is_stopped)          # now and then
    vault.delete_dropped()             # often: an ad server that gives up preparations fills no disk

An orphan is an object that the ledger does not name: a process ended between writing and committing it. It
goes once it is `ORPHAN_S` old. What another ledger may name is elsewhere (`Vault`).

A dataset goes once its task expired `keep_expired_s` ago and no job over it is open: no job or query can
begin over it, answered ones have their answers in the ledger, and an open job may ask for a round still, so
its dataset stays. That of a federated round goes earlier, with the round's answer (`Ledger.add_query`).
Charges and used reports stay for good.
"""

import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from helper.datasets.preparation_cache import PreparationCache
from helper.datasets.vault import Vault
from helper.ledger.ledger import Ledger
from maskedlark.canonical import decode
from maskedlark.frozen import frozen
from maskedlark.reports.task import Task
from maskedlark.runtime.periodic import IsStopped

ORPHAN_S: Final = 86_400.0
"""How old an orphan must be: another process may be about to commit it, and clocks differ."""
EXPIRED_KEPT_S: Final = 7 * 86_400.0
"""How long after its task's end a dataset is kept, unless the operator says otherwise."""
EVERY_S: Final = 3_600.0
DROPPED_EVERY_S: Final = 10.0

_LOG: Final = logging.getLogger(__name__)


class _Fate(Enum):
    KEPT = auto()
    ORPHAN = auto()
    EXPIRED = auto()


@frozen
class _Swept:
    """How much a sweep removed."""

    orphans: int
    expired: int


@frozen
class Sweeper:
    """Sweeps one helper's datasets.

    Attributes:
        ledger: What names datasets.
        vault: Sealed datasets, in the folder and in a bucket.
        prepared: Preparations that wait for their commit, a day at most.
        clock: Unix seconds.
        keep_expired_s: How long after its task's end a dataset is kept.
        check_ledger: Raises if the ledger was rolled back: it may have forgotten what it named.
    """

    ledger: Ledger
    vault: Vault
    prepared: PreparationCache
    clock: Callable[[], float]
    keep_expired_s: float
    check_ledger: Callable[[], None]

    def sweep(self, is_stopped: IsStopped = lambda: False) -> _Swept:
        """Remove orphans and expired datasets, in small steps.

        Raises:
            JobRefused(LEDGER_ROLLED_BACK): nothing is removed.
            HelperUnavailable: the store does not answer; the rest goes the next time.
            OSError, SQLAlchemyError: the same of the disk and the ledger.
        """
        # First: an older ledger would make orphans of all that it has forgotten.
        self.check_ledger()
        self.prepared.forget_abandoned(ORPHAN_S)
        self.vault.count_once()
        orphans = self.vault.delete_dropped()
        expired = self._expire_objects(is_stopped)
        orphans += self._remove_orphans(is_stopped)
        if orphans or expired:
            _LOG.info("swept: %d orphans, %d datasets of tasks that are over", orphans, expired)
        return _Swept(orphans=orphans, expired=expired)

    def _expire_objects(self, is_stopped: IsStopped) -> int:
        """Delete first the rows, then the objects: a crash between them leaves orphans."""
        expired = 0
        for dataset_id in self.ledger.manifests.dataset_ids():
            if is_stopped():
                break
            if self._fate(dataset_id) is _Fate.EXPIRED:
                manifest = self.ledger.manifests.of(dataset_id)
                # False where a job was opened since, or a round's answer has dropped it already.
                if self.ledger.manifests.drop(dataset_id):
                    self.vault.forget(dataset_id, manifest)
                    expired += 1
        self.vault.delete_dropped()
        return expired

    def _remove_orphans(self, is_stopped: IsStopped) -> int:
        """Remove old objects in this helper's folder that are in no manifest."""
        removed = 0
        for page in self.vault.list_objects():
            if is_stopped():
                break
            old = [one.name for one in page if self._is_old(one.modified_s)]
            # before the ledger is read: what is committed meanwhile is in one of both
            held = self.vault.held
            named = self.ledger.manifests.select_named(old)
            orphans = [name for name in old if name not in held and name not in named]
            self.vault.delete(orphans)
            removed += len(orphans)
        return removed

    def _fate(self, dataset_id: bytes) -> _Fate:
        stored = self.ledger.dataset_of_any_task(dataset_id)
        if stored is None:
            return _Fate.ORPHAN
        signed = self.ledger.task(stored.task_id)
        if signed is None:  # the end of its task is not known
            return _Fate.KEPT
        is_over = self.clock() >= decode(Task, signed.encoded).expires_at + self.keep_expired_s
        return _Fate.EXPIRED if is_over and not self.ledger.has_open_job(dataset_id) else _Fate.KEPT

    def _is_old(self, modified_s: float) -> bool:
        return self.clock() - modified_s >= ORPHAN_S
