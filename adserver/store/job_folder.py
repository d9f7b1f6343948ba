"""A job's checkpoints with a database on SQLite: one folder a job, `DATA/jobs/<job id>`.

The folder also holds the job's curves, with every database.
"""

import re
from pathlib import Path
from typing import Final

from maskedlark.runtime.durable_file import remove_unfinished, write_durably

_JOBS: Final = "jobs"
_CHECKPOINT: Final = "checkpoint-{:08d}.npz"
_CHECKPOINT_NAME: Final = re.compile(r"checkpoint-\d{8}\.npz", re.ASCII)


class JobFolder:
    """The checkpoints of one job: each has its own file name, and the latest one counts."""

    def __init__(self, data_dir: Path, job_id: bytes) -> None:
        self.path = data_dir / _JOBS / job_id.hex()

    def write_checkpoint(self, encoded: bytes, *, rounds_done: int) -> None:
        """Keep the state after so many rounds; earlier ones go."""
        mine = self.path / _CHECKPOINT.format(rounds_done)
        write_durably(mine, encoded)
        for other in self._all():
            # A worker that stood still here may come late: a later checkpoint of its successor stays.
            if other.name < mine.name:
                other.unlink(missing_ok=True)

    def checkpoint(self) -> bytes | None:
        """Return the latest checkpoint, or None before the first round."""
        while found := self._all():
            try:
                return max(found).read_bytes()
            except FileNotFoundError:
                continue  # a later one was written, and this one removed, since it was found
        return None

    def _all(self) -> list[Path]:
        return [path for path in self.path.glob("checkpoint-*") if _CHECKPOINT_NAME.fullmatch(path.name)]

    @staticmethod
    def remove_unfinished(data_dir: Path) -> None:
        """Remove the temporary files that killed writers left in the folders of all jobs.

        At the start, since the folder of a job that is over is never written again.
        """
        for folder in (data_dir / _JOBS).glob("*"):
            remove_unfinished(folder)
