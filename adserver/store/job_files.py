"""A job's files: what was submitted, and the latest checkpoint.

    submit(engine, data_dir, plan, model=model, eval_set=None, clock=time.time)
    files = JobFiles(engine, data_dir, plan.job.job_id)
    files.write_checkpoint(encoded, rounds_done=3)
    files.checkpoint()

They are rows of the database, in parts of 1 MiB: a stored job has its files, and every server that reaches
the database has them. A file is written, and an older checkpoint removed, in one transaction. One statement
reads all parts of a file, so a reader sees all of them or none.

On SQLite the checkpoints alone are files of the data folder, `adserver.store.job_folder`: one comes
with each round, and a large one would hold up every other write to the database.
"""

from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Engine, Select, delete, func, select, text

from adserver.records.plans import AnyPlan
from adserver.store.database import Clock, insert_or_ignore
from adserver.store.job_folder import JobFolder
from adserver.store.jobs import JobStore
from adserver.store.schema import job_files
from maskedlark.errors import JobReason, JobRefused
from maskedlark.runtime.database import reading

PART_BYTES: Final = 1 << 20
_PARTS_AT_ONCE: Final = 8
_MODEL: Final = "model"
_EVAL_SET: Final = "eval_set"
_CHECKPOINT: Final = "checkpoint"
_FILE_KEY: Final = ("job_id", "kind", "rounds_done", "part")
_KEY_BYTES: Final = 8
_LOCK_TIMEOUT: Final = "30s"
_END_WRITERS: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND datname = current_database()"
    " AND classid = CAST(:high AS oid) AND objid = CAST(:low AS oid) AND pg_has_role(usesysid, 'USAGE')"
)


def submit(
    engine: Engine,
    data_dir: Path,
    plan: AnyPlan,
    *,
    model: bytes,
    eval_set: bytes | None,
    eval_set_digest: bytes | None = None,
    clock: Clock,
    name: str = "",
    note: str = "",
) -> None:
    """Queue a job and keep what was submitted, in one transaction.

    Jobs whose evaluation sets have one digest compare: give that of the rows (`panel_note.digest_panel`).
    """
    files = JobFiles(engine, data_dir, plan.job.job_id)
    adding = partial(files.add_submission, model=model, eval_set=eval_set)
    about = {"name": name, "note": note}
    JobStore(engine, clock).submit(plan, **about, eval_set_digest=eval_set_digest, add_files=adding)


class JobFiles:
    """The files of one job.

    Attributes:
        path: A folder of this machine for what can be made again at any time: the curves.
    """

    def __init__(self, engine: Engine, data_dir: Path, job_id: bytes) -> None:
        """Use the rows of a job, and on SQLite its folder in the data folder."""
        folder = JobFolder(data_dir, job_id)
        self.path = folder.path
        self._folder = folder if engine.dialect.name == "sqlite" else None
        self._engine = engine
        self._job_id = job_id

    def add_submission(self, connection: Connection, model: bytes, eval_set: bytes | None) -> None:
        """Keep what was submitted when the transaction commits, unless it is there."""
        if self._write(connection, _MODEL, 0, model) and eval_set is not None:
            self._write(connection, _EVAL_SET, 0, eval_set)

    def model(self) -> bytes:
        """Return the submitted ONNX file.

        Raises:
            JobRefused(WRONG_STATE): the database does not hold it.
        """
        found = self._read(_MODEL, 0)
        if found is None:
            raise JobRefused(
                JobReason.WRONG_STATE,
                f"the database contains no files of job {self._job_id.hex()}: they were deleted",
            )
        return found

    def eval_set(self) -> bytes | None:
        """Return the submitted evaluation set (npz), if there was one."""
        return self._read(_EVAL_SET, 0)

    def write_checkpoint(self, encoded: bytes, *, rounds_done: int) -> None:
        """Keep the state after so many rounds, in one step; earlier ones go.

        Guarantees: a worker that was stopped here and goes on when the job is another's changes nothing: a
            round's state has the same bytes whichever worker reaches it, and the latest one counts. It also
            does not hold its successor up: that one ends its transaction.
        """
        if self._folder is not None:
            self._folder.write_checkpoint(encoded, rounds_done=rounds_done)
            return
        with self._engine.begin() as connection:
            self._put_checkpoint(connection, encoded, rounds_done=rounds_done)

    def checkpoint(self) -> bytes | None:
        """Return the latest checkpoint, or None before the first round."""
        if self._folder is not None:
            return self._folder.checkpoint()
        while True:
            with reading(self._engine) as connection:
                rounds_done = connection.execute(self._latest()).scalar()
            if rounds_done is None:
                return None
            stored = self._read(_CHECKPOINT, rounds_done)
            if stored is not None:  # else a later one was written, and this one removed, since it was found
                return stored

    def _put_checkpoint(self, connection: Connection, encoded: bytes, *, rounds_done: int) -> None:
        """Store a checkpoint in the place of those before it."""
        _become_only_writer(connection, self._job_id)
        self._write(connection, _CHECKPOINT, rounds_done, encoded)
        self._remove_earlier(connection)

    def _remove_earlier(self, connection: Connection) -> None:
        """Remove all checkpoints but the latest: also the caller's, if it came late."""
        latest = self._latest().scalar_subquery()
        is_earlier = self._of(_CHECKPOINT) & (job_files.c.rounds_done < latest)
        connection.execute(delete(job_files).where(is_earlier))

    def _write(self, connection: Connection, kind: str, rounds_done: int, content: bytes) -> bool:
        """Store a file, unless it is there; whether it is new."""
        named = {"job_id": self._job_id, "kind": kind, "rounds_done": rounds_done}
        starts = range(0, max(len(content), 1), PART_BYTES)
        adding = insert_or_ignore(self._engine, job_files, _FILE_KEY)
        first = {**named, "part": 0, "content": content[:PART_BYTES]}
        # The first part decides: of two writers of one file only one inserts it.
        if connection.execute(adding.values(first).returning(job_files.c.part)).first() is None:
            return False
        # A few parts a statement, which holds its own copy of them.
        for at in range(1, len(starts), _PARTS_AT_ONCE):
            numbers = range(at, min(at + _PARTS_AT_ONCE, len(starts)))
            parts = [
                {**named, "part": part, "content": content[starts[part] : starts[part] + PART_BYTES]}
                for part in numbers
            ]
            connection.execute(adding, parts)
        return True

    def _read(self, kind: str, rounds_done: int) -> bytes | None:
        """Read all parts of a file; None if it is missing."""
        held, parts = BytesIO(), 0  # which gives its bytes away, and so holds them once
        for content in self._parts(kind, rounds_done):
            held.write(content)
            parts += 1
        return held.getvalue() if parts else None

    def _parts(self, kind: str, rounds_done: int) -> Iterator[bytes]:
        """Yield the parts of a file in order."""
        asked = (
            select(job_files.c.content)
            .where(self._of(kind), job_files.c.rounds_done == rounds_done)
            .order_by(job_files.c.part)
            .execution_options(yield_per=_PARTS_AT_ONCE)
        )
        with reading(self._engine) as connection:
            yield from connection.execute(asked).scalars()

    def _latest(self) -> Select[Any]:
        """Select the number of rounds before the latest checkpoint."""
        return select(func.max(job_files.c.rounds_done)).where(self._of(_CHECKPOINT))

    def _of(self, kind: str) -> ColumnElement[bool]:
        return (job_files.c.job_id == self._job_id) & (job_files.c.kind == kind)


def _become_only_writer(connection: Connection, name: bytes) -> None:
    """End whoever else writes under a name, for the caller alone may; keep the name until the commit.

    A transaction keeps others out of the rows that it wrote until it ends. Where its process is paused, or
    its machine is gone without a word, PostgreSQL takes it to be alive for hours. On SQLite, whose
    transactions are one at a time, this does nothing.

    Args:
        connection: In a transaction that has not written yet.
        name: Random, of 8 bytes or more; the first 8 count.

    Guarantees: this transaction waits for no other one for more than half a minute.

    Raises:
        OperationalError: another database account's transaction stands in the way, and does not end.
    """
    if connection.dialect.name == "sqlite":
        return
    connection.execute(select(func.set_config("lock_timeout", _LOCK_TIMEOUT, True)))
    key = int.from_bytes(name[:_KEY_BYTES], signed=True)
    if connection.execute(select(func.pg_try_advisory_xact_lock(key))).scalar_one():
        return
    high, low = (int.from_bytes(name[at : at + _KEY_BYTES // 2]) for at in (0, _KEY_BYTES // 2))
    # Whoever holds the name is no longer the holder of the lease, or the caller would not be here.
    connection.execute(_END_WRITERS, {"high": high, "low": low})
    connection.execute(select(func.pg_advisory_xact_lock(key)))
