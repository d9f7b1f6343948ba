"""What machines and those who run them do to the fleet.

Kills, clocks that are wrong, pauses, new keys, and old backups brought back.
"""

import shutil
from dataclasses import dataclass, field
from enum import StrEnum, unique
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, select

from adserver.collecting.report_expiry import GRACE_S, SETTLED_S, expire_reports
from adserver.store.datasets import DatasetStore
from adserver.store.receipts import ReceiptBook
from adserver.store.reports import Forgotten, ReportStore
from adserver.store.schema import report_states, reports
from adserver.store.tasks import TaskStore
from helper.core import HelperCore
from helper.ledger.witness import FILE_NAME as WITNESS_FILE
from helper.trust.keys import rotate
from maskedlark.reports.task import Task
from maskedlark.rpc.receipts import Receipt
from maskedlark.runtime.database import reading
from tests.simulation.fleet import LEDGER_FILE, Fleet
from tests.simulation.journal import Journal
from tests.simulation.kernel import Killed
from tests.simulation.ledger_view import LedgerView
from tests.simulation.parties import SUITE

_BACKUPS: Final = "backups"


@unique
class Restored(StrEnum):
    """What is brought back."""

    LEDGER = "ledger"
    """Its file alone: the helper's own witness, beside it, knows better."""
    FOLDER = "folder"
    """The whole data folder: only the ad server's receipts know better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Where a report was that is deleted: its dataset's handle, empty if it had none, and its sequence."""

    handle: bytes
    sequence: int


class _Archived(ReportStore):
    """A store that notes which reports it is about to delete."""

    def __init__(self, engine: Engine, gone: dict[bytes, Gone]) -> None:
        super().__init__(engine)
        self._reading, self._gone = engine, gone

    def forget(self, task_id: bytes, handle: bytes, *, after: int, limit: int) -> Forgotten:
        c = report_states.c
        asked = select(reports.c.report_id, c.sequence).where(
            c.task_id == task_id, c.handle == handle, c.sequence == reports.c.sequence
        )
        with reading(self._reading) as connection:
            for report_id, sequence in connection.execute(asked):
                self._gone[bytes(report_id)] = Gone(handle=handle, sequence=sequence)
        return super().forget(task_id, handle, after=after, limit=limit)


@dataclass(kw_only=True)
class Operators:
    """Those who run the machines.

    Attributes:
        fleet: Theirs.
        journal: What they do is written down.
        restored: The helpers whose past was brought back.
        forgotten: For each of them, the reports of every dataset that it had committed before.
        gone: Reports that the ad server deletes because their task is over: their datasets and sequences.
    """

    fleet: Fleet
    journal: Journal
    restored: set[str] = field(default_factory=set)
    forgotten: dict[str, dict[bytes, list[bytes]]] = field(default_factory=dict)
    gone: "dict[bytes, Gone]" = field(default_factory=dict)

    def kill(self, who: str) -> None:
        """End a process."""
        self.fleet.running[who].process.kill()

    def skew(self, who: str, skew_s: float) -> None:
        """A machine's clock is so much ahead from now on."""
        self.fleet.skews[who] = self.fleet.running[who].process.skew_s = skew_s

    def pause(self, who: str, length_s: float) -> None:
        """A process stands still."""
        self.fleet.running[who].process.paused_until_s = self.fleet.kernel.now_s + length_s

    def rotate(self, who: str, *, active_in_s: int, overlap_s: int) -> None:
        """Give a helper a new HPKE key. The command can die before or after it has replaced the file."""
        now = self.fleet.kernel.now_s + self.fleet.skews[who]
        try:
            rotate(
                self.fleet.folder / who, now=now, suite=SUITE, active_in_s=active_in_s, overlap_s=overlap_s
            )
        except Killed:
            self.journal.note(f"the rotation of {who} died")

    def expire(self, task: Task) -> None:
        """The clock of the server that takes reports in runs far ahead: it takes a task to be over.

        It refuses the task's reports, and forgets those that are there once every intake refuses them.
        """
        for later_s in (0.0, SETTLED_S):
            sweep = partial(self._sweep, task.expires_at + GRACE_S + later_s)
            self.fleet.kernel.at(later_s, sweep)

    def _sweep(self, now_s: float) -> None:
        running = self.fleet.running["ingest"]
        if not running.process.is_alive:
            return
        tasks, store = TaskStore(running.engine), _Archived(running.engine, self.gone)
        datasets = DatasetStore(running.engine)
        self.fleet.kernel.spawn(
            running.process,
            lambda: self.journal.note(f"expired {expire_reports(tasks, store, datasets, now_s)}"),
            "expiry",
        )

    def back_up(self, who: str) -> None:
        """Copy a helper's data folder."""
        to = self.fleet.folder / _BACKUPS / who
        shutil.copytree(
            self.fleet.folder / who,
            to,
            ignore=shutil.ignore_patterns(f"{LEDGER_FILE}*", "*.unfinished", "*.lock"),
        )
        self.fleet.ledgers[who].copy(to / LEDGER_FILE)

    def restore_once(self, who: str, what: Restored) -> None:
        """Bring a backup back, if that was not done yet, the ledger has moved on since, and a witness of it
        remains.
        """
        backup = self.fleet.folder / _BACKUPS / who
        if who in self.restored:
            return
        if not backup.exists() or not self._is_noticeable(who, what, backup):
            self.journal.note(f"nothing of {who} would be lost")
            return
        self.forgotten[who] = self.committed_reports(who)
        self.fleet.running[who].process.kill()
        self.fleet.running[who].engine.dispose()
        self.fleet.ledgers[who].close()
        folder = self.fleet.folder / who
        if what is Restored.FOLDER:
            shutil.rmtree(folder)
            shutil.copytree(backup, folder)
        else:
            for old in folder.glob(f"{LEDGER_FILE}*"):
                old.unlink()
            shutil.copy(backup / LEDGER_FILE, folder / LEDGER_FILE)
        self.restored.add(who)
        self.journal.note(f"the {what} of {who} was brought back")

    def committed_reports(self, who: str) -> dict[bytes, list[bytes]]:
        """The reports of every dataset that a helper has committed, and of those it had before its past was
        brought back.
        """
        core: HelperCore = self.fleet.running[who].part
        found = dict(self.forgotten.get(who, {}))
        for dataset_id in self.fleet.ledgers[who].dataset_ids():
            if dataset_id not in found:
                found[dataset_id] = (
                    core.datasets.vault.read(dataset_id).report_ids.view("V16").ravel().tolist()
                )
        return found

    def _is_noticeable(self, who: str, what: Restored, backup: Path) -> bool:
        """Whether a witness that stays behind has seen the ledger at a later place than the backup is at."""
        view = LedgerView(backup / LEDGER_FILE)
        copied = view.sequence()
        view.close()
        if what is Restored.LEDGER:
            return _sequence(self.fleet.folder / who / WITNESS_FILE) > copied
        kept: Receipt | None = ReceiptBook(self.fleet.desk().engine).newest(who)
        return kept is not None and kept.sequence > copied


def _sequence(witness: Path) -> int:
    """How often the ledger had moved on when a witness saw it."""
    receipt = Receipt.decode(witness.read_bytes()) if witness.exists() else None
    return receipt.sequence if receipt is not None else -1
