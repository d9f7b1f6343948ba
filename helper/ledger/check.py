"""A consistency check of the ledger, made once before a helper serves from it.

SQLite keeps its last writes in a second file, the write-ahead log. An operator who restores an older ledger
file but leaves the newer log in place gets a mixture of old and new pages. Such a ledger may contain every
position of the chain and still have lost charges, so `helper.ledger.witness` cannot detect it. But each
transaction of a ledger writes to at least two tables, and in a mixture their counts contradict each other.
"""

from typing import Final

from sqlalchemy import Engine, Select, func, select
from sqlalchemy.exc import DatabaseError

from helper.ledger.schema import CHAIN, DATASETS, JOBS, QUERIES, ROUNDS, USED_REPORTS
from maskedlark.errors import InvalidTask
from maskedlark.runtime.database import reading

_WAY_OUT: Final = (
    "its operator must restore the newest one completely (for SQLite with the files that end in "
    "-wal and -shm, or without both), or make new keys"
)


def check_whole(engine: Engine) -> None:
    """Refuse a ledger whose tables do not fit together.

    Guarantees: in one that passes, the chain has no gap and one link for each dataset, job, query, charged
        round and closed job that is there; each dataset has all its used reports, and each charged round its
        row. Any of them that is missing by itself is noticed.

    Raises:
        InvalidTask: it is damaged, or a mixture of two ledgers.
    """
    try:
        with reading(engine) as connection:
            if engine.dialect.name == "sqlite":
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if found != "ok":
                    raise InvalidTask(f"the ledger is damaged: {_WAY_OUT}")
            counts = connection.execute(_counts()).one()
    except DatabaseError as error:
        raise InvalidTask(f"the ledger cannot be read ({type(error.orig).__name__}): {_WAY_OUT}") from None
    links = counts.datasets + counts.jobs + counts.queries + counts.rounds_charged + counts.jobs_closed
    pairs = (
        ("links of the chain", counts.links, links + 1),
        ("last position of the chain", counts.last, links),
        ("used reports", counts.used_reports, counts.reports_in_datasets),
        ("rounds", counts.rounds, counts.rounds_charged),
    )
    for what, there, expected in pairs:
        if there != expected:
            raise InvalidTask(
                f"the ledger is a mixture of two, or has lost rows: {what}: found {there}, but its "
                f"other tables require {expected}; {_WAY_OUT}"
            )


def _counts() -> Select[tuple[int, ...]]:
    """Select all counts in one statement, so that they are of one moment."""
    counted = {
        "links": select(func.count()).select_from(CHAIN),
        "last": select(func.max(CHAIN.c.sequence)),
        "datasets": select(func.count()).select_from(DATASETS),
        "reports_in_datasets": select(func.coalesce(func.sum(DATASETS.c.size), 0)),
        "used_reports": select(func.count()).select_from(USED_REPORTS),
        "jobs": select(func.count()).select_from(JOBS),
        "jobs_closed": select(func.count()).where(JOBS.c.is_closed.is_(True)),
        "rounds_charged": select(func.coalesce(func.sum(JOBS.c.rounds_answered), 0)),
        "rounds": select(func.count()).select_from(ROUNDS),
        "queries": select(func.count()).select_from(QUERIES),
    }
    return select(*(query.scalar_subquery().label(name) for name, query in counted.items()))
