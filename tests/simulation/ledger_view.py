"""A helper's ledger, read from its file by nobody's code but this."""

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from helper.ledger.records import Reservation
from maskedlark.canonical import decode
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import AnyQuery, decode_query

Round = tuple[bytes, int]
"""A job's id and a round's index."""


class HeldJob(NamedTuple):
    """A job as a helper has it."""

    spec: JobSpec
    rounds_answered: int
    is_closed: bool


class HeldQuery(NamedTuple):
    """A query that a helper has charged."""

    spec: AnyQuery
    answer: bytes


class LedgerView:
    """Reads what is committed, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Let go of the file; it is opened again when it is asked for."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def rounds(self) -> set[Round]:
        """All rounds that are charged."""
        return {
            (bytes(job_id), int(index))
            for job_id, index in self._rows("SELECT job_id, round_index FROM rounds")
        }

    def is_charged(self, which: Round) -> bool:
        """Whether one round is."""
        return bool(self._rows("SELECT 1 FROM rounds WHERE job_id = ? AND round_index = ?", *which))

    def dataset_ids(self) -> list[bytes]:
        """All datasets that are committed."""
        return [bytes(row[0]) for row in self._rows("SELECT dataset_id FROM datasets")]

    def used_reports(self, task_id: bytes) -> set[bytes]:
        """The reports of a task that are used up."""
        return {
            bytes(row[0])
            for row in self._rows("SELECT report_id FROM used_reports WHERE task_id = ?", task_id)
        }

    def jobs(self) -> list[HeldJob]:
        """All jobs that were opened."""
        rows = self._rows("SELECT spec, rounds_answered, is_closed FROM jobs")
        return [
            HeldJob(decode(JobSpec, bytes(spec)), answered, bool(is_closed))
            for spec, answered, is_closed in rows
        ]

    def queries(self) -> list[HeldQuery]:
        """All queries that are charged."""
        rows = self._rows("SELECT kind, spec, answer FROM queries")
        return [HeldQuery(decode_query(kind, spec), bytes(answer)) for kind, spec, answer in rows]

    def stored_answer(self, query_id: bytes) -> bytes | None:
        """What is kept for a query; None if it is not charged."""
        rows = self._rows("SELECT answer FROM queries WHERE query_id = ?", query_id)
        return bytes(rows[0][0]) if rows else None

    def reservations(self, task_id: bytes) -> dict[bytes, list[Reservation]]:
        """What the datasets of a task have spent, as the budget's rules read it."""
        found: dict[bytes, list[Reservation]] = {}
        jobs = (
            "SELECT spec, rounds_answered, is_closed FROM jobs JOIN datasets USING (task_id, dataset_id) "
            "WHERE task_id = ?"
        )
        for spec, answered, is_closed in self._rows(jobs, task_id):
            job = decode(JobSpec, bytes(spec))
            found.setdefault(job.dataset_id, []).append(
                Reservation(spec=job, rounds=answered if is_closed else job.rounds)
            )
        queries = "SELECT kind, spec FROM queries JOIN datasets USING (task_id, dataset_id) WHERE task_id = ?"
        for kind, spec in self._rows(queries, task_id):
            query = decode_query(kind, spec)
            found.setdefault(query.dataset_id, []).append(Reservation(spec=query, rounds=1))
        return found

    def num_reservations(self) -> int:
        """How many jobs and queries have taken budget."""
        return int(self._rows("SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM queries)")[0][0])

    def sequence(self) -> int:
        """How often it has moved on."""
        return int(self._rows("SELECT max(sequence) FROM audit_log")[0][0])

    def copy(self, to: Path) -> None:
        """Back it up, as an operator does."""
        to.touch(mode=0o600)
        target = sqlite3.connect(to)
        self._open().backup(target)
        target.close()

    def _rows(self, query: str, *values: Any) -> list[Any]:
        return self._open().execute(query, values).fetchall()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        return self._connection
