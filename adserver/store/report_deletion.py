"""The reports of a task that is over go, ids and all; what was counted of them stays.

    for handle in handles_of(engine, task_id):
        last: int | None = -1
        while last is not None:
            last = forget(engine, task_id, handle, after=last, limit=5_000).last

A report is kept so that a second upload of it is a duplicate. Once intakes refuse every report of the task,
it is of no more use: `adserver.collecting.report_expiry` sees to that order.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, delete, exists, func, select

from adserver.records.dataset_state import DatasetState
from adserver.records.report_state import ReportEvent, ReportState, arrows
from adserver.store.report_counts import shift
from adserver.store.schema import NO_DATASET, datasets, report_states, reports
from maskedlark.runtime.database import reading


class Forgotten(NamedTuple):
    """What a transaction deleted: how many reports had waited, and the last sequence; None: none is left."""

    expired: int
    last: int | None


def handles_of(engine: Engine, task_id: bytes) -> Sequence[bytes]:
    """Return the datasets that a task's reports belong to, and `NO_DATASET` for the others."""
    c = report_states.c
    is_there = exists().where(c.task_id == task_id, c.handle == datasets.c.handle)
    asked = select(datasets.c.handle).where(datasets.c.task_id == task_id, is_there)
    with reading(engine) as connection:
        return [NO_DATASET, *(bytes(handle) for handle in connection.execute(asked).scalars())]


def forget(engine: Engine, task_id: bytes, handle: bytes, *, after: int, limit: int) -> Forgotten:
    """Delete up to `limit` of a task's reports with a sequence over `after`, in one transaction.

    Those that wait are counted as expired. Those of a dataset stay until it is committed: it may still give
    them back.

    Args:
        engine: The ad server's database.
        task_id: The task's.
        handle: A dataset's; `NO_DATASET`: reports that no dataset has taken.
        after: Goes on behind this one.
        limit: How many at most.

    Guarantees: a report that a dataset takes at the same time is either expired, and not taken, or taken, and
        left alone.
    """
    c = report_states.c
    behind = (c.task_id == task_id) & (c.handle == handle) & (c.sequence > after)
    found = select(c.sequence).where(behind).order_by(c.sequence).limit(limit).subquery()
    with engine.begin() as connection:
        if handle != NO_DATASET:
            state = select(datasets.c.state).where(datasets.c.handle == handle).with_for_update()
            if connection.execute(state).scalar() != DatasetState.COMMITTED:
                return Forgotten(0, None)
        last = connection.execute(select(func.max(found.c.sequence))).scalar()
        if last is None:
            return Forgotten(0, None)
        gone = _delete(connection, behind & (c.sequence <= last))
        moved: Counter[ReportState] = Counter()
        for waits, expired in arrows(ReportEvent.EXPIRE).items():
            moved[waits] -= gone.get(waits, 0)
            moved[expired] += gone.get(waits, 0)
        shift(connection, task_id, moved)
    return Forgotten(moved[ReportState.EXPIRED], int(last))


def _delete(connection: Connection, these: ColumnElement[bool]) -> Mapping[str, int]:
    """Delete some reports; how many there were of each state.

    On PostgreSQL in one statement, which looks again at rows that another transaction changed while it waited
    for them, and deletes ciphertexts of those only that it then deletes.
    """
    c = report_states.c
    if connection.dialect.name == "sqlite":  # where transactions are one at a time
        asked = select(c.state, func.count()).where(these).group_by(c.state)
        counted = _by_state(connection.execute(asked))
        connection.execute(delete(reports).where(reports.c.sequence.in_(select(c.sequence).where(these))))
        connection.execute(delete(report_states).where(these))
        return counted
    gone = delete(report_states).where(these).returning(c.sequence, c.state).cte("gone")
    sealed = delete(reports).where(reports.c.sequence.in_(select(gone.c.sequence))).cte("sealed")
    asked = select(gone.c.state, func.count()).group_by(gone.c.state).add_cte(sealed)
    return _by_state(connection.execute(asked))


def _by_state(rows: Iterable[Any]) -> Mapping[str, int]:
    """Map each state to a count."""
    return {str(state): int(count) for state, count in rows}
