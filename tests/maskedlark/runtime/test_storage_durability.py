"""A commit that was acknowledged is on a disk, whatever the server's operator set as the default."""

import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url

from maskedlark.runtime.database import open_database
from tests.patience import HANGS_S
from tests.postgres import Postgres


def with_default(postgres: Postgres, value: str, name: str = "synchronous_commit") -> str:
    """The URL of a database whose operator chose a setting: how commits are acknowledged, or another one."""
    url = postgres.new_database()
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {make_url(url).database} SET {name} = '{value}'")
    engine.dispose()
    return url


def in_force(engine: Engine, name: str = "synchronous_commit") -> str:
    with engine.begin() as connection:
        return str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())


@pytest.mark.parametrize(
    ("default", "wanted"),
    [
        ("off", "on"),
        ("local", "on"),
        ("on", "on"),
        ("remote_write", "remote_write"),
        ("remote_apply", "remote_apply"),
    ],
)
def test_on_postgresql_a_commit_is_on_disk_before_it_is_acknowledged(
    postgres: Postgres, default: str, wanted: str
) -> None:
    engine = open_database(with_default(postgres, default))
    assert in_force(engine) == wanted
    with engine.connect() as connection:
        connection.rollback()  # as after a refused request
    engine.pool.dispose()
    assert in_force(engine) == wanted  # of each new connection
    engine.dispose()


@pytest.mark.parametrize("default", ["read committed", "repeatable read", "serializable"])
def test_on_postgresql_a_transaction_that_waited_for_a_lock_reads_what_is_there_by_then(
    postgres: Postgres, default: str
) -> None:
    """So that of two jobs opened at once the second finds the first one's reservation."""
    engine = open_database(with_default(postgres, default, "default_transaction_isolation"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE noted (number integer)")
    with engine.begin() as first:
        assert first.exec_driver_sql("SELECT count(*) FROM noted").scalar_one() == 0
        with engine.begin() as second:
            second.exec_driver_sql("INSERT INTO noted VALUES (1)")
        assert first.exec_driver_sql("SELECT count(*) FROM noted").scalar_one() == 1
    assert in_force(engine, "transaction_isolation") == "read committed"
    engine.dispose()


def test_on_postgresql_a_connection_that_stands_keeps_its_commits_durable(postgres: Postgres) -> None:
    engine = open_database(postgres.new_database())
    operator = create_engine(postgres.new_database(), isolation_level="AUTOCOMMIT")
    assert in_force(engine) == "on"
    with operator.connect() as connection:
        try:
            connection.exec_driver_sql("ALTER SYSTEM SET synchronous_commit = 'off'")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
            ends = time.monotonic() + HANGS_S
            while connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() != "off":
                assert time.monotonic() < ends
            assert in_force(engine) == "on"
        finally:
            connection.exec_driver_sql("ALTER SYSTEM RESET synchronous_commit")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
    operator.dispose()
    engine.dispose()


def test_on_postgresql_a_connection_begins_without_a_transaction(postgres: Postgres) -> None:
    engine = open_database(postgres.new_database())
    with engine.connect() as connection:
        assert connection.connection.driver_connection.info.transaction_status.name == "IDLE"  # type: ignore[union-attr]  # psycopg's
    engine.dispose()


def test_a_new_sqlite_file_has_pages_of_8_kib_and_an_older_one_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "older.sqlite3").touch(mode=0o600)
    older = create_engine(f"sqlite:///{tmp_path / 'older.sqlite3'}")
    with older.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (one BLOB)")
    older.dispose()
    assert page_bytes(tmp_path / "older.sqlite3") == 4_096
    assert page_bytes(tmp_path / "new.sqlite3") == 8_192


def page_bytes(path: Path) -> int:
    """What a file's pages take once the house has opened it and written to it."""
    engine = open_database(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE another (one BLOB)")
        found = int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())
    engine.dispose()
    return found
