"""What devices of jobs without helpers remember: which logs were used, and updates still to be answered.

    store.logs(device, job_id, held)            # the device's logs under LINE's rule, as `OneUseLogs`
    store.keep(device, rest, waiting)           # the state after `take` and the update, in one transaction
    store.waiting(device);  store.forget_update(device, update_id)

The state is durable before an update leaves: a device that dies in between has lost logs, and used none
twice. Logs are numbered as the device holds them, oldest first, over all jobs.
"""

from dataclasses import field
from pathlib import Path
from typing import Final

from browser_sim.devices.device_file import DeviceFile
from maskedlark.federated.single_use_logs import OneUseLogs
from maskedlark.frozen import frozen

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS logs (device INTEGER PRIMARY KEY, used INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    device INTEGER NOT NULL, job_id BLOB NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (device, job_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS local_updates (
    device INTEGER NOT NULL, job_id BLOB NOT NULL, update_id BLOB NOT NULL, position INTEGER NOT NULL,
    body BLOB NOT NULL, PRIMARY KEY (device, update_id)
) WITHOUT ROWID;
"""
_NUMBER_BYTES: Final = 8


@frozen
class Waiting:
    """An update that no answer came for.

    Attributes:
        job_id: Of which job.
        update_id: Its id.
        position: The round it answers, or the returns at its draw.
        body: The bytes that are sent, and sent again.
    """

    job_id: bytes
    update_id: bytes
    position: int
    body: bytes = field(repr=False)


class LocalStore(DeviceFile):
    """The memory of many simulated devices, in one file; see `DeviceFile`."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it; what is kept is durable when `keep` returns."""
        super().__init__(path, _TABLES)

    def logs(self, device: int, job_id: bytes, held: int) -> OneUseLogs:
        """Return a device's unused logs: those it holds less those that an update of any job used.

        `used_events` counts the updates of this job: other jobs have other noise.
        """
        found = self._database.execute("SELECT used FROM logs WHERE device = ?", (device,)).fetchone()
        used = 0 if found is None else int(found[0])
        fresh = tuple(number.to_bytes(_NUMBER_BYTES, "big") for number in range(used, held))
        return OneUseLogs(fresh=fresh, used_events=self.events(device, job_id))

    def events(self, device: int, job_id: bytes) -> int:
        """Count the updates that a device has made for a job."""
        query = "SELECT count FROM events WHERE device = ? AND job_id = ?"
        found = self._database.execute(query, (device, job_id)).fetchone()
        return 0 if found is None else int(found[0])

    def keep(self, device: int, rest: OneUseLogs, held: int, waiting: Waiting) -> None:
        """Store what is left of the logs, and the update that the others are in."""
        with self._database:
            used = held - len(rest.fresh)
            # Logs are used oldest first, so one number says which are.
            self._database.execute("INSERT OR REPLACE INTO logs VALUES (?, ?)", (device, used))
            self._put(device, waiting)

    def put(self, device: int, waiting: Waiting) -> None:
        """Store an update before it is sent, of a job that may use logs again."""
        with self._database:
            self._put(device, waiting)

    def waiting(self, device: int) -> list[Waiting]:
        """Return the updates of a device that have no answer yet."""
        query = "SELECT job_id, update_id, position, body FROM local_updates WHERE device = ?"
        return [
            Waiting(job_id=row[0], update_id=row[1], position=row[2], body=row[3])
            for row in self._database.execute(query, (device,))
        ]

    def forget_update(self, device: int, update_id: bytes) -> None:
        """Forget an update that was answered, whatever the answer was."""
        with self._database:
            self._database.execute(
                "DELETE FROM local_updates WHERE device = ? AND update_id = ?", (device, update_id)
            )

    def _put(self, device: int, waiting: Waiting) -> None:
        self._database.execute(
            "INSERT INTO local_updates VALUES (?, ?, ?, ?, ?)",
            (device, waiting.job_id, waiting.update_id, waiting.position, waiting.body),
        )
        one_more = (
            "INSERT INTO events VALUES (?, ?, 1) ON CONFLICT (device, job_id) DO UPDATE SET count = count + 1"
        )
        self._database.execute(one_more, (device, waiting.job_id))
