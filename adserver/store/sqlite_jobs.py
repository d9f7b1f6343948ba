"""Jobs as `adserver job watch`, `show` and `list` read them from the embedded database: with sqlite3 alone.

Loading SQLAlchemy takes longer than all that these commands do. What is here changes nothing: it reads what
`adserver.store.jobs` and `adserver.store.leases` write.
"""

import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from adserver.records.job_record import JobRecord
from adserver.records.round_figures import RoundFigures
from adserver.records.typed_ids import job_search, the_job
from adserver.store.version import FILE_NAME, SCHEMA_VERSION
from maskedlark.errors import JobReason, JobRefused

_BUSY_S: Final = 30.0
_FIGURES: Final = tuple(field.name for field in fields(RoundFigures))
_HISTORY: Final = (
    f"SELECT {', '.join(_FIGURES)} FROM job_rounds"  # noqa: S608 # the names of our own fields
    " WHERE job_id = ? AND rounds_done > ? ORDER BY rounds_done"
)


# A negative limit is none
_SEARCH: Final = (
    "SELECT job_id, name FROM jobs WHERE job_id BETWEEN ? AND ? OR ? <> '' AND substr(name, 1, ?) = ?"
    " ORDER BY submitted_at_s, job_id LIMIT ?"
)


class _SqliteJobs:
    """The jobs in one file, to look at; it is open only while something is read. Safe to share."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, job_id: bytes) -> JobRecord:
        """Return one job.

        Raises:
            JobRefused(UNKNOWN_JOB)
        """
        rows = self._rows("SELECT * FROM jobs WHERE job_id = ?", job_id)
        if not rows:
            raise JobRefused(JobReason.UNKNOWN_JOB, f"there is no job {job_id.hex()}")
        return JobRecord.from_row(rows[0])

    def find(self, prefix: str) -> JobRecord:
        """Return the one job whose id or name starts with a text; see `the_job`.

        Raises:
            JobRefused(UNKNOWN_JOB): none or several do.
        """
        low, high, name = job_search(prefix)
        rows = self._rows(_SEARCH, low, high, name, len(name), name, -1 if prefix else 2)
        return self.get(the_job([(row["job_id"], row["name"]) for row in rows], prefix))

    def all(self) -> tuple[JobRecord, ...]:
        """Return every job, oldest first."""
        return tuple(
            map(JobRecord.from_row, self._rows("SELECT * FROM jobs ORDER BY submitted_at_s, job_id"))
        )

    def history(self, job_id: bytes, *, after_rounds: int = -1) -> tuple[RoundFigures, ...]:
        """Return the figures of a job's rounds, in order, once each; only those after `after_rounds`."""
        return tuple(RoundFigures(**dict(row)) for row in self._rows(_HISTORY, job_id, after_rounds))

    def _rows(self, asked: str, *values: object) -> list[Any]:
        with _open(self._path) as connection:
            return connection.execute(asked, values).fetchall()


def jobs_in(data_dir: Path) -> _SqliteJobs | None:
    """Return the jobs of a data folder; None unless it has a SQLite database of this version."""
    path = data_dir / FILE_NAME
    if not path.is_file():
        return None
    try:
        with _open(path) as connection:
            found = connection.execute("SELECT version FROM schema_version").fetchall()
    except sqlite3.DatabaseError:
        return None  # who opens it otherwise says what is wrong
    return _SqliteJobs(path) if [tuple(row) for row in found] == [(SCHEMA_VERSION,)] else None


def _open(path: Path) -> closing[sqlite3.Connection]:
    """Open an existing database, never a new one; close it at the end of the block."""
    # As a URI, because a plain path that is missing would become a new, empty database.
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=_BUSY_S)
    connection.row_factory = sqlite3.Row
    return closing(connection)
