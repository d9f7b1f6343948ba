"""Which errors of a database are worth waiting for, asked of the engines themselves."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from maskedlark.errors import HelperUnavailable
from maskedlark.runtime.database import database_at_hand, is_away, open_database


def error_of(url: str, *statements: str) -> SQLAlchemyError:
    engine = open_database(url)
    with engine.connect() as connection:
        for statement in statements[:-1]:
            connection.exec_driver_sql(statement)
        with pytest.raises(SQLAlchemyError) as raised:
            connection.exec_driver_sql(statements[-1])
    engine.dispose()
    return raised.value


@pytest.mark.parametrize(
    "statement",
    ["SELECT * FROM no_such_table", "SELEC 1", "INSERT INTO t VALUES (1, 2)", "SELECT no_such_column FROM t"],
)
def test_a_statement_that_is_wrong_is_a_bug_on_every_engine(database_url: str, statement: str) -> None:
    assert not is_away(error_of(database_url, "CREATE TABLE t (one INTEGER)", statement))


def test_a_locked_database_is_worth_waiting_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite3'}"
    holder = open_database(url)
    with holder.begin():  # which takes the write lock
        waiting = create_engine(url, connect_args={"timeout": 0.01})
        with waiting.connect() as connection, pytest.raises(SQLAlchemyError) as raised:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        waiting.dispose()
    holder.dispose()
    assert is_away(raised.value)


def test_a_full_or_missing_disk_is_worth_waiting_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite3'}"
    assert is_away(
        error_of(
            url,
            "CREATE TABLE t (one BLOB)",
            "PRAGMA max_page_count=2",
            "INSERT INTO t VALUES (zeroblob(1000000))",
        )
    )
    with pytest.raises(HelperUnavailable, match="the helper's disk is full"), database_at_hand("the helper"):
        raise error_of(
            f"sqlite:///{tmp_path / 'other.sqlite3'}",
            "CREATE TABLE t (one BLOB)",
            "PRAGMA max_page_count=2",
            "INSERT INTO t VALUES (zeroblob(1000000))",
        )
    gone = create_engine(f"sqlite:///{tmp_path / 'no' / 'such' / 'folder'}")
    with pytest.raises(SQLAlchemyError) as raised:
        gone.connect()
    assert is_away(raised.value)


def test_a_server_that_does_not_listen_is_worth_waiting_for() -> None:
    with pytest.raises(SQLAlchemyError) as raised:
        open_database("postgresql+psycopg://nobody@127.0.0.1:1/nothing").connect()
    assert is_away(raised.value)
