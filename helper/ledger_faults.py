"""A ledger whose database does not answer: the helper cannot act now, and says so as something to ask again for, not as a bug."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionInTime

from maskedlark.errors import HelperUnavailable

_LOG: Final = logging.getLogger(__name__)


@contextmanager
def ledger_at_hand() -> Iterator[None]:
    """Around what reads or writes the ledger.

    Every call of the protocol may be repeated, also one whose commit was done while its answer was lost.

    Raises:
        HelperUnavailable: the database is down, is being restarted, is locked or full, or has no connection to spare.
    """
    try:
        yield
    except DBAPIError as error:
        if not (isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated):
            raise
        raise _unavailable(error) from None
    except NoConnectionInTime as error:
        raise _unavailable(error) from None


def _unavailable(error: Exception) -> HelperUnavailable:
    """Logged here; the peer is told that there is a database, and nothing else of it."""
    _LOG.warning("the ledger's database does not answer: %s", error)
    return HelperUnavailable("the helper's database does not answer; ask again")
