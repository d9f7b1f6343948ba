"""A job's files as rows of the database, in parts of 1 MiB: every server that reaches the database has them.

A file is written, and an older checkpoint removed, in one transaction. One statement reads all parts of a
file, so a reader sees all of them or none.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import ColumnElement, Connection, Engine, delete, func, select

from adserver.store.database import insert_or_ignore
from adserver.store.job_folder import JobFolder
from adserver.store.schema import job_files, jobs
from maskedlark.runtime.database import reading

PART_BYTES: Final = 1 << 20
_PARTS_AT_ONCE: Final = 8
_MODEL: Final = "model"
_EVAL_SET: Final = "eval_set"
_CHECKPOINT: Final = "checkpoint"
_KEY: Final = ("job_id", "kind", "rounds_done", "part")


class JobRows:
    """The files of one job, in a database that several servers share."""

    def __init__(self, engine: Engine, job_id: bytes, path: Path) -> None:
        """Use the rows of a job; `path` is a folder of this machine for its curves."""
        self.path = path
        self._engine = engine
        self._job_id = job_id

    def write_submission(self, model: bytes, eval_set: bytes | None) -> None:
        """Keep what was submitted. Done before the job is stored, so that a stored job has its files."""
        with self._engine.begin() as connection:
            self._write(connection, _MODEL, 0, model)
            if eval_set is not None:
                self._write(connection, _EVAL_SET, 0, eval_set)

    def model(self) -> bytes:
        """The submitted ONNX file.

        Raises:
            FileNotFoundError: the database does not hold it.
        """
        found = self._read(_MODEL, 0)
        if found is None:
            raise FileNotFoundError(f"the database holds no model of job {self._job_id.hex()}")
        return found

    def eval_set(self) -> bytes | None:
        """The submitted evaluation set (npz), if there was one."""
        return self._read(_EVAL_SET, 0)

    def write_checkpoint(self, encoded: bytes, *, rounds_done: int) -> None:
        """Keep the state after so many rounds, in one transaction; earlier ones go.

        Guarantees: a worker that was stopped here and goes on when the job is another's changes nothing: a
            round's state has the same bytes whoever reaches it, and the latest one counts.
        """
        with self._engine.begin() as connection:
            self._write(connection, _CHECKPOINT, rounds_done, encoded)
            is_earlier = self._of(_CHECKPOINT) & (job_files.c.rounds_done < rounds_done)
            connection.execute(delete(job_files).where(is_earlier))

    def checkpoint(self) -> bytes | None:
        """The latest checkpoint, or None before the first round."""
        latest = select(func.max(job_files.c.rounds_done)).where(self._of(_CHECKPOINT))
        while True:
            with reading(self._engine) as connection:
                rounds_done = connection.execute(latest).scalar()
            if rounds_done is None:
                return None
            stored = self._read(_CHECKPOINT, rounds_done)
            if stored is not None:  # else a later one was written, and this one removed, since it was found
                return stored

    def take_in(self, model: bytes, eval_set: bytes | None, checkpoint: tuple[int, bytes] | None) -> None:
        """Take files in that lay in a folder, in one transaction, unless the job has rows already.

        Nothing is taken in for a job that is not in this database.

        Args:
            model: The submitted ONNX file.
            eval_set: The evaluation set, if there is one.
            checkpoint: How many rounds the latest one is after, and its bytes.
        """
        with self._engine.begin() as connection:
            known = select(jobs.c.job_id).where(jobs.c.job_id == self._job_id)
            if connection.execute(known).first() is None or not self._write(connection, _MODEL, 0, model):
                return
            if eval_set is not None:
                self._write(connection, _EVAL_SET, 0, eval_set)
            if checkpoint is not None:
                self._write(connection, _CHECKPOINT, *checkpoint)

    @property
    def is_there(self) -> bool:
        """Whether the database holds what was submitted, and the job itself."""
        held = select(job_files.c.part).join(jobs, jobs.c.job_id == job_files.c.job_id)
        with reading(self._engine) as connection:
            return connection.execute(held.where(self._of(_MODEL)).limit(1)).first() is not None

    def _write(self, connection: Connection, kind: str, rounds_done: int, content: bytes) -> bool:
        """Store a file, unless it is there; whether it is new."""
        named = {"job_id": self._job_id, "kind": kind, "rounds_done": rounds_done}
        starts = range(0, max(len(content), 1), PART_BYTES)
        adding = insert_or_ignore(self._engine, job_files, _KEY)
        first = {**named, "part": 0, "content": content[:PART_BYTES]}
        if connection.execute(adding.values(first).returning(job_files.c.part)).first() is None:
            return False
        for at in range(1, len(starts), _PARTS_AT_ONCE):
            numbers = range(at, min(at + _PARTS_AT_ONCE, len(starts)))
            parts = [
                {**named, "part": part, "content": content[starts[part] : starts[part] + PART_BYTES]}
                for part in numbers
            ]
            connection.execute(adding, parts)
        return True

    def _read(self, kind: str, rounds_done: int) -> bytes | None:
        """All parts of a file; None if it is not there."""
        asked = (
            select(job_files.c.content)
            .where(self._of(kind), job_files.c.rounds_done == rounds_done)
            .order_by(job_files.c.part)
            .execution_options(yield_per=_PARTS_AT_ONCE)
        )
        with reading(self._engine) as connection:
            parts = [bytes(content) for content in connection.execute(asked).scalars()]
        return b"".join(parts) if parts else None

    def _of(self, kind: str) -> ColumnElement[bool]:
        return (job_files.c.job_id == self._job_id) & (job_files.c.kind == kind)


def take_in(rows: JobRows, folder: JobFolder) -> None:
    """Bring a folder's files into the database, and remove them once they are there.

    Several servers that have the folder may do so at once. A folder of another database's job stays.
    """
    found = folder.submission()
    if found is None:
        return
    rows.take_in(*found, folder.latest())
    if rows.is_there:
        folder.remove()
