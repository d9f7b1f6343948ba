"""Where a job's files are: what was submitted, and the latest checkpoint.

    submit(engine, data_dir, plan, model=model, eval_set=None, clock=time.time)
    files = files_of(engine, data_dir, plan.job.job_id)
    files.write_checkpoint(encoded, rounds_done=3)
    files.checkpoint()

With SQLite they are files of the data folder, `adserver.store.job_folder`: one machine has both, and a large
checkpoint holds up no write to the database. In PostgreSQL they are rows, `adserver.store.job_rows`, so that
ad servers on several machines have them.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from sqlalchemy import Engine, select

from adserver.records.plans import AnyPlan
from adserver.store.database import Clock
from adserver.store.job_folder import JobFolder, folders_with_files, remove_submission
from adserver.store.job_rows import JobRows
from adserver.store.jobs import JobStore
from adserver.store.schema import jobs
from adserver.store.version import FILE_NAME
from maskedlark.runtime.database import reading

_LOG: Final = logging.getLogger(__name__)
_JOB_ID_BYTES: Final = 16
_UNNAMED_S: Final = 86_400.0
"""How old the files of a job that is not stored are at least when they are removed."""


class JobFiles(Protocol):
    """The files of one job.

    Attributes:
        path: A folder of this machine for what can be made again at any time: the curves.
    """

    path: Path

    def model(self) -> bytes:
        """Return the submitted ONNX file; raise JobRefused(WRONG_STATE) if it is missing."""

    def eval_set(self) -> bytes | None:
        """Return the submitted evaluation set (npz), if there was one."""

    def write_checkpoint(self, encoded: bytes, *, rounds_done: int) -> None:
        """Keep the state after so many rounds, in one step; earlier ones go.

        Guarantees: a worker that was stopped here and goes on when the job is another's changes nothing.
        """

    def checkpoint(self) -> bytes | None:
        """Return the latest checkpoint, or None before the first round."""


def submit(
    engine: Engine,
    data_dir: Path,
    plan: AnyPlan,
    *,
    model: bytes,
    eval_set: bytes | None,
    clock: Clock,
    name: str = "",
    note: str = "",
) -> None:
    """Keep what was submitted, and queue its job: a stored job has its files.

    In PostgreSQL both exist, or neither. With SQLite, a process that is killed in between leaves a
    folder of no job, which `remove_unnamed` removes.
    """
    files = files_of(engine, data_dir, plan.job.job_id)
    store = JobStore(engine, clock)
    if isinstance(files, JobRows):
        adding = partial(files.add_submission, model=model, eval_set=eval_set)
        store.submit(plan, name=name, note=note, add_files=adding)
    else:
        files.write_submission(model, eval_set)
        store.submit(plan, name=name, note=note)


def files_of(engine: Engine, data_dir: Path, job_id: bytes) -> JobFolder | JobRows:
    """Return the store of a job's files: the data folder with SQLite, rows in PostgreSQL."""
    folder = JobFolder(data_dir, job_id)
    return folder if engine.dialect.name == "sqlite" else JobRows(engine, job_id, folder.path)


def remove_unnamed(engine: Engine, data_dir: Path, now_s: float) -> None:
    """Remove submissions whose command died before it stored the job (SQLite only).

    Only those that are a day old, and of which no round ever ran; and only with the folder's own database,
    for of another one's jobs this one knows nothing. What cannot be removed stays, which the log says.
    """
    if engine.dialect.name != "sqlite" or Path(engine.url.database or "") != data_dir / FILE_NAME:
        return
    with reading(engine) as connection:
        known = {bytes(job_id) for job_id in connection.execute(select(jobs.c.job_id)).scalars()}
    for job_id in folders_with_files(data_dir):
        if job_id in known or len(job_id) != _JOB_ID_BYTES:
            continue
        try:
            if remove_submission(data_dir, job_id, before_s=now_s - _UNNAMED_S):
                _LOG.info("removed the files of job %s, which was never stored", job_id.hex())
        except OSError as error:
            _LOG.warning(
                "cannot remove the files of job %s, which was never stored: %s", job_id.hex(), error.strerror
            )
