"""The ad server's database: where it lies, how its tables are made, and ids that people type.

The tables are in `adserver.store.schema`. The default is SQLite in the data folder; PostgreSQL is a URL.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Column, Connection, Engine, Table, extract, func, select

from adserver.records.typed_ids import id_range, the_only
from adserver.store.audit_log import LOG
from adserver.store.migrations import MIGRATIONS
from adserver.store.schema import metadata
from adserver.store.version import FILE_NAME, SCHEMA_VERSION
from maskedlark.errors import JobReason
from maskedlark.runtime import database as storage
from maskedlark.runtime.database import reading
from maskedlark.runtime.ownership import make_folder

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

Clock = Callable[[], float]
"""Unix seconds, as an argument; `time.time` in production."""
_NOW: Final = select(extract("epoch", func.clock_timestamp()))


def database_clock(engine: Engine, clock: Clock) -> Clock:
    """Return the clock that all servers of a database share: PostgreSQL's; on SQLite, `clock`."""
    if engine.dialect.name == "sqlite":
        return clock

    # Leases and expiry compare moments of several servers, whose own clocks differ.
    def now_s() -> float:
        with reading(engine) as connection:
            return float(connection.execute(_NOW).scalar_one())

    return now_s


def default_url(data_dir: Path) -> str:
    """Return the URL of the embedded database in the data folder.

    The folder is created if it is missing, for this user only.
    """
    make_folder(data_dir)
    return URL.create("sqlite", database=str(data_dir / FILE_NAME)).render_as_string()


def open_store(data_dir: Path, database: str | None) -> Engine:
    """Open the database of a data folder, or another one; create the folder and tables that are missing."""
    make_folder(data_dir)
    engine = storage.open_database(database or default_url(data_dir))
    create_tables(engine)
    return engine


def create_tables(engine: Engine) -> None:
    """Create what is missing of every table, also when several processes start at once.

    Raises:
        InvalidTask: the tables are of another version of the ad server, and are left as they are.
    """
    storage.create_tables(engine, metadata, version=SCHEMA_VERSION, whose="ad server", migrations=MIGRATIONS)
    LOG.begin(engine, at=time.time())


def check_tables(engine: Engine) -> None:
    """Refuse a database whose tables an ad server of this version has not made yet.

    Raises:
        InvalidTask: the tables are not there, or of another version.
    """
    storage.check_version(engine, metadata, version=SCHEMA_VERSION, whose="ad server")


def insert_of(dialect: str, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """Build an insert that can handle existing rows: each engine has its own.

    Only the module of the engine that is used is loaded: PostgreSQL's takes as long as half of SQLAlchemy.
    """
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert(table)
    from sqlalchemy.dialects.postgresql import insert as postgresql_insert

    return postgresql_insert(table)


def insert_or_ignore(engine: Engine, table: Table, key: Sequence[str]) -> "postgresql.Insert | sqlite.Insert":
    """Build an insert that leaves rows with an existing key unchanged.

    Both engines spell it the same, each in its own module.
    """
    return insert_of(engine.dialect.name, table).on_conflict_do_nothing(index_elements=list(key))


def find_id(connection: Connection, column: Column[Any], prefix: str, *, missing: JobReason) -> bytes:
    """Return the one id in `column` whose hex form starts with `prefix`.

    Raises:
        JobRefused(missing): no id or more than one starts so, or the prefix is not hex.
    """
    low, high = id_range(prefix, missing)
    # Two are enough to tell one from several; a range of ids, and not a pattern, so that the index is used.
    found = connection.execute(select(column).where(column.between(low, high)).limit(2)).scalars().all()
    return the_only(found, prefix, missing)
