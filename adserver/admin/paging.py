"""Long lists in pages: what a client sends to get the next one, and how much one page holds at most.

>>> place_in(cursor_of(1.5, b"id")) == Place(at=1.5, key=b"id")
True
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from adserver.admin.operation import Asked
from adserver.store.paging import Place
from maskedlark.errors import InvalidTask

DEFAULT_ROWS: Final = 50
MOST_ROWS: Final = 200
_T = TypeVar("_T")


def cursor_of(at: float, key: bytes) -> str:
    """What is sent back to have the page after a row."""
    return base64.urlsafe_b64encode(f"{at!r} {key.hex()}".encode()).decode()


def place_in(cursor: str) -> Place | None:
    """Where a page goes on; None for the first page.

    Raises:
        InvalidTask: the cursor is none of ours.
    """
    if not cursor:
        return None
    try:
        at, key = base64.urlsafe_b64decode(cursor.encode()).decode().split(" ")
        return Place(at=float(at), key=bytes.fromhex(key))
    except (ValueError, binascii.Error):
        raise InvalidTask("`after` is what the page before gave as `next`") from None


def page_json(
    asked: Asked,
    read: Callable[..., Sequence[_T]],
    place: Callable[[_T], Place],
    shown: Callable[[_T], Any],
    **which: Any,
) -> dict[str, Any]:
    """The page that `limit` and `after` of a request ask for.

    Args:
        asked: The request.
        read: Gives the rows before a place, at most so many; `page` of a store.
        place: Where a row stands.
        shown: A row as it is answered.
        which: What else `read` takes.
    """
    limit = asked["limit"]
    # one more row than is shown says that there is a next page
    found = read(limit=limit + 1, before=place_in(asked["after"]), **which)
    rows = found[:limit]
    last = place(rows[-1]) if len(found) > limit else None
    return {
        "items": [shown(row) for row in rows],
        "next": None if last is None else cursor_of(last.at, last.key),
    }
