"""The ad server's database: where it lies, how its tables are made, and ids that people type.

The tables are in `adserver.store.schema`. The default is SQLite in the data folder; PostgreSQL is a URL.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Column, Connection, Engine, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from adserver.store.migrations import MIGRATIONS
from adserver.store.schema import SCHEMA_VERSION, metadata
from maskedlark.errors import JobReason, JobRefused
from maskedlark.runtime import database as storage

Clock = Callable[[], float]
"""Unix seconds, as an argument; `time.time` in production."""

_FILE_NAME: Final = "adserver.sqlite3"
_LONGEST_ID_DIGITS: Final = 64


def default_url(data_dir: Path) -> str:
    """The URL of the embedded database in the data folder.

    The folder is created if it is missing, for this user only.
    """
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return URL.create("sqlite", database=str(data_dir / _FILE_NAME)).render_as_string()


def create_tables(engine: Engine) -> None:
    """Create what is missing of every table, also when several processes start at once.

    Raises:
        InvalidTask: the tables are of another version of the ad server; they are left as they are.
    """
    storage.create_tables(engine, metadata, version=SCHEMA_VERSION, whose="ad server", migrations=MIGRATIONS)


def check_tables(engine: Engine) -> None:
    """Refuse a database whose tables an ad server of this version has not made, or brought forward, yet.

    Raises:
        InvalidTask: the tables are not there, or of another version.
    """
    storage.check_version(engine, metadata, version=SCHEMA_VERSION, whose="ad server")


def insert_or_ignore(engine: Engine, table: Table, key: Sequence[str]) -> postgresql.Insert | sqlite.Insert:
    """An insert that leaves rows with a key that is there as they are.

    Both engines spell it the same, each in its own module.
    """
    of_dialect = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
    return of_dialect(table).on_conflict_do_nothing(index_elements=list(key))


def find_id(connection: Connection, column: Column[Any], prefix: str, *, missing: JobReason) -> bytes:
    """The one id in `column` whose hex form starts with `prefix`.

    Raises:
        JobRefused(missing): no id or more than one starts so, or the prefix is not hex.
    """
    what = missing.value.removeprefix("unknown_")
    try:
        low, high = (
            bytes.fromhex(prefix + "0" * (len(prefix) % 2)),
            bytes.fromhex(prefix.ljust(_LONGEST_ID_DIGITS, "f")),
        )
    except ValueError:
        raise JobRefused(
            missing, f"a {what} id is hexadecimal, or the start of one, not {prefix!r}"
        ) from None
    found = connection.execute(select(column).where(column.between(low, high)).limit(2)).scalars().all()
    if not found:
        raise JobRefused(
            missing,
            f"no {what} has an id that starts with {prefix!r}" if prefix else f"there is no {what} yet",
        )
    if len(found) > 1 and not prefix:
        raise JobRefused(
            missing,
            f"there are several {what}s: name one by the start of its id, as `adserver {what} list` shows it",
        )
    if len(found) > 1:
        raise JobRefused(
            missing, f"more than one {what} has an id that starts with {prefix!r}; give more digits"
        )
    return bytes(found[0])
