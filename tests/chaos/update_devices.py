"""Devices of federated jobs as `browser-sim devices` processes, which are killed and started again."""

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import Final

from browser_sim.devices.answers import Outcome
from browser_sim.devices.device_data import Holdings, table_by_user
from browser_sim.draws import Draws
from browser_sim.sources.table import TableSettings
from docs.tutorial.fleet import Fleet
from maskedlark.encoding.column_kinds import Binning
from maskedlark.randomness import seeded
from maskedlark.reports.task import REPORT_ID_BYTES
from maskedlark.reports.task_kinds import LabelKind
from tests.chaos.watch import running

DEVICES: Final = 40
LEAST: Final = 20
"""So few that a round does not wait for a device that sends in the next one, but with a probability below
1e-6: of 40 devices, 37 send in time.
"""
FEATURES: Final = 4
CLASSES: Final = 2
SEED: Final = 5
_CHURN: Final = ("--late", "0.04", "--drop-out", "0.04", "--twice", "0.2")
_ROWS_EACH: Final = 5
_LOOK_EVERY_S: Final = 0.1


def write_table(path: Path) -> None:
    """What all people hold: `_ROWS_EACH` rows each."""
    cells = seeded(SEED, "cells of devices")(FEATURES * _ROWS_EACH * DEVICES)
    names = ",".join(f"x{number}" for number in range(FEATURES))
    lines = [f"user,{names},label"]
    for row in range(_ROWS_EACH * DEVICES):
        mine = cells[FEATURES * row : FEATURES * (row + 1)]
        lines.append(f"{row // _ROWS_EACH},{','.join(map(str, mine))},{int(sum(mine) > 128 * FEATURES)}")
    path.write_text("\n".join(lines) + "\n")


def holdings(path: Path) -> Holdings:
    """The same, as `browser-sim devices` reads it."""
    table = TableSettings(
        path=path,
        label="label",
        label_kind=LabelKind.CLASSES,
        ignore=("user",),
        binning=Binning.RANGE,
        bins=256,
    )
    return table_by_user(table, "user", least=1)


def report_id(round_index: int, device: int) -> bytes:
    """The id of a device's report of a round: the first bytes that it draws to seal it."""
    return Draws(seed=SEED).stream(f"sealing {round_index} {device}")(REPORT_ID_BYTES)


class DeviceProcess:
    """The devices of one task, in a process that is started again whenever it ends.

    Attributes:
        gave_up: How often it ended by itself.
    """

    def __init__(self, fleet: Fleet, task: str, table: Path) -> None:
        self.gave_up = 0
        self._fleet = fleet
        self._store = table.with_name(f"answers-{task[:12]}.sqlite3")
        self._options = [
            "devices", "--site", f"http://{fleet.http}", "--task", task, "--insecure",
            "--store", str(self._store), "--holding", "csv", "--csv", str(table), "--label", "label",
            "--user", "user", "--seed", str(SEED), "--idle", "3600", *_CHURN,
        ]  # fmt: skip
        self._stop = Event()
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run while the block does; then the process is killed."""
        try:
            with running(self._run, "devices", self._stop):
                yield
        finally:
            self.kill()

    def kill(self) -> bool:
        """Kill the process (SIGKILL) before or while it answers; whether there was one."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return False
            is_up = process.poll() is None
            process.kill()
            process.wait()
        return is_up

    def acknowledged(self) -> list[tuple[int, int]]:
        """Round and device of each answer that a device knows to be acknowledged."""
        query = "SELECT round_index, device FROM answers WHERE outcome = ?"
        with closing(sqlite3.connect(f"file:{self._store}?mode=ro", uri=True, timeout=30)) as connection:
            return connection.execute(query, (Outcome.ANSWERED.value,)).fetchall()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            with self._lock:
                if self._process is not None:
                    if self._process.poll() is None:
                        continue
                    self.gave_up += 1
                self._process = self._fleet.start_command("browser-sim", *self._options)
