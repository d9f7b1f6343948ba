"""Long lists in pages, the newest first: a page goes on where another ended, whatever was added meanwhile.

>>> place_in(cursor_of(1.5, b"id")) == PageMarker(at=1.5, key=b"id")
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


def newest_first(
    asked: Select[Any], at: Column[Any], key: Column[Any], *, before: PageMarker | None, limit: int
) -> Select[Any]:
    """Select up to `limit` rows in descending order after a place; an index on both columns serves it."""
    paged = asked.order_by(at.desc(), key.desc()).limit(limit)
    return paged if before is None else paged.where(tuple_(at, key) < tuple_(before.at, before.key))


def cursor_of(at: float, key: bytes) -> str:
    """Return what a client sends to have the page after the row at a place."""
    return base64.urlsafe_b64encode(f"{at!r} {key.hex()}".encode()).decode()


def place_in(cursor: str) -> PageMarker | None:
    """Return where a page goes on; None for the first page.

    Raises:
        InvalidTask: the cursor was not made by this server.
    """
    if not cursor:
        return None
    try:
        at, key = base64.urlsafe_b64decode(cursor.encode()).decode().split(" ")
        return PageMarker(at=float(at), key=bytes.fromhex(key))
    except (ValueError, binascii.Error):
        raise InvalidTask("`after` is not valid: expected the `next` value of the previous page") from None
