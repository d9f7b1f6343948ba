"""A report's life, on both engines: waiting, sealed, dropped, expired; and never two of them at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from time import monotonic, sleep

import numpy as np
import pytest
from sqlalchemy import Engine, select

from adserver.collecting.report_expiry import GRACE_S, expire_reports, report_expirer
from adserver.records.dataset_state import DatasetState
from adserver.records.report_state import ReportEvent, ReportState, arrows
from adserver.store import reports as stored_reports
from adserver.store.database import create_tables
from adserver.store.datasets import DatasetStore
from adserver.store.reports import ReportCounts, ReportStore
from adserver.store.schema import datasets, reports
from adserver.store.tasks import TaskStore
from maskedlark.errors import JobReason, JobRefused
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import open_database
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
    return expire_reports(TaskStore(engine), ReportStore(engine), now_s)


def bring_to(engine: Engine, state: ReportState) -> None:
    """Store one report, and have it reach a state by the way that leads there."""
    ReportStore(engine).add(MADE[:1])
    if state is ReportState.EXPIRED:
        assert expire(engine) == 1
    elif state is not ReportState.RECEIVED:
        begin(engine)
        if state is ReportState.DROPPED:
            with engine.begin() as connection:
                stored_reports.drop(connection, TASK_ID, HANDLE, np.zeros(1, np.bool_))
    assert state_of(engine) is state


def state_of(engine: Engine) -> ReportState:
    with engine.begin() as connection:
        return ReportState(connection.execute(select(reports.c.state)).scalar_one())


def happen(engine: Engine, event: ReportEvent) -> None:
    match event:
        case ReportEvent.EXPIRE:
            expire(engine)
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
                stored_reports.take(connection, TASK_ID, OTHER, 5)
        case ReportEvent.DROP:
            with engine.begin() as connection:
                none = np.zeros(len(stored_reports.report_ids(connection, TASK_ID, HANDLE)), np.bool_)
                stored_reports.drop(connection, TASK_ID, HANDLE, none)
        case ReportEvent.RELEASE:
            with engine.begin() as connection:
                stored_reports.give_back(connection, TASK_ID, HANDLE)


@pytest.mark.parametrize("state", ReportState)
@pytest.mark.parametrize("event", ReportEvent)
def test_only_the_drawn_arrows_exist_in_the_table_and_in_the_database(
    engine: Engine, state: ReportState, event: ReportEvent
) -> None:
    expected = ALLOWED.get((state, event))
    assert arrows(event).get(state) is expected
    bring_to(engine, state)
    happen(engine, event)
    assert state_of(engine) is (expected or state)


def test_reports_expire_with_their_task_and_a_grace_and_their_shares_are_deleted(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    begin(engine, limit=2)
    assert expire(engine, OVER_S - 1) == 0
    assert expire(engine) == 3
    assert expire(engine) == 0
    assert ReportStore(engine).counts(TASK_ID) == ReportCounts(waiting=0, sealed=2, dropped=0, expired=3)
    with engine.begin() as connection:
        rows = connection.execute(
            select(reports.c.state, reports.c.ciphertext_0, reports.c.ciphertext_1)
        ).all()
    assert {(state, bool(first), bool(second)) for state, first, second in rows} == {
        ("sealed", True, True),
        ("expired", False, False),
    }


def test_an_expired_report_is_neither_taken_nor_received_again(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    assert expire(engine) == len(MADE)
    assert ReportStore(engine).add(MADE) == 0  # answered as a duplicate
    with pytest.raises(JobRefused) as refusal:
        begin(engine)
    assert refusal.value.reason is JobReason.DATASET_EMPTY
    assert ReportStore(engine).counts(TASK_ID).expired == len(MADE)


def test_reports_of_a_dataset_that_is_given_up_expire_too(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    begin(engine)
    assert expire(engine) == 0
    store = DatasetStore(engine)
    store.give_back(store.all()[0])
    assert expire(engine) == len(MADE)


def test_one_transaction_expires_no_more_than_its_limit_and_the_next_goes_on_behind_it(
    engine: Engine,
) -> None:
    store = ReportStore(engine)
    store.add(MADE)
    first = store.expire(TASK_ID, after=-1, limit=3)
    assert first.last is not None
    second = store.expire(TASK_ID, after=first.last, limit=3)
    assert (first.reports, second.reports) == (3, 2)
    assert second.last is not None
    assert store.expire(TASK_ID, after=second.last, limit=3) == (0, None)


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
        count, last = 0, -1
        while (expired := store.expire(TASK_ID, after=last, limit=7)).last is not None:
            count, last = count + expired.reports, expired.last
        return count

    with ThreadPoolExecutor(2) as threads:
        taken, expired = threads.submit(taking), threads.submit(expiring)
    assert taken.result() + expired.result() == 60
    assert store.counts(TASK_ID) == ReportCounts(
        waiting=0, sealed=taken.result(), dropped=0, expired=expired.result()
    )


def test_a_running_server_expires_by_itself_and_stops_at_once(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    expirer = report_expirer(TaskStore(engine), ReportStore(engine), lambda: OVER_S, every_s=3_600.0)
    expirer.start()
    waited_until = monotonic() + HANGS_S
    while ReportStore(engine).counts(TASK_ID).waiting and monotonic() < waited_until:
        sleep(0.01)
    begun_s = monotonic()
    expirer.stop()
    assert monotonic() - begun_s < HANGS_S < 3_600.0
    assert ReportStore(engine).counts(TASK_ID).expired == len(MADE)


def test_a_sweep_that_is_stopped_leaves_the_rest_for_the_next(engine: Engine) -> None:
    ReportStore(engine).add(MADE)
    stopped = Event()
    stopped.set()
    assert expire_reports(TaskStore(engine), ReportStore(engine), OVER_S, is_stopped=stopped.is_set) == 0
    assert expire(engine) == len(MADE)
