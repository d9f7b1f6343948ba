"""Long lists in pages, and how much one page holds at most."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from adserver.admin.operation import ApiRequest
from adserver.store.paging import PageMarker, cursor_of, place_in

DEFAULT_ROWS: Final = 50
MOST_ROWS: Final = 200
_T = TypeVar("_T")


def page_json(
    asked: ApiRequest,
    read: Callable[..., Sequence[_T]],
    place: Callable[[_T], PageMarker],
    shown: Callable[[_T], Any],
    **which: Any,
) -> dict[str, Any]:
    """Return the page that `limit` and `after` of a request select.

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
