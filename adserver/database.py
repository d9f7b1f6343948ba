"""The ad server's database: one schema, one way to open it, and ids that people type.

Tables stand beside the code that uses them (tasks, reports, datasets, job_store) and share `metadata`. The default is SQLite in
the data folder; PostgreSQL is a URL.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    func,
    insert,
    inspect,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from maskedlark.errors import InvalidTask, JobReason, JobRefused

metadata = MetaData()
"""Every table of the ad server."""

SCHEMA_VERSION: Final = 2
"""Of all tables together: one more whenever a column or its meaning changes. A database of version 1 does not say which it has."""

schema_version: Final = Table("schema_version", metadata, Column("version", Integer, primary_key=True))

Clock = Callable[[], float]
"""Unix seconds, as an argument; `time.time` in production."""

_BUSY_TIMEOUT_MS: Final = 30_000
_DIALECTS: Final = ("sqlite", "postgresql")
_FILE_NAME: Final = "adserver.sqlite3"
_LONGEST_ID_DIGITS: Final = 64
_OLDEST_TABLE: Final = "tasks"
_CREATING_LOCK: Final = 0x6D6C61726B
"""PostgreSQL's advisory lock of who creates tables: any number that others do not use."""


def default_url(data_dir: Path) -> str:
    """The URL of the embedded database in the data folder, which is created if missing, for this user only."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return URL.create("sqlite", database=str(data_dir / _FILE_NAME)).render_as_string()


def open_database(url: str) -> Engine:
    """Connect to the database.

    Guarantees: on SQLite, a transaction that has committed survives a crash of the machine; `engine.begin()` takes the write lock at
    once, so a transaction that reads and then writes never fails half-way because another process wrote in between. Wrap long reads
    in `reading`, which takes no lock.

    A SQLite file is made readable by this user only; what SQLite puts beside it is as readable as it is.

    Raises:
        InvalidTask: not a URL of an engine that this server runs on, or its file cannot be had.
    """
    try:
        dialect = make_url(url).get_backend_name()
        if dialect not in _DIALECTS:
            raise InvalidTask(f"the database is one of {', '.join(_DIALECTS)}, not {dialect}")
        # Every request thread may hold a connection for a moment; waiting for one must not fail an upload.
        engine = create_engine(url, pool_size=8, max_overflow=64, hide_parameters=True)
    except (ArgumentError, SQLAlchemyError, ImportError) as error:
        raise InvalidTask(f"cannot use the database URL: {type(error).__name__}") from None
    if dialect == "sqlite":
        _make_private(engine.url.database)
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def create_tables(engine: Engine) -> None:
    """Create what is missing of every table, also when several processes start at once.

    Raises:
        InvalidTask: the tables are of another version of the ad server; they are left as they are.
    """
    from adserver import datasets, job_store, queries, receipts, reports, tasks  # noqa: F401 they declare the tables, and import this module

    with engine.begin() as connection:  # which on SQLite lets in one process at a time
        if engine.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_CREATING_LOCK)))
        found = _found_version(connection)
        if found is None:
            metadata.create_all(connection)
            connection.execute(insert(schema_version).values(version=SCHEMA_VERSION))
        elif found != SCHEMA_VERSION:
            raise InvalidTask(
                f"the database has tables of schema version {found}, and this ad server needs {SCHEMA_VERSION}: run the version that made"
                " it until its tasks are over, and begin with an empty database (another --data or --database) beside it"
            )


def _found_version(connection: Connection) -> int | None:
    """The schema version of the tables that are there, or None if there are none."""
    names = inspect(connection).get_table_names()
    if schema_version.name in names:
        return int(connection.execute(select(schema_version.c.version)).scalar_one())
    return 1 if _OLDEST_TABLE in names else None


def _make_private(path: str | None) -> None:
    """Create a SQLite file, if it is one and missing, and let nobody but its owner read it."""
    if not path or path == ":memory:" or path.startswith("file:"):
        return
    try:
        Path(path).touch(mode=0o600)
        Path(path).chmod(0o600)
    except OSError as error:
        raise InvalidTask(f"cannot use the database file {path}: {error.strerror}") from None


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection that sees one consistent state and never holds up a writer."""
    with engine.connect().execution_options(sqlite_begin="DEFERRED") as connection:
        yield connection


def insert_or_ignore(engine: Engine, table: Table, key: Sequence[str]) -> postgresql.Insert | sqlite.Insert:
    """An insert that leaves rows with a key that is there as they are; both engines spell it the same, each in its own module."""
    of_dialect = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
    return of_dialect(table).on_conflict_do_nothing(index_elements=list(key))


def find_id(connection: Connection, column: Column[Any], prefix: str, *, missing: JobReason) -> bytes:
    """The one id in `column` whose hex form starts with `prefix`.

    Raises:
        JobRefused(missing): no id or more than one starts so, or the prefix is not hex.
    """
    what = missing.value.removeprefix("unknown_")
    try:
        low, high = bytes.fromhex(prefix + "0" * (len(prefix) % 2)), bytes.fromhex(prefix.ljust(_LONGEST_ID_DIGITS, "f"))
    except ValueError:
        raise JobRefused(missing, f"a {what} id is hexadecimal, or the start of one, not {prefix!r}") from None
    found = connection.execute(select(column).where(column.between(low, high)).limit(2)).scalars().all()
    if not found:
        raise JobRefused(missing, f"no {what} has an id that starts with {prefix!r}")
    if len(found) > 1:
        raise JobRefused(missing, f"more than one {what} has an id that starts with {prefix!r}; give more digits")
    return bytes(found[0])


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver begins no transactions of its own: `_begin_sqlite` does
    for pragma in (f"busy_timeout={_BUSY_TIMEOUT_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('sqlite_begin', 'IMMEDIATE')}")
