"""Reports of many calls are stored in one transaction, each counted by one call, on both engines."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.exc import TimeoutError as NoConnectionInTime

from adserver.store.database import create_tables
from adserver.store.insert_reports import insert_new
from adserver.store.reports import ReportCounts, ReportStore
from adserver.store.schema import NO_DATASET
from adserver.store.tasks import TaskStore
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import open_database
from tests import builders
from tests.builders import NOW, world
from tests.patience import HANGS_S

FIRST, SECOND = world(), world(name="second")
OF_FIRST = builders.reports(FIRST, builders.examples(FIRST.task, 8))
OF_SECOND = builders.reports(SECOND, builders.examples(SECOND.task, 4))
NEVER_STORED = builders.reports(world(name="never stored"), builders.examples(world().task, 1))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = open_database(database_url)
    create_tables(made)
    for one in (FIRST, SECOND):
        TaskStore(made).add(one.bundle, created_at=NOW)
    yield made
    made.dispose()


def by_digest(those: Sequence[Report]) -> dict[bytes, Report]:
    return {one.digest: one for one in those}


@contextmanager
def held_up(engine: Engine, commits: list[None]) -> Iterator[tuple[Event, Event]]:
    """Each commit is noted; the first one says that it has begun, and waits to go on."""
    has_begun, go_on = Event(), Event()

    def commit(_connection: object) -> None:
        commits.append(None)
        has_begun.set()
        assert go_on.wait(HANGS_S)

    event.listen(engine, "commit", commit)
    try:
        yield has_begun, go_on
    finally:
        go_on.set()
        event.remove(engine, "commit", commit)


def futures_while_one_commits(
    engine: Engine, batches: Sequence[Sequence[Report]]
) -> tuple[list[Future[int]], int]:
    """What becomes of each batch, and in how many transactions, where all wait for the first one."""
    store, commits = ReportStore(engine), list[None]()
    with held_up(engine, commits) as (has_begun, go_on), ThreadPoolExecutor(len(batches)) as threads:
        running = [threads.submit(store.add, batches[0])]
        while not has_begun.wait(0.05):
            assert not running[0].done()
        for number, batch in enumerate(batches[1:], 1):
            running.append(threads.submit(store.add, batch))
            while len(store._adding._queue) < number:
                assert not running[0].done()
        go_on.set()
        wait(running, HANGS_S)
    return running, len(commits)


def added_while_one_commits(engine: Engine, batches: Sequence[Sequence[Report]]) -> tuple[list[int], int]:
    """How many of each batch are new, and in how many transactions, where all wait for the first one."""
    running, commits = futures_while_one_commits(engine, batches)
    return [one.result() for one in running], commits


def test_calls_that_wait_share_a_transaction_and_each_knows_its_new_reports(engine: Engine) -> None:
    batches = [OF_FIRST[:2], OF_FIRST[1:5], [*OF_FIRST[4:6], *OF_SECOND], OF_SECOND]
    assert added_while_one_commits(engine, batches) == ([2, 3, 5, 0], 2)
    store = ReportStore(engine)
    assert store.counts(FIRST.task.task_id) == ReportCounts(waiting=6, sealed=0, dropped=0)
    assert store.counts(SECOND.task.task_id).waiting == 4


def test_calls_of_more_bytes_than_a_group_holds_take_several(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adserver.store.reports._GROUP_BYTES", 1)
    batches = [OF_FIRST[:1], OF_FIRST[1:3], OF_FIRST[3:5]]
    assert added_while_one_commits(engine, batches) == ([1, 2, 2], 3)


def test_a_call_that_the_database_refuses_spoils_no_other_call_of_its_group(engine: Engine) -> None:
    batches = [OF_FIRST[:1], OF_FIRST[1:3], [*OF_FIRST[5:], *NEVER_STORED], OF_FIRST[2:5]]
    (first, second, refused, last), _ = futures_while_one_commits(engine, batches)
    assert (first.result(), second.result(), last.result()) == (1, 2, 2)
    assert isinstance(refused.exception(), IntegrityError)
    assert ReportStore(engine).counts(FIRST.task.task_id).waiting == 5


def test_a_group_is_not_tried_again_while_the_database_is_away(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[int]()
    inserted = insert_new

    def away_from_the_second(
        connection: Connection, arrived: Mapping[bytes, Report], places: Mapping[bytes, int]
    ) -> Sequence[bytes]:
        tried.append(len(arrived))
        if len(tried) > 1:
            raise NoConnectionInTime
        return inserted(connection, arrived, places)

    monkeypatch.setattr("adserver.store.reports.insert_new", away_from_the_second)
    running, _ = futures_while_one_commits(engine, [OF_FIRST[:1], OF_FIRST[1:3], OF_FIRST[3:5]])
    assert running[0].result() == 1
    assert {type(one.exception()) for one in running[1:]} == {NoConnectionInTime}
    assert tried == [1, 4]


def test_what_is_stored_is_left_as_it_is_and_not_named_as_new(engine: Engine) -> None:
    with engine.begin() as connection:
        assert set(insert_new(connection, by_digest(OF_FIRST[:3]))) == set(by_digest(OF_FIRST[:3]))
    with engine.begin() as connection:
        assert insert_new(connection, by_digest(OF_FIRST[:4])) == [OF_FIRST[3].digest]


def test_a_transaction_that_fails_is_told_to_every_call_of_it_and_stores_nothing(engine: Engine) -> None:
    store = ReportStore(engine)
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        store.add([*OF_FIRST, *NEVER_STORED])
    assert store.counts(FIRST.task.task_id).waiting == 0
    assert store.add(OF_FIRST) == len(OF_FIRST)


def test_arrivals_of_intakes_with_different_slots_add_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slot, report in enumerate(OF_FIRST[:3]):
        monkeypatch.setattr("adserver.store.reports.randbelow", lambda _count, slot=slot: slot)
        ReportStore(engine).add([report])
    store = ReportStore(engine)
    assert store.counts(FIRST.task.task_id).waiting == 3
    store.forget(FIRST.task.task_id, NO_DATASET, after=-1, limit=2)
    assert store.counts(FIRST.task.task_id) == ReportCounts(waiting=1, sealed=0, dropped=0, expired=2)


def test_reports_are_forgotten_in_their_processs_turn_to_write(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, was_locked = ReportStore(engine), list[bool]()
    store.add(OF_FIRST[:1])
    monkeypatch.setattr("adserver.store.reports.shift", lambda *_: was_locked.append(store._writing.locked()))
    store.forget(FIRST.task.task_id, NO_DATASET, after=-1, limit=2)
    assert was_locked == [True]


def test_of_no_reports_nothing_is_inserted(engine: Engine) -> None:
    with engine.begin() as connection:
        assert insert_new(connection, {}) == []
    assert ReportStore(engine).total() == 0


@pytest.mark.parametrize("role", [0, 1])
def test_a_page_of_shares_has_a_mebibyte_with_the_longest_suite(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, role: int
) -> None:
    asked: list[dict[str, Any]] = []

    def pages(*_: object, **how: Any) -> Iterator[Any]:
        asked.append(how)
        return iter(())

    monkeypatch.setattr("adserver.store.reports.share_pages", pages)
    assert list(ReportStore(engine).share_pages(FIRST.task, b"h" * 16, role)) == []
    assert [(one["role"], one["page_rows"]) for one in asked] == [
        (role, (1 << 20) // (FIRST.task.share_length + 1_120 + 16 + 64))
    ]
