"""The table of a service's audit log, and how entries get into it.

An entry is appended in the transaction of the act that it tells of, at its end, so that neither is ever
there without the other. (A charged round or query follows its entry, for its row holds the entry's number.)
Entries are one chain, so transactions that append wait for each other until they end: SQLite has one writer
at a time anyway, and on PostgreSQL the first row is locked.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from getpass import getuser
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError

from maskedlark.audit_log import (
    DONE,
    Actor,
    ActorKind,
    AuditAct,
    AuditEntry,
    Deed,
    clean_name,
    digest_of_line,
)
from maskedlark.canonical import decode, encode
from maskedlark.errors import InvalidSetting
from maskedlark.frozen import frozen
from maskedlark.randomness import system_randomness
from maskedlark.runtime.database import reading

_PAGE: Final = 1_000


def audit_table_of(metadata: MetaData) -> Table:
    """Declare the table of a service's audit log."""
    return Table(
        "audit_log",
        metadata,
        # 0 is the log's beginning
        Column(
            "sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False
        ),
        Column("head", LargeBinary(32), nullable=False),  # the entry's digest
        Column("act", String(32), nullable=False),
        Column("is_done", Boolean, nullable=False),  # or refused
        Column("entry", LargeBinary, nullable=False),  # AuditEntry, canonical
    )


@frozen
class Link:
    """The place of an entry in its chain.

    Attributes:
        sequence: Its number, from 0.
        head: Its digest.
    """

    sequence: int
    head: bytes


class AuditTable:
    """The statements over one audit log, made once: building one takes longer than SQLite needs to run it."""

    def __init__(self, table: Table) -> None:
        """Prepare statements for a table of `audit_table_of`."""
        self._table = table
        columns = table.c
        self._head = select(columns.head).where(columns.sequence == bindparam("asked"))
        self._lock = self._head.with_for_update()
        self._newest = select(columns.sequence, columns.head).order_by(columns.sequence.desc()).limit(1)
        self._add = insert(table)
        self._newest_of = (
            select(columns.entry)
            .where(columns.act == bindparam("of_act"), columns.is_done.is_(True))
            .order_by(columns.sequence.desc())
            .limit(1)
        )
        self._page = (
            select(columns.sequence, columns.head, columns.act, columns.is_done, columns.entry)
            .where(columns.sequence > bindparam("after"))
            .order_by(columns.sequence)
            .limit(bindparam("most"))
        )

    def begin(self, engine: Engine, *, at: float) -> None:
        """Begin a new log, with random bytes; one that is there stays."""
        try:
            with engine.begin() as connection:
                if self.head(connection, 0) is None:
                    self._insert(connection, AuditEntry.begin(at=at, nonce=system_randomness(32)))
        except IntegrityError:
            return  # another process was faster

    def append(self, connection: Connection, deed: Deed, *, at: float) -> Link:
        """Append an entry at the end of a transaction; return its place.

        In PostgreSQL it locks the beginning of the chain, and other transactions wait for that.
        """
        before = self.lock(connection)
        return self._insert(connection, deed.entry(sequence=before.sequence + 1, previous=before.head, at=at))

    def lock(self, connection: Connection) -> Link:
        """Return the place of the newest entry, which stays that until the transaction ends or appends."""
        if connection.dialect.name != "sqlite":  # whose transactions are one at a time
            connection.execute(self._lock, {"asked": 0})
        # Read under that lock: two entries after the same one would be a fork, which the primary key refuses.
        return self.newest(connection)

    def append_change(
        self, connection: Connection, act: AuditAct, subject: Mapping[str, str], actor: Actor, *, at: float
    ) -> Link | None:
        """Append what settings are from now on, and return its place.

        None, and nothing is appended, if the newest entry of the act says so already.
        """
        self.lock(connection)
        found = connection.execute(self._newest_of, {"of_act": act.value}).scalar()
        if found is not None and decode(AuditEntry, bytes(found)).subject == subject:
            return None
        return self.append(connection, Deed(act=act, actor=actor, subject=tuple(subject.items())), at=at)

    def newest(self, connection: Connection) -> Link:
        """Return the place of the newest entry."""
        row = connection.execute(self._newest).one()
        return Link(sequence=row.sequence, head=bytes(row.head))

    def head(self, connection: Connection, sequence: int) -> bytes | None:
        """Return the digest of an entry, or None if the log has none of this number."""
        found = connection.execute(self._head, {"asked": sequence}).scalar()
        return None if found is None else bytes(found)

    def page(
        self, engine: Engine, *, after: int = -1, most: int = _PAGE, is_newest: bool = False
    ) -> list[AuditEntry]:
        """Return up to `most` entries above number `after`, the oldest or the newest of them, in order."""
        if is_newest:
            with reading(engine) as connection:
                after = max(after, self.newest(connection).sequence - most)
        return [decode(AuditEntry, line) for _, line in self._read_page(engine, after, most)]

    def newest_of(self, engine: Engine, acts: Collection[AuditAct], *, most: int) -> list[AuditEntry]:
        """Return up to `most` of the newest entries of some acts, in order.

        Raises:
            InvalidSetting: a row does not fit its own entry.
        """
        columns = self._table.c
        newest = (
            select(columns.sequence, columns.head, columns.act, columns.is_done, columns.entry)
            .where(columns.act.in_([one.value for one in acts]))
            .order_by(columns.sequence.desc())
            .limit(most)
        )
        with reading(engine) as connection:
            rows = connection.execute(newest).all()
        for row in rows:
            _check_row(row)
        return [decode(AuditEntry, bytes(row.entry)) for row in reversed(rows)]

    def lines(self, engine: Engine, *, after: int = -1) -> Iterator[bytes]:
        """Yield the entries of numbers above `after`, encoded, in order.

        Raises:
            InvalidSetting: a row does not fit its own entry.
        """
        while found := self._read_page(engine, after, _PAGE):
            yield from (line for _, line in found)
            after = found[-1][0]

    def _read_page(self, engine: Engine, after: int, most: int) -> list[tuple[int, bytes]]:
        with reading(engine) as connection:
            rows = connection.execute(self._page, {"after": after, "most": most}).all()
        for row in rows:
            _check_row(row)
        return [(row.sequence, bytes(row.entry)) for row in rows]

    def _insert(self, connection: Connection, entry: AuditEntry) -> Link:
        encoded = encode(entry)
        link = Link(sequence=entry.sequence, head=digest_of_line(encoded))
        row = {
            "sequence": link.sequence,
            "head": link.head,
            "act": entry.act.value,
            "is_done": entry.outcome == DONE,
            "entry": encoded,
        }
        connection.execute(self._add, row)
        return link


def local_user() -> Actor:
    """Return the user of the operating system that this process runs as, as entries name it."""
    try:
        name = getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = f"uid {os.getuid()}"
    return Actor(kind=ActorKind.USER, name=clean_name(name))


def _check_row(row: Any) -> None:
    entry = decode(AuditEntry, bytes(row.entry))
    expected = (entry.sequence, digest_of_line(bytes(row.entry)), entry.act.value, entry.outcome == DONE)
    if (row.sequence, bytes(row.head), row.act, bool(row.is_done)) != expected:
        raise InvalidSetting(f"entry {row.sequence} of the audit log was changed: its row does not fit it")
