"""Whether anything that pages show has changed: a few numbers, as quick of a million reports as of one.

before = store_mark(engine)
store_mark(engine) == before                # nothing has come, gone on or ended meanwhile
"""

from typing import Any, Final

from sqlalchemy import BigInteger, Engine, Select, String, cast, func, literal, select, union_all

from adserver.records.job_state import JobState
from adserver.store.schema import (
    arrived_reports,
    datasets,
    jobs,
    queries,
    query_answers,
    report_counts,
    tasks,
)
from maskedlark.frozen import frozen
from maskedlark.runtime.database import reading

_REPORTS: Final = "reports"
# A sum of remainders by it stays within 64 bits
_SMALL: Final = 1 << 31
# The states in which a job's rounds may go on.
_MOVING: Final = (JobState.QUEUED, JobState.RUNNING, JobState.WAITING, JobState.OPEN)


@frozen
class _StoreMark:
    """What changes with the store.

    Attributes:
        reports: With how many reports there are of each task in each state.
        others: With a task, dataset, job or query that comes, a state that changes, a round that is done,
            and an answer that is kept. Not with changes other than of a state: a cause's words, or that the
            helpers know of a job's end.
    """

    reports: frozenset[tuple[Any, ...]]
    others: frozenset[tuple[Any, ...]]


def _numbers(what: str, state: Any, count: Any, amount: Any) -> "Select[str, str, int, int]":
    """Select rows of one form, for the union."""
    # PostgreSQL unites only columns of equal types, and a plain 0 and a sum have different ones.
    return select(
        cast(literal(what), String).label("what"),
        cast(state, String).label("state"),
        cast(count, BigInteger).label("count"),
        cast(amount, BigInteger).label("amount"),
    )


TIMES_ASKED: Final = func.sum(cast(queries.c.asked_at * 1_000, BigInteger) % _SMALL)
"""What tells queries from as many others: one that was refused is removed, and another may follow it."""

_ASKED: Final = union_all(
    _numbers("jobs", jobs.c.state, func.count(), 0).group_by(jobs.c.state),
    _numbers(
        "rounds", "", func.count(), func.sum(jobs.c.rounds_done + func.coalesce(jobs.c.updates, 0))
    ).where(jobs.c.state.in_(_MOVING)),
    _numbers("datasets", datasets.c.state, func.count(), func.sum(datasets.c.size)).group_by(
        datasets.c.state
    ),
    _numbers("tasks", "", func.count(), 0).select_from(tasks),
    _numbers("queries", "", func.count(), TIMES_ASKED),
    _numbers("answers", "", func.count(), 0).select_from(query_answers),
    _numbers(_REPORTS, report_counts.c.state, func.count(), func.sum(report_counts.c.reports)).group_by(
        report_counts.c.state
    ),
    _numbers(_REPORTS, "", func.count(), func.sum(arrived_reports.c.reports)),
)


def store_mark(engine: Engine) -> _StoreMark:
    """Return the store's current mark, with one statement."""
    with reading(engine) as connection:
        found = [tuple(row) for row in connection.execute(_ASKED)]
    return _StoreMark(
        reports=frozenset(row for row in found if row[0] == _REPORTS),
        others=frozenset(row for row in found if row[0] != _REPORTS),
    )
