"""One writer of a thing in PostgreSQL, also when the one before stands still in the middle of writing.

    with engine.begin() as connection:
        become_only_writer(connection, job_id)
        ...  # write what only the holder of the job's lease writes

A transaction keeps others out of the rows that it wrote until it ends. Where its process is paused, or its
machine is gone without a word, PostgreSQL takes it to be alive for hours.
"""

from typing import Final

from sqlalchemy import Connection, func, select, text

_KEY_BYTES: Final = 8
_LOCK_TIMEOUT: Final = "30s"
_END_WRITERS: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND datname = current_database()"
    " AND classid = CAST(:high AS oid) AND objid = CAST(:low AS oid) AND pg_has_role(usesysid, 'USAGE')"
)


def become_only_writer(connection: Connection, name: bytes) -> None:
    """End whoever else writes under a name, for the caller alone may; keep the name until the commit.

    On SQLite, whose transactions are one at a time, this does nothing.

    Args:
        connection: In a transaction that has not written yet.
        name: Random, of 8 bytes or more; the first 8 count.

    Guarantees: this transaction waits for no other one for more than half a minute.

    Raises:
        OperationalError: another database account's transaction stands in the way, and does not end.
    """
    if connection.dialect.name == "sqlite":
        return
    connection.execute(select(func.set_config("lock_timeout", _LOCK_TIMEOUT, True)))
    key = int.from_bytes(name[:_KEY_BYTES], signed=True)
    if connection.execute(select(func.pg_try_advisory_xact_lock(key))).scalar_one():
        return
    high, low = (int.from_bytes(name[at : at + _KEY_BYTES // 2]) for at in (0, _KEY_BYTES // 2))
    # Whoever holds the name is no longer the holder of the lease, or the caller would not be here.
    connection.execute(_END_WRITERS, {"high": high, "low": low})
    connection.execute(select(func.pg_advisory_xact_lock(key)))
