"""An ad server whose database does not answer: what came in may be sent again, and is told so; it is not a bug."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from maskedlark.errors import HelperUnavailable
from maskedlark.storage import is_away

_LOG: Final = logging.getLogger(__name__)


@contextmanager
def database_at_hand() -> Iterator[None]:
    """Around what takes reports in or looks something up.

    A report is stored once however often it comes, so whoever is turned away may send everything again.

    Raises:
        HelperUnavailable: the database is down, is being restarted, is locked or full, or has no connection to spare.
    """
    try:
        yield
    except SQLAlchemyError as error:
        if not is_away(error):
            raise
        _LOG.warning("the database does not answer: %s", error)  # a sender is told that there is one, and nothing else of it
        raise HelperUnavailable("the ad server's database does not answer; send it again") from None
