"""A job's files with a database on SQLite: what was submitted, the latest checkpoint, and the curves.

One folder a job, `DATA/jobs/<job id>`. With PostgreSQL it holds the curves only, and
`adserver.store.job_rows` the rest.

What is in SQLite is small and changes; what is here is large, and written whole.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from maskedlark.errors import JobReason, JobRefused
from maskedlark.runtime.durable_file import remove_unfinished, write_durably

_JOBS: Final = "jobs"
_MODEL: Final = "model.onnx"
_EVAL_SET: Final = "eval.npz"
_CHECKPOINT: Final = "checkpoint-{:08d}.npz"
_ANY_CHECKPOINT: Final = "checkpoint-*"
_CHECKPOINT_NAME: Final = re.compile(r"checkpoint-\d{8}\.npz", re.ASCII)


class JobFolder:
    """The files of one job."""

    def __init__(self, data_dir: Path, job_id: bytes) -> None:
        self.path = data_dir / _JOBS / job_id.hex()

    def write_submission(self, model: bytes, eval_set: bytes | None) -> None:
        """Keep what was submitted. Done before the job is stored, so that a stored job has its files."""
        write_durably(self.path / _MODEL, model)
        if eval_set is not None:
            write_durably(self.path / _EVAL_SET, eval_set)

    def model(self) -> bytes:
        """Return the submitted ONNX file.

        Raises:
            JobRefused(WRONG_STATE): the folder does not hold it.
        """
        found = _read(self.path / _MODEL)
        if found is None:
            raise JobRefused(
                JobReason.WRONG_STATE, f"{self.path} contains no files of the job: they were deleted"
            )
        return found

    def eval_set(self) -> bytes | None:
        """Return the submitted evaluation set (npz), if there was one."""
        return _read(self.path / _EVAL_SET)

    def write_checkpoint(self, encoded: bytes, *, rounds_done: int) -> None:
        """Keep the state after so many rounds, in one step; earlier ones go.

        Guarantees: a worker that was stopped here and goes on when the job is another's changes nothing. The
            state after a round has the same bytes whichever worker reaches it. It has its own file name, and
            the latest one counts.
        """
        mine = self.path / _CHECKPOINT.format(rounds_done)
        write_durably(mine, encoded)
        for other in self._checkpoints():
            if other.name < mine.name:
                other.unlink(missing_ok=True)

    def checkpoint(self) -> bytes | None:
        """Return the latest checkpoint, or None before the first round."""
        while found := self._checkpoints():
            stored = _read(max(found))
            if stored is not None:  # else a later one was written, and this one removed, since it was found
                return stored
        return None

    def _checkpoints(self) -> list[Path]:
        return [path for path in self.path.glob(_ANY_CHECKPOINT) if _CHECKPOINT_NAME.fullmatch(path.name)]


def folders_with_files(data_dir: Path) -> Iterator[bytes]:
    """Yield the ids of the jobs that have a submitted model, or a checkpoint, in a data folder."""
    found = (
        path.parent for name in (_MODEL, _ANY_CHECKPOINT) for path in (data_dir / _JOBS).glob(f"*/{name}")
    )
    for folder in sorted(set(found)):
        with suppress(ValueError):  # a folder that is none of ours
            yield bytes.fromhex(folder.name)


def remove_submission(data_dir: Path, job_id: bytes, *, before_s: float) -> bool:
    """Remove the files of a submission, if the folder holds nothing else and they are old; whether it did.

    Args:
        data_dir: The ad server's.
        job_id: Of a job that is not stored.
        before_s: Unix seconds; a file that was written later may belong to a command that still runs.
    """
    folder = data_dir / _JOBS / job_id.hex()
    found = sorted(
        folder.iterdir(), key=lambda path: path.name == _MODEL
    )  # last: it is how folders are found
    if any(path.name not in (_MODEL, _EVAL_SET) or path.stat().st_mtime >= before_s for path in found):
        return False
    for path in found:
        path.unlink()
    folder.rmdir()
    return True


def remove_unfinished_of_jobs(data_dir: Path) -> None:
    """Remove the temporary files of writers that were killed.

    At the start, since the folder of a job that is over is never written again.
    """
    for folder in (data_dir / _JOBS).glob("*"):
        remove_unfinished(folder)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
