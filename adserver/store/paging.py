"""Long lists in pages, the newest first: a page goes on where another ended, whatever was added meanwhile.

>>> marker = PageMarker(at=1.5, key=b"id")
>>> PageMarker.read(marker.cursor) == marker
True
"""

import base64
import binascii
from typing import Any

from sqlalchemy import Column, Select, tuple_

from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen


@frozen
class PageMarker:
    """Where a page ended.

    Attributes:
        at: Unix seconds, of its last row.
        key: The id of its last row.
    """

    at: float
    key: bytes

    @property
    def cursor(self) -> str:
        """The text that a client sends to have the next page."""
        return base64.urlsafe_b64encode(f"{self.at!r} {self.key.hex()}".encode()).decode()

    @classmethod
    def read(cls, cursor: str) -> "PageMarker | None":
        """Return where a page goes on; None for the first page.

        Raises:
            InvalidTask: the cursor was not made by this server.
        """
        if not cursor:
            return None
        try:
            at, key = base64.urlsafe_b64decode(cursor.encode()).decode().split(" ")
            return cls(at=float(at), key=bytes.fromhex(key))
        except (ValueError, binascii.Error):
            raise InvalidTask(
                "`after` is not valid: expected the `next` value of the previous page"
            ) from None


def newest_first(
    asked: Select[Any], at: Column[Any], key: Column[Any], *, before: PageMarker | None, limit: int
) -> Select[Any]:
    """Select up to `limit` rows in descending order after a place; an index on both columns serves it."""
    # By the place of the last row and not by OFFSET: rows that come meanwhile shift nothing.
    paged = asked.order_by(at.desc(), key.desc()).limit(limit)
    return paged if before is None else paged.where(tuple_(at, key) < tuple_(before.at, before.key))
