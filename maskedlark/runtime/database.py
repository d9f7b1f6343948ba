"""How the parties open their databases: durable, private to their owner, and of one schema version.

A party declares its tables, `schema_version_of` among them, and calls `open_database`, then `create_tables`.
SQLite and PostgreSQL run the same code. Nothing of the protocol is here; browsers do without this module.
"""

import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    PoolProxiedConnection,
    Table,
    create_engine,
    event,
    func,
    insert,
    inspect,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionInTime

from maskedlark.errors import HelperUnavailable, InvalidSetting
from maskedlark.runtime.ownership import check_own, check_secret_file

if TYPE_CHECKING:
    from alembic.operations import Operations

Migrations: TypeAlias = "Mapping[int, Callable[[Operations], None]]"
"""Each step to a newer schema version, under the version that it starts from.

A step changes tables through Alembic's operations, and commits nothing itself::

    def _to_3(operations: Operations) -> None:
        operations.add_column("tasks", Column("unit", String(8), nullable=False, server_default="report"))

    MIGRATIONS: Final[Migrations] = {2: _to_3}  # from version 2 to version 3
"""

_LOG: Final = logging.getLogger(__name__)
_DIALECTS: Final = ("sqlite", "postgresql")
_LIBPQ_DRIVERS: Final = ("psycopg", "psycopg2")
_BUSY_TIMEOUT_MS: Final = 30_000
_BUSY_AGAIN_S: Final = 0.005
_VERSION_TABLE: Final = "schema_version"
_PRIMARY_CODE: Final = 0xFF
_SQLITE_AWAY: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL,
    }
)  # fmt: skip
_POSTGRESQL_DISK_FULL: Final = "53100"
# Why a database does not let a party in, by what the driver's words have in common
_WHY_NOT: Final = {
    "Connection refused": "no server is listening there",
    "failed to resolve host": "the host's name is unknown",
    "timeout": "the host does not answer",
    "authentication failed": "the server refuses the user or the password",
    "no password supplied": "the server wants a password",
    "does not exist": "the server has no such user or database",
    "file is not a database": "it is not of SQLite, or damaged: restore it as the page on backups says",
    "malformed": "it is damaged: restore it as the page on backups says",
}
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# Values of PostgreSQL's `synchronous_commit` that put what was acknowledged on this disk at least
_DURABLE_COMMITS: Final = frozenset({"on", "remote_write", "remote_apply"})
# Of libpq: by itself it waits for a machine that is gone for as long as the kernel does
_NOTICES_SILENCE: Final = {
    "connect_timeout": 10, "tcp_user_timeout": 30_000,
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
}  # fmt: skip
# For the server to notice a client that is gone, whose locks would otherwise last for two hours
_SERVER_NOTICES_SILENCE: Final = """
    SELECT set_config(name, wanted, false)
    FROM pg_settings JOIN (VALUES ('tcp_user_timeout', '30000'), ('tcp_keepalives_idle', '10'),
        ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3')) AS ours (name, wanted) USING (name)
    WHERE source = 'default'
"""
# Of a page of SQLite. A report of two kilobytes leaves a page of 4 KiB half empty; of larger pages more is
# written for each id that goes into a large table's index.
_PAGE_BYTES: Final = 8_192
# PostgreSQL's advisory lock for creating tables: any number that is not used elsewhere
_CREATING_LOCK: Final = 0x6D6C61726B


def open_database(url: str) -> Engine:
    """Connect to a party's database.

    Args:
        url: Of SQLite or PostgreSQL.

    Guarantees: a transaction that has committed survives a crash of the machine, also where PostgreSQL's
        operator set `synchronous_commit` off. One that has waited for a lock reads what is there by then,
        also where the operator chose another isolation than READ COMMITTED. On SQLite, `engine.begin()` takes
        the write lock at once, so a transaction that reads and then writes never fails half-way because
        another process wrote in between. Wrap what only reads in `reading`, which takes no lock. A SQLite
        file is created readable by this user only; the files that SQLite adds have the same rights. A
        connection that the server has ended meanwhile is replaced, not used. A machine of PostgreSQL that is
        gone without a word is noticed within half a minute, unless the URL says otherwise, and PostgreSQL
        notices as soon that this one is, unless its operator or the URL says otherwise. No error shows a
        stored value.

    Raises:
        InvalidSetting: not a URL of an engine that the parties run on, or its file cannot be had, or others
            may read it, or it is another user's.
    """
    try:
        parsed = make_url(url)
        dialect = parsed.get_backend_name()
        if dialect not in _DIALECTS:
            raise InvalidSetting(f"the database is one of {', '.join(_DIALECTS)}, not {dialect}")
        if dialect == "sqlite" and parsed.database in (None, "", ":memory:"):
            raise InvalidSetting("the database URL names no file: expected sqlite:///PATH")
        if "@" in (parsed.host or ""):
            raise InvalidSetting("the database URL has two @: write that of a name or password as %40")
        # Every request thread may hold a connection for a moment; waiting for one must not fail a request.
        engine = create_engine(
            url,
            pool_size=8,
            max_overflow=64,
            pool_pre_ping=dialect != "sqlite",  # whose connections are no server's to end
            hide_parameters=True,  # an error would show a statement's values: shares, masks, keys
            connect_args=_silence_noticed(parsed),
        )
    except (ArgumentError, SQLAlchemyError, ImportError, ValueError) as error:  # the last of a port
        raise InvalidSetting(
            f"cannot use the database URL ({type(error).__name__}): expected sqlite:///PATH or "
            "postgresql://USER@HOST/DATABASE"
        ) from None
    if dialect == "sqlite":
        _make_private(engine.url.database)
        event.listen(engine, "connect", _configure_sqlite)
        engine.dialect.do_begin = _begin_sqlite  # type: ignore[method-assign]  # an event slows every statement
    else:
        event.listen(engine, "connect", _configure_postgresql)
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a connection to read. On SQLite it sees one state, and does not wait for writers or block them."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            _driver(connection.connection).execute("BEGIN DEFERRED").close()  # ends with the connection's use
        yield connection


def is_away(error: BaseException) -> bool:
    """Return whether an error means that the database or disk is unavailable, not that a statement is wrong.

    The database may be down, restarted, locked or full, and the disk full.
    """
    if isinstance(error, DBAPIError):
        if isinstance(error.orig, sqlite3.Error):  # to which a wrong statement is an OperationalError too
            return (
                getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE in _SQLITE_AWAY
            )
        return isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    return isinstance(error, NoConnectionInTime) or _is_disk_full(error)


def _is_full(error: BaseException) -> bool:
    """Return whether an error means that there is no space left, for the database or for another file."""
    if not isinstance(error, DBAPIError):
        return _is_disk_full(error)
    code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_OK) & _PRIMARY_CODE
    return code == sqlite3.SQLITE_FULL or getattr(error.orig, "sqlstate", None) == _POSTGRESQL_DISK_FULL


def _is_disk_full(error: BaseException) -> bool:
    """Return whether a file could not be written because the disk, or a quota of it, is full."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL


@contextmanager
def database_at_hand(whose: str) -> Iterator[None]:
    """Wrap a call's work in a database and on the files next to it.

    The caller's error says that a retry may succeed, and whether the disk is full; nothing else of the
    database.

    Every call of the protocol may be repeated, also one whose commit was done while its answer was lost; a
    report is stored once however often it comes.

    Args:
        whose: Named in the error.

    Raises:
        HelperUnavailable: the database is down, is being restarted, is locked or full, or has no connection
            to spare; or the disk is full.
    """
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        if not is_away(error):
            raise
        if _is_full(error):
            _LOG.warning("the disk is full: %s", getattr(error, "orig", error))
            raise HelperUnavailable(
                f"{whose}'s disk is full: its operator must make room; ask again"
            ) from None
        _LOG.warning("the database does not answer: %s", getattr(error, "orig", error))
        raise HelperUnavailable(f"{whose}'s database does not answer; ask again") from None


def schema_version_of(metadata: MetaData) -> Table:
    """Declare the table of one row that says which schema version the others are of."""
    return Table(_VERSION_TABLE, metadata, Column("version", Integer, primary_key=True))


def create_tables(
    engine: Engine, metadata: MetaData, *, version: int, whose: str, migrations: Migrations
) -> None:
    """Create all tables in an empty database, or bring those of an older version to this one.

    Several processes may do so at once. All steps and the new version number are one transaction, on SQLite
    as on PostgreSQL: a crash in between leaves the old version as it was. Tables of this version stay.

    Args:
        engine: The database.
        metadata: All tables.
        version: The version of all of them together, from 1; tables without a version count as version 0.
        whose: Named in the refusal.
        migrations: The steps from older versions.

    Raises:
        InvalidSetting: the tables are of a newer version, or of one from which no steps lead here, or cannot
            be read or migrated; they are left as they are.
    """
    try:
        with engine.begin() as connection:  # which on SQLite lets in one process at a time
            if engine.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(_CREATING_LOCK)))
            found = _found_version(connection, metadata)
            if found is None:
                metadata.create_all(connection)
                connection.execute(insert(metadata.tables[_VERSION_TABLE]).values(version=version))
            elif _is_migratable(found, version, migrations):
                _migrate(connection, found, version, migrations)
                connection.execute(update(metadata.tables[_VERSION_TABLE]).values(version=version))
                _LOG.warning("the database was of schema version %d and is now of %d", found, version)
                found = version
    except SQLAlchemyError as error:
        raise _refuse_database(engine, whose, error) from None
    if found not in (None, version):
        raise InvalidSetting(
            f"the database has tables of schema version {found}, and this {whose} needs {version}: run the "
            "version that made"
            " it until its tasks are over, and begin with an empty database (another --data or --database) "
            "beside it"
        )


def check_version(engine: Engine, metadata: MetaData, *, version: int, whose: str) -> None:
    """Refuse a database whose tables are not there, or not of this version; nothing is changed in it.

    For a process whose account may not create tables; another process creates them.

    Raises:
        InvalidSetting: they are not, or the database cannot be read.
    """
    try:
        with reading(engine) as connection:
            found = _found_version(connection, metadata)
    except SQLAlchemyError as error:
        raise _refuse_database(engine, whose, error) from None
    if found != version:
        there = "has no tables" if found is None else f"has tables of schema version {found}"
        raise InvalidSetting(
            f"the database {there}, and this program needs version {version}: start the {whose} of this"
            " version first"
        )


def _refuse_database(engine: Engine, whose: str, error: SQLAlchemyError) -> InvalidSetting:
    """Return the error of a database that cannot be used: where it is, and why if the driver's words say so.

    The words are not shown: they may have more of the URL, which may have a password.
    """
    url = engine.url
    if engine.dialect.name == "sqlite":
        where = f"file {url.database}"
    elif "@" in (url.database or ""):
        # After an @ and a slash of a password that are not escaped, the host is a part of it, too.
        where = "not shown: its URL has two @; write that of a password as %40"
    else:
        port = "" if url.port is None else f":{url.port}"
        where = f"host {url.host}{port}, user {url.username}, database {url.database}"
    words = str(getattr(error, "orig", ""))
    why = next((f": {cause}" for sign, cause in _WHY_NOT.items() if sign in words), "")
    return InvalidSetting(f"cannot use the database of the {whose} ({where}): {type(error).__name__}{why}")


def _found_version(connection: Connection, metadata: MetaData) -> int | None:
    """Return the schema version of the tables, 0 without a version, or None without tables."""
    names = inspect(connection).get_table_names()
    if _VERSION_TABLE in names:
        return int(connection.execute(select(metadata.tables[_VERSION_TABLE].c.version)).scalar_one())
    return None if metadata.tables.keys().isdisjoint(names) else 0


def _is_migratable(found: int, version: int, migrations: Migrations) -> bool:
    """Return whether steps lead from the version that was found to a newer one."""
    return found < version and all(step in migrations for step in range(found, version))


def _migrate(connection: Connection, found: int, version: int, migrations: Migrations) -> None:
    """Run every step from one version to another, in the caller's transaction.

    Args:
        connection: In a transaction that holds the write lock.
        found: The version of the tables.
        version: The version that they are to have; `_is_migratable` says that steps lead there.
        migrations: The steps.

    Raises:
        SQLAlchemyError: a step failed; the caller's transaction is to be rolled back.
    """
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    operations = Operations(MigrationContext.configure(connection))
    for step in range(found, version):
        migrations[step](operations)


def _make_private(path: str | None) -> None:
    """Create a missing SQLite file, for its owner only; refuse one that others may read."""
    if not path or path.startswith("file:"):
        return
    try:
        Path(path).touch(mode=0o600)
    except OSError as error:
        raise InvalidSetting(f"cannot use the database file {path}: {error.strerror}") from None
    check_secret_file(Path(path))
    if os.geteuid() != 0:  # root may look into an operator's database
        check_own(Path(path))


def _silence_noticed(url: URL) -> dict[str, int]:
    """Return the driver's settings, which the URL overrides; none for drivers without libpq."""
    if url.get_driver_name() not in _LIBPQ_DRIVERS:
        return {}
    return {name: value for name, value in _NOTICES_SILENCE.items() if name not in url.query}


def _configure_sqlite(connection: Any, _record: object) -> None:
    """Make commits durable (FULL) and let readers work next to one writer (WAL).

    Transactions begin in `_begin_sqlite`, not in the driver. A file that exists keeps the pages that it has.
    """
    connection.isolation_level = None
    # The size of pages before the write-ahead log, with which it can no longer be changed.
    for pragma in (f"busy_timeout={_BUSY_TIMEOUT_MS}", f"page_size={_PAGE_BYTES}"):
        connection.execute(f"PRAGMA {pragma}").close()
    _write_ahead(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _write_ahead(connection: Any) -> None:
    """Turn the write-ahead log on.

    While another process does so to a new file, SQLite is busy at once, whatever its timeout is.
    """
    until = monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY_CODE != sqlite3.SQLITE_BUSY or monotonic() >= until:
                raise
            sleep(_BUSY_AGAIN_S)
        else:
            return


def _begin_sqlite(dbapi_connection: PoolProxiedConnection) -> None:
    """Take the write lock, unless `reading` has begun already.

    In place of the dialect's own way to begin, which does nothing. As a statement of SQLAlchemy's it takes
    longer than many a query.
    """
    if not (driver := _driver(dbapi_connection)).in_transaction:
        # A transaction that began with a read could not become a writer once another one has written, however
        # long it waited.
        driver.execute("BEGIN IMMEDIATE").close()


def _driver(connection: PoolProxiedConnection) -> sqlite3.Connection:
    """Return SQLite's own connection."""
    return cast("sqlite3.Connection", connection.driver_connection)


def _configure_postgresql(connection: Any, _record: object) -> None:
    """Make commits durable: an operator's default may acknowledge some that a crash then loses.

    One that waits for standbys too stays. And the server ends the transaction of a machine that is gone.

    What a transaction reads after it has waited for a lock must be what is there by then, and not what was
    there when it began: whoever had the lock may have changed it. So the isolation is READ COMMITTED, also
    where an operator's default is another one.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        (found,) = cursor.fetchone()
        # set also to what it is: a default that is changed later would change it in this session
        cursor.execute(
            "SELECT set_config('synchronous_commit', %s, false)",
            (found if found in _DURABLE_COMMITS else "on",),
        )
        cursor.execute("SELECT set_config('default_transaction_isolation', 'read committed', false)")
        cursor.execute(_SERVER_NOTICES_SILENCE)
    connection.commit()  # what is set in a transaction that is rolled back is not set
