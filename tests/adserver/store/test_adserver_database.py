"""The database layer: durable, locked when it writes, and lenient about how much of an id is typed."""

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    create_engine,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateTable

from adserver.store.database import create_tables, default_url, find_id
from adserver.store.schema import metadata
from adserver.store.version import SCHEMA_VERSION
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.runtime.database import open_database, reading

schema_version = metadata.tables["schema_version"]
_metadata = MetaData()
_counters = Table("counters", _metadata, Column("value", Integer, nullable=False))
_named = Table("named", _metadata, Column("id", LargeBinary(16), primary_key=True))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    opened = open_database(default_url(tmp_path / "data"))
    with opened.begin() as connection:
        _metadata.create_all(connection)
    return opened


def test_sqlite_is_opened_so_that_a_commit_is_durable_and_readers_never_wait(engine: Engine) -> None:
    with engine.connect() as connection:
        found = [
            connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    assert found == ["wal", 2, 1, 30_000]


def test_read_then_write_transactions_of_many_threads_lose_no_update(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(_counters.insert().values(value=0))

    def increment(_: int) -> None:
        with engine.begin() as connection:
            value = connection.execute(select(_counters.c.value)).scalar_one()
            connection.execute(update(_counters).values(value=value + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, range(80)))
    with reading(engine) as connection:
        assert connection.execute(select(_counters.c.value)).scalar_one() == 80


def test_a_reader_sees_one_state_while_others_write(engine: Engine) -> None:
    with reading(engine) as reader:
        assert reader.execute(select(_counters)).all() == []
        with engine.begin() as writer:
            writer.execute(_counters.insert().values(value=1))
        assert reader.execute(select(_counters)).all() == []


@pytest.mark.parametrize(
    "attempt", range(30)
)  # one in twenty failed, where a connection did not wait for another's switch to WAL
def test_tables_are_created_once_however_many_processes_start(tmp_path: Path, attempt: int) -> None:
    url = default_url(tmp_path)
    engines = [open_database(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create_tables, engines))
    with reading(engines[0]) as connection:
        assert connection.execute(text("SELECT count(*) FROM reports")).scalar() == 0
    for one in engines:
        one.dispose()


@pytest.mark.parametrize("url", ["mysql://user:secret@host/db", "nonsense", "oracle://user:secret@host/db"])
def test_another_engine_is_refused_without_repeating_its_password(url: str) -> None:
    with pytest.raises(InvalidTask) as refusal:
        open_database(url)
    assert "secret" not in str(refusal.value)


@given(
    ids=st.sets(st.binary(min_size=16, max_size=16), min_size=1, max_size=8),
    digits=st.integers(0, 32),
    pick=st.integers(0),
)
def test_an_id_is_found_by_the_start_of_its_hex_form_exactly_if_it_is_the_only_one(
    ids: set[bytes], digits: int, pick: int
) -> None:
    wanted = sorted(ids)[pick % len(ids)]
    prefix = wanted.hex()[:digits]
    matching = [one for one in ids if one.hex().startswith(prefix)]
    memory = create_engine("sqlite://")
    with memory.begin() as connection:
        _metadata.create_all(connection)
        connection.execute(_named.insert(), [{"id": one} for one in ids])
        if len(matching) == 1:
            assert find_id(connection, _named.c.id, prefix, missing=JobReason.UNKNOWN_DATASET) == wanted
        else:
            with pytest.raises(JobRefused, match="more than one dataset" if prefix else "several datasets"):
                find_id(connection, _named.c.id, prefix, missing=JobReason.UNKNOWN_DATASET)
    memory.dispose()


@pytest.mark.parametrize("prefix", ["xyz", "ff", "0" * 80, "00" * 16 + "00"])
def test_what_starts_no_id_is_refused_as_unknown(engine: Engine, prefix: str) -> None:
    with engine.begin() as connection:
        connection.execute(_named.insert().values(id=bytes(16)))
        with pytest.raises(JobRefused) as refusal:
            find_id(connection, _named.c.id, prefix, missing=JobReason.UNKNOWN_JOB)
    assert refusal.value.reason is JobReason.UNKNOWN_JOB


def test_tables_are_created_once_on_either_engine_and_know_their_version(database_url: str) -> None:
    engines = [open_database(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create_tables, engines))
    with reading(engines[0]) as connection:
        assert connection.execute(select(schema_version.c.version)).scalars().all() == [SCHEMA_VERSION]
    for one in engines:
        one.dispose()


def test_whoever_changes_a_table_gives_it_another_version(engine: Engine) -> None:
    create_tables(engine)
    ours = [str(CreateTable(table).compile(dialect=sqlite.dialect())) for table in metadata.sorted_tables]
    assert (SCHEMA_VERSION, sha256("".join(ours).encode()).hexdigest()[:16]) == (1, "ff33254a3648b4db")


@pytest.mark.parametrize("found", ["newer", "without a version"])
def test_tables_of_another_version_are_refused_with_what_to_do_and_left_alone(
    database_url: str, found: str
) -> None:
    engine = open_database(database_url)
    if found == "without a version":  # as it was before there were versions
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE tasks (task_id INTEGER PRIMARY KEY)"))
    else:
        create_tables(engine)
        with engine.begin() as connection:
            connection.execute(update(schema_version).values(version=SCHEMA_VERSION + 1))
    before = inspect(engine).get_table_names()
    with pytest.raises(InvalidTask, match=r"schema version .*begin with an empty database"):
        create_tables(engine)
    assert inspect(engine).get_table_names() == before
    engine.dispose()


def test_an_error_of_the_database_shows_no_value(engine: Engine) -> None:
    with pytest.raises(SQLAlchemyError) as failure, engine.begin() as connection:
        connection.execute(_named.insert(), [{"id": b"a secret"}, {"id": b"a secret"}])
    assert "secret" not in str(failure.value)


def test_nobody_else_on_the_machine_may_read_the_database(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path / 'new.sqlite3'}")
    create_tables(opened)
    beside = list(tmp_path.glob("new.sqlite3*"))
    assert len(beside) > 1  # the write-ahead log, too
    assert all(one.stat().st_mode & 0o077 == 0 for one in beside)
    opened.dispose()


def test_a_database_file_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match="cannot use the database file"):
        open_database(f"sqlite:///{tmp_path / 'missing' / 'one.sqlite3'}")


def test_nobody_else_on_the_machine_may_look_into_a_new_data_folder(tmp_path: Path) -> None:
    default_url(tmp_path / "data")
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
