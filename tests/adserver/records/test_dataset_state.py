"""A dataset's life, and that nobody can end it behind another's back."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from sqlalchemy import Engine

from adserver.records.dataset_state import DatasetEvent, DatasetState
from adserver.store.database import create_tables
from adserver.store.datasets import ChosenReports, Dataset, DatasetStore
from adserver.store.reports import ReportCounts, ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.errors import JobReason, JobRefused, ReportReason
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import open_database
from tests import builders
from tests.builders import NOW, world
from tests.refusals import refused

ALLOWED = {
    (DatasetState.PREPARING, DatasetEvent.CHOOSE): DatasetState.COMMITTING,
    (DatasetState.PREPARING, DatasetEvent.RELEASE): DatasetState.ABORTED,
    (DatasetState.COMMITTING, DatasetEvent.FINISH): DatasetState.COMMITTED,
    (DatasetState.COMMITTING, DatasetEvent.RELEASE): DatasetState.ABORTED,
    (DatasetState.COMMITTED, DatasetEvent.FINISH): DatasetState.COMMITTED,
}
_OF = world()
_TASK_ID = _OF.task.task_id
_REPORTS: list[Report] = builders.reports(_OF, builders.examples(_OF.task, 3))


@pytest.mark.parametrize("state", DatasetState)
@pytest.mark.parametrize("event", DatasetEvent)
def test_only_the_drawn_arrows_exist(state: DatasetState, event: DatasetEvent) -> None:
    if (state, event) in ALLOWED:
        assert state.after(event) is ALLOWED[state, event]
        return
    with pytest.raises(JobRefused) as refusal:
        state.after(event)
    assert refusal.value.reason is JobReason.DATASET_CHANGED


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = open_database(database_url)
    create_tables(made)
    TaskStore(made).add(_OF.bundle, created_at=NOW)
    yield made
    made.dispose()


def _choice(number: int) -> ChosenReports:
    counts = builders.shares_for(_REPORTS, 0)
    return ChosenReports(
        is_chosen=np.ones(len(counts), np.bool_),
        dataset_id=bytes([number]) * 32,
        view_mismatch=0,
        dropped=(_none(), _none()),
    )


def _none() -> Counter[ReportReason]:
    return Counter()


def test_a_dataset_that_is_given_up_while_it_is_chosen_is_either_chosen_or_gone(engine: Engine) -> None:
    """Two servers: one run chooses, another takes its reports over. Never both."""
    ReportStore(engine).add(_REPORTS)
    store, both = DatasetStore(engine), Barrier(2)
    for number in range(20):
        dataset = store.begin(_TASK_ID, bytes([number]) * 16, limit=3, created_at=NOW)

        def choose(number: int = number, dataset: Dataset = dataset) -> bool:
            both.wait()
            try:
                store.choose(dataset, _choice(number))
            except JobRefused:
                return False
            return True

        def take_over(dataset: Dataset = dataset) -> None:
            both.wait()
            store.give_back(dataset)

        with ThreadPoolExecutor(2) as threads:
            chosen, over = threads.submit(choose), threads.submit(take_over)
            over.result()
            is_chosen = chosen.result()
        left = store.all()
        assert len(left) <= 1  # chosen first and released then, or released first and not chosen
        if left:
            assert is_chosen
            store.give_back(left[0])
        assert ReportStore(engine).counts(_TASK_ID) == ReportCounts(waiting=3, sealed=0, dropped=0)


def test_a_committed_dataset_stays_whoever_gives_it_up(engine: Engine) -> None:
    ReportStore(engine).add(_REPORTS)
    store = DatasetStore(engine)
    chosen = store.choose(store.begin(_TASK_ID, bytes(16), limit=3, created_at=NOW), _choice(1))
    done = store.finish(chosen)
    store.give_back(chosen)
    assert store.all() == [done]
    assert store.finish(chosen) == done
    with refused(JobReason.DATASET_CHANGED):
        store.choose(chosen, _choice(2))
