"""Two helpers and an ad server of several processes on one database.

Real components, started again whenever they die.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from adserver.collecting.key_refresh import key_refresher
from adserver.ingest.intake import Intake
from adserver.peers.client import HelperClient
from adserver.store.database import create_tables, default_url
from adserver.store.receipts import ReceiptBook
from adserver.store.reports import ReportStore
from adserver.store.rounds import RoundStore
from adserver.store.tasks import TaskStore
from adserver.training.worker import JobWorker
from helper.core import HelperCore
from helper.executors.local import LocalExecutor
from helper.gradient.choose import choose_engine
from helper.ledger.ledger import Ledger, sqlite_url
from helper.releases.release_grid import ReleaseGrid
from helper.serving.service import HelperService
from helper.trust.keys import HelperKeys, _replace
from maskedlark import canonical
from maskedlark.randomness import seeded
from maskedlark.runtime.database import open_database
from maskedlark.runtime.durable_file import write_durably
from protos import helper_pb2_grpc
from tests.simulation.faults import Faults
from tests.simulation.kernel import Kernel, Killed, Process
from tests.simulation.ledger_view import LedgerView
from tests.simulation.network import Host, Network
from tests.simulation.parties import FLOORS, HELPERS, WORKERS, Bundles, bundles, helper_keys
from tests.simulation.stores import Boundary, make_fragile

LEASE_S = 12.0
REFRESH_S = 15.0
LEDGER_FILE = "ledger.sqlite3"
_POLL_S = 2.0
_DEADLINE_S = 4.0
_DOWN_S = (0.2, 6.0)
_NO_WORKERS = 1


@dataclass(slots=True, kw_only=True)
class Running:
    """A process of the ad server and what it holds open."""

    process: Process
    boundary: Boundary
    engine: Engine
    part: Any = None


@dataclass(kw_only=True)
class Fleet:
    """Everything that runs.

    Attributes:
        kernel: Time.
        faults: What goes wrong.
        folder: Where all parties keep their files, a folder each.
        starts: How many processes were started.
        running: By name.
        on_commit: Told of every transaction that a helper has committed.
        make_bundles: Makes the tasks.
    """

    kernel: Kernel
    faults: Faults
    folder: Path
    starts: int = 0
    running: dict[str, Running] = field(default_factory=dict)
    on_commit: Callable[[str], None] = lambda _name: None
    make_bundles: Callable[[Mapping[str, HelperKeys]], Bundles] = bundles

    def __post_init__(self) -> None:
        self.hosts = {name: Host(name=name) for name in HELPERS}
        self.network = Network(self.kernel, self.faults, self.hosts)
        for name in HELPERS:
            helper_keys(self.faults.seed, name).write(self.folder / name)
        self.keys = {name: HelperKeys.read(self.folder / name) for name in HELPERS}
        self.ledgers = {name: LedgerView(self.folder / name / LEDGER_FILE) for name in HELPERS}
        self.skews = dict.fromkeys((*HELPERS, "ingest", "desk", *WORKERS), 0.0)
        self.bundles = self.make_bundles(self.keys)

    def start_all(self) -> None:
        """Start every process, and make the stores."""
        was_on, self.faults.is_on = self.faults.is_on, False
        for name in HELPERS:
            self._start_helper(name)
            self._register(name)
        create_tables(self._start("desk").engine)
        for bundle in self.bundles.all:
            TaskStore(self.running["desk"].engine).add(bundle, created_at=self.kernel.now_s)
        self._start_ingest()
        for name in WORKERS:
            self._start_worker(name)
        self.faults.is_on = was_on

    def stop_all(self) -> None:
        """End every process, and let its threads unwind."""
        for running in self.running.values():
            running.process.on_death = lambda: None
            running.process.kill()
        self.kernel.run(self.kernel.now_s + 1.0)
        for running in self.running.values():
            running.engine.dispose()
        for ledger in self.ledgers.values():
            ledger.close()

    def write_durably(self, path: Path, content: bytes) -> None:
        """The ad server's way to write a file, with a boundary on either side."""
        running = self.running[self.kernel.current_process().name]
        kind = path.stem.partition("-")[0]  # of a checkpoint without its round
        running.boundary.around(f"write {kind}{path.suffix}", write_durably)(path, content)

    def replace_key_file(self, path: Path, content: bytes) -> None:
        """The way in which an operator's command replaces a helper's keys, with a boundary on either side."""
        command = Process(self.kernel, "operator", skew_s=0.0, on_death=lambda: None)
        Boundary(command, self.faults).around(f"write {path.name}", _replace)(path, content)

    @property
    def data_dir(self) -> Path:
        """The ad server's folder."""
        return self.folder / "adserver"

    def clients(self, engine: Engine) -> tuple[HelperClient, HelperClient]:
        """Clients of both helpers, for a process of the ad server."""
        book = ReceiptBook(engine)
        first, second = (HelperClient(name, None, _DEADLINE_S, book) for name in HELPERS)
        return first, second

    def desk(self) -> Running:
        """Where people type commands."""
        return self.running["desk"]

    def _register(self, name: str) -> None:
        core: HelperCore = self.running[name].part
        for bundle in self.bundles.all:
            core.tasks.register(canonical.encode(bundle.task), None)

    def _new_process(self, name: str, restart: Callable[[], object]) -> tuple[Process, Boundary]:
        """A process that is started again some time after it dies."""
        self.starts += 1
        number = self.starts

        def died() -> None:
            down_s = self.faults.random(f"downtime of {name} {number}").uniform(*_DOWN_S)
            self.kernel.at(down_s, partial(self._again, restart))

        process = Process(self.kernel, name, skew_s=self.skews[name], on_death=died)
        return process, Boundary(process, self.faults, partial(self._committed, name))

    def _committed(self, name: str) -> None:
        if name in HELPERS and self.faults.is_on:
            self.on_commit(name)

    def _again(self, restart: Callable[[], object]) -> None:
        try:
            restart()
        except Killed:
            return  # it died while it started: its death has planned the next attempt

    def _start(self, name: str) -> Running:
        """A process of the ad server with its own connection to the database."""
        before = self.running.get(name)
        if before is not None:
            before.engine.dispose()
        restarts: dict[str, Callable[[], object]] = {
            "ingest": self._start_ingest,
            "desk": partial(self._start, "desk"),
        }
        process, boundary = self._new_process(name, restarts.get(name, partial(self._start_worker, name)))
        engine = make_fragile(open_database(default_url(self.data_dir)), boundary)
        self.running[name] = Running(process=process, boundary=boundary, engine=engine)
        return self.running[name]

    def _start_ingest(self) -> None:
        running = self._start("ingest")
        stores = TaskStore(running.engine), ReportStore(running.engine)
        running.part = Intake(*stores, lambda: self.kernel.now_s, RoundStore(running.engine))
        refresher = key_refresher(TaskStore(running.engine), self.clients(running.engine), REFRESH_S)
        self.kernel.spawn(running.process, refresher.start, "key refresh starts")

    def _start_worker(self, name: str) -> None:
        running = self._start(name)
        worker = JobWorker(
            running.engine,
            self.clients(running.engine),
            self.data_dir,
            running.process.clock,
            lease_s=LEASE_S,
            poll_s=_POLL_S,
            monotonic=lambda: self.kernel.now_s,
        )
        running.part = worker
        self.kernel.spawn(running.process, worker.start, f"{name} starts")

    def _start_helper(self, name: str) -> None:
        before = self.running.get(name)
        if before is not None:
            before.engine.dispose()
        process, boundary = self._new_process(name, partial(self._start_helper, name))
        engine = make_fragile(open_database(sqlite_url(self.ledgers[name].path)), boundary)
        self.running[name] = Running(process=process, boundary=boundary, engine=engine)
        core = HelperCore(
            data=self.folder / name,
            keys=HelperKeys.read(self.folder / name),
            floors=FLOORS,
            ledger=Ledger(engine),
            executor=LocalExecutor(_NO_WORKERS),
            clock=process.clock,
            engine_for=choose_engine,
            randomness=seeded(self.faults.seed, f"noise of {name} {self.starts}"),
        )
        vault: Any = core.datasets.vault
        vault.commit = boundary.around("Vault.commit", vault.commit)
        witness: Any = core.witness
        witness._write = boundary.around("Witness.write", witness._write)
        self.running[name].part = core
        host = self.hosts[name]
        helper_pb2_grpc.add_HelperServicer_to_server(
            HelperService(core, ReleaseGrid(now=lambda: 0.0, sleep=lambda _: None)), host
        )
        host.process = process
