"""Long lists in pages, the newest first: a page goes on where another ended, whatever was added meanwhile."""

from typing import Any

from sqlalchemy import Column, Select, tuple_

from maskedlark.frozen import frozen


@frozen
class Place:
    """Where a page ended.

    Attributes:
        at: Unix seconds, of its last row.
        key: The id of its last row.
    """

    at: float
    key: bytes


def newest_first(
    asked: Select[Any], at: Column[Any], key: Column[Any], *, before: Place | None, limit: int
) -> Select[Any]:
    """Up to `limit` rows of a query in falling order, after a place; an index on both columns answers it."""
    paged = asked.order_by(at.desc(), key.desc()).limit(limit)
    return paged if before is None else paged.where(tuple_(at, key) < tuple_(before.at, before.key))
