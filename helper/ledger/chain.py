"""The chain of a ledger: a digest of all that it has committed, one link a transaction.

Two ledgers are at the same position only if one is a copy of the other: the chain begins with random bytes.
So a helper can tell an older ledger that was put back from its own (`helper.ledger.witness`).
"""

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from helper.ledger.records import Position
from helper.ledger.statements import ADD_LINK, HEAD, HEAD_TO_CHANGE, NEWEST_LINK
from maskedlark.canonical import digest
from maskedlark.randomness import system_randomness


def begin_chain(engine: Engine) -> None:
    """Give a new ledger its beginning: random, so that no two ledgers are ever at the same position."""
    try:
        with engine.begin() as connection:
            if connection.execute(HEAD, {"sequence": 0}).first() is None:
                connection.execute(ADD_LINK, {"sequence": 0, "head": system_randomness(32)})
    except IntegrityError:
        return  # another process was faster


def move_on(connection: Connection, *what: str | bytes) -> None:
    """Extend the chain by what the transaction has done; the last act of a transaction.

    In PostgreSQL it locks the beginning of the chain, and other transactions wait for that.
    """
    if connection.dialect.name != "sqlite":  # whose transactions are one at a time
        connection.execute(HEAD_TO_CHANGE, {"sequence": 0})
    # Read under that lock: two links after the same head would be a fork, which the primary key refuses.
    before = position_of(connection)
    head = digest("ledger", before.head, *(part.encode() if isinstance(part, str) else part for part in what))
    connection.execute(ADD_LINK, {"sequence": before.sequence + 1, "head": head})


def position_of(connection: Connection) -> Position:
    """Return the newest link."""
    row = connection.execute(NEWEST_LINK).one()
    return Position(sequence=row.sequence, head=row.head)
