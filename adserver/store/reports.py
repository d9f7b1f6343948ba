"""The reports as they lie here.

Ciphertext, the id under which one is admitted, its state, and which dataset used it.

`adserver.records.report_state` decides what can happen to one; nothing here changes a report's state but
`_move`, which asks it. No column says where a report came from or when it came in.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from secrets import randbelow
from threading import Lock
from time import monotonic, sleep
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, Select, func, select, update
from sqlalchemy.sql import ColumnElement

from adserver.records.report_state import ReportEvent, ReportState, arrows
from adserver.store.batch_window import BatchWindow
from adserver.store.group_commit import GroupCommit
from adserver.store.insert_reports import NO_PLACES, find_stored, insert_new
from adserver.store.report_counts import SLOTS, arrive, count_all, count_by_state, shift
from adserver.store.report_deletion import Forgotten, forget, handles_of
from adserver.store.report_manifest import forget_objects
from adserver.store.report_object_reader import ReadsObjects, place_or_ciphertext, with_ciphertexts
from adserver.store.report_object_writer import Put, PutsReports, name_objects, places_of
from adserver.store.schema import NO_DATASET, report_states, reports
from adserver.store.share_pages import MAX_PAGE_ROWS, share_pages
from maskedlark.frozen import frozen
from maskedlark.reports.dataset import ShareColumns
from maskedlark.reports.sealing import OVERHEADS
from maskedlark.reports.task import REPORT_ID_BYTES, Task
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import is_away, reading

_PAGE_BYTES: Final = 1 << 20
_ROW_OVERHEAD_BYTES: Final = 64
_GROUP_BYTES: Final = 8 << 20
_GROUP_CALLS: Final = 1_024


@frozen
class ReportCounts:
    """How many reports of a task are stored.

    Attributes:
        waiting: Not yet taken by a dataset.
        sealed: In a dataset, or about to be.
        dropped: Taken, but not admitted by both helpers.
        expired: Not taken before the task was over.
    """

    waiting: int
    sealed: int
    dropped: int
    expired: int = 0


class _Adding:
    """One call of `ReportStore.add`: how many of its reports were new, or what it failed with by itself."""

    __slots__ = ("error", "new", "num_bytes", "reports")
    reports: Mapping[bytes, Report]  # by their digests

    def __init__(self, reports: Sequence[Report]) -> None:
        self.reports = {report.digest: report for report in reports}
        self.num_bytes = sum(
            _ROW_OVERHEAD_BYTES + sum(len(share.ciphertext) for share in report.shares) for report in reports
        )
        self.new = 0
        self.error: Exception | None = None


class ReportStore:
    """Where ingest puts reports. Safe to share between threads."""

    def __init__(self, engine: Engine, putting: PutsReports | None = None) -> None:
        """Store reports in `engine`; ciphertexts of groups that are worth it where `putting` puts them."""
        self._engine = engine
        self._putting = putting
        self._slot = randbelow(SLOTS)
        self._writing = Lock()  # threads of one process queue here instead of polling for the database's lock
        self._adding = GroupCommit(
            self._add_all,
            most=_GROUP_CALLS,
            weigh=lambda call: call.num_bytes,
            most_weight=_GROUP_BYTES,
            **_batch_window_options(putting),
        )

    def add(self, accepted: Sequence[Report]) -> int:
        """Store checked reports; how many of them are new.

        The others were stored before and stay as they are. Calls that come while a transaction commits share
        the next one, up to 8 MiB of them; one that comes while no transaction commits does not wait, except
        where objects are put: `adserver.store.batch_window`.

        Guarantees: when this returns, all of them are durable. A report is stored once however often it is
            sent; another one under its id is another report, so junk that came first displaces none. What
            the database refuses of one call spoils no other call.
        """
        if not accepted:
            return 0
        ours = _Adding(accepted)
        self._adding.call(ours)
        if ours.error is not None:
            raise ours.error
        return ours.new

    def _add_all(self, calls: Sequence[_Adding]) -> None:
        """Store the reports of all calls together, or of each alone if something in one is refused."""
        try:
            self._add_together(calls)
        except Exception as error:
            if len(calls) == 1 or is_away(error):
                raise
            for call in calls:
                try:
                    self._add_together([call])
                except Exception as own:  # noqa: BLE001  it is raised to the call's thread
                    call.error = own

    def _add_together(self, calls: Sequence[_Adding]) -> None:
        """Store the reports of all calls in one transaction; a new one counts for the first call with it."""
        first: dict[bytes, _Adding] = {}
        for call in calls:
            for key in call.reports:
                first.setdefault(key, call)
        reports = {key: call.reports[key] for key, call in first.items()}
        puts = self._put(calls, reports)
        with self._writing, self._engine.begin() as connection:
            places = places_of(connection, puts) if puts else NO_PLACES
            new = insert_new(connection, reports, places)
            if self._putting is not None:
                name_objects(connection, self._putting.bucket, puts, places, new)
            arrive(connection, Counter(reports[key].task_id for key in new), self._slot)
        for key in new:
            first[key].new += 1

    def _put(self, calls: Sequence[_Adding], reports: Mapping[bytes, Report]) -> Sequence[Put]:
        """Put ciphertexts where objects are put, but of no call that came before: nothing would name them.

        A call that is repeated is repeated whole, so its first report tells; what else is new in it becomes
        rows.
        """
        if self._putting is None or not self._putting.may_put(sum(call.num_bytes for call in calls)):
            return ()
        with reading(self._engine) as connection:
            stored = find_stored(connection, [next(iter(call.reports)) for call in calls])
        repeated = {key for call in calls if next(iter(call.reports)) in stored for key in call.reports}
        return self._putting.put({key: one for key, one in reports.items() if key not in repeated})

    def counts(self, task_id: bytes) -> ReportCounts:
        """Count a task's reports, as fast for a million reports as for one."""
        with reading(self._engine) as connection:
            found = count_by_state(connection, task_id)
        return ReportCounts(
            waiting=found.get(ReportState.RECEIVED, 0),
            sealed=found.get(ReportState.SEALED, 0),
            dropped=found.get(ReportState.DROPPED, 0),
            expired=found.get(ReportState.EXPIRED, 0),
        )

    def total(self) -> int:
        """Count the reports of all tasks, whatever became of them, but those that were deleted."""
        with reading(self._engine) as connection:
            return count_all(connection)

    def handles(self, task_id: bytes) -> Sequence[bytes]:
        """Return the arguments with which `forget` deletes all reports of a task."""
        return handles_of(self._engine, task_id)

    def forget(self, task_id: bytes, handle: bytes, *, after: int, limit: int) -> Forgotten:
        """Delete some reports of a task that is over, ids and all: `report_deletion.forget`."""
        with self._writing:
            return forget(self._engine, task_id, handle, after=after, limit=limit)

    def forget_objects(self, task_id: bytes) -> int:
        """Delete the rows of a task's objects, once none of its reports is left; how many."""
        return forget_objects(self._engine, task_id)

    def share_pages(self, task: Task, handle: bytes, role: int) -> Iterator[ShareColumns]:
        """Yield one helper's shares of the reports that a dataset took, in order of arrival.

        Each page is well under the limit of a gRPC message.

        Guarantees: holds one page in memory, some objects (`report_object_reader.HELD_BYTES`), and no lock.

        Raises:
            JobRefused(REPORTS_LOST): an object in which some lie is missing, or is not the one that was put.
            InvalidTask: the bucket of one cannot be opened here.
            HelperUnavailable: it cannot be read at the moment.
        """
        chosen = _taken(task.task_id, handle) & _IS_OF_REPORT
        page_rows = _PAGE_BYTES // (task.share_length + OVERHEADS[-1] + _ROW_OVERHEAD_BYTES)
        sequence = report_states.c.sequence
        pages = share_pages(
            self._engine,
            reports,
            chosen,
            sequence,
            role=role,
            page_rows=page_rows,
            ciphertext=place_or_ciphertext(role),
        )
        return with_ciphertexts(pages, ReadsObjects(self._engine), role=role)


def _batch_window_options(putting: PutsReports | None) -> dict[str, Any]:
    """Return how long groups stay open: longer than a transaction only if objects are put."""
    if putting is None:
        return {}
    gathering = BatchWindow(
        most_bytes=_GROUP_BYTES, monotonic=monotonic, pause=sleep, is_paused=putting.is_away
    )
    return {"hold": gathering.hold}


def take(connection: Connection, task_id: bytes, handle: bytes, limit: int) -> int:
    """Give a dataset up to `limit` of the task's waiting reports, the oldest first; how many it got."""
    waiting = _taken(task_id, NO_DATASET) & (report_states.c.state == ReportState.RECEIVED)
    oldest = _sequences(waiting).limit(limit).subquery()
    up_to = report_states.c.sequence <= select(func.max(oldest.c.sequence)).scalar_subquery()
    return _move(connection, task_id, ReportEvent.TAKE, [waiting & up_to], handle=handle)


def give_back(connection: Connection, task_id: bytes, handle: bytes) -> None:
    """Let all reports that a dataset took wait again."""
    _move(connection, task_id, ReportEvent.RELEASE, [_taken(task_id, handle)], handle=NO_DATASET)


def drop(connection: Connection, task_id: bytes, handle: bytes, is_kept: NDArray[np.bool_]) -> None:
    """Mark those of a dataset's reports, in order of arrival, that are not kept."""
    if is_kept.all():
        return
    taken = _taken(task_id, handle)
    sequences = connection.execute(_sequences(taken)).scalars().all()
    dropped = [sequences[position] for position in np.flatnonzero(~is_kept).tolist()]
    pages = [dropped[start : start + MAX_PAGE_ROWS] for start in range(0, len(dropped), MAX_PAGE_ROWS)]
    _move(
        connection, task_id, ReportEvent.DROP, [taken & report_states.c.sequence.in_(page) for page in pages]
    )


def report_ids(connection: Connection, task_id: bytes, handle: bytes) -> NDArray[np.uint8]:
    """Return the ids of the reports that a dataset took, u8 (n, 16), in order of arrival."""
    query = select(reports.c.report_id).where(_taken(task_id, handle) & _IS_OF_REPORT)
    found = connection.execute(query.order_by(report_states.c.sequence)).scalars().all()
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, REPORT_ID_BYTES)


def _move(
    connection: Connection,
    task_id: bytes,
    event: ReportEvent,
    pages: Sequence[ColumnElement[bool]],
    **columns: Any,
) -> int:
    """Let an event happen to those reports of a task whose state allows it, and set other columns with it.

    Returns how many there were. What is counted of the task moves with them, last of all, so that
    transactions wait for each other's counts in one order.

    PostgreSQL looks at the state again in rows that another transaction changed while this one waited for
    them.
    """
    moved: Counter[ReportState] = Counter()
    for before, following in arrows(event).items():
        moving = (
            update(report_states).where(report_states.c.state == before).values(state=following, **columns)
        )
        count = sum(connection.execute(moving.where(page)).rowcount for page in pages)
        moved[before] -= count
        moved[following] += count
    shift(connection, task_id, moved)
    return -sum(moved[before] for before in arrows(event))


_IS_OF_REPORT: Final = report_states.c.sequence == reports.c.sequence


def _taken(task_id: bytes, handle: bytes) -> ColumnElement[bool]:
    """Match the reports of a task that a dataset took, or with `NO_DATASET` no dataset."""
    return (report_states.c.task_id == task_id) & (report_states.c.handle == handle)


def _sequences(which: ColumnElement[bool]) -> Select[Any]:
    """Select the sequences of some reports, in order of arrival."""
    return select(report_states.c.sequence).where(which).order_by(report_states.c.sequence)
