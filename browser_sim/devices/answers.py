"""What a device has answered: one sealed report for each (task, job, round), stored before it is sent.

    stored = answers.put(device, one, report)     # the first one stays, whatever is put later
    answers.mark(device, one, Outcome.ANSWERED)

Only the stored bytes are ever sent: a second coin, or a second report of one round, would void what is
claimed of sampling. A round in which a device stays silent is stored too.
"""

from dataclasses import field
from enum import StrEnum, unique
from pathlib import Path

from browser_sim.devices.device_file import DeviceFile
from maskedlark.frozen import frozen
from maskedlark.releases.update import UpdateRound

_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    device INTEGER NOT NULL, task_id BLOB NOT NULL, job_id BLOB NOT NULL, round_index INTEGER NOT NULL,
    round_id BLOB NOT NULL, report BLOB, outcome TEXT NOT NULL,
    PRIMARY KEY (device, task_id, job_id, round_index)
) WITHOUT ROWID
"""


@unique
class Outcome(StrEnum):
    """What became of an answer."""

    STORED = "stored"
    """It was not sent yet, or no answer came back."""
    ANSWERED = "answered"
    """The ad server has it."""
    LATE = "late"
    """The round was over when it came."""
    REFUSED = "refused"
    """The ad server refused it for another reason."""


@frozen
class DeviceAnswer:
    """A device's answer to a round.

    Attributes:
        round_id: Which content of the round it answers.
        report: The sealed bytes, or None for a device that stays silent.
        outcome: What became of it.
    """

    round_id: bytes
    report: bytes | None = field(repr=False)
    outcome: Outcome


class AnswerStore(DeviceFile):
    """The answers of many simulated devices, in one file; see `DeviceFile`."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it; what is put is durable when `put` returns."""
        super().__init__(path, _TABLE)

    def get(self, device: int, one: UpdateRound) -> DeviceAnswer | None:
        """Return a device's answer to a round of a job, whatever the round's content was then."""
        found = self._database.execute(
            "SELECT round_id, report, outcome FROM answers "
            "WHERE device = ? AND task_id = ? AND job_id = ? AND round_index = ?",
            (device, one.job.task_id, one.job.job_id, one.round_index),
        ).fetchone()
        return found and DeviceAnswer(round_id=found[0], report=found[1], outcome=Outcome(found[2]))

    def put(self, device: int, one: UpdateRound, report: bytes | None) -> DeviceAnswer:
        """Store an answer, unless there is one; what is stored."""
        key = (device, one.job.task_id, one.job.job_id, one.round_index)
        with self._database:
            self._database.execute(
                # IGNORE, and then read: of two answers of one round the first stays, whoever wrote it.
                "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*key, one.round_id, report, Outcome.STORED),
            )
        stored = self.get(device, one)
        if stored is None:
            raise AssertionError("what was put is there")
        return stored

    def mark(self, device: int, one: UpdateRound, outcome: Outcome) -> None:
        """Note what became of an answer; its bytes are of no more use once it is known."""
        with self._database:
            self._database.execute(
                "UPDATE answers SET outcome = ?, report = NULL "
                "WHERE device = ? AND task_id = ? AND job_id = ? AND round_index = ?",
                (outcome, device, one.job.task_id, one.job.job_id, one.round_index),
            )

    def count_answered(self, device: int) -> int:
        """Count the rounds that a device has answered, drawn or not, sent or not: a cap limits them.

        An ad server that never acknowledges cannot have more of a device than one that does.
        """
        query = "SELECT count(*) FROM answers WHERE device = ?"
        return int(self._database.execute(query, (device,)).fetchone()[0])
