"""Forgets what nobody will use: reports that no dataset took before their task was over.

Helpers begin nothing in a task that is over, so such a report can never be opened. Its ciphertexts are
deleted; its id stays.
"""

import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from adserver.store.database import Clock
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore

_LOG: Final = logging.getLogger(__name__)
GRACE_S: Final = 86_400.0
"""How long after its end a task's reports are kept, for clocks that differ and helpers that were away."""
EVERY_S: Final = 600.0
_BATCH: Final = 1_000


def expire_reports(
    tasks: TaskStore, store: ReportStore, now_s: float, *, is_stopped: Callable[[], bool] = lambda: False
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


class ReportExpirer:
    """A thread that expires reports now and then every so many seconds."""

    def __init__(self, tasks: TaskStore, store: ReportStore, clock: Clock, every_s: float = EVERY_S) -> None:
        self._tasks = tasks
        self._store = store
        self._clock = clock
        self._every_s = every_s
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="report-expiry", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the transaction that is under way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                count = expire_reports(
                    self._tasks, self._store, self._clock(), is_stopped=self._stopping.is_set
                )
                if count:
                    _LOG.info("%d reports of tasks that are over have expired", count)
            except SQLAlchemyError:
                _LOG.exception("reports are not expired; it is tried again")
            self._stopping.wait(self._every_s)
