"""Where a job's files are: what was submitted, and the latest checkpoint.

    submit(engine, data_dir, plan, model=model, eval_set=None, clock=time.time)
    files = files_of(engine, data_dir, plan.job.job_id)
    files.write_checkpoint(encoded, rounds_done=3)
    files.checkpoint()

Beside SQLite they are files of the data folder, `adserver.store.job_folder`: one machine has both, and a
large checkpoint holds up nobody who writes to the database. In PostgreSQL they are rows,
`adserver.store.job_rows`, so that ad servers on several machines have them.
"""

from functools import partial
from pathlib import Path
from typing import Protocol

from sqlalchemy import Engine

from adserver.records.federated_plan import AnyPlan
from adserver.store.database import Clock
from adserver.store.job_folder import JobFolder, folders_with_files
from adserver.store.job_rows import JobRows, take_in
from adserver.store.jobs import JobStore


class JobFiles(Protocol):
    """The files of one job.

    Attributes:
        path: A folder of this machine for what can be made again at any time: the curves.
    """

    path: Path

    def model(self) -> bytes:
        """The submitted ONNX file; raises JobRefused(WRONG_STATE) if it is not there."""

    def eval_set(self) -> bytes | None:
        """The submitted evaluation set (npz), if there was one."""

    def write_checkpoint(self, encoded: bytes, *, rounds_done: int) -> None:
        """Keep the state after so many rounds, in one step; earlier ones go.

        Guarantees: a worker that was stopped here and goes on when the job is another's changes nothing.
        """

    def checkpoint(self) -> bytes | None:
        """The latest checkpoint, or None before the first round."""


def submit(
    engine: Engine, data_dir: Path, plan: AnyPlan, *, model: bytes, eval_set: bytes | None, clock: Clock
) -> None:
    """Keep what was submitted, and queue its job: a stored job has its files.

    In PostgreSQL both are there, or neither. Beside SQLite, a process that is killed in between leaves a
    folder of no job.
    """
    files = files_of(engine, data_dir, plan.job.job_id)
    store = JobStore(engine, clock)
    if isinstance(files, JobRows):
        store.submit(plan, add_files=partial(files.add_submission, model=model, eval_set=eval_set))
    else:
        files.write_submission(model, eval_set)
        store.submit(plan)


def files_of(engine: Engine, data_dir: Path, job_id: bytes) -> JobFolder | JobRows:
    """The files of a job; what an older version left in the data folder comes into PostgreSQL by this."""
    folder = JobFolder(data_dir, job_id)
    if engine.dialect.name == "sqlite":
        return folder
    rows = JobRows(engine, job_id, folder.path)
    take_in(rows, folder)
    return rows


def take_in_all(engine: Engine, data_dir: Path) -> None:
    """Bring the files of all jobs that an older version left in the data folder into PostgreSQL."""
    if engine.dialect.name != "sqlite":
        for job_id in folders_with_files(data_dir):
            files_of(engine, data_dir, job_id)
