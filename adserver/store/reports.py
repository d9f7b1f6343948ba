"""The reports as they lie here.

Ciphertext, the id under which one is admitted, its state, and which dataset used it.

`adserver.records.report_state` decides what can happen to one; nothing here changes a report's state but
`DatasetReports`, which asks it. No column says where a report came from or when it came in.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from secrets import randbelow
from threading import Lock
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, Select, delete, exists, func, select, update
from sqlalchemy.sql import ColumnElement

from adserver.records.dataset_state import DatasetState
from adserver.records.report_state import ReportEvent, ReportState
from adserver.store.batch_window import BatchWindow
from adserver.store.group_commit import GroupCommit
from adserver.store.insert_reports import NO_PLACES, find_stored, insert_new
from adserver.store.report_counts import SLOTS, arrive, count_all, count_by_state, shift
from adserver.store.report_object_reader import ReadsObjects
from adserver.store.report_object_writer import Put, PutsReports
from adserver.store.schema import NO_DATASET, datasets, report_objects, report_states, reports
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
_OBJECTS_AT_ONCE: Final = 1_000


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


class Forgotten(NamedTuple):
    """What a transaction deleted: how many reports had waited, and the last sequence; None: none is left."""

    expired: int
    last: int | None


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
        # A row of counts that this process seldom shares with another intake.
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
            # Without a database each call alone would fail too, after as long a wait.
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
        # Before the transaction, which would hold the database's lock while objects are sent.
        puts = self._put(calls, reports)
        with self._writing, self._engine.begin() as connection:
            places = NO_PLACES if self._putting is None else self._putting.places(connection, puts)
            new = insert_new(connection, reports, places)
            if self._putting is not None:
                self._putting.name(connection, puts, places, new)
            arrive(connection, Counter(reports[key].task_id for key in new), self._slot)
        # Only now: before the commit nothing of it is durable, and the calls may be tried one by one.
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
        """Return the arguments with which `forget` deletes all reports of a task.

        Its datasets, and `NO_DATASET` for reports that no dataset has taken.
        """
        c = report_states.c
        is_there = exists().where(c.task_id == task_id, c.handle == datasets.c.handle)
        asked = select(datasets.c.handle).where(datasets.c.task_id == task_id, is_there)
        with reading(self._engine) as connection:
            return [NO_DATASET, *(bytes(handle) for handle in connection.execute(asked).scalars())]

    def forget(self, task_id: bytes, handle: bytes, *, after: int, limit: int) -> Forgotten:
        """Delete up to `limit` of a task's reports, ids and all, in one transaction.

        A report is kept so that a second upload of it is a duplicate. Once intakes refuse every report of the
        task, it is of no more use: `adserver.collecting.report_expiry` sees to that order. Those that wait
        are counted as expired; those of a dataset stay until it is committed: it may still give them back.

        Args:
            task_id: The task's.
            handle: A dataset's; `NO_DATASET`: reports that no dataset has taken.
            after: Goes on behind this sequence.
            limit: How many at most.

        Guarantees: a report that a dataset takes at the same time is either expired, and not taken, or taken,
            and left alone.
        """
        c = report_states.c
        behind = (c.task_id == task_id) & (c.handle == handle) & (c.sequence > after)
        found = select(c.sequence).where(behind).order_by(c.sequence).limit(limit).subquery()
        with self._writing, self._engine.begin() as connection:
            # Locked until these are gone: a dataset that is not committed may still give them back.
            if handle != NO_DATASET:
                state = select(datasets.c.state).where(datasets.c.handle == handle).with_for_update()
                if connection.execute(state).scalar() != DatasetState.COMMITTED:
                    return Forgotten(0, None)
            last = connection.execute(select(func.max(found.c.sequence))).scalar()
            if last is None:
                return Forgotten(0, None)
            gone = _delete(connection, behind & (c.sequence <= last))
            moved: Counter[ReportState] = Counter()
            for waits, expired in ReportEvent.EXPIRE.arrows.items():
                moved[waits] -= gone.get(waits, 0)
                moved[expired] += gone.get(waits, 0)
            shift(connection, task_id, moved)
        return Forgotten(moved[ReportState.EXPIRED], int(last))

    def find_named(self, names: Sequence[str]) -> frozenset[str]:
        """Return which of some objects of reports a row names."""
        if not names:
            return frozenset()
        with reading(self._engine) as connection:
            found = connection.execute(select(report_objects.c.name).where(report_objects.c.name.in_(names)))
            return frozenset(found.scalars())

    def forget_objects(self, task_id: bytes) -> int:
        """Delete the rows of a task's objects, once none of its reports is left; how many.

        The objects themselves go with the next sweep that finds them old.

        Guarantees: the row of an object with a report that is stored meanwhile stays.
        """
        c, count = report_objects.c, 0
        some = select(c.object).where(c.task_id == task_id).limit(_OBJECTS_AT_ONCE)
        is_left = exists().where(report_states.c.task_id == task_id)
        deleting = delete(report_objects).where(c.object.in_(some), ~is_left)
        while True:
            with self._engine.begin() as connection:
                gone = connection.execute(deleting).rowcount
            count += gone
            if gone < _OBJECTS_AT_ONCE:
                return count

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
            ciphertext=ReadsObjects.place_or_ciphertext(role),
        )
        return ReadsObjects(self._engine).fill(pages, role=role)


def _batch_window_options(putting: PutsReports | None) -> dict[str, Any]:
    """Return how long groups stay open: longer than a transaction only if objects are put."""
    if putting is None:
        return {}
    gathering = BatchWindow(
        most_bytes=_GROUP_BYTES, monotonic=monotonic, pause=sleep, is_paused=putting.is_away
    )
    return {"hold": gathering.hold}


class DatasetReports(NamedTuple):
    """The reports that a dataset takes, as the transaction moves them that changes the dataset.

    Attributes:
        connection: In that transaction.
        task_id: The dataset's task.
        handle: The dataset's.
    """

    connection: Connection
    task_id: bytes
    handle: bytes

    def take(self, limit: int) -> int:
        """Give the dataset up to `limit` of the task's waiting reports, the oldest first; how many it got."""
        waiting = _taken(self.task_id, NO_DATASET) & (report_states.c.state == ReportState.RECEIVED)
        oldest = _sequences(waiting).limit(limit).subquery()
        # A bound in place of a list, so that the statement is as long for a million reports as for one.
        up_to = report_states.c.sequence <= select(func.max(oldest.c.sequence)).scalar_subquery()
        return self._move(ReportEvent.TAKE, [waiting & up_to], handle=self.handle)

    def give_back(self) -> None:
        """Let all its reports wait again."""
        self._move(ReportEvent.RELEASE, [_taken(self.task_id, self.handle)], handle=NO_DATASET)

    def drop(self, is_kept: NDArray[np.bool_]) -> None:
        """Mark those of its reports, in order of arrival, that are not kept."""
        if is_kept.all():
            return
        taken = _taken(self.task_id, self.handle)
        sequences = self.connection.execute(_sequences(taken)).scalars().all()
        dropped = [sequences[position] for position in np.flatnonzero(~is_kept).tolist()]
        # In pages, because databases limit how many parameters a statement has.
        pages = [dropped[start : start + MAX_PAGE_ROWS] for start in range(0, len(dropped), MAX_PAGE_ROWS)]
        self._move(ReportEvent.DROP, [taken & report_states.c.sequence.in_(page) for page in pages])

    def ids(self) -> NDArray[np.uint8]:
        """Return the ids of its reports, u8 (n, 16), in order of arrival."""
        query = select(reports.c.report_id).where(_taken(self.task_id, self.handle) & _IS_OF_REPORT)
        found = self.connection.execute(query.order_by(report_states.c.sequence)).scalars().all()
        return np.frombuffer(b"".join(found), np.uint8).reshape(-1, REPORT_ID_BYTES)

    def _move(self, event: ReportEvent, pages: Sequence[ColumnElement[bool]], **columns: Any) -> int:
        """Let an event happen to those reports whose state allows it, and set other columns with it.

        Returns how many there were. What is counted of the task moves with them, last of all, so that
        transactions wait for each other's counts in one order.

        PostgreSQL looks at the state again in rows that another transaction changed while this one waited for
        them.
        """
        moved: Counter[ReportState] = Counter()
        for before, following in event.arrows.items():
            moving = (
                update(report_states)
                .where(report_states.c.state == before)
                .values(state=following, **columns)
            )
            count = sum(self.connection.execute(moving.where(page)).rowcount for page in pages)
            moved[before] -= count
            moved[following] += count
        shift(self.connection, self.task_id, moved)
        return -sum(moved[before] for before in event.arrows)


_IS_OF_REPORT: Final = report_states.c.sequence == reports.c.sequence


def _taken(task_id: bytes, handle: bytes) -> ColumnElement[bool]:
    """Match the reports of a task that a dataset took, or with `NO_DATASET` no dataset."""
    return (report_states.c.task_id == task_id) & (report_states.c.handle == handle)


def _sequences(which: ColumnElement[bool]) -> Select[Any]:
    """Select the sequences of some reports, in order of arrival."""
    return select(report_states.c.sequence).where(which).order_by(report_states.c.sequence)


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
