"""Databases of older versions become today's, on both engines, whole or not at all."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.operations import Operations
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, inspect, select, text

from maskedlark.errors import InvalidSetting, InvalidTask
from maskedlark.runtime.database import Migrations, create_tables, open_database, schema_version_of

CHARGES = [{"id": 1, "cost": 7}, {"id": 2, "cost": 8}]


def older() -> MetaData:
    metadata = MetaData()
    schema_version_of(metadata)
    Table(
        "charges", metadata, Column("id", Integer, primary_key=True), Column("cost", Integer, nullable=False)
    )
    return metadata


def newer() -> MetaData:
    metadata = older()
    metadata.tables["charges"].append_column(
        Column("unit", String(8), nullable=False, server_default="report")
    )
    return metadata


def add_unit(operations: Operations) -> None:
    operations.add_column("charges", Column("unit", String(8), nullable=False, server_default="report"))


def add_unit_and_fail(operations: Operations) -> None:
    add_unit(operations)
    operations.execute("INSERT INTO nowhere VALUES (1)")


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A database that version 2 wrote, with charges in it."""
    opened = open_database(database_url)
    metadata = older()
    create_tables(opened, metadata, version=2, whose="helper", migrations={})
    with opened.begin() as connection:
        connection.execute(metadata.tables["charges"].insert(), CHARGES)
    yield opened
    opened.dispose()


def open_as(engine: Engine, version: int, migrations: Migrations) -> MetaData:
    metadata = newer()
    create_tables(engine, metadata, version=version, whose="helper", migrations=migrations)
    return metadata


def test_an_older_database_is_brought_forward_with_every_row(engine: Engine) -> None:
    metadata = open_as(engine, 3, {2: add_unit})
    with engine.connect() as connection:
        rows = connection.execute(select(metadata.tables["charges"]).order_by("id")).mappings().all()
        assert [dict(row) for row in rows] == [{**charge, "unit": "report"} for charge in CHARGES]
        assert connection.execute(select(metadata.tables["schema_version"])).scalars().all() == [3]


def test_several_versions_are_crossed_in_one_go(engine: Engine) -> None:
    def fill(operations: Operations) -> None:
        operations.execute("UPDATE charges SET unit = 'user' WHERE id = 2")

    metadata = open_as(engine, 4, {2: add_unit, 3: fill})
    with engine.connect() as connection:
        units = connection.execute(select(metadata.tables["charges"].c.unit).order_by("id")).scalars().all()
    assert units == ["report", "user"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nobody:secret@127.0.0.1:1/x?password=secret", "host 127.0.0.1:1, user nobody, database x"),
        (
            "nobody:a@127.0.0.1:1/secret@host/x",
            "not shown: its URL has two @; write that of a password as %40",
        ),
    ],
)
def test_a_database_that_is_not_reached_is_named_without_its_password(url: str, shown: str) -> None:
    engine = open_database(f"postgresql://{url}")
    with pytest.raises(InvalidSetting) as refused:
        create_tables(engine, MetaData(), version=1, whose="helper", migrations={})
    assert f"cannot use the database of the helper ({shown}): OperationalError: " in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("password", ["a@secret", "a@b:secret"])
def test_a_password_that_is_not_escaped_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        open_database(f"postgresql://nobody:{password}@127.0.0.1:1/x")
    assert "secret" not in str(refused.value)


def test_a_file_that_is_no_database_is_to_be_restored(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite3").write_bytes(b"no database")
    (tmp_path / "ledger.sqlite3").chmod(0o600)
    with pytest.raises(
        InvalidSetting, match=r"ledger\.sqlite3\): .*: it is not of SQLite, or damaged: restore"
    ):
        open_as(open_database(f"sqlite:///{tmp_path}/ledger.sqlite3"), 1, {})


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "nothing"])
def test_a_url_without_a_file_is_refused_with_what_was_expected(url: str) -> None:
    with pytest.raises(InvalidSetting, match="expected sqlite:///PATH"):
        open_database(url)


def test_a_step_that_fails_leaves_the_older_version_as_it_was(engine: Engine) -> None:
    with pytest.raises(InvalidTask, match="cannot use the database of the helper"):
        open_as(engine, 3, {2: add_unit_and_fail})
    assert [column["name"] for column in inspect(engine).get_columns("charges")] == ["id", "cost"]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version FROM schema_version")).scalars().all() == [2]


@pytest.mark.parametrize("version", [1, 4])
def test_versions_without_steps_are_refused(engine: Engine, version: int) -> None:
    with pytest.raises(InvalidTask, match="schema version 2"):
        open_as(engine, version, {2: add_unit})
    assert [column["name"] for column in inspect(engine).get_columns("charges")] == ["id", "cost"]


def test_processes_that_start_at_once_migrate_once(engine: Engine, database_url: str) -> None:
    engines = [open_database(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: open_as(one, 3, {2: add_unit}), engines))
    assert [column["name"] for column in inspect(engine).get_columns("charges")] == ["id", "cost", "unit"]
    for one in engines:
        one.dispose()
