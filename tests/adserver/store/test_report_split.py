"""Reports that version 9 stored are brought to the tables of today in short steps, on both engines."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, MetaData, Table, insert, make_url, select, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from adserver.records.dataset_state import DatasetState
from adserver.store import report_split
from adserver.store.database import check_tables, create_tables
from adserver.store.datasets import DatasetStore
from adserver.store.reports import ReportCounts, ReportStore
from adserver.store.schema import NO_DATASET, datasets, report_states, reports, tasks
from adserver.store.tasks import TaskStore
from maskedlark.canonical import encode
from maskedlark.errors import InvalidTask
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import open_database
from tests import builders
from tests.builders import NOW, world
from tests.postgres import Postgres
from tests.vectors.schemas.generate import DIALECTS

SCHEMAS = Path(__file__).parents[2] / "vectors" / "schemas"
OF = world()
TASK_ID = OF.task.task_id
HANDLE = b"h" * 16
*MADE, NEW = builders.reports(OF, builders.examples(OF.task, 8))
STATES = ["sealed", "dropped", "sealed", "expired", "received", "received", "received"]
TAKEN = {"sealed", "dropped"}


def write_version_9(engine: Engine) -> None:
    """A task, a dataset being prepared, and reports, as an ad server of version 9 left them."""
    task = {"task_id": TASK_ID, "bundle": encode(OF.bundle), "created_at": NOW}
    dataset = {
        "handle": HANDLE, "task_id": TASK_ID, "state": DatasetState.COMMITTING, "created_at": NOW,
        "received": 3,
    }  # fmt: skip
    with engine.begin() as connection:
        for statement in (SCHEMAS / f"adserver-9-{engine.dialect.name}.sql").read_text().split(";"):
            if statement.strip():
                connection.execute(text(statement))
        connection.execute(text("INSERT INTO schema_version VALUES (9)"))
        connection.execute(insert(tasks).values(task))
        connection.execute(insert(datasets).values(dataset))
        old = Table("reports", MetaData(), autoload_with=connection)
        connection.execute(insert(old), [row_of(*one) for one in zip(MADE, STATES, strict=True)])


def row_of(report: Report, state: str) -> dict[str, object]:
    first, second = report.shares
    return {
        "task_id": TASK_ID, "report_id": report.report_id, "time_bucket": report.time_bucket,
        "key_id_0": first.key_id, "ciphertext_0": first.ciphertext,
        "key_id_1": second.key_id, "ciphertext_1": second.ciphertext,
        "state": state, "handle": HANDLE if state in TAKEN else None,
    }  # fmt: skip


@pytest.fixture
def engine(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A database of version 9, whose reports move two at a time."""
    monkeypatch.setattr(report_split, "_ROWS", {"sqlite": 2, "postgresql": 2})
    opened = open_database(database_url)
    write_version_9(opened)
    yield opened
    opened.dispose()


def stored(engine: Engine) -> list[tuple[object, ...]]:
    """All that is known of each report, in order of arrival."""
    c, states = reports.c, report_states.c
    asked = select(c.task_id, c.report_id, c.time_bucket, c.ciphertext_0, c.ciphertext_1, c.key_id_1)
    asked = asked.add_columns(states.handle, states.state).where(c.sequence == states.sequence)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(asked.order_by(states.sequence))]


EXPECTED = [
    (
        TASK_ID, report.report_id, report.time_bucket, report.shares[0].ciphertext,
        report.shares[1].ciphertext, report.shares[1].key_id, HANDLE if state in TAKEN else NO_DATASET, state,
    )
    for report, state in zip(MADE, STATES, strict=True)
]  # fmt: skip


def test_every_report_of_version_9_is_there_with_what_became_of_it(engine: Engine) -> None:
    create_tables(engine)
    assert stored(engine) == EXPECTED
    store = ReportStore(engine)
    assert store.add(MADE) == 0  # their ids are known
    pages = list(store.share_pages(OF.task, HANDLE, 1))
    assert [share.share for page in pages for share in page] == [report.shares[1] for report in MADE[:3]]
    DatasetStore(engine).give_back_preparing(TASK_ID)
    assert DatasetStore(engine).begin(TASK_ID, b"n" * 16, limit=10, created_at=NOW).received == 3


@pytest.mark.parametrize("name", DIALECTS)
def test_the_step_makes_the_tables_that_version_10_had(name: str) -> None:
    written = (SCHEMAS / f"adserver-10-{name}.sql").read_text()
    for table in (report_split.REPORTS, report_split.STATES):
        assert f"{CreateTable(table).compile(dialect=DIALECTS[name])}".strip() in written


class Ended(Exception):
    """A process that is killed."""


def test_a_split_that_ended_in_between_goes_on_and_nobody_works_before(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int | None] = []
    move = report_split._move_page

    def move_two(connection: Connection) -> int | None:
        if len(moved) == 2:
            raise Ended
        moved.append(move(connection))
        return moved[-1]

    monkeypatch.setattr(report_split, "_move_page", move_two)
    with pytest.raises(Ended):
        create_tables(engine)
    with pytest.raises(InvalidTask, match="not brought all reports"):
        check_tables(engine)
    with pytest.raises(SQLAlchemyError), engine.begin() as connection:  # a version 9 that runs on
        connection.execute(
            text("INSERT INTO reports (task_id, report_id, time_bucket, key_id_0, ciphertext_0, key_id_1,"
                 " ciphertext_1, state) SELECT task_id, 'other', 0, 1, 'a', 1, 'b', 'received' FROM tasks")
        )  # fmt: skip
    monkeypatch.setattr(report_split, "_move_page", move)
    create_tables(engine)
    check_tables(engine)
    assert stored(engine) == EXPECTED
    assert len(set(moved)) == 2


def test_processes_that_start_at_once_split_together(engine: Engine, database_url: str) -> None:
    engines = [open_database(database_url) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(create_tables, engines))
    assert stored(engine) == EXPECTED
    for one in engines:
        one.dispose()


def test_a_split_that_another_process_ends_at_the_last_moment_is_no_error(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_split = report_split.is_split

    def then_another_ends_it(found_in: Engine) -> bool:
        found = is_split(found_in)
        monkeypatch.setattr(report_split, "is_split", is_split)
        other = open_database(database_url)
        create_tables(other)
        other.dispose()
        return found

    monkeypatch.setattr(report_split, "is_split", then_another_ends_it)
    create_tables(engine)
    assert stored(engine) == EXPECTED


def test_progress_is_told_every_so_many_reports(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report_split, "_TOLD_EVERY", 4)
    with caplog.at_level(logging.WARNING, logger="adserver"):  # simulations in this process had it silent
        create_tables(engine)
    told = [one.getMessage() for one in caplog.records if one.name == report_split.__name__]
    assert told == ["reports are brought to schema version 10: number 4 of 7"]


def test_a_database_that_refuses_a_page_is_refused_with_what_to_do(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_connection: object) -> None:
        raise OperationalError("INSERT", {}, Exception("database or disk is full"))

    monkeypatch.setattr(report_split, "_move_page", full)
    with pytest.raises(InvalidTask, match="start again to go on"):
        create_tables(engine)


def test_an_intakes_account_may_store_reports_after_the_split(postgres: Postgres) -> None:
    url = make_url(postgres.new_database())
    owner = open_database(url.render_as_string(hide_password=False))
    write_version_9(owner)
    with owner.begin() as connection:
        for statement in (
            'CREATE ROLE "intake of 9" LOGIN',
            "GRANT SELECT ON schema_version, tasks TO {}",
            "GRANT INSERT ON reports TO {}",
            "GRANT SELECT (task_id, report_id) ON reports TO {}",
            "GRANT SELECT, INSERT, UPDATE ON arrived_reports TO {}",
            "GRANT USAGE ON SEQUENCE reports_sequence_seq TO {}",
        ):
            connection.execute(text(statement.format('"intake of 9"')))
    create_tables(owner)
    intake = open_database(url.set(username="intake of 9").render_as_string(hide_password=False))
    assert ReportStore(intake).add([NEW, *MADE]) == 1
    assert TaskStore(intake).task(TASK_ID) == OF.task
    assert ReportStore(owner).counts(TASK_ID) == ReportCounts(waiting=1, sealed=0, dropped=0)
    for one in (intake, owner):
        one.dispose()
