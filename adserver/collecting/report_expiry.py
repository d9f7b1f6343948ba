"""Deletes reports that no dataset took before their task was over.

Helpers begin nothing in a task that is over, so such a report can never be opened. Its ciphertexts are
deleted; its id stays.
"""

import logging
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from adserver.store.database import Clock
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.runtime.periodic import IsStopped, Periodic

_LOG: Final = logging.getLogger(__name__)
GRACE_S: Final = 86_400.0
"""How long after its end a task's reports are kept, for clocks that differ and helpers that were away."""
EVERY_S: Final = 600.0
_BATCH: Final = 1_000


def expire_reports(
    tasks: TaskStore, store: ReportStore, now_s: float, *, is_stopped: IsStopped = lambda: False
) -> int:
    """Expire the reports that wait in tasks that are over, in short transactions; how many.

    Idempotent, and safe beside other servers.
    """
    count = 0
    for stored in tasks.all():
        if now_s < stored.bundle.task.expires_at + GRACE_S:
            continue
        last: int | None = -1
        while last is not None and not is_stopped():
            expired = store.expire(stored.task_id, after=last, limit=_BATCH)
            count, last = count + expired.reports, expired.last
    return count


def report_expirer(tasks: TaskStore, store: ReportStore, clock: Clock, every_s: float = EVERY_S) -> Periodic:
    """A thread that expires reports every so many seconds."""

    def expire(is_stopped: IsStopped) -> None:
        count = expire_reports(tasks, store, clock(), is_stopped=is_stopped)
        if count:
            _LOG.info("%d reports of tasks that are over have expired", count)

    return Periodic(expire, name="report-expiry", every_s=every_s, survives=(SQLAlchemyError,))
