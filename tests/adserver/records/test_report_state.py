"""A report's life, on both engines: waiting, sealed, dropped, expired; and never two of them at once."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from time import monotonic, sleep

import numpy as np
import pytest
from sqlalchemy import Engine, func, select

from adserver.collecting.report_expiry import (
    APART_S,
    GRACE_S,
    SETTLED_S,
    _sweeping,
    expire_reports,
    report_expirer,
)
from adserver.ingest.intake import Intake, IntakeCounts
from adserver.records.dataset_state import DatasetState
from adserver.records.report_state import ReportEvent, ReportState
from adserver.store.database import create_tables
from adserver.store.datasets import DatasetStore
from adserver.store.report_counts import shift
from adserver.store.reports import DatasetReports, ReportCounts, ReportStore
from adserver.store.schema import NO_DATASET, datasets, report_states, reports
from adserver.store.tasks import REFUSED_EVERY_S, TaskStore
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import report_to_message
from maskedlark.runtime.database import open_database
from protos import report_pb2
from tests import builders
from tests.builders import NOW, world
from tests.patience import HANGS_S

ALLOWED = {
    (ReportState.RECEIVED, ReportEvent.TAKE): ReportState.SEALED,
    (ReportState.SEALED, ReportEvent.DROP): ReportState.DROPPED,
    (ReportState.SEALED, ReportEvent.RELEASE): ReportState.RECEIVED,
    (ReportState.DROPPED, ReportEvent.RELEASE): ReportState.RECEIVED,
    (ReportState.RECEIVED, ReportEvent.EXPIRE): ReportState.EXPIRED,
}
HANDLE, OTHER = b"h" * 16, b"o" * 16
OF = world()
TASK_ID = OF.task.task_id
MADE: list[Report] = builders.reports(OF, builders.examples(OF.task, 5))
OVER_S = OF.task.expires_at + GRACE_S


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = open_database(database_url)
    create_tables(made)
    TaskStore(made).add(OF.bundle, created_at=NOW)
    yield made
    made.dispose()


def begin(engine: Engine, limit: int = 5) -> None:
    DatasetStore(engine).begin(TASK_ID, HANDLE, limit=limit, created_at=NOW)


def expire(engine: Engine, now_s: float = OVER_S) -> int:
    """Two sweeps: the first has reports refused, the second deletes them."""
    tasks, store = TaskStore(engine), ReportStore(engine)
    assert expire_reports(tasks, store, DatasetStore(engine), now_s) == 0
    return expire_reports(tasks, store, DatasetStore(engine), now_s + SETTLED_S)


def forget_all(engine: Engine, limit: int = 7) -> int:
    """How many of the task's waiting reports expire, in transactions of `limit`."""
    count, store = 0, ReportStore(engine)
    for handle in store.handles(TASK_ID):
        last: int | None = -1
        while last is not None:
            expired, last = store.forget(TASK_ID, handle, after=last, limit=limit)
            count += expired
    return count


def num_rows(engine: Engine) -> int:
    with engine.begin() as connection:
        counts = [
            connection.execute(select(func.count()).select_from(one)).scalar_one()
            for one in (reports, report_states)
        ]
    assert counts[0] == counts[1]
    return int(counts[0])


def bring_to(engine: Engine, state: ReportState) -> None:
    """Store one report, and have it reach a state by the way that leads there."""
    ReportStore(engine).add(MADE[:1])
    if state is ReportState.EXPIRED:
        assert forget_all(engine) == 1
    elif state is not ReportState.RECEIVED:
        begin(engine)
        if state is ReportState.DROPPED:
            with engine.begin() as connection:
                DatasetReports(connection, TASK_ID, HANDLE).drop(np.zeros(1, np.bool_))
    assert state_of(engine) is state


def state_of(engine: Engine) -> ReportState:
    """The state of the one report; one that has expired is counted, and no more there."""
    with engine.begin() as connection:
        state = connection.execute(select(report_states.c.state)).scalar_one_or_none()
    if state is None:
        assert ReportStore(engine).counts(TASK_ID) == ReportCounts(waiting=0, sealed=0, dropped=0, expired=1)
        return ReportState.EXPIRED
    return ReportState(state)


def happen(engine: Engine, event: ReportEvent) -> None:
    match event:
        case ReportEvent.EXPIRE:
            forget_all(engine)
        case ReportEvent.TAKE:
            with engine.begin() as connection:
                row = {
                    "handle": OTHER,
                    "task_id": TASK_ID,
                    "state": DatasetState.COMMITTED,
                    "created_at": NOW,
                    "received": 0,
                }
                connection.execute(datasets.insert().values(row))
                DatasetReports(connection, TASK_ID, OTHER).take(5)
        case ReportEvent.DROP:
            with engine.begin() as connection:
                none = np.zeros(len(DatasetReports(connection, TASK_ID, HANDLE).ids()), np.bool_)
                DatasetReports(connection, TASK_ID, HANDLE).drop(none)
        case ReportEvent.RELEASE:
            with engine.begin() as connection:
                DatasetReports(connection, TASK_ID, HANDLE).give_back()


@pytest.mark.parametrize("state", ReportState)
@pytest.mark.parametrize("event", ReportEvent)
def test_only_the_drawn_arrows_exist_in_the_table_and_in_the_database(
    engine: Engine, state: ReportState, event: ReportEvent
) -> None:
    expected = ALLOWED.get((state, event))
    assert event.arrows.get(state) is expected
    bring_to(engine, state)
    happen(engine, event)
    assert state_of(engine) is (expected or state)


def test_reports_expire_with_their_task_and_a_grace(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    assert expire(engine, OVER_S - SETTLED_S - 1) == 0
    assert ReportStore(engine).counts(TASK_ID).waiting == len(MADE)
    assert expire(engine) == len(MADE)
    assert ReportStore(engine).counts(TASK_ID).expired == len(MADE)


def test_the_first_sweep_has_reports_refused_and_a_later_one_deletes_them(engine: Engine) -> None:
    tasks, store = TaskStore(engine), ReportStore(engine)
    store.add(MADE)
    assert tasks.list_refused() == frozenset()
    assert expire_reports(tasks, store, DatasetStore(engine), OVER_S) == 0
    assert tasks.list_refused() == {TASK_ID}
    assert expire_reports(tasks, store, DatasetStore(engine), OVER_S + SETTLED_S - 1) == 0
    assert num_rows(engine) == len(MADE)
    assert expire_reports(tasks, store, DatasetStore(engine), OVER_S + SETTLED_S) == len(MADE)
    assert num_rows(engine) == 0


def test_an_intake_refuses_what_has_expired_within_a_minute_of_the_first_sweep(engine: Engine) -> None:
    now_s = 0.0
    intake = Intake(TaskStore(engine), ReportStore(engine), lambda: now_s)
    assert intake.take(MADE[0])
    assert expire_reports(TaskStore(engine), ReportStore(engine), DatasetStore(engine), OVER_S) == 0
    assert intake.take(MADE[1])  # it does not know yet
    now_s = REFUSED_EVERY_S
    for one in MADE[:3]:
        with pytest.raises(ReportRejected) as refusal:
            intake.take(one)
        assert refusal.value.reason is ReportReason.OUTSIDE_TASK_PERIOD
    assert forget_all(engine) == 2
    begun = Intake(TaskStore(engine), ReportStore(engine), lambda: now_s)
    with pytest.raises(ReportRejected):
        begun.take(MADE[0])
    assert ReportStore(engine).counts(TASK_ID).expired == 2


def test_a_slow_stream_stores_nothing_of_a_task_that_is_refused_before_it_ends(engine: Engine) -> None:
    now_s = 0.0
    intake = Intake(TaskStore(engine), ReportStore(engine), lambda: now_s)
    assert intake.take(MADE[0])

    def slow() -> Iterator[report_pb2.Report]:
        nonlocal now_s
        yield from map(report_to_message, MADE[:2])  # checked, and waiting for the end of the stream
        assert expire(engine) == 1
        now_s = SETTLED_S

    refused = Counter({ReportReason.OUTSIDE_TASK_PERIOD: 2})
    assert intake.take_all(slow()) == IntakeCounts(rejected=refused)
    assert intake.counts == IntakeCounts(accepted=1, rejected=refused)
    assert num_rows(engine) == 0


def test_an_expired_report_is_not_taken(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    assert expire(engine) == len(MADE)
    with pytest.raises(JobRefused) as refusal:
        begin(engine)
    assert refusal.value.reason is JobReason.DATASET_EMPTY


@pytest.mark.parametrize("state", [DatasetState.COMMITTING, DatasetState.COMMITTED])
def test_reports_of_a_dataset_go_with_their_task_once_both_helpers_have_it(
    engine: Engine, state: DatasetState
) -> None:
    ReportStore(engine).add(MADE)
    begin(engine, limit=2)
    with engine.begin() as connection:
        connection.execute(datasets.update().values(state=state))
    assert expire(engine) == 3
    assert num_rows(engine) == (0 if state is DatasetState.COMMITTED else 2)
    assert ReportStore(engine).counts(TASK_ID) == ReportCounts(waiting=0, sealed=2, dropped=0, expired=3)


def test_what_a_run_that_died_was_preparing_expires_with_the_rest(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    begin(engine, limit=2)
    assert expire(engine) == len(MADE)
    assert num_rows(engine) == 0
    assert DatasetStore(engine).all() == []
    counts = ReportCounts(waiting=0, sealed=0, dropped=0, expired=len(MADE))
    assert ReportStore(engine).counts(TASK_ID) == counts


def test_reports_that_an_older_version_expired_go_and_are_counted_once(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    with engine.begin() as connection:  # as it did: shares deleted, ids kept
        old = select(reports.c.sequence).where(reports.c.report_id == MADE[0].report_id).scalar_subquery()
        expired = report_states.update().where(report_states.c.sequence == old)
        connection.execute(expired.values(state=ReportState.EXPIRED))
        shift(connection, TASK_ID, {ReportState.RECEIVED: -1, ReportState.EXPIRED: 1})
    assert expire(engine) == len(MADE) - 1
    assert num_rows(engine) == 0
    assert ReportStore(engine).counts(TASK_ID).expired == len(MADE)


def test_another_tasks_reports_stay(engine: Engine) -> None:
    other = world(name="goes on", expires_at=OF.task.expires_at + 86_400)
    TaskStore(engine).add(other.bundle, created_at=NOW)
    ReportStore(engine).add([*MADE, *builders.reports(other, builders.examples(other.task, 4))])
    assert expire(engine) == len(MADE)
    assert ReportStore(engine).counts(other.task.task_id).waiting == num_rows(engine) == 4


def test_reports_of_a_dataset_that_is_given_up_expire_too(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    begin(engine)
    with engine.begin() as connection:
        connection.execute(datasets.update().values(state=DatasetState.COMMITTING))
    assert expire(engine) == 0
    store = DatasetStore(engine)
    store.give_back(store.all()[0])
    assert expire(engine) == len(MADE)


def test_one_transaction_expires_no_more_than_its_limit_and_the_next_goes_on_behind_it(
    engine: Engine,
) -> None:
    store = ReportStore(engine)
    store.add(MADE)
    first = store.forget(TASK_ID, NO_DATASET, after=-1, limit=3)
    assert first.last is not None
    second = store.forget(TASK_ID, NO_DATASET, after=first.last, limit=3)
    assert (first.expired, second.expired) == (3, 2)
    assert second.last is not None
    assert store.forget(TASK_ID, NO_DATASET, after=second.last, limit=3) == (0, None)


def test_a_report_that_is_taken_while_it_expires_is_one_or_the_other(engine: Engine) -> None:
    made = builders.reports(OF, builders.examples(OF.task, 60))
    store, both = ReportStore(engine), Barrier(2)
    store.add(made)

    def taking() -> int:
        both.wait()
        try:
            return DatasetStore(engine).begin(TASK_ID, HANDLE, limit=60, created_at=NOW).received
        except JobRefused:
            return 0

    def expiring() -> int:
        both.wait()
        return forget_all(engine)

    with ThreadPoolExecutor(2) as threads:
        taken, expired = threads.submit(taking), threads.submit(expiring)
    assert taken.result() + expired.result() == 60
    assert store.counts(TASK_ID) == ReportCounts(
        waiting=0, sealed=taken.result(), dropped=0, expired=expired.result()
    )


def test_a_running_server_expires_by_itself_and_stops_at_once(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    TaskStore(engine).refuse(TASK_ID, OVER_S - SETTLED_S)
    expirer = report_expirer(engine, lambda: OVER_S, lambda: OVER_S, every_s=3_600.0)
    expirer.start()
    waited_until = monotonic() + HANGS_S
    while ReportStore(engine).counts(TASK_ID).waiting and monotonic() < waited_until:
        sleep(0.01)
    begun_s = monotonic()
    expirer.stop()
    assert monotonic() - begun_s < HANGS_S < 3_600.0
    assert ReportStore(engine).counts(TASK_ID).expired == len(MADE)


@pytest.mark.parametrize(("behind_s", "stay"), [(APART_S, 0), (APART_S + 1, len(MADE))])
def test_nothing_expires_by_a_database_clock_that_is_far_ahead(
    engine: Engine, behind_s: float, stay: int
) -> None:
    ReportStore(engine).add(MADE)
    TaskStore(engine).refuse(TASK_ID, OVER_S - SETTLED_S)
    work = _sweeping(engine, lambda: OVER_S, lambda: OVER_S - behind_s)
    work(lambda: False)
    assert num_rows(engine) == stay


def test_no_task_is_refused_by_a_database_clock_that_is_far_ahead(engine: Engine) -> None:
    _sweeping(engine, lambda: OVER_S, lambda: float(OF.task.expires_at - 1))(lambda: False)
    assert TaskStore(engine).list_refused() == frozenset()


def test_a_dataset_whose_reports_are_gone_is_not_looked_at_again(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    begin(engine, limit=2)
    with engine.begin() as connection:
        connection.execute(datasets.update().values(state=DatasetState.COMMITTED))
    assert ReportStore(engine).handles(TASK_ID) == [NO_DATASET, HANDLE]
    expire(engine)
    assert ReportStore(engine).handles(TASK_ID) == [NO_DATASET]


def test_a_sweep_that_is_stopped_leaves_the_rest_for_the_next(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    stopped = Event()
    stopped.set()
    tasks, store = TaskStore(engine), ReportStore(engine)
    assert expire_reports(tasks, store, DatasetStore(engine), OVER_S, is_stopped=stopped.is_set) == 0
    assert tasks.list_refused() == frozenset()
    tasks.refuse(TASK_ID, OVER_S)
    later_s = OVER_S + SETTLED_S
    assert expire_reports(tasks, store, DatasetStore(engine), later_s, is_stopped=stopped.is_set) == 0
    assert num_rows(engine) == len(MADE)
    assert expire_reports(tasks, store, DatasetStore(engine), later_s) == len(MADE)
