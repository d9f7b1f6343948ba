"""A consistency check of the ledger, made once before a helper serves from it.

SQLite keeps its last writes in a second file, the write-ahead log. An operator who restores an older ledger
file but leaves the newer log in place gets a mixture of old and new pages. Such a ledger may contain every
entry of the audit log and still have lost charges, so `helper.ledger.witness` cannot detect it. But each
transaction of a ledger writes an entry of the log and to another table, and in a mixture their counts
contradict each other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Engine, Select, case, func, select
from sqlalchemy.exc import DatabaseError

from helper.ledger.schema import AUDIT_LOG, DATASETS, JOBS, QUERIES, ROUNDS, TASKS, USED_REPORTS
from maskedlark.audit_log import AuditAct
from maskedlark.errors import InvalidSetting
from maskedlark.runtime.database import reading

_LOGGED: Final = (
    AuditAct.SIGN_TASK,
    AuditAct.COMMIT_DATASET,
    AuditAct.OPEN_JOB,
    AuditAct.ANSWER_ROUND,
    AuditAct.CLOSE_JOB,
    AuditAct.ANSWER_QUERY,
)
_WAY_OUT: Final = (
    "its operator must restore the newest one completely (for SQLite with the files that end in "
    "-wal and -shm, or without both), or make new keys"
)


def check_file(engine: Engine) -> None:
    """Refuse a SQLite file whose pages do not fit together, before anything else reads it.

    Raises:
        InvalidSetting: it is damaged, or a mixture of two.
    """
    if engine.dialect.name != "sqlite":
        return
    with _as_refusal(), reading(engine) as connection:
        # Of pages alone: `integrity_check` would also compare every index with its table, which takes longer.
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        raise InvalidSetting(f"the ledger is damaged: {_WAY_OUT}")


def check_whole(engine: Engine) -> None:
    """Refuse a ledger whose tables do not fit together.

    Guarantees: in one that passes, the numbers of the audit log's entries have no gap, and it has one entry
        for each task, dataset, job, query, charged round and closed job that is there, and no other entry of
        their kinds; each dataset has all its used reports, and each charged round its row. Any of them that
        is missing by itself is noticed. (`lark-helper audit verify` also checks what the entries say.)

    Raises:
        InvalidSetting: it is damaged, or a mixture of two ledgers.
    """
    with _as_refusal(), reading(engine) as connection:
        counts = connection.execute(_counts()).one()
    logged = (
        ("signed tasks", AuditAct.SIGN_TASK, counts.tasks),
        ("datasets", AuditAct.COMMIT_DATASET, counts.datasets),
        ("jobs", AuditAct.OPEN_JOB, counts.jobs),
        ("charged rounds", AuditAct.ANSWER_ROUND, counts.rounds_charged),
        ("closed jobs", AuditAct.CLOSE_JOB, counts.jobs_closed),
        ("queries", AuditAct.ANSWER_QUERY, counts.queries),
    )
    pairs = (
        # Entries are numbered from 0: a gap shows in the last number.
        ("last entry of the audit log", counts.last, counts.entries - 1),
        *(
            (f"entries of {what} in the audit log", getattr(counts, act), there)
            for what, act, there in logged
        ),
        ("used reports", counts.used_reports, counts.reports_in_datasets),
        ("rounds", counts.rounds, counts.rounds_charged),
    )
    for what, there, expected in pairs:
        if there != expected:
            raise InvalidSetting(
                f"the ledger is a mixture of two, or has lost rows: {what}: found {there}, but its "
                f"other tables require {expected}; {_WAY_OUT}"
            )


@contextmanager
def _as_refusal() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        raise InvalidSetting(f"the ledger cannot be read ({type(error.orig).__name__}): {_WAY_OUT}") from None


def _counts() -> Select[tuple[int, ...]]:
    """Select all counts in one statement, so that they are of one moment."""
    counted = {
        "tasks": select(func.count()).select_from(TASKS),
        "datasets": select(func.count()).select_from(DATASETS),
        "reports_in_datasets": select(func.coalesce(func.sum(DATASETS.c.size), 0)),
        "used_reports": select(func.count()).select_from(USED_REPORTS),
        "jobs": select(func.count()).select_from(JOBS),
        "jobs_closed": select(func.count()).where(JOBS.c.is_closed.is_(True)),
        "rounds_charged": select(func.coalesce(func.sum(JOBS.c.rounds_answered), 0)),
        "rounds": select(func.count()).select_from(ROUNDS),
        "queries": select(func.count()).select_from(QUERIES),
    }
    acts, is_done = AUDIT_LOG.c.act, AUDIT_LOG.c.is_done
    log = select(  # read once, for it may be the longest table
        func.count().label("entries"),
        func.max(AUDIT_LOG.c.sequence).label("last"),
        # Refused acts have entries too, and changed no table.
        *(func.count(case(((acts == act) & is_done, 1))).label(act.value) for act in _LOGGED),
    ).subquery("log")
    return select(*(query.scalar_subquery().label(name) for name, query in counted.items()), log)
