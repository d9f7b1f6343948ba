"""The database layer: durable, locked when it writes, and lenient about how much of an id is typed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Engine, Integer, LargeBinary, MetaData, Table, create_engine, select, text, update

from adserver.database import create_tables, default_url, find_id, open_database, reading
from maskedlark.errors import InvalidTask, JobReason, JobRefused

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
            connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
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


def test_tables_are_created_once_however_many_processes_start(tmp_path: Path) -> None:
    url = default_url(tmp_path)
    engines = [open_database(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create_tables, engines))
    with reading(engines[0]) as connection:
        assert connection.execute(text("SELECT count(*) FROM reports")).scalar() == 0


@pytest.mark.parametrize("url", ["mysql://user:secret@host/db", "nonsense", "oracle://user:secret@host/db"])
def test_another_engine_is_refused_without_repeating_its_password(url: str) -> None:
    with pytest.raises(InvalidTask) as refusal:
        open_database(url)
    assert "secret" not in str(refusal.value)


@given(ids=st.sets(st.binary(min_size=16, max_size=16), min_size=1, max_size=8), digits=st.integers(0, 32), pick=st.integers(0))
def test_an_id_is_found_by_the_start_of_its_hex_form_exactly_if_it_is_the_only_one(ids: set[bytes], digits: int, pick: int) -> None:
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
            with pytest.raises(JobRefused, match="more than one dataset"):
                find_id(connection, _named.c.id, prefix, missing=JobReason.UNKNOWN_DATASET)
    memory.dispose()


@pytest.mark.parametrize("prefix", ["xyz", "ff", "0" * 80, "00" * 16 + "00"])
def test_what_starts_no_id_is_refused_as_unknown(engine: Engine, prefix: str) -> None:
    with engine.begin() as connection:
        connection.execute(_named.insert().values(id=bytes(16)))
        with pytest.raises(JobRefused) as refusal:
            find_id(connection, _named.c.id, prefix, missing=JobReason.UNKNOWN_JOB)
    assert refusal.value.reason is JobReason.UNKNOWN_JOB


def test_nobody_else_on_the_machine_may_look_into_a_new_data_folder(tmp_path: Path) -> None:
    default_url(tmp_path / "data")
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
