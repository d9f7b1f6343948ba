"""Federated rounds and their updates, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import Engine

from adserver.store.database import create_tables
from adserver.store.rounds import DeviceRoundState, RoundStore
from adserver.store.tasks import TaskStore
from maskedlark.errors import ReportReason, ReportRejected
from maskedlark.randomness import seeded
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import open_database
from tests.builders import NOW
from tests.update_builders import FORM, random_vector, update_job, update_reports, update_round, update_world

WORLD = update_world()
JOB = update_job(WORLD.task)
ONE = update_round(WORLD.task, job=JOB)
HANDLE = b"h" * 16


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    opened = open_database(database_url)
    create_tables(opened)
    TaskStore(opened).add(WORLD.bundle, created_at=NOW)
    yield opened
    opened.dispose()


@pytest.fixture
def store(engine: Engine) -> RoundStore:
    return RoundStore(engine)


def sealed(count: int, index: int = 0) -> list[Report]:
    one = update_round(WORLD.task, index, job=JOB)
    vectors = [random_vector(FORM, WORLD.task.clip, number) for number in range(count)]
    return update_reports(WORLD, one, vectors, seeded(index, "reports of a round"))


def opened(store: RoundStore, index: int = 0, now_s: float = 5.0) -> bytes:
    one = update_round(WORLD.task, index, job=JOB)
    store.open(one, b"content", now_s=now_s)
    return one.round_id


def refused(store: RoundStore, report: Report) -> ReportReason:
    with pytest.raises(ReportRejected) as refusal:
        store.add(report)
    return refusal.value.reason


def ids(reports: list[Report]) -> list[bytes]:
    return [report.report_id for report in reports]


def held(store: RoundStore, round_id: bytes) -> list[bytes]:
    return [row.tobytes() for row in store.report_ids(round_id)]


def test_a_round_is_opened_once_and_stays_as_it_was(store: RoundStore) -> None:
    first = store.open(ONE, b"content", now_s=5.0)
    again = store.open(replace(ONE, content_digest=b"o" * 32), b"other", now_s=9.0)
    assert (
        (again.round, again.content, again.opened_at)
        == (first.round, b"content", 5.0)
        == (ONE, b"content", 5.0)
    )
    newest = store.newest_open(WORLD.task.task_id)
    assert newest is not None
    assert newest.round == ONE


def test_an_update_is_stored_once_in_the_order_of_arrival(store: RoundStore) -> None:
    round_id, reports = opened(store), sealed(4)
    assert [store.add(one) for one in (*reports, reports[0])] == [True] * 4 + [False]
    assert held(store, round_id) == ids(reports)
    assert store.count(round_id) == 4


def test_junk_that_came_first_under_an_updates_id_displaces_no_update(store: RoundStore) -> None:
    round_id, [honest, other] = opened(store), sealed(2)
    junk = replace(honest, shares=other.shares)
    assert [store.add(one) for one in (junk, honest, junk, honest)] == [True, True, False, False]
    assert store.count(round_id) == 2


def test_an_update_of_no_round_or_of_one_that_is_over_is_refused_by_name(store: RoundStore) -> None:
    round_id, [first, second] = opened(store), sealed(2)
    assert refused(store, replace(first, round_id=bytes(32))) is ReportReason.UNKNOWN_ROUND
    assert refused(store, replace(first, task_id=bytes(32))) is ReportReason.UNKNOWN_ROUND
    store.add(first)
    store.close(round_id, HANDLE, most=10)
    assert refused(store, second) is ReportReason.ROUND_OVER
    assert held(store, round_id) == [first.report_id]


def test_of_more_updates_than_a_dataset_holds_the_first_ones_count(store: RoundStore) -> None:
    round_id, reports = opened(store), sealed(5)
    other = opened(store, 1)
    for report in (*reports, *sealed(3, 1)):
        store.add(report)
    store.close(round_id, HANDLE, most=3)
    assert held(store, round_id) == ids(reports[:3])
    assert store.count(other) == 3


def test_a_window_is_closed_once_and_the_first_handle_stays(store: RoundStore) -> None:
    round_id = opened(store)
    for report in sealed(3):
        store.add(report)
    store.close(round_id, HANDLE, most=3)
    store.close(round_id, b"i" * 16, most=1)
    stored = store.open(ONE, b"content", now_s=9.0)
    assert (stored.state, stored.handle, store.count(round_id)) == (DeviceRoundState.SEALING, HANDLE, 3)


def test_a_round_that_begins_again_has_a_new_window_and_no_updates(store: RoundStore) -> None:
    round_id, reports = opened(store), sealed(3)
    for report in reports:
        store.add(report)
    store.close(round_id, HANDLE, most=10)
    store.begin_again(round_id, now_s=77.0)
    stored = store.open(ONE, b"content", now_s=99.0)
    assert (stored.state, stored.handle, stored.opened_at) == (DeviceRoundState.OPEN, None, 77.0)
    assert store.count(round_id) == 0
    assert store.add(reports[0])


def test_a_round_that_is_chosen_does_not_begin_again(store: RoundStore) -> None:
    round_id = opened(store)
    for report in sealed(3):
        store.add(report)
    store.close(round_id, HANDLE, most=10)
    chosen = np.array([True, False, True])
    store.choose(round_id, chosen, b"d" * 32)
    store.begin_again(round_id, now_s=77.0)
    stored = store.open(ONE, b"content", now_s=99.0)
    assert stored.state is DeviceRoundState.SEALING
    assert stored.chosen is not None
    assert stored.chosen.tolist() == chosen.tolist()
    assert stored.dataset_id == b"d" * 32


def test_shares_come_in_pages_in_the_order_of_arrival(store: RoundStore) -> None:
    round_id, reports = opened(store), sealed(5)
    for report in reports:
        store.add(report)
    for role in (0, 1):
        pages = list(store.share_pages(round_id, role, 1 << 20))  # two to a page
        assert [len(page) for page in pages] == [2, 2, 1]
        shares = [share for page in pages for share in page]
        assert [share.report_id for share in shares] == ids(reports)
        assert [share.share for share in shares] == [report.shares[role] for report in reports]


def test_used_rounds_keep_no_updates_and_take_none(store: RoundStore) -> None:
    round_id, later = opened(store), opened(store, 1)
    [late, *reports] = sealed(3)
    for report in (*reports, *sealed(2, 1)):
        store.add(report)
    store.close(round_id, HANDLE, most=10)
    store.release_before(JOB.job_id, 1)
    assert (store.count(round_id), store.count(later)) == (0, 2)
    assert refused(store, late) is ReportReason.ROUND_OVER
    store.end_of_job(JOB.job_id)
    assert refused(store, sealed(3, 1)[2]) is ReportReason.ROUND_OVER
    assert store.newest_open(WORLD.task.task_id) is None


def test_devices_that_upload_while_the_window_ends_are_in_or_told_late(store: RoundStore) -> None:
    """None is acknowledged and left out, but for those beyond what a dataset holds."""
    round_id, reports = opened(store), sealed(24)

    def upload(number: int) -> bytes | None:
        if number == 12:
            store.close(round_id, HANDLE, most=100)
        with suppress(ReportRejected):
            store.add(reports[number])
            return reports[number].report_id
        return None

    with ThreadPoolExecutor(6) as pool:
        acknowledged = {one for one in pool.map(upload, range(24)) if one is not None}
    assert set(held(store, round_id)) == acknowledged
