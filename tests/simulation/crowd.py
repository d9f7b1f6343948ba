"""Devices on the simulated network.

Each looks for rounds, answers by what it has stored, and sends that until it hears an answer. Some go away
for a while and come late, send what is of no round, or send a share that opens at one helper only.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from sqlalchemy import select

from adserver.ingest.intake import Intake
from adserver.store.rounds import DeviceRoundState, RoundStore
from adserver.store.schema import update_rounds
from adserver.store.tasks import TaskStore
from browser_sim.devices.answers import AnswerStore
from browser_sim.devices.device import Device, DeviceRequest
from maskedlark.canonical import encode
from maskedlark.errors import ReportReason, ReportRejected
from maskedlark.federated.local_training import Examples
from maskedlark.federated.strategy import device_stream
from maskedlark.frozen import frozen
from maskedlark.randomness import seeded
from maskedlark.reports.task import Task
from maskedlark.reports.update_sealing import UpdateSealer
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import decode_report
from maskedlark.runtime.database import reading
from tests.builders import NOW
from tests.simulation.fleet import Fleet
from tests.simulation.journal import Journal
from tests.simulation.kernel import Killed

DEVICES: Final = 6
_EXAMPLES: Final = 5
_LOOKS_S: Final = (0.4, 2.0)
_RESEND_S: Final = (0.5, 3.0)
_AWAY_S: Final = (3.0, 12.0)
_KINDS: Final = ("on time", "away", "foreign", "forged")
_WEIGHTS: Final = (6, 1, 1, 1)


@frozen
class Sent:
    """Whose update a report holds."""

    job_id: bytes
    index: int
    number: int


class Crowd:
    """All devices, and what became of what they sent.

    Attributes:
        sent: Every update that was sealed, by its report's id.
        acknowledged: Reports of which a device was told that they are there.
        refused: How often each reason was heard.
        forged: Reports of which no helper may count anything.
        violations: What must never happen, but did.
    """

    def __init__(self, fleet: Fleet, journal: Journal, *, never_forged: bytes) -> None:
        """Make devices; for the job of `never_forged` they send nothing but what is honest."""
        self.never_forged = never_forged
        self.forged: set[bytes] = set()
        self.sent: dict[bytes, Sent] = {}
        self.acknowledged: set[bytes] = set()
        self.refused: dict[str, int] = {}
        self.violations: list[str] = []
        self._fleet = fleet
        self._journal = journal
        self._acted: set[tuple[bytes, int]] = set()
        self._sealers: dict[bytes, UpdateSealer] = {}
        drawn = seeded(fleet.faults.seed, "what devices hold")(4 * _EXAMPLES * DEVICES)
        self.features = np.frombuffer(drawn, np.uint8).reshape(DEVICES, _EXAMPLES, 4)

    def examples(self, number: int) -> Examples:
        """What a device holds."""
        return Examples(features=self.features[number], labels=np.arange(_EXAMPLES) % 2)

    def look(self, number: int, task: Task, turn: int = 0) -> None:
        """A device looks for a round, answers it once, and looks again later."""
        stream = self._fleet.faults.random(f"device {number} of {task.name} looks, {turn}")
        self._fleet.kernel.at(stream.uniform(*_LOOKS_S), partial(self.look, number, task, turn + 1))
        running = self._fleet.running["ingest"]
        if not running.process.is_alive:
            return
        stored = RoundStore(running.engine).newest_open(task.task_id)
        if stored is None or (stored.round.round_id, number) in self._acted:
            return
        self._acted.add((stored.round.round_id, number))
        encoded = encode(stored.round)
        asked = DeviceRequest.read(len(encoded).to_bytes(4, "little") + encoded + stored.content, task)
        report = decode_report(self._answer(asked, number))
        one = asked.round
        self.sent[report.report_id] = Sent(job_id=one.job.job_id, index=one.round_index, number=number)
        name = f"update {number} of {one.round_index} of {one.job.job_id.hex()[:6]}"
        kind = stream.choices(_KINDS, _WEIGHTS)[0] if self._fleet.faults.is_on else "on time"
        if kind == "foreign":
            self._arrive(name, replace(report, round_id=bytes(32)), ReportReason.UNKNOWN_ROUND)
        if kind == "forged" and one.job.job_id != self.never_forged:
            self._arrive(f"forged {name}", self._forge(report))
        away_s = stream.uniform(*_AWAY_S) if kind == "away" else 0.0
        self._fleet.kernel.at(away_s, partial(self._send, name, report))

    def _answer(self, asked: DeviceRequest, number: int) -> bytes:
        """What a device has stored for a round. It may have been restarted since."""
        seed = self._fleet.faults.seed
        bundle = TaskStore(self._fleet.running["ingest"].engine).get(asked.round.job.task_id)
        if bundle is None:
            raise AssertionError("the task of an open round is known")
        sealer = self._sealers.setdefault(encode(bundle), UpdateSealer(bundle, now=NOW))
        with AnswerStore(self._fleet.folder / "devices.sqlite3") as answers:
            device = Device(
                number=number,
                examples=self.examples(number),
                sealer=sealer,
                answers=answers,
                cap=None,
                training=partial(device_stream, seed),
                sealing=lambda index, device: seeded(
                    seed, f"sealing {asked.round.job.job_id.hex()} {index} {device}"
                ),
            )
            return device.answer(asked, unix_s=NOW).report or b""

    def _forge(self, report: Report) -> Report:
        """Another report with the same shares, of which helper 1 cannot open its own."""
        first, second = report.shares
        broken = replace(second, ciphertext=second.ciphertext[:-1] + bytes([second.ciphertext[-1] ^ 1]))
        forged = replace(report, report_id=b"forged" + report.report_id[6:], shares=(first, broken))
        self.forged.add(forged.report_id)
        return forged

    def _send(self, name: str, report: Report, attempt: int = 0) -> None:
        """Upload, and again until there is an answer."""
        faults, kernel = self._fleet.faults, self._fleet.kernel
        fault = faults.of_message(name)
        stream = faults.random(f"{name} {attempt}")
        is_heard = False
        if fault in ("late", "duplicate"):
            kernel.at(stream.uniform(0.5, 30), partial(self._arrive, name, report))
        if fault not in ("drop_request", "late", "cut"):
            is_heard = self._arrive(name, report, is_heard=fault != "drop_reply") and fault != "drop_reply"
        if not is_heard:
            kernel.at(stream.uniform(*_RESEND_S), partial(self._send, name, report, attempt + 1))

    def _arrive(
        self, name: str, report: Report, expected: ReportReason | None = None, *, is_heard: bool = False
    ) -> bool:
        """An upload reaches the ad server; whether it answers. The answer must be the right one."""
        running = self._fleet.running["ingest"]
        if not running.process.is_alive:
            return False
        self._journal.operations += 1
        state = self._state(running.engine, report.round_id)
        due = expected or (None if state == DeviceRoundState.OPEN else ReportReason.ROUND_OVER)
        intake: Intake = running.part
        try:
            intake.take(report)
        except Killed:
            return False
        except ReportRejected as refusal:
            self.refused[refusal.reason] = self.refused.get(refusal.reason, 0) + 1
            if refusal.reason is not due:
                self.violations.append(f"{name} was refused as {refusal.reason}, due was {due}")
            self._journal.note(f"{name} {refusal.reason}")
            return True
        if due is not None:
            self.violations.append(f"{name} was taken in, due was {due}")
        if is_heard:
            self.acknowledged.add(report.report_id)
        self._journal.note(f"{name} taken")
        return True

    def _state(self, engine: Any, round_id: bytes) -> str | None:
        with reading(engine) as connection:
            wanted = select(update_rounds.c.state).where(update_rounds.c.round_id == round_id)
            return connection.execute(wanted).scalar()
