"""The same report from everywhere at once counts once, on either engine, through one server or two."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from sqlalchemy import Engine

from adserver.ingest.intake import Intake
from adserver.store.database import create_tables
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import open_database
from tests import builders
from tests.builders import NOW, world

_OF = world()
_REPORT = builders.reports(_OF, builders.examples(_OF.task, 1))[0]
_BATCH = 1_000
_THREADS = 32


@pytest.fixture
def engines(database_url: str) -> Iterator[tuple[Engine, Engine]]:
    """Two ad servers on one database."""
    first, second = open_database(database_url), open_database(database_url)
    create_tables(first)
    TaskStore(first).add(_OF.bundle, created_at=NOW)
    yield first, second
    first.dispose()
    second.dispose()


def test_of_a_thousand_concurrent_submissions_of_one_report_exactly_one_is_accepted(
    engines: tuple[Engine, Engine],
) -> None:
    doors = [Intake(TaskStore(engine), ReportStore(engine), lambda: 0.0) for engine in engines]
    with ThreadPoolExecutor(_THREADS) as threads:
        is_new = list(threads.map(lambda number: doors[number % 2].take(_REPORT), range(1_000)))
    assert Counter(is_new) == {
        True: 1,
        False: 999,
    }  # every later attempt has the same answer: it is stored already
    assert sum(door.counts.accepted for door in doors) == 1
    assert sum(door.counts.duplicates for door in doors) == 999
    assert ReportStore(engines[0]).counts(_OF.task.task_id).waiting == 1


def test_overlapping_batches_in_opposite_orders_are_stored_once_and_wait_for_each_other_in_no_circle(
    engines: tuple[Engine, Engine],
) -> None:
    stores = [ReportStore(engine) for engine in engines]
    both = Barrier(2)

    def add(number: int, batch: list[Report]) -> int:
        both.wait()
        return stores[number].add(batch)

    with ThreadPoolExecutor(2) as threads:
        for first in range(0, 5 * _BATCH, _BATCH):
            batch = [
                replace(_REPORT, report_id=number.to_bytes(16, "big"))
                for number in range(first, first + _BATCH)
            ]
            added = [threads.submit(add, number, batch[:: -1 if number else 1]) for number in (0, 1)]
            assert sum(one.result() for one in added) == _BATCH
    assert stores[0].counts(_OF.task.task_id).waiting == 5 * _BATCH
