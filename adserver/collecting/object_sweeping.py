"""Removes objects of reports that no row names any more, or never did.

    a task is over      its reports' rows and those of its objects go (`adserver.collecting.report_expiry`)
    a sweep             what is old and in no row goes from the bucket

So a crash between a put and its transaction leaves an orphan for a while, and nothing else. An object is only
removed by a server that was given its bucket: a copy of the database, started for a trial, removes nothing.
"""

import logging
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from adserver.store.database import Clock
from adserver.store.report_buckets import ReportBucket
from adserver.store.reports import ReportStore
from maskedlark.errors import HelperUnavailable
from maskedlark.runtime.objects import Retrying
from maskedlark.runtime.periodic import IsStopped, Periodic

_LOG: Final = logging.getLogger(__name__)
ORPHAN_S: Final = 3 * 86_400.0
"""How old an object must be: an intake may be about to name it, or an older backup be there by mistake."""
_EVERY_S: Final = 6 * 3_600.0


def sweep_objects(
    engine: Engine,
    bucket: ReportBucket,
    store: Retrying,
    now_s: float,
    *,
    is_stopped: IsStopped = lambda: False,
) -> int:
    """Remove what lies in a bucket's folder, is old, and is named by no row; how many.

    Args:
        engine: The ad server's database.
        bucket: Its row.
        store: Its store.
        now_s: Unix seconds.
        is_stopped: Whether to end early.

    Raises:
        HelperUnavailable: the store does not answer; the rest goes the next time.
    """
    reports, removed = ReportStore(engine), 0
    for page in store.list(bucket.folder):
        if is_stopped():
            break
        old = [one.name for one in page if now_s - one.modified_s >= ORPHAN_S]
        # Looked up after the store was listed: a name that came in between is too young to go.
        named = reports.find_named(old)
        orphans = [name for name in old if name not in named]
        store.delete(orphans)
        removed += len(orphans)
    return removed


def object_sweeper(engine: Engine, bucket: ReportBucket, shared: Clock, own: Clock) -> Periodic:
    """Create a thread that sweeps a bucket periodically.

    What is old is so by both clocks: that of the database and this server's.
    """
    store = bucket.open()

    def sweep(is_stopped: IsStopped) -> None:
        removed = sweep_objects(engine, bucket, store, min(shared(), own()), is_stopped=is_stopped)
        if removed:
            _LOG.info("removed %d objects whose reports have expired or were never stored", removed)

    return Periodic(
        sweep, name="object-sweeping", every_s=_EVERY_S, survives=(SQLAlchemyError, HelperUnavailable)
    )
