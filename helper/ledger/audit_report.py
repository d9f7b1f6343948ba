"""The audit log of a ledger, read for the operator: it only reads, also while the helper serves."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.exc import DatabaseError

from helper.ledger.statements import LOG
from maskedlark.audit_log import AuditAct, AuditEntry
from maskedlark.errors import InvalidSetting


class AuditReport:
    """The entries of one ledger's audit log."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def newest(self, most: int, acts: Collection[AuditAct] = ()) -> list[AuditEntry]:
        """Return the newest entries, of some acts or of all, oldest first.

        Raises:
            InvalidSetting: the database is no ledger, or a row was changed.
        """
        with _as_refusal():
            if acts:
                return LOG.newest_of(self._engine, acts, most=most)
            return LOG.page(self._engine, most=most, is_newest=True)

    def lines(self, first: int) -> Iterator[bytes]:
        """Yield the encoded entries of numbers from `first` on; raises as `newest`."""
        with _as_refusal():
            yield from LOG.lines(self._engine, after=first - 1)


@contextmanager
def _as_refusal() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        raise InvalidSetting(f"this database is not a helper's ledger: {type(error.orig).__name__}") from None
