"""What is counted of a task's reports is what there is, whatever happens to them, on both engines."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, select

from adserver.records.report_state import ReportState
from adserver.store.database import create_tables
from adserver.store.datasets import DatasetStore
from adserver.store.report_counts import count_by_state
from adserver.store.reports import DatasetReports, ReportStore
from adserver.store.schema import NO_DATASET, report_states
from adserver.store.tasks import TaskStore
from maskedlark.errors import JobRefused
from maskedlark.runtime.database import open_database
from tests import builders
from tests.builders import NOW, world

OF = world()
TASK_ID = OF.task.task_id
MADE = builders.reports(OF, builders.examples(OF.task, 12))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 11)),
        st.tuples(st.just("take"), st.integers(1, 12)),
        st.tuples(st.just("drop"), st.integers(0, 3)),
        st.tuples(st.just("release"), st.just(0)),
        st.tuples(st.just("expire"), st.integers(1, 5)),
    ),
    max_size=12,
)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = open_database(database_url)
    create_tables(made)
    TaskStore(made).add(OF.bundle, created_at=NOW)
    yield made
    made.dispose()


def there_are(engine: Engine) -> dict[ReportState, int]:
    c = report_states.c
    asked = select(c.state, func.count()).where(c.task_id == TASK_ID)
    with engine.begin() as connection:
        found = {ReportState(state): count for state, count in connection.execute(asked.group_by(c.state))}
        told = {state: count for state, count in count_by_state(connection, TASK_ID).items() if count}
    assert {state: told[state] for state in told if state is not ReportState.EXPIRED} == found
    return told


def happen(engine: Engine, step: str, number: int) -> None:
    """Let one thing happen to the reports; what is not possible now does not."""
    store, datasets = ReportStore(engine), DatasetStore(engine)
    if step == "add":
        store.add([MADE[number], MADE[(number * 5 + 1) % len(MADE)]])
    elif step == "take":
        with suppress(JobRefused):
            datasets.begin(TASK_ID, bytes([number]) * 16, limit=number, created_at=NOW)
    elif step == "drop":
        for one in datasets.all():
            with engine.begin() as connection:
                taken = DatasetReports(connection, TASK_ID, one.handle)
                taken.drop(taken.ids()[:, 0] % 4 != number)
    elif step == "release":
        for one in datasets.all():
            datasets.give_back(one)
    else:
        store.forget(TASK_ID, NO_DATASET, after=-1, limit=number)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_counts_are_what_a_count_of_every_row_gives(engine: Engine, steps: list[tuple[str, int]]) -> None:
    for step, number in steps:
        happen(engine, step, number)
        there_are(engine)


def test_counts_of_tasks_are_apart(engine: Engine) -> None:
    other = world(name="other")
    TaskStore(engine).add(other.bundle, created_at=NOW)
    of_other = builders.reports(other, builders.examples(other.task, 3))
    assert ReportStore(engine).add([*MADE, *of_other]) == len(MADE) + 3
    assert ReportStore(engine).counts(TASK_ID).waiting == len(MADE)
    assert ReportStore(engine).counts(other.task.task_id).waiting == 3
    assert ReportStore(engine).total() == len(MADE) + 3
    DatasetStore(engine).begin(TASK_ID, bytes(16), limit=5, created_at=NOW)
    assert ReportStore(engine).total() == len(MADE) + 3
