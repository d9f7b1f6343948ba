"""Deletes the reports of tasks that are over, ids and all; those that no dataset took are counted as expired.

    a day after a task's end      intakes refuse its reports
    the next time                 its reports go, but those of a dataset that is being committed

Helpers begin no job and no query in a task that is over, so none of these reports is of use any more; and
since intakes refuse them, none can be received a second time when its id is gone.
"""

import logging
from collections.abc import Callable
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from adserver.store.database import Clock
from adserver.store.datasets import DatasetStore
from adserver.store.reports import ReportStore
from adserver.store.tasks import REFUSED_EVERY_S, StoredTask, TaskStore
from maskedlark.runtime.periodic import IsStopped, Periodic

_LOG: Final = logging.getLogger(__name__)
GRACE_S: Final = 86_400.0
"""How long after its end a task's reports are kept, for clocks that differ and helpers that were away."""
SETTLED_S: Final = 2 * REFUSED_EVERY_S
"""How long after a task is marked all intakes refuse its reports, and have stored what they took before."""
APART_S: Final = 3_600.0
"""How far a server's own clock may be behind the database's; nothing expires if it is more."""
EVERY_S: Final = 600.0
_BATCH: Final = 5_000


def expire_reports(
    tasks: TaskStore,
    store: ReportStore,
    datasets: DatasetStore,
    now_s: float,
    *,
    is_stopped: IsStopped = lambda: False,
) -> int:
    """Delete the reports of tasks that are over, in short transactions, and return how many had waited.

    A task's reports are refused from the first call that finds it over, and deleted by a later one. Datasets
    that a dead run was preparing from them are given up. Idempotent, and safe while other servers do the
    same.
    """
    count = 0
    for stored in tasks.all():
        if is_stopped():
            break
        if now_s < stored.bundle.task.expires_at + GRACE_S:
            continue
        # Not in one call: an intake that has not seen the mark yet may still store a report of the task.
        if stored.refused_since is None:
            tasks.refuse(stored.task_id, now_s)
        elif now_s >= stored.refused_since + SETTLED_S:
            # Reports that a dead run was preparing would never expire.
            datasets.give_back_preparing(stored.task_id)
            count += _forget(store, stored, is_stopped)
            store.forget_objects(stored.task_id)
    return count


def _forget(store: ReportStore, stored: StoredTask, is_stopped: IsStopped) -> int:
    """Delete all reports of a task; how many had waited."""
    count = 0
    for handle in store.handles(stored.task_id):
        last: int | None = -1
        while last is not None and not is_stopped():
            # In batches: intakes of other tasks wait for the same database.
            forgotten = store.forget(stored.task_id, handle, after=last, limit=_BATCH)
            count, last = count + forgotten.expired, forgotten.last
    return count


def _sweeping(engine: Engine, shared: Clock, own: Clock) -> Callable[[IsStopped], None]:
    """Return the periodic task of a server: expire reports, unless the clocks contradict each other.

    Args:
        engine: The ad server's database.
        shared: The clock that all servers over it read alike.
        own: This server's. If it is far behind, one of both is wrong, and what is deleted stays so.
    """
    tasks, store, datasets = TaskStore(engine), ReportStore(engine), DatasetStore(engine)

    def expire(is_stopped: IsStopped) -> None:
        now_s = shared()
        ahead_s = now_s - own()
        # Only ahead: a database's clock that is behind keeps reports longer, and loses none.
        if ahead_s > APART_S:
            _LOG.warning(
                "the database's clock is %d s ahead of this server's, so no report expires: correct "
                "the clocks",
                ahead_s,
            )
            return
        count = expire_reports(tasks, store, datasets, now_s, is_stopped=is_stopped)
        if count:
            _LOG.info("%d reports of ended tasks have expired", count)

    return expire


def report_expirer(engine: Engine, shared: Clock, own: Clock, every_s: float = EVERY_S) -> Periodic:
    """Create a thread that periodically deletes the reports of tasks that are over."""
    work = _sweeping(engine, shared, own)
    return Periodic(work, name="report-expiry", every_s=every_s, survives=(SQLAlchemyError,))
