"""Removes what is of no use any more: orphans, and datasets whose task is over.

    sweeper.sweep(is_stopped)          # now and then
    sweeper.remove_dropped()           # often: an ad server that gives up preparations fills no bucket

An orphan is a file or object that the ledger does not name: a process ended between writing and committing
it. It goes once it is `ORPHAN_S` old, if it was written since this ledger is used in this folder: another
ledger may name what is older. A dataset goes once its task expired `keep_expired_s` ago and no job over it is
open: no job or query can begin over it, answered ones have their answers in the ledger, and an open job may
ask for a round still, so its dataset stays. Its charges and used reports stay for good.
"""

import logging
import os
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Final, Protocol

from helper.datasets.object_segments import ObjectSegments
from helper.datasets.preparation_cache import PreparationCache
from helper.datasets.vault import StoredFile
from helper.ledger.ledger import Ledger
from maskedlark.canonical import decode
from maskedlark.errors import HelperUnavailable
from maskedlark.frozen import frozen
from maskedlark.reports.task import Task
from maskedlark.runtime.keyed_lock import KeyedLock
from maskedlark.runtime.periodic import IsStopped

ORPHAN_S: Final = 86_400.0
"""How old an orphan must be: another process may be about to commit it, and clocks differ."""
EXPIRED_KEPT_S: Final = 7 * 86_400.0
"""How long after its task's end a dataset is kept, unless the operator says otherwise."""
EVERY_S: Final = 3_600.0
DROPPED_EVERY_S: Final = 10.0

_LOG: Final = logging.getLogger(__name__)


class Files(Protocol):
    """A folder of datasets."""

    def files(self) -> Iterator[StoredFile]:
        """Yield the datasets that are files, committed or not."""

    def remove_file(self, dataset_id: bytes) -> None:
        """Remove the file of one."""


class _Fate(Enum):
    KEPT = auto()
    ORPHAN = auto()
    EXPIRED = auto()


@frozen
class Swept:
    """How much a sweep removed."""

    orphans: int
    expired: int


@frozen
class Sweeper:
    """Sweeps one helper's datasets.

    Attributes:
        ledger: What names datasets.
        folders: Files of datasets.
        objects: Datasets in object storage, if there is a store.
        storing: Held, by dataset id, while one is committed.
        prepared: Preparations that wait for their commit, a day at most.
        clock: Unix seconds.
        keep_expired_s: How long after its task's end a dataset is kept.
        seen: A folder where it is kept since when which ledger is used.
        check_ledger: Raises if the ledger was rolled back: it may have forgotten what it named.
    """

    ledger: Ledger
    folders: tuple[Files, ...]
    objects: ObjectSegments | None
    storing: KeyedLock
    prepared: PreparationCache
    clock: Callable[[], float]
    keep_expired_s: float
    seen: Path
    check_ledger: Callable[[], None]

    def sweep(self, is_stopped: IsStopped = lambda: False) -> Swept:
        """Remove orphans and expired datasets, in small steps.

        Raises:
            JobRefused(LEDGER_ROLLED_BACK): nothing is removed.
            HelperUnavailable: the store does not answer; the rest goes the next time.
            OSError, SQLAlchemyError: the same of the disk and the ledger.
        """
        self.check_ledger()
        self.prepared.forget_abandoned(ORPHAN_S)
        if self.objects is not None:
            self.objects.count_once()
        orphans = expired = 0
        since_s = self._first_seen()
        for folder in self.folders:
            for file in folder.files():
                if is_stopped():
                    return Swept(orphans=orphans, expired=expired)
                with self.storing.hold(file.dataset_id):
                    fate = self._fate(file.dataset_id)
                    is_old = file.modified_s >= since_s and self._is_old(file.modified_s)
                    if fate is _Fate.ORPHAN and is_old:
                        folder.remove_file(file.dataset_id)
                        orphans += 1
                    elif fate is _Fate.EXPIRED:
                        folder.remove_file(file.dataset_id)
                        expired += 1
        if self.objects is not None:
            orphans += self.remove_dropped()
            expired += self._expire_objects(self.objects, is_stopped)
            orphans += self._remove_orphans(self.objects, is_stopped)
        if orphans or expired:
            _LOG.info("swept: %d orphans, %d datasets of tasks that are over", orphans, expired)
        return Swept(orphans=orphans, expired=expired)

    def remove_dropped(self) -> int:
        """Remove the objects of preparations that were given up; how many.

        Raises:
            HelperUnavailable: the store does not answer; they go the next time.
        """
        if self.objects is None:
            return 0
        dropped = self.objects.writer.take_dropped()
        try:
            self.objects.delete(dropped)
        except HelperUnavailable:
            self.objects.writer.put_back(dropped)
            raise
        return len(dropped)

    def _expire_objects(self, objects: ObjectSegments, is_stopped: IsStopped) -> int:
        """Delete first the rows, then the objects: a crash between them leaves orphans."""
        expired = 0
        for dataset_id in self.ledger.manifests.dataset_ids():
            if is_stopped():
                break
            if self._fate(dataset_id) is _Fate.EXPIRED:
                manifest = self.ledger.manifests.of(dataset_id)
                if self.ledger.manifests.drop(dataset_id):
                    objects.delete_dataset(dataset_id, manifest)
                    expired += 1
        return expired

    def _remove_orphans(self, objects: ObjectSegments, is_stopped: IsStopped) -> int:
        """Remove old objects in this helper's folder that are in no manifest."""
        removed = 0
        for page in objects.listed():
            if is_stopped():
                break
            old = [one.name for one in page if self._is_old(one.modified_s)]
            held = (
                objects.writer.held
            )  # before the ledger is asked: what is committed meanwhile is in one of both
            named = self.ledger.manifests.named_among(old)
            orphans = [name for name in old if name not in held and name not in named]
            objects.delete(orphans)
            removed += len(orphans)
        return removed

    def _first_seen(self) -> float:
        """Return when this ledger was first seen with this folder."""
        mark = self.seen / f"swept-by-{self.ledger.manifests.ledger_id().hex()[:16]}"
        if not mark.exists():
            mark.touch(mode=0o600)
            os.utime(mark, (self.clock(), self.clock()))
        return mark.stat().st_mtime

    def _fate(self, dataset_id: bytes) -> _Fate:
        stored = self.ledger.dataset_of_any_task(dataset_id)
        if stored is None:
            return _Fate.ORPHAN
        signed = self.ledger.task(stored.task_id)
        if signed is None:
            return _Fate.KEPT
        is_over = self.clock() >= decode(Task, signed.encoded).expires_at + self.keep_expired_s
        return _Fate.EXPIRED if is_over and not self.ledger.has_open_job(dataset_id) else _Fate.KEPT

    def _is_old(self, modified_s: float) -> bool:
        return self.clock() - modified_s >= ORPHAN_S
