"""Long lists in pages, and how much one page holds at most."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, Field

from adserver.admin.guarded_route import Parameters
from adserver.messages.base import ListPage
from adserver.store.paging import PageMarker

DEFAULT_ROWS: Final = 50
MOST_ROWS: Final = 200
_RowT = TypeVar("_RowT")
_ItemT = TypeVar("_ItemT")


def _integer(typed: Any) -> int:
    try:
        return int(typed)
    except ValueError:
        raise ValueError("expected an integer") from None  # without what was typed


Typed = Annotated[int, BeforeValidator(_integer)]
"""A whole number in a URL; unlike pydantic's, 5.0 is none."""


class PageParameters(Parameters):
    """The part of a long list to return."""

    limit: Typed = Field(DEFAULT_ROWS, description="The most rows to return.", ge=1, le=MOST_ROWS)
    after: str = Field("", description="`next` of the previous page.")


def list_page(
    parameters: PageParameters,
    read: Callable[..., Sequence[_RowT]],
    place: Callable[[_RowT], PageMarker],
    describe: Callable[[_RowT], _ItemT],
    **which: Any,
) -> ListPage[_ItemT]:
    """Return one page of a list.

    Args:
        parameters: Which.
        read: Returns up to so many rows before a place; `page` of a store.
        place: Returns the place of a row.
        describe: Returns the message of a row.
        which: Further arguments of `read`.
    """
    limit = parameters.limit
    # one more row than is shown says that there is a next page
    found = read(limit=limit + 1, before=PageMarker.read(parameters.after), **which)
    rows = found[:limit]
    last = place(rows[-1]) if len(found) > limit else None
    return ListPage(items=list(map(describe, rows)), next=None if last is None else last.cursor)
