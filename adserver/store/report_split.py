"""Reports of schema version 9 become rows of two tables: what came in, and what became of it.

    begin_split(operations)      the step from version 9 to 10, quick whatever there is
    finish_split(engine)         the reports, in short transactions

The step renames the table of reports, so that no process of the older version stores one meanwhile. What then
moves the reports may end at any moment: the next start goes on where it was. Until the last report has moved,
both versions refuse to work with the database.

A later step that changes one of these tables comes after the reports have moved, not in the transaction of
the steps: until then, PostgreSQL has them under the old name. The tables below stay those of version 10.

On SQLite, which drops no column without writing the whole table anew, rows move from the old table to the new
ones. On PostgreSQL they stay where they are, and only what became of them is copied.
"""

import logging
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)

from maskedlark.runtime.database import reading

if TYPE_CHECKING:
    from alembic.operations import Operations

_LOG: Final = logging.getLogger(__name__)
_TOLD_EVERY: Final = 100_000
_SPLITTING_LOCK: Final = 0x6D6C61726B0A
"""PostgreSQL's advisory lock of who moves a page: any number that others do not use."""
_ROWS: Final = {"sqlite": 1_000, "postgresql": 20_000}
"""How many reports a transaction moves; on SQLite with their ciphertexts."""
_GRANTEES: Final = """
    SELECT DISTINCT grantee::regrole::text FROM pg_class, aclexplode(relacl)
    WHERE oid = 'reports'::regclass AND privilege_type = 'INSERT' AND grantee NOT IN (0, relowner)
"""
_METADATA: Final = MetaData()
_SEQUENCE: Final = BigInteger().with_variant(Integer, "sqlite")
_NO_DATASET: Final = b""


def _as_it_came_in() -> tuple[Column[Any], ...]:
    """The columns that both tables of reports have."""
    return (
        Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
        Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), nullable=False),
        Column("report_id", LargeBinary(16), nullable=False),
        Column("time_bucket", BigInteger, nullable=False),
        Column("key_id_0", SmallInteger, nullable=False),
        Column("ciphertext_0", LargeBinary, nullable=False),
        Column("key_id_1", SmallInteger, nullable=False),
        Column("ciphertext_1", LargeBinary, nullable=False),
    )


Table("tasks", _METADATA, Column("task_id", LargeBinary(32), primary_key=True))  # named by the next one
REPORTS: Final = Table("reports", _METADATA, *_as_it_came_in(), UniqueConstraint("task_id", "report_id"))
STATES: Final = Table(
    "report_states",
    _METADATA,
    Column("task_id", LargeBinary(32), nullable=False),
    Column("handle", LargeBinary(16), nullable=False),
    Column("sequence", _SEQUENCE, nullable=False, autoincrement=False),
    Column("state", String(8), nullable=False),
    PrimaryKeyConstraint("task_id", "handle", "sequence"),
    sqlite_with_rowid=False,
)
_OLD: Final = Table(
    "reports_before_10",
    _METADATA,
    *_as_it_came_in(),
    Column("state", String(8), nullable=False),
    Column("handle", LargeBinary(16)),
)
_UP_TO: Final = Table("reports_split_up_to", _METADATA, Column("sequence", BigInteger, nullable=False))


def begin_split(operations: "Operations") -> None:
    """Put the reports of older versions aside, and make the tables that they go to."""
    connection = operations.get_bind()
    STATES.create(connection)
    if connection.dialect.name == "postgresql":
        for grantee in connection.execute(text(_GRANTEES)).scalars().all():  # accounts of intakes
            connection.execute(text(f"GRANT INSERT ON report_states TO {grantee}"))
            connection.execute(text(f"GRANT SELECT (sequence) ON reports TO {grantee}"))
        _UP_TO.create(connection)
        connection.execute(insert(_UP_TO).values(sequence=-1))
    operations.rename_table(REPORTS.name, _OLD.name)
    if connection.dialect.name == "sqlite":
        REPORTS.create(connection)


def is_split(engine: Engine) -> bool:
    """Whether no report of an older version is left to be moved."""
    with reading(engine) as connection:
        return not inspect(connection).has_table(_OLD.name)


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
    return not inspect(connection).has_table(_OLD.name)


def _end(connection: Connection) -> int:
    """The last sequence of all, to be told."""
    if _is_ended(connection):
        return 0
    return connection.execute(select(func.max(_OLD.c.sequence))).scalar() or 0


def _move_page(connection: Connection) -> int | None:
    """Move the reports that are next; the sequence of the last one; None: there was none, and all is done."""
    if _is_ended(connection):
        return None
    return _move_rows(connection) if connection.dialect.name == "sqlite" else _copy_states(connection)


def _move_rows(connection: Connection) -> int | None:
    """A page on SQLite."""
    last = _last_of_page(connection, -1)
    if last is None:
        _OLD.drop(connection)
        return None
    page = _OLD.c.sequence <= last
    names = REPORTS.c.keys()
    moved = select(*(_OLD.c[name] for name in names)).where(page)
    connection.execute(insert(REPORTS).from_select(names, moved))
    _insert_states(connection, -1, last)
    connection.execute(delete(_OLD).where(page))
    return last


def _copy_states(connection: Connection) -> int | None:
    """A page on PostgreSQL."""
    after = connection.execute(select(_UP_TO.c.sequence)).scalar_one()
    last = _last_of_page(connection, after)
    if last is None:
        connection.execute(text(f"ALTER TABLE {_OLD.name} DROP COLUMN handle, DROP COLUMN state"))
        connection.execute(text(f"ALTER TABLE {_OLD.name} RENAME TO {REPORTS.name}"))
        _UP_TO.drop(connection)
        return None
    _insert_states(connection, after, last)
    connection.execute(update(_UP_TO).values(sequence=last))
    return last


def _last_of_page(connection: Connection, after: int) -> int | None:
    """The last sequence of the page behind `after`; None: there is none."""
    sequence, rows = _OLD.c.sequence, _ROWS[connection.dialect.name]
    page = select(sequence).where(sequence > after).order_by(sequence).limit(rows).subquery()
    found: int | None = connection.execute(select(func.max(page.c.sequence))).scalar()
    return found


def _insert_states(connection: Connection, after: int, last: int) -> None:
    """Write what became of a page's reports."""
    handle = func.coalesce(_OLD.c.handle, _NO_DATASET)
    found = select(_OLD.c.task_id, handle, _OLD.c.sequence, _OLD.c.state).where(
        _OLD.c.sequence > after, _OLD.c.sequence <= last
    )
    connection.execute(insert(STATES).from_select(["task_id", "handle", "sequence", "state"], found))
