"""The reports of a task that is over go, ids and all; what was counted of them stays.

    for handle in handles_of(engine, task_id):
        last: int | None = -1
        while last is not None:
            last = forget(engine, task_id, handle, after=last, limit=5_000).last

An id is kept so that a second upload is a duplicate. Once intakes refuse every report of the task, it is of
no more use: `adserver.collecting.report_expiry` sees to that order.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Engine, delete, exists, func, select

from adserver.records.dataset_state import DatasetState
from adserver.records.report_state import ReportEvent, ReportState, arrows
from adserver.store.report_counts import shift
from adserver.store.schema import datasets, reports
from maskedlark.runtime.database import reading


class Forgotten(NamedTuple):
    """What a transaction deleted: how many reports had waited, and the last sequence; None: none is left."""

    expired: int
    last: int | None


def handles_of(engine: Engine, task_id: bytes) -> Sequence[bytes | None]:
    """The datasets that a task's reports are of, and None for those that are of none."""
    is_there = exists().where(reports.c.task_id == task_id, reports.c.handle == datasets.c.handle)
    asked = select(datasets.c.handle).where(datasets.c.task_id == task_id, is_there)
    with reading(engine) as connection:
        return [None, *(bytes(handle) for handle in connection.execute(asked).scalars())]


def forget(engine: Engine, task_id: bytes, handle: bytes | None, *, after: int, limit: int) -> Forgotten:
    """Delete up to `limit` of a task's reports with a sequence over `after`, in one transaction.

    Those that wait are counted as expired. Those of a dataset stay until it is committed: it may still give
    them back.

    Args:
        engine: The ad server's database.
        task_id: The task's.
        handle: A dataset's; None: reports that no dataset has taken.
        after: Goes on behind this one.
        limit: How many at most.

    Guarantees: a report that a dataset takes at the same time is either expired, and not taken, or taken, and
        left alone.
    """
    of_task = (reports.c.task_id == task_id) & (
        reports.c.handle.is_(None) if handle is None else reports.c.handle == handle
    )
    behind = of_task & (reports.c.sequence > after)
    found = select(reports.c.sequence).where(behind).order_by(reports.c.sequence).limit(limit).subquery()
    with engine.begin() as connection:
        if handle is not None:
            state = select(datasets.c.state).where(datasets.c.handle == handle).with_for_update()
            if connection.execute(state).scalar() != DatasetState.COMMITTED:
                return Forgotten(0, None)
        last = connection.execute(select(func.max(found.c.sequence))).scalar()
        if last is None:
            return Forgotten(0, None)
        these = behind & (reports.c.sequence <= last)
        moved: Counter[ReportState] = Counter()
        for waits, expired in arrows(ReportEvent.EXPIRE).items():
            gone = connection.execute(delete(reports).where(these, reports.c.state == waits)).rowcount
            moved[waits] -= gone
            moved[expired] += gone
        others = reports.c.state.not_in(list(arrows(ReportEvent.EXPIRE)))
        connection.execute(delete(reports).where(these, others))
        shift(connection, task_id, moved)
    return Forgotten(moved[ReportState.EXPIRED], int(last))
