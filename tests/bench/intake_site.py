"""PostgreSQL with a task, intake processes over it, and senders: for benches of the intake."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import psutil
from sqlalchemy import URL, Engine, text

from adserver.store.database import create_tables
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.task import REPORT_ID_BYTES, Task
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.rpc.wire import report_to_message
from maskedlark.runtime.database import open_database
from maskedlark.runtime.periodic import watching
from protos import report_pb2
from tests.builders import World, world
from tests.postgres import running_postgres

BATCH: Final = 200
_MARK: Final = b"\xa5" * (REPORT_ID_BYTES - 4)
_LOOK_EVERY_S: Final = 0.05
_START_S: Final = 120.0
_BUSY: Final = text(
    "SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'), count(*) FROM pg_stat_activity"
    " WHERE state <> 'idle' AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


def drawn_shares(task: Task) -> tuple[SealedShare, SealedShare]:
    """Random bytes, as long as sealed shares of the task."""
    first, second = (
        os.urandom(HpkeSuite.X25519_AES128GCM.overhead + task.plaintext_length(role)) for role in (0, 1)
    )
    return SealedShare(key_id=1, ciphertext=first), SealedShare(key_id=2, ciphertext=second)


class Batches:
    """Encoded batches of reports that were never sent; all but the ids is the same, so they cost little."""

    def __init__(self, task: Task) -> None:
        bucket = task.time_bucket(time.time())
        made = (
            Report(
                task_id=task.task_id, report_id=_MARK + number.to_bytes(4), time_bucket=bucket,
                shares=drawn_shares(task),
            )
            for number in range(BATCH)
        )  # fmt: skip
        body = report_pb2.ReportBatch(reports=map(report_to_message, made)).SerializeToString()
        places = [body.index(_MARK + number.to_bytes(4)) for number in range(BATCH)]
        self._body = np.frombuffer(body, np.uint8)
        self._places = np.array(places)[:, None] + np.arange(REPORT_ID_BYTES)

    def next(self) -> bytes:
        """A batch under fresh ids."""
        body = self._body.copy()
        body[self._places] = np.frombuffer(os.urandom(self._places.size), np.uint8).reshape(
            self._places.shape
        )
        return body.tobytes()


@dataclass(kw_only=True)
class Site:
    """A PostgreSQL server with a task, and intakes over it."""

    engine: Engine
    ours: World
    postmaster: psutil.Process
    doors: list[str] = field(default_factory=list)
    intakes: list[psutil.Process] = field(default_factory=list)
    looked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def task(self) -> Task:
        """The task whose reports come."""
        return self.ours.task

    def start(self, stack: ExitStack, *options: str) -> None:
        """One intake more, with further options, which ends when the stack unwinds.

        Raises:
            SystemExit: it does not start.
        """
        folder = stack.enter_context(TemporaryDirectory(prefix="maskedlark-load-"))
        process, door = _started(stack, self.engine.url, Path(folder) / "addresses", *options)
        self.intakes.append(process)
        self.doors.append(door)

    def postgresql_s(self) -> float:
        """Processor seconds of its processes so far."""
        processes = [self.postmaster, *self.postmaster.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in processes)

    def intakes_s(self) -> float:
        """The same of the intakes."""
        return sum(sum(one.cpu_times()[:2]) for one in self.intakes)

    def stored(self) -> int:
        """How many reports the database counts."""
        return ReportStore(self.engine).counts(self.task.task_id).waiting

    def send(self, door: str, until_s: float) -> int:
        """Send batches to one intake, one after the other; how many reports were accepted."""
        host, port = door.rsplit(":", 1)
        batches, accepted = Batches(self.task), 0
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        while time.monotonic() < until_s:
            connection.request("POST", "/v1/reports/batch", batches.next())
            accepted += json.loads(connection.getresponse().read())["accepted"]
        connection.close()
        return accepted

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look again and again, while the block runs, at how many transactions run and wait for a lock."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:

            def look() -> bool:
                waiting, busy = connection.execute(_BUSY).one()
                self.looked.append((int(waiting), int(busy)))
                return False

            with watching(look, name="locks", every_s=_LOOK_EVERY_S):
                yield


@contextmanager
def site(intakes: int) -> Iterator[Site]:
    """PostgreSQL, and so many intakes."""
    with ExitStack() as stack:
        made = site_without_intakes(stack)
        for _ in range(intakes):
            made.start(stack)
        yield made


def site_without_intakes(stack: ExitStack) -> Site:
    """PostgreSQL with a task, ended when the stack unwinds."""
    now = int(time.time())
    ours = world(num_features=30, starts_at=now - 86_400, expires_at=now + 86_400)
    engine = open_database(stack.enter_context(running_postgres()).new_database())
    stack.callback(engine.dispose)
    create_tables(engine)
    TaskStore(engine).add(ours.bundle, created_at=now)
    return Site(engine=engine, ours=ours, postmaster=_postmaster(str(engine.url.query["host"])))


def _started(stack: ExitStack, database: URL, addresses: Path, *options: str) -> tuple[psutil.Process, str]:
    """An intake process, ended when the stack unwinds, and where it answers."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("adserver"), "intake", "--insecure",
        "--database", database.render_as_string(hide_password=False),
        "--addresses-file", addresses, "--log-format", "json", *options,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end() -> None:
        process.terminate()
        process.wait(60)

    stack.callback(end)
    until = time.monotonic() + _START_S
    while not addresses.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit("an intake did not start")
        time.sleep(0.05)
    return psutil.Process(process.pid), json.loads(addresses.read_text())["http"]


def _postmaster(folder: str) -> psutil.Process:
    """The server of a data folder."""
    number = (Path(folder) / "postmaster.pid").read_text().split("\n", 1)[0]
    return psutil.Process(int(number))
