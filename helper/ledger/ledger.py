"""The helper's memory of what was used and spent. Every method is one transaction, durable when it returns.

Keys of the database guarantee that a report is in at most one dataset of its task, and that a round or
query is charged once. Locks guarantee that rounds are charged in order, and that nothing takes of a budget
between the caller's check (`CheckBudget`) and what it allowed. A crash at any point leaves either all of a
method's effect or nothing.

No number is stored for a charge. What a budget holds follows from the specs of its jobs and queries and
from how many rounds count (`reservations`): all planned ones of an open job, which were checked when it was
opened, and the answered ones of a closed job. So `add_round` checks no budget.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import local
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, insert, select
from sqlalchemy.exc import IntegrityError

from helper.ledger.check import check_file, check_whole
from helper.ledger.manifests import Manifests, add_manifest, drop_manifest
from helper.ledger.migrations import MIGRATIONS
from helper.ledger.records import (
    CheckBudget,
    LedgerCounts,
    Manifest,
    Position,
    ReleaseKey,
    Reservation,
    SignedTask,
    StoredDataset,
    StoredJob,
    StoredQuery,
    StoredRound,
    key_of,
)
from helper.ledger.round_state import KEPT_ANSWERS, RoundState
from helper.ledger.rows import job_in, job_of, lock_budget, reservations_of
from helper.ledger.schema import (
    DATASETS,
    JOBS,
    METADATA,
    QUERIES,
    SCHEMA_VERSION,
    TASKS,
)
from helper.ledger.statements import (
    ADD_ROUND,
    ADD_USED,
    CLOSE_JOB,
    COUNT_ROUND,
    DATASET,
    DATASET_OF,
    FORGET_ROUND,
    FORGET_ROUNDS,
    JOB_MODEL,
    JOB_TO_CHANGE,
    LOG,
    QUERY,
    ROUND,
    TASK,
    TASK_OF,
    USED_AMONG,
)
from maskedlark.audit_log import THIS_SERVICE, Actor, AuditAct, Deed
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import AnySpec, decode_query
from maskedlark.releases.update import UpdateSpec
from maskedlark.reports.task import REPORT_ID_BYTES
from maskedlark.rpc.trust import Names, host_of
from maskedlark.runtime.database import create_tables, reading

LEDGER_FILE: Final = "ledger.sqlite3"
"""The embedded ledger, in the helper's data folder."""
# of one dataset, closed ones included: what is remembered of jobs that were never opened is bounded too
MAX_JOBS: Final = 1_000
# Report ids handed to the driver at once.
_BATCH: Final = 10_000


class Ledger:
    """The ledger on one database. Safe to call from many threads."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        """Make the tables, if the database is empty.

        Args:
            engine: The database.
            clock: Unix seconds, for the audit log.

        Raises:
            InvalidTask: it holds tables of another version of the helper, or ones that do not fit together:
                see `check_whole`.
        """
        self._engine = engine
        self._clock = clock
        self._datasets: dict[tuple[bytes, bytes], StoredDataset] = {}
        # Of each thread: in one of them a call begins, commits and gives its receipt.
        self._thread = local()
        create_tables(engine, METADATA, version=SCHEMA_VERSION, whose="helper", migrations=MIGRATIONS)
        check_file(engine)
        LOG.begin(engine, at=clock())
        check_whole(engine)

    @property
    def engine(self) -> Engine:
        """Its database, for reports that change nothing."""
        return self._engine

    @property
    def manifests(self) -> Manifests:
        """The manifests of datasets."""
        return Manifests(self._engine)

    def add_task(self, task_id: bytes, task: SignedTask, actor: Actor = THIS_SERVICE) -> None:
        """Keep a signed task; keeping it again changes nothing. `actor` asked for it."""
        row = {
            "task_id": task_id,
            "task": task.encoded,
            "origin": task.origin,
            "host": host_of(task.origin),
            "role": task.role,
            "signature": task.signature,
        }
        try:
            with self._acting(), self._engine.begin() as connection:
                connection.execute(insert(TASKS).values(row))
                # In the same transaction: no act is without its entry, and no entry without its act.
                self._log(
                    connection,
                    actor,
                    AuditAct.SIGN_TASK,
                    task=task_id.hex(),
                    origin=task.origin,
                    role=str(task.role),
                )
        except IntegrityError:
            return  # the id is the digest of the task: it is the same one

    def encode_tasks(self) -> list[bytes]:
        """Return the canonical bytes of every task."""
        with reading(self._engine) as connection:
            return list(connection.scalars(select(TASKS.c.task)))

    def task(self, task_id: bytes, names: Names | None = None) -> SignedTask | None:
        """Return the task of an id.

        Args:
            task_id: The task's.
            names: Of a caller: a task whose origin they do not name is not found, in the same time as one
                that does not exist. None for this helper itself.
        """
        asked: dict[str, Any] = {"task_id": task_id}
        if names is not None:
            asked["names"] = [name for name in names if name.isascii() and name.isprintable()]
        with reading(self._engine) as connection:
            row = connection.execute(TASK if names is None else TASK_OF, asked).one_or_none()
        return row and SignedTask(encoded=row.task, origin=row.origin, role=row.role, signature=row.signature)

    def find_used(self, task_id: bytes, report_ids: Sequence[bytes]) -> set[bytes]:
        """Return those of some reports that a dataset of the task already holds.

        Ids may come of any length; no dataset holds one that has not 16 bytes.
        """
        used: set[bytes] = set()
        # The database cuts the joined ids by length: one of another length would shift all that follow.
        report_ids = [one for one in report_ids if len(one) == REPORT_ID_BYTES]
        with reading(self._engine) as connection:
            for start in range(0, len(report_ids), _BATCH):
                batch = b"".join(report_ids[start : start + _BATCH])
                used.update(connection.scalars(USED_AMONG, {"of_task": task_id, "report_ids": batch}))
        return used

    def add_dataset(
        self,
        dataset_id: bytes,
        task_id: bytes,
        report_ids: Sequence[bytes],
        manifest: Manifest = (),
        actor: Actor = THIS_SERVICE,
    ) -> None:
        """Commit a dataset: its reports are used up for the task, all of them or, if it is refused, none.

        Args:
            dataset_id: The dataset's.
            task_id: The task's.
            report_ids: Its reports, 16 bytes each.
            manifest: The objects that it consists of.
            actor: The caller, for the audit log.

        Raises:
            JobRefused(REPORT_ALREADY_USED): one of them is in a dataset of the task already.
        """
        dataset = {"dataset_id": dataset_id, "task_id": task_id, "size": len(report_ids)}
        try:
            with self._acting(), self._engine.begin() as connection:
                # No look beforehand: two datasets may be committed at once, and the keys of both tables
                # decide.
                connection.execute(insert(DATASETS).values(dataset))
                for start in range(0, len(report_ids), _BATCH):
                    batch = report_ids[start : start + _BATCH]
                    if any(len(one) != REPORT_ID_BYTES for one in batch):
                        raise AssertionError(f"a report id has {REPORT_ID_BYTES} bytes")
                    connection.execute(ADD_USED, {"of_task": task_id, "report_ids": b"".join(batch)})
                add_manifest(connection, dataset_id, manifest)
                self._log(
                    connection,
                    actor,
                    AuditAct.COMMIT_DATASET,
                    task=task_id.hex(),
                    dataset=dataset_id.hex(),
                    reports=str(len(report_ids)),
                )
        except IntegrityError:
            raise JobRefused(
                JobReason.REPORT_ALREADY_USED,
                "a report is in another dataset of this task: prepare the dataset again",
            ) from None

    def dataset(self, task_id: bytes, dataset_id: bytes) -> StoredDataset | None:
        """Return a task's dataset; one of another task is not found.

        Once it is there it never changes, so it is read once.
        """
        known = self._datasets.get((task_id, dataset_id))
        if known is None:
            asked = {"task_id": task_id, "dataset_id": dataset_id}
            with reading(self._engine) as connection:
                row = connection.execute(DATASET_OF, asked).one_or_none()
            if row is None:
                return None
            known = self._datasets[task_id, dataset_id] = StoredDataset(task_id=row.task_id, size=row.size)
        return known

    def dataset_of_any_task(self, dataset_id: bytes) -> StoredDataset | None:
        """Return the dataset of an id that this helper read on its own disk: no caller names it."""
        with reading(self._engine) as connection:
            row = connection.execute(DATASET, {"dataset_id": dataset_id}).one_or_none()
        return row and StoredDataset(task_id=row.task_id, size=row.size)

    def has_open_job(self, dataset_id: bytes) -> bool:
        """Return whether a job over a dataset is open: it may still ask for a round."""
        found = select(JOBS.c.job_id).where(JOBS.c.dataset_id == dataset_id, JOBS.c.is_closed.is_(False))
        with reading(self._engine) as connection:
            return connection.execute(found.limit(1)).first() is not None

    def open_job(
        self, spec: JobSpec, model: bytes, check_budget: CheckBudget, actor: Actor = THIS_SERVICE
    ) -> bool:
        """Open a job and reserve all its rounds, if `check_budget` does not refuse.

        Args:
            spec: The job; its dataset exists.
            model: The ONNX file.
            check_budget: Called with what the dataset's other jobs and queries take, anew whenever that
                changes before the job is opened. What it raises is raised here, and the job is not opened.
            actor: The caller, for the audit log.

        Returns:
            False, and nothing changed, if a job of this id exists already.

        Raises:
            JobRefused(TOO_MANY_JOBS): the dataset has had `MAX_JOBS`.
        """
        row = _job_row(spec, model)

        def add(connection: Connection) -> None:
            if _is_full(connection, spec.dataset_id):
                raise JobRefused(
                    JobReason.TOO_MANY_JOBS,
                    f"the dataset has had {MAX_JOBS} jobs, the limit: seal another one",
                )
            connection.execute(insert(JOBS).values(row))
            self._log(connection, actor, AuditAct.OPEN_JOB, **_about_job(spec))

        return self._reserve(spec, check_budget, add)

    def reservations(self, dataset_id: bytes) -> tuple[Reservation, ...]:
        """Return the jobs and queries of a dataset that take something of its budget.

        Of a task whose unit is a person: of all its datasets, for they have one budget.
        """
        with reading(self._engine) as connection:
            return reservations_of(connection, dataset_id)

    def job_state(self, job: ReleaseKey) -> StoredJob | None:
        """Return a job and how far it is."""
        with reading(self._engine) as connection:
            return job_of(connection, job)

    def job_model(self, job: ReleaseKey) -> bytes:
        """Return the ONNX file of a job that exists; empty once it is closed."""
        with reading(self._engine) as connection:
            return bytes(connection.execute(JOB_MODEL, job_in(job)).scalar_one())

    def add_round(
        self,
        job: ReleaseKey,
        round_index: int,
        answered: StoredRound,
        actor: Actor = THIS_SERVICE,
        *,
        numerics: bytes = b"",
    ) -> bool:
        """Charge a round and keep its answer and seed; drop those that are `KEPT_ANSWERS` rounds older.

        `actor` is the caller, for the audit log, and `numerics` the digest of the arithmetic that computed
        it.

        Returns:
            False, and nothing changed, if it is not the next round of an open job (another thread or process
            was faster).
        """
        row = {
            "task_id": job.task_id,
            "job_id": job.release_id,
            "round_index": round_index,
            "weights_digest": answered.weights_digest,
            "answer": answered.answer,
            "sealed_seed": answered.sealed_seed,
        }
        with self._acting(), self._engine.begin() as connection:
            # Locked before its state is read: of two processes with this round, the second finds it charged.
            stored = job_of(connection, job, JOB_TO_CHANGE)
            if stored is None or stored.progress.state_of(round_index) is not RoundState.NEXT:
                return False
            connection.execute(COUNT_ROUND, job_in(job) | {"answered": round_index + 1})
            connection.execute(FORGET_ROUND, job_in(job) | {"index": round_index - KEPT_ANSWERS})
            # Before the row, which names the entry: statements point from what was charged to the log.
            entry = self._log(
                connection,
                actor,
                AuditAct.ANSWER_ROUND,
                task=job.task_id.hex(),
                job=job.release_id.hex(),
                round=str(round_index),
                answer=sha256(answered.answer or b"").hexdigest(),
                numerics=numerics.hex(),
            )
            connection.execute(ADD_ROUND, row | {"entry": entry.sequence})
        return True

    def round(self, job: ReleaseKey, round_index: int) -> StoredRound | None:
        """Return an answered round."""
        with reading(self._engine) as connection:
            row = connection.execute(ROUND, job_in(job) | {"index": round_index}).one_or_none()
        return row and StoredRound(
            weights_digest=row.weights_digest, answer=row.answer, sealed_seed=row.sealed_seed
        )

    def close_job(self, spec: JobSpec, actor: Actor = THIS_SERVICE) -> None:
        """Close a job, which gives back the rounds that it did not run, and drop its answers.

        Closing again changes nothing. `actor` is the caller, for the audit log.

        One that was not opened is kept as closed, so that it never will be, if it still could; one of another
        content stays as it is.
        """
        job, row = key_of(spec), _job_row(spec, model=b"")
        with self._acting(), self._engine.begin() as connection:
            lock_budget(connection, spec.dataset_id)
            # A tombstone: the job's start may still be on its way, and must reserve nothing when it arrives.
            if job_of(connection, job) is None and not _is_full(connection, spec.dataset_id):
                connection.execute(insert(JOBS).values(row))
                self._log(connection, actor, AuditAct.OPEN_JOB, **_about_job(spec))
            # The statement compares the whole spec, so that another job under this id is not closed.
            if connection.execute(CLOSE_JOB, job_in(job) | {"as_spec": row["spec"]}).rowcount != 1:
                return
            connection.execute(FORGET_ROUNDS, job_in(job))
            self._log(connection, actor, AuditAct.CLOSE_JOB, task=job.task_id.hex(), job=job.release_id.hex())

    def add_query(self, stored: StoredQuery, check_budget: CheckBudget, actor: Actor = THIS_SERVICE) -> bool:
        """Charge a query and keep its answer, if `check_budget` does not refuse: see `open_job`.

        The manifest of a federated round's dataset goes with it: the round is answered from here now.

        Returns:
            False, and nothing changed, if a query of this id was charged already.
        """
        spec = stored.spec
        row = {
            "task_id": spec.task_id,
            "query_id": spec.query_id,
            "dataset_id": spec.dataset_id,
            "kind": spec.kind,
            "spec": encode(spec),
            "answer": stored.answer,
        }

        def add(connection: Connection) -> None:
            if isinstance(spec, UpdateSpec):
                drop_manifest(connection, spec.dataset_id)
            entry = self._log(
                connection,
                actor,
                AuditAct.ANSWER_QUERY,
                task=spec.task_id.hex(),
                dataset=spec.dataset_id.hex(),
                query=spec.query_id.hex(),
                kind=spec.kind,
                answer=sha256(stored.answer).hexdigest(),
            )
            connection.execute(insert(QUERIES).values(row | {"entry": entry.sequence}))

        return self._reserve(spec, check_budget, add)

    def _reserve(self, new: AnySpec, check_budget: CheckBudget, add: Callable[[Connection], None]) -> bool:
        """Add what takes budget, if `check_budget` does not refuse; False if its task has one of its id.

        The check takes its time, and holds no lock meanwhile. What it looked at is compared with what is
        there when the lock is had; if that has changed, another one was faster, and the check is made anew:
        so of those that try at once, one gets on at every turn.
        """
        while True:
            before = self.reservations(new.dataset_id)
            if any(other.key == key_of(new) for other in before):
                return False
            check_budget(before)
            try:
                with self._acting(), self._engine.begin() as connection:
                    lock_budget(connection, new.dataset_id)
                    # Optimistic: the accountant may take seconds, in which a lock would hold up every charge
                    # of the dataset.
                    if reservations_of(connection, new.dataset_id) != before:
                        continue
                    add(connection)
            except IntegrityError:  # the id was taken on another dataset of the task
                return False
            return True

    def query(self, query: ReleaseKey) -> StoredQuery | None:
        """Return an answered query."""
        asked = {"of_task": query.task_id, "query_id": query.release_id}
        with reading(self._engine) as connection:
            row = connection.execute(QUERY, asked).one_or_none()
        return row and StoredQuery(spec=decode_query(row.kind, row.spec), answer=row.answer)

    @property
    def committed(self) -> Position | None:
        """The position that this thread's newest act of its present call has left; None before it."""
        return getattr(self._thread, "committed", None)

    def begin_call(self) -> None:
        """Forget what this thread committed in earlier calls: an answer depends on no other caller's acts."""
        self._thread.committed = None

    def position(self) -> Position:
        """Return the ledger's position."""
        with reading(self._engine) as connection:
            return LOG.newest(connection)

    def holds(self, position: Position) -> bool:
        """Return whether the ledger is, or was, at a position."""
        with reading(self._engine) as connection:
            return LOG.head(connection, position.sequence) == position.head

    def log(self, deed: Deed) -> None:
        """Log an act that changes nothing else in the ledger, or that was refused."""
        with self._acting(), self._engine.begin() as connection:
            self._thread.logged = LOG.append(connection, deed, at=self._clock())

    def log_change(self, act: AuditAct, subject: Mapping[str, str], actor: Actor = THIS_SERVICE) -> bool:
        """Log the settings that an act left, unless its newest entry says the same; return whether it did."""
        with self._acting(), self._engine.begin() as connection:
            self._thread.logged = LOG.append_change(connection, act, subject, actor, at=self._clock())
            return self._thread.logged is not None

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Wrap an act's transaction: once it is committed, remember the position that it left."""
        self._thread.logged = None
        yield
        # Only now: an entry of a transaction that is rolled back was never in the ledger.
        if self._thread.logged is not None:
            self._thread.committed = self._thread.logged

    def _log(self, connection: Connection, actor: Actor, act: AuditAct, **subject: str) -> Position:
        """Log an act that this transaction has done."""
        deed = Deed(act=act, actor=actor, subject=tuple(subject.items()))
        position = self._thread.logged = LOG.append(connection, deed, at=self._clock())
        return position

    def counts(self) -> LedgerCounts:
        """Count what the ledger holds."""
        with reading(self._engine) as connection:
            return LedgerCounts(
                tasks=connection.execute(select(func.count()).select_from(TASKS)).scalar_one(),
                datasets=connection.execute(select(func.count()).select_from(DATASETS)).scalar_one(),
                open_jobs=connection.execute(
                    select(func.count()).where(JOBS.c.is_closed.is_(False))
                ).scalar_one(),
                rounds_answered=connection.execute(
                    select(func.coalesce(func.sum(JOBS.c.rounds_answered), 0))
                ).scalar_one(),
            )

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()


def sqlite_url(path: Path) -> str:
    """Return the URL of the embedded ledger."""
    return f"sqlite:///{path.absolute()}"


def _job_row(spec: JobSpec, model: bytes) -> dict[str, Any]:
    """Return the row of a job of which no round is answered."""
    return {
        "task_id": spec.task_id,
        "job_id": spec.job_id,
        "dataset_id": spec.dataset_id,
        "spec": encode(spec),
        "model": model,
        "rounds_answered": 0,
        "is_closed": False,
    }


def _about_job(spec: JobSpec) -> dict[str, str]:
    """Return what the audit log says of a job as it is opened."""
    return {
        "task": spec.task_id.hex(),
        "dataset": spec.dataset_id.hex(),
        "job": spec.job_id.hex(),
        "rounds": str(spec.rounds),
        "spec": sha256(encode(spec)).hexdigest(),
    }


def _is_full(connection: Connection, dataset_id: bytes) -> bool:
    """Return whether a dataset, which is locked, has had all its jobs."""
    return (
        connection.execute(select(func.count()).where(JOBS.c.dataset_id == dataset_id)).scalar_one()
        >= MAX_JOBS
    )
