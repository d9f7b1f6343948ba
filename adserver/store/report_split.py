"""Reports of schema version 9 become rows of two tables: what came in, and what became of it.

    begin_split(operations)      the step from version 9 to 10, quick whatever there is
    finish_split(engine)         the reports, in short transactions

The step renames the table of reports, so that no process of the older version stores one meanwhile. What then
moves the reports may end at any moment: the next start goes on where it was. Until the last report has moved,
both versions refuse to work with the database.

A later step that changes one of these tables comes after the reports have moved, not in the transaction of
the steps: until then, PostgreSQL has them under the old name.

On SQLite, which drops no column without writing the whole table anew, rows move from the old table to the new
ones. On PostgreSQL they stay where they are, and only what became of them is copied.
"""

import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine, func, inspect, select, text

from adserver.store.schema import report_states, reports
from maskedlark.runtime.database import reading

if TYPE_CHECKING:
    from alembic.operations import Operations

_LOG: Final = logging.getLogger(__name__)
_OLD: Final = "reports_before_10"
_UP_TO: Final = "reports_split_up_to"
_TOLD_EVERY: Final = 100_000
_SPLITTING_LOCK: Final = 0x6D6C61726B0A
"""PostgreSQL's advisory lock of who moves a page: any number that others do not use."""
_ROWS: Final = {"sqlite": 1_000, "postgresql": 20_000}
"""How many reports a transaction moves; on SQLite with their ciphertexts."""
_COLUMNS: Final = ", ".join(column.name for column in reports.columns)
_STATES: Final = (
    "INSERT INTO report_states (task_id, handle, sequence, state)"  # noqa: S608 # constants
    f" SELECT task_id, coalesce(handle, :none), sequence, state FROM {_OLD}"
    " WHERE sequence > :after AND sequence <= :last"
)
_LAST_OF_PAGE: Final = text(
    f"SELECT max(sequence) FROM (SELECT sequence FROM {_OLD} WHERE sequence > :after"  # noqa: S608 # constants
    " ORDER BY sequence LIMIT :rows) AS page"
)
_GRANTEES: Final = """
    SELECT DISTINCT grantee::regrole::text FROM pg_class, aclexplode(relacl)
    WHERE oid = 'reports'::regclass AND privilege_type = 'INSERT' AND grantee NOT IN (0, relowner)
"""


def begin_split(operations: "Operations") -> None:
    """Put the reports of older versions aside, and make the tables that they go to."""
    connection = operations.get_bind()
    report_states.create(connection)
    if connection.dialect.name == "postgresql":
        for grantee in connection.execute(text(_GRANTEES)).scalars().all():  # accounts of intakes
            connection.execute(text(f"GRANT INSERT ON report_states TO {grantee}"))
            connection.execute(text(f"GRANT SELECT (sequence) ON reports TO {grantee}"))
        connection.execute(text(f"CREATE TABLE {_UP_TO} (sequence bigint NOT NULL)"))
        connection.execute(text(f"INSERT INTO {_UP_TO} VALUES (-1)"))  # noqa: S608 # a constant
    connection.execute(text(f"ALTER TABLE reports RENAME TO {_OLD}"))
    if connection.dialect.name == "sqlite":
        reports.create(connection)


def is_split(engine: Engine) -> bool:
    """Whether no report of an older version is left to be moved."""
    with reading(engine) as connection:
        return not inspect(connection).has_table(_OLD)


def finish_split(engine: Engine) -> None:
    """Move all reports that an older version left; other processes may do so at the same time."""
    if is_split(engine):
        return
    with engine.begin() as connection:  # which on SQLite lets in one process at a time
        end = _end(connection)
    last: int | None = 0
    told = 0
    while last is not None:
        with engine.begin() as connection:
            last = _move_page(connection)
        if last is not None and last >= told + _TOLD_EVERY:
            _LOG.warning("reports are brought to schema version 10: number %d of %d", last, end)
            told = last


def _is_ended(connection: Connection) -> bool:
    """Whether another process has just ended it; if not, none does before this transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_SPLITTING_LOCK)))
    return not inspect(connection).has_table(_OLD)


def _end(connection: Connection) -> int:
    """The last sequence of all, to be told."""
    if _is_ended(connection):
        return 0
    return connection.execute(text(f"SELECT max(sequence) FROM {_OLD}")).scalar() or 0  # noqa: S608 # a constant


def _move_page(connection: Connection) -> int | None:
    """Move the reports that are next; the sequence of the last one; None: there was none, and all is done."""
    if _is_ended(connection):
        return None
    return _move_rows(connection) if connection.dialect.name == "sqlite" else _copy_states(connection)


def _move_rows(connection: Connection) -> int | None:
    """A page on SQLite."""
    page = {"after": -1, "rows": _ROWS["sqlite"]}
    last: int | None = connection.execute(_LAST_OF_PAGE, page).scalar()
    if last is None:
        connection.execute(text(f"DROP TABLE {_OLD}"))
        return None
    up_to = {"last": last}
    moving = f"INSERT INTO reports ({_COLUMNS}) SELECT {_COLUMNS} FROM {_OLD} WHERE sequence <= :last"  # noqa: S608 # constants
    connection.execute(text(moving), up_to)
    connection.execute(text(_STATES), {**up_to, "after": -1, "none": b""})
    connection.execute(text(f"DELETE FROM {_OLD} WHERE sequence <= :last"), up_to)  # noqa: S608 # constants
    return last


def _copy_states(connection: Connection) -> int | None:
    """A page on PostgreSQL."""
    after = connection.execute(text(f"SELECT sequence FROM {_UP_TO}")).scalar_one()  # noqa: S608 # a constant
    page = {"after": after, "rows": _ROWS["postgresql"]}
    last: int | None = connection.execute(_LAST_OF_PAGE, page).scalar()
    if last is None:
        connection.execute(text(f"ALTER TABLE {_OLD} DROP COLUMN handle, DROP COLUMN state"))
        connection.execute(text(f"ALTER TABLE {_OLD} RENAME TO reports"))
        connection.execute(text(f"DROP TABLE {_UP_TO}"))
        return None
    connection.execute(text(_STATES), {"after": after, "last": last, "none": b""})
    connection.execute(text(f"UPDATE {_UP_TO} SET sequence = :last"), {"last": last})  # noqa: S608 # a constant
    return last
