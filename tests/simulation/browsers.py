"""The browsers: each fetches a task, seals what it knows, and some time later uploads it until it is told
that the report is there.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from adserver.ingest.intake import Intake
from adserver.store.tasks import TaskStore
from maskedlark.canonical import encode
from maskedlark.errors import ReportRejected
from maskedlark.randomness import seeded
from maskedlark.reports.report import Example
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.reports.upload import Report, Sealer
from maskedlark.rpc.wire import decode_report, encode_report
from tests.builders import NOW
from tests.simulation.fleet import Fleet
from tests.simulation.journal import Journal
from tests.simulation.kernel import Killed
from tests.simulation.parties import people

_RESEND_S: Final = (1.0, 4.0)
_ATTEMPTS: Final = 40
_CACHED_S: Final = 3.0
_KEPT_S: Final = (0.0, 30.0)
"""How long a browser sits on what it has sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cached:
    bundle: TaskBundle
    fetched_s: float


@dataclass(kw_only=True)
class Browsers:
    """What became of every report.

    Attributes:
        fleet: Where they send to.
        journal: Where it is written down.
        examples: What each report holds, by its id.
        acknowledged: Reports of which a browser was told that they are there.
    """

    fleet: Fleet
    journal: Journal
    examples: dict[bytes, Example] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._sealers: dict[bytes, Sealer] = {}
        self._cached: dict[str, _Cached] = {}
        self._people: dict[str, list[Example]] = {}

    def visit(self, number: int, task: Task, count: int) -> None:
        """Browser `number`, one of `count`, comes by.

        It fetches the task, and is asked again later if nobody serves it.

        What it knows depends on its number alone.
        """
        bundle = self._fetched(task)
        if bundle is None:
            self.fleet.kernel.at(_RESEND_S[1], partial(self.visit, number, task, count))
            return
        if task.name not in self._people:
            self._people[task.name] = people(task, count, self.fleet.faults.seed)
        example = self._people[task.name][number]
        randomness = seeded(self.fleet.faults.seed, f"report {number} of {task.name}")
        report = self._sealer(bundle).report(example, unix_s=NOW, randomness=randomness)
        self.examples[report.report_id] = example
        name = f"upload {task.name} {number}"
        kept_s = self.fleet.faults.random(f"{name} is kept").uniform(*_KEPT_S)
        self.fleet.kernel.at(kept_s, partial(self._send, name, report, encode_report(report)))

    def _fetched(self, task: Task) -> TaskBundle | None:
        """The task as it is served, or was a moment ago: there is a cache between browsers and server."""
        running, now_s = self.fleet.running["ingest"], self.fleet.kernel.now_s
        cached = self._cached.get(task.name)
        if cached is None or now_s > cached.fetched_s + _CACHED_S:
            bundle = TaskStore(running.engine).get(task.task_id) if running.process.is_alive else None
            if bundle is None:
                return None
            cached = self._cached[task.name] = _Cached(bundle=bundle, fetched_s=now_s)
        return cached.bundle

    def _sealer(self, bundle: TaskBundle) -> Sealer:
        """A sealer for the bundle's keys.

        Browsers that fetched the same share one, for checking signatures takes time.
        """
        encoded = encode(bundle)
        if encoded not in self._sealers:
            self._sealers[encoded] = Sealer(bundle, now=NOW)
        return self._sealers[encoded]

    def _send(self, name: str, report: Report, encoded: bytes, attempt: int = 0) -> None:
        """Upload, and again until it is acknowledged."""
        if attempt == _ATTEMPTS:
            return
        faults, kernel = self.fleet.faults, self.fleet.kernel
        fault = faults.of_message(name)
        stream = faults.random(f"{name} {attempt}")
        is_heard = False
        if fault in ("late", "duplicate"):
            kernel.at(stream.uniform(0.5, 30), partial(self._arrive, name, encoded))
        if fault not in ("drop_request", "late", "cut"):
            is_heard = self._arrive(name, encoded) and fault != "drop_reply"
        if is_heard:
            self.acknowledged.add(report.report_id)
        else:
            kernel.at(stream.uniform(*_RESEND_S), partial(self._send, name, report, encoded, attempt + 1))

    def _arrive(self, name: str, encoded: bytes) -> bool:
        """An upload reaches the ad server; whether it is acknowledged."""
        running = self.fleet.running["ingest"]
        if not running.process.is_alive:
            return False
        self.journal.operations += 1
        intake: Intake = running.part
        try:
            is_new = intake.take(decode_report(encoded))
        except Killed:
            return False
        except ReportRejected as rejection:  # once the server takes the task to be over
            self.journal.note(f"{name} {rejection.reason}")
            return False
        self.journal.note(f"{name} {'accepted' if is_new else 'duplicate'}")
        return True
