"""A ledger whose database does not answer: the helper cannot act now, and says so as something to ask again for, not as a bug."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from maskedlark.errors import HelperUnavailable
from maskedlark.storage import is_away

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
    except SQLAlchemyError as error:
        if not is_away(error):
            raise
        _LOG.warning("the ledger's database does not answer: %s", error)  # the peer is told that there is one, and nothing else of it
        raise HelperUnavailable("the helper's database does not answer; ask again") from None
