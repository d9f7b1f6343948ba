"""Which errors of a database are worth waiting for, asked of the engines themselves."""

from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from maskedlark.errors import HelperUnavailable
from maskedlark.runtime.database import database_at_hand, is_away, open_database
from tests.postgres import Postgres


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


def test_a_full_or_missing_disk_is_worth_waiting_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert caplog.messages == ["the disk is full: database or disk is full"]
    gone = create_engine(f"sqlite:///{tmp_path / 'no' / 'such' / 'folder'}")
    with pytest.raises(SQLAlchemyError) as raised:
        gone.connect()
    assert is_away(raised.value)


def test_a_server_that_does_not_listen_is_worth_waiting_for() -> None:
    with pytest.raises(SQLAlchemyError) as raised:
        open_database("postgresql+psycopg://nobody@127.0.0.1:1/nothing").connect()
    assert is_away(raised.value)


def told_to_the_driver(url: URL) -> dict[str, str]:
    """The settings of a connection that are not libpq's own."""
    engine = open_database(url.render_as_string(hide_password=False))
    with engine.connect() as connection:
        told = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]  # psycopg's
    engine.dispose()
    return dict(told)


def test_a_postgresql_machine_that_is_gone_without_a_word_is_noticed(postgres: Postgres) -> None:
    url = make_url(postgres.new_database())
    told = told_to_the_driver(url)
    assert {"connect_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count"} <= told.keys()
    assert told["tcp_user_timeout"] == "30000"
    chosen = told_to_the_driver(url.update_query_dict({"tcp_user_timeout": "7000"}))
    assert chosen == told | {"tcp_user_timeout": "7000"}


def test_postgresql_notices_that_our_machine_is_gone_unless_its_operator_chose(
    postgres: Postgres,
) -> None:
    url = make_url(postgres.new_database())
    chosen = url.update_query_dict({"options": "-c tcp_keepalives_idle=60"})
    for one, source in ((url, "session"), (chosen, "client")):
        engine = open_database(one.render_as_string(hide_password=False))
        with engine.connect() as connection:
            found = connection.exec_driver_sql(
                "SELECT name, source FROM pg_settings WHERE name LIKE 'tcp_%%'"
            )
            sources = {row.name: row.source for row in found}
        engine.dispose()
        assert sources.pop("tcp_keepalives_idle") == source
        assert sources == dict.fromkeys(
            ("tcp_keepalives_count", "tcp_keepalives_interval", "tcp_user_timeout"), "session"
        )
