"""One contract, on SQLite and on PostgreSQL."""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, text, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateTable

from helper.ledger.audit_report import AuditReport
from helper.ledger.check import check_file, check_whole
from helper.ledger.ledger import Ledger, sqlite_url
from helper.ledger.records import (
    LedgerCounts,
    ReleaseKey,
    Reservation,
    SignedTask,
    StoredQuery,
    StoredRound,
    key_of,
)
from helper.ledger.round_state import KEPT_ANSWERS
from helper.ledger.schema import JOBS, METADATA, SCHEMA_VERSION
from helper.ledger.statements import LOG
from maskedlark.audit_log import THIS_SERVICE, AuditAct, Deed, verify_lines
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.model.losses import Loss
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.job import JobSpec
from maskedlark.runtime.database import open_database
from tests.builders import job_spec
from tests.postgres import Postgres
from tests.refusals import refused

TASK, OTHER_TASK = b"t" * 32, b"u" * 32
JOB = ReleaseKey(TASK, b"j" * 16)
DEED = Deed(act=AuditAct.START_SERVICE, actor=THIS_SERVICE)
DATASET, OTHER_DATASET = b"d" * 32, b"e" * 32
STORED_TASK = SignedTask(encoded=b"{}", origin="https://ads.example", role=1, signature=b"s" * 64)


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    one = Ledger(open_database(database_url))
    one.add_task(TASK, STORED_TASK)
    one.add_task(OTHER_TASK, STORED_TASK)
    yield one
    one.close()


def ids(first: int, last: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(first, last)]


def spec(job_id: bytes = b"j" * 16, dataset: bytes = DATASET, rounds: int = 10) -> JobSpec:
    return job_spec(
        job_id=job_id,
        task_id=TASK,
        dataset_id=dataset,
        model_digest=b"m" * 32,
        loss=Loss.MSE,
        rounds=rounds,
        sampling_numerator=1,
        noise_multiplier=1.0,
    )


def query_over(job: JobSpec) -> DiscoverySpec:
    return DiscoverySpec(
        query_id=b"q" * 16, task_id=job.task_id, dataset_id=job.dataset_id, keys=("place",), max_codes=3,
        noise_multiplier=1.0, delta=1e-7,
    )  # fmt: skip


def answered(content: bytes) -> StoredRound:
    return StoredRound(weights_digest=content.ljust(32, b"."), answer=content)


def fits(_: Sequence[Reservation]) -> None:
    """A budget without end."""


def with_job(ledger: Ledger, rounds: int = 10) -> None:
    ledger.add_dataset(DATASET, TASK, ids(0, 3))
    assert ledger.open_job(spec(rounds=rounds), b"onnx", fits)


def test_a_task_is_found_and_keeping_it_again_changes_nothing(ledger: Ledger) -> None:
    ledger.add_task(TASK, replace(STORED_TASK, role=0))
    assert ledger.task(TASK) == STORED_TASK
    assert ledger.task(b"x" * 32) is None


@pytest.mark.parametrize("names", [{"https://ads.example"}, {"ads.example", "b.example"}])
def test_a_task_is_found_by_the_names_of_its_origin(ledger: Ledger, names: set[str]) -> None:
    assert ledger.task(TASK, frozenset(names)) == STORED_TASK


@pytest.mark.parametrize("names", [set(), {"example"}, {"https://ads.example:1"}, {"ads.example\0"}, {"ädß"}])
def test_a_task_is_not_found_by_other_names(ledger: Ledger, names: set[str]) -> None:
    assert ledger.task(TASK, frozenset(names)) is None


def test_a_dataset_is_found_by_its_own_task_only(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, ids(0, 3))
    assert ledger.dataset(TASK, DATASET) is not None
    assert ledger.dataset(OTHER_TASK, DATASET) is None


def test_a_dataset_is_read_once_for_it_never_changes(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger.dataset(TASK, DATASET) is None
    ledger.add_dataset(DATASET, TASK, ids(0, 3))
    found = ledger.dataset(TASK, DATASET)
    assert found is not None
    monkeypatch.setattr("helper.ledger.ledger.reading", None)
    assert ledger.dataset(TASK, DATASET) == found


def test_tasks_may_use_the_same_ids_of_jobs_and_queries(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, ids(0, 3))
    ledger.add_dataset(OTHER_DATASET, OTHER_TASK, ids(0, 3))
    ours, theirs = spec(rounds=3), replace(spec(rounds=3), task_id=OTHER_TASK, dataset_id=OTHER_DATASET)
    assert all(ledger.open_job(job, b"onnx", fits) for job in (ours, theirs))
    assert all(
        ledger.add_query(StoredQuery(spec=query_over(job), answer=b"a"), fits) for job in (ours, theirs)
    )
    assert ledger.add_round(key_of(ours), 0, answered(b"ours"))
    ledger.close_job(ours)
    assert ledger.add_round(key_of(theirs), 0, answered(b"theirs"))
    state = ledger.job_state(key_of(theirs))
    assert state is not None
    assert (state.spec, state.progress.is_closed) == (theirs, False)
    assert ledger.round(key_of(theirs), 0) == answered(b"theirs")
    assert ledger.round(key_of(ours), 0) == replace(answered(b"ours"), answer=None)
    for job in (ours, theirs):
        stored = ledger.query(key_of(query_over(job)))
        assert stored is not None
        assert stored.spec == query_over(job)
        assert [one.spec.task_id for one in ledger.reservations(job.dataset_id)] == [job.task_id] * 2


def test_no_job_or_query_is_kept_over_another_tasks_dataset(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, ids(0, 3))
    foreign = replace(spec(), task_id=OTHER_TASK)
    assert not ledger.open_job(foreign, b"onnx", fits)
    assert not ledger.add_query(StoredQuery(spec=query_over(foreign), answer=b"a"), fits)
    assert ledger.reservations(DATASET) == ()


def test_a_report_is_in_at_most_one_dataset_of_its_task(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, ids(0, 10))
    with refused(JobReason.REPORT_ALREADY_USED):
        ledger.add_dataset(OTHER_DATASET, TASK, ids(9, 20))
    assert ledger.dataset(TASK, OTHER_DATASET) is None
    assert ledger.find_used(TASK, ids(0, 20)) == set(ids(0, 10))  # and none of the refused ones


def test_another_task_may_use_the_same_ids(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, ids(0, 10))
    ledger.add_dataset(OTHER_DATASET, OTHER_TASK, ids(0, 10))
    stored = ledger.dataset(OTHER_TASK, OTHER_DATASET)
    assert stored is not None
    assert (stored.task_id, stored.size) == (OTHER_TASK, 10)


def test_of_many_datasets_committed_at_once_with_a_common_report_one_stands(ledger: Ledger) -> None:
    def commit(number: int) -> bool:
        try:
            ledger.add_dataset(
                bytes([number]) * 32, TASK, [*ids(0, 1), *ids(100 * number, 100 * number + 50)]
            )
        except JobRefused:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        stood = list(threads.map(commit, range(1, 17)))
    assert stood.count(True) == 1
    assert ledger.counts().datasets == 1
    assert len(ledger.find_used(TASK, ids(0, 2000))) == 51


def test_a_hundred_thousand_reports_are_used_up_in_two_minutes_of_a_core(ledger: Ledger) -> None:
    started = time.process_time()
    ledger.add_dataset(DATASET, TASK, ids(0, 100_000))
    assert len(ledger.find_used(TASK, ids(50_000, 150_000))) == 50_000
    assert time.process_time() - started < 120


def test_an_id_of_another_length_hides_none_of_the_used_ones_beside_it(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, ids(0, 10))
    assert ledger.find_used(TASK, [b"", b"short", *ids(5, 12), bytes(17)]) == set(ids(5, 10))


def test_an_id_of_another_length_is_not_used_up(ledger: Ledger) -> None:
    with pytest.raises(AssertionError, match="16 bytes"):
        ledger.add_dataset(DATASET, TASK, [*ids(0, 3), b"short", bytes(27)])
    assert ledger.dataset(TASK, DATASET) is None
    assert ledger.find_used(TASK, ids(0, 3)) == set()


def test_of_a_dataset_that_is_not_there_nothing_is_reserved(ledger: Ledger) -> None:
    assert not ledger.reservations(b"x" * 32)


def test_a_job_sees_what_the_other_jobs_of_its_dataset_reserve(ledger: Ledger) -> None:
    with_job(ledger, rounds=10)
    seen: list[Sequence[Reservation]] = []
    assert ledger.open_job(spec(b"k" * 16), b"onnx", seen.append)
    assert [reservation.rounds for reservation in seen[0]] == [10]
    assert ledger.add_round(JOB, 0, answered(b"0"))
    ledger.close_job(spec())
    rounds = {reservation.key.release_id: reservation.rounds for reservation in ledger.reservations(DATASET)}
    assert rounds == {b"j" * 16: 1, b"k" * 16: 10}  # closed: what was answered; open: what is planned


def test_a_job_that_the_budget_refuses_is_not_opened(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, ids(0, 3))

    def refuse(_: Sequence[Reservation]) -> None:
        raise JobRefused(JobReason.BUDGET_EXHAUSTED, "no")

    with refused(JobReason.BUDGET_EXHAUSTED):
        ledger.open_job(spec(), b"onnx", refuse)
    assert ledger.job_state(JOB) is None


def test_of_jobs_opened_at_once_no_more_are_opened_than_the_budget_holds(ledger: Ledger) -> None:
    ledger.add_dataset(DATASET, TASK, ids(0, 3))

    def at_most_three(before: Sequence[Reservation]) -> None:
        if len(before) >= 3:
            raise JobRefused(JobReason.BUDGET_EXHAUSTED, "no")

    def open_one(number: int) -> bool:
        try:
            return ledger.open_job(spec(bytes([number]) * 16), b"onnx", at_most_three)
        except JobRefused:
            return False

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(open_one, range(12))).count(True) == 3


def test_a_budget_that_changes_while_it_is_checked_is_checked_again(ledger: Ledger) -> None:
    with_job(ledger)
    seen: list[int] = []

    def another_is_faster(before: Sequence[Reservation]) -> None:
        seen.append(len(before))
        if len(before) == 1:
            assert ledger.open_job(spec(b"k" * 16), b"onnx", fits)

    assert ledger.open_job(spec(b"l" * 16), b"onnx", another_is_faster)
    assert seen == [1, 2]


def test_a_round_is_charged_while_a_budget_is_checked(ledger: Ledger) -> None:
    with_job(ledger)
    charged: list[bool] = []

    def takes_long(before: Sequence[Reservation]) -> None:
        charged.append(ledger.add_round(JOB, 0, answered(b"0")))

    assert ledger.open_job(spec(b"k" * 16), b"onnx", takes_long)
    assert charged == [
        True
    ]  # the check held no lock, and need not be made again: an open job reserves all its rounds


def test_reading_waits_for_no_writer(ledger: Ledger, database_url: str) -> None:
    with_job(ledger)
    writer = open_database(database_url)
    with writer.begin() as connection:
        connection.execute(update(JOBS).values(is_closed=True))
        assert ledger.counts().open_jobs == 1
        assert ledger.holds(ledger.position())
        assert ledger.find_used(TASK, ids(0, 3)) == set(ids(0, 3))
    writer.dispose()


def test_a_job_id_is_taken_once_also_by_another_dataset(ledger: Ledger) -> None:
    with_job(ledger)
    ledger.add_dataset(OTHER_DATASET, TASK, ids(10, 13))
    assert not ledger.open_job(spec(), b"other", fits)
    assert not ledger.open_job(spec(dataset=OTHER_DATASET), b"other", fits)
    state = ledger.job_state(JOB)
    assert state is not None
    assert state.spec == spec()
    assert ledger.job_model(JOB) == b"onnx"


def test_only_the_next_round_of_an_open_job_is_charged(ledger: Ledger) -> None:
    with_job(ledger)
    assert not ledger.add_round(JOB, 1, answered(b"1"))
    assert ledger.add_round(JOB, 0, answered(b"0"))
    assert not ledger.add_round(JOB, 0, answered(b"again"))
    ledger.close_job(spec())
    assert not ledger.add_round(JOB, 1, answered(b"1"))
    state = ledger.job_state(JOB)
    assert state is not None
    assert (state.progress.rounds_answered, state.progress.is_closed) == (1, True)


def test_of_many_answers_to_one_round_one_is_kept(ledger: Ledger) -> None:
    with_job(ledger)
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda number: ledger.add_round(JOB, 0, answered(b"%d" % number)), range(16)))
    assert won.count(True) == 1
    assert ledger.round(JOB, 0) == answered(b"%d" % won.index(True))


def test_answers_are_kept_until_the_job_has_moved_on(ledger: Ledger) -> None:
    with_job(ledger)
    for index in range(KEPT_ANSWERS + 1):
        assert ledger.add_round(JOB, index, answered(b"%d" % index))
    assert ledger.round(JOB, 0) == replace(answered(b"0"), answer=None)
    assert ledger.round(JOB, 1) == answered(b"1")
    assert ledger.round(JOB, KEPT_ANSWERS) == answered(b"%d" % KEPT_ANSWERS)
    ledger.close_job(spec())
    ledger.close_job(spec())
    assert ledger.round(JOB, KEPT_ANSWERS) == replace(answered(b"%d" % KEPT_ANSWERS), answer=None)


def test_whatever_is_committed_moves_the_ledger_on_and_nothing_else_does(ledger: Ledger) -> None:
    positions = [ledger.position()]

    def has_moved() -> bool:
        positions.append(ledger.position())
        return (
            positions[-1].sequence == positions[-2].sequence + 1 and positions[-1].head != positions[-2].head
        )

    ledger.add_dataset(DATASET, TASK, ids(0, 3))
    assert has_moved()
    assert ledger.open_job(spec(), b"onnx", fits)
    assert has_moved()
    assert ledger.add_round(JOB, 0, answered(b"0"))
    assert has_moved()
    ledger.close_job(spec())
    assert has_moved()
    ledger.close_job(spec())
    assert not ledger.add_round(JOB, 1, answered(b"1"))
    assert not ledger.open_job(spec(), b"onnx", fits)
    with refused(JobReason.REPORT_ALREADY_USED):
        ledger.add_dataset(OTHER_DATASET, TASK, ids(2, 4))
    assert ledger.position() == positions[-1]
    assert all(ledger.holds(position) for position in positions)
    assert not ledger.holds(replace(positions[-1], sequence=positions[-1].sequence + 1))
    assert not ledger.holds(replace(positions[-1], head=bytes(32)))


def test_the_chain_is_one_line_whoever_lengthens_it(ledger: Ledger) -> None:
    before = ledger.position().sequence
    ledger.add_dataset(DATASET, TASK, ids(0, 3))
    with ThreadPoolExecutor(8) as threads:
        opened = list(
            threads.map(lambda number: ledger.open_job(spec(bytes([number]) * 16), b"onnx", fits), range(24))
        )
    assert all(opened)
    assert ledger.position().sequence == before + 25
    assert verify_lines(LOG.lines(ledger.engine)).head == ledger.position().head


def test_of_two_transactions_at_once_the_second_waits_for_the_links_of_the_first(postgres: Postgres) -> None:
    engine = open_database(postgres.new_database())
    Ledger(engine)

    def lengthen() -> None:
        with engine.begin() as connection:
            LOG.append(connection, DEED, at=1.0)

    with ThreadPoolExecutor(1) as threads:
        with engine.begin() as connection:
            LOG.append(connection, DEED, at=1.0)
            second = threads.submit(lengthen)
            while not second.done() and not is_one_waiting(engine):
                pass
        second.result()  # an IntegrityError would be taken for an id that is taken
    with engine.connect() as connection:
        assert LOG.newest(connection).sequence == 2
    engine.dispose()


def is_one_waiting(engine: Engine) -> bool:
    waiting = text(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with engine.connect() as connection:
        return connection.execute(waiting).first() is not None


def test_everything_is_there_after_a_restart(ledger: Ledger, database_url: str) -> None:
    with_job(ledger)
    ledger.add_round(JOB, 0, answered(b"0"))
    ledger.close()
    again = Ledger(open_database(database_url))
    assert again.task(TASK) == STORED_TASK
    assert again.find_used(TASK, ids(0, 5)) == set(ids(0, 3))
    assert again.round(JOB, 0) == answered(b"0")
    assert again.counts() == LedgerCounts(tasks=2, datasets=1, open_jobs=1, rounds_answered=1)
    again.close()


def test_an_empty_ledger_counts_nothing(database_url: str) -> None:
    ledger = Ledger(open_database(database_url))
    assert ledger.counts() == LedgerCounts(tasks=0, datasets=0, open_jobs=0, rounds_answered=0)
    ledger.close()


def test_whoever_changes_a_table_gives_it_another_version() -> None:
    tables = [str(CreateTable(table).compile(dialect=sqlite.dialect())) for table in METADATA.sorted_tables]
    assert (SCHEMA_VERSION, sha256("".join(tables).encode()).hexdigest()[:16]) == (1, "94fb2925d57c3acb")


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, SCHEMA_VERSION + 3])
def test_a_ledger_of_another_version_is_refused_and_left_alone(
    ledger: Ledger, database_url: str, version: int
) -> None:
    engine = open_database(database_url)
    with engine.begin() as connection:
        connection.execute(update(METADATA.tables["schema_version"]).values(version=version))
    with pytest.raises(
        InvalidTask, match=rf"schema version {version}, and this helper needs {SCHEMA_VERSION}"
    ):
        Ledger(engine)
    assert ledger.task(TASK) == STORED_TASK
    engine.dispose()


def test_a_ledger_from_before_there_were_versions_is_refused(ledger: Ledger, database_url: str) -> None:
    engine = open_database(database_url)
    METADATA.tables["schema_version"].drop(engine)
    with pytest.raises(InvalidTask, match="schema version 0"):
        Ledger(engine)
    engine.dispose()


def test_an_error_of_the_database_shows_no_value(ledger: Ledger, database_url: str) -> None:
    with_job(ledger)
    engine = open_database(database_url)
    row = {
        "task_id": TASK,
        "job_id": b"j" * 16,
        "dataset_id": DATASET,
        "spec": b"a secret",
        "model": b"a secret",
        "rounds_answered": 0,
        "is_closed": False,
    }
    with pytest.raises(SQLAlchemyError) as failure, engine.begin() as connection:
        connection.execute(insert(JOBS), [row, row])
    assert "secret" not in str(failure.value)
    engine.dispose()


def test_a_sqlite_ledger_is_private_and_so_is_what_lies_beside_it(tmp_path: Path) -> None:
    ledger = Ledger(open_database(sqlite_url(tmp_path / "ledger.sqlite3")))
    ledger.add_task(TASK, STORED_TASK)
    files = list(tmp_path.iterdir())
    assert len(files) == 3  # the write-ahead log and its index too
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    ledger.close()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o666, 0o620])
def test_a_sqlite_file_that_others_may_use_is_refused_and_left_as_it_is(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.touch()
    path.chmod(mode)
    with pytest.raises(InvalidTask, match="chmod 600"):
        open_database(sqlite_url(path))
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_sqlite_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.touch(mode=0o600)
    os.chown(path, 12_345, 12_345)
    open_database(sqlite_url(path)).dispose()  # by root, for its owner
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    with pytest.raises(InvalidTask, match="belongs to user 12345"):
        open_database(sqlite_url(path))


@pytest.mark.parametrize("rounds", [60, 90, 130])
def test_an_older_sqlite_file_under_a_newer_log_is_refused(tmp_path: Path, rounds: int) -> None:
    yesterday, today = tmp_path / "yesterday.sqlite3", tmp_path / "ledger.sqlite3"
    ledger = Ledger(open_database(sqlite_url(today)))
    ledger.add_task(TASK, STORED_TASK)
    with_job(ledger, rounds=1000)
    ledger.close()
    shutil.copy(today, yesterday)
    ledger = Ledger(open_database(sqlite_url(today)))
    ledger.add_dataset(OTHER_DATASET, TASK, ids(10, 500))
    for index in range(
        rounds
    ):  # long enough answers for SQLite to move the log into the file, and begin it anew
        assert ledger.add_round(JOB, index, answered(bytes(40_000)))
    restored = tmp_path / "restored.sqlite3"
    shutil.copy(yesterday, restored)
    shutil.copy(f"{today}-wal", f"{restored}-wal")  # as a killed process leaves it
    with pytest.raises(InvalidTask, match="-wal"):
        Ledger(open_database(sqlite_url(restored)))
    ledger.close()


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM used_reports WHERE report_id = (SELECT report_id FROM used_reports LIMIT 1)",
        "DELETE FROM rounds WHERE round_index = 1",
        "DELETE FROM audit_log WHERE sequence = 2",
        "DELETE FROM audit_log WHERE sequence = (SELECT max(sequence) FROM audit_log)",
        "UPDATE jobs SET rounds_answered = 1",
        "UPDATE datasets SET size = 2",
        "DELETE FROM queries",
        "DELETE FROM tasks WHERE task_id NOT IN (SELECT task_id FROM datasets)",
        "UPDATE jobs SET is_closed = TRUE",
        "UPDATE audit_log SET is_done = FALSE WHERE sequence = 2",
    ],
)
def test_a_ledger_that_has_lost_something_is_refused(ledger: Ledger, database_url: str, lost: str) -> None:
    with_job(ledger)
    assert ledger.add_query(StoredQuery(spec=query_over(spec()), answer=b"a"), fits)
    for index in range(2):
        ledger.add_round(JOB, index, answered(b"0"))
    engine = open_database(database_url)
    Ledger(engine)
    with engine.begin() as connection:
        connection.execute(text(lost))
    with pytest.raises(InvalidTask, match="has lost rows"):
        Ledger(engine)
    engine.dispose()


@pytest.mark.parametrize("content", [b"no database".ljust(5_000, b"."), b""])
def test_a_file_that_is_no_ledger_is_refused_and_not_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.touch(mode=0o600)
    path.write_bytes(content)
    engine = open_database(sqlite_url(path))
    for check in (check_whole, check_file) if content else (check_whole,):
        with pytest.raises(InvalidTask, match="the ledger cannot be read"):
            check(engine)
    with pytest.raises(InvalidTask, match="not a helper's ledger"):
        AuditReport(engine).newest(1)
    with pytest.raises(InvalidTask, match="not a helper's ledger"):
        next(AuditReport(engine).lines(0))
    engine.dispose()


def test_sqlite_commits_are_durable_and_checked(tmp_path: Path) -> None:
    engine = open_database(sqlite_url(tmp_path / "ledger.sqlite3"))
    with engine.begin() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    engine.dispose()
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    assert sqlite3.connect(tmp_path / "ledger.sqlite3").execute("PRAGMA journal_mode").fetchone() == ("wal",)
