"""Pages of the list of tasks, each read from the database once a second however many requests there are.

Looking for a change would take as long as reading the page.
"""

import json
import time
from collections.abc import Callable
from typing import Final

from adserver.store.paging import PageMarker
from adserver.store.tasks import TaskStore

TASKS_A_PAGE: Final = 100
FRESH_S: Final = 1.0
MOST_KEPT: Final = 64
"""Callers choose where a page begins, so there may be any number of pages."""


class TaskPages:
    """Encoded pages. `read` may run in any thread; the rest is for the event loop."""

    def __init__(self, tasks: TaskStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._monotonic = monotonic
        self._kept: dict[PageMarker | None, tuple[float, bytes]] = {}

    def find_fresh(self, before: PageMarker | None) -> bytes | None:
        """Return the page before a place, or None if it is not kept or too old."""
        kept_at_s, page = self._kept.get(before, (float("-inf"), None))
        return page if self._monotonic() - kept_at_s < FRESH_S else None

    def keep(self, before: PageMarker | None, page: bytes) -> None:
        """Keep a page that was read just now, in place of the oldest one if there are too many."""
        self._kept.pop(before, None)
        self._kept[before] = (self._monotonic(), page)
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    def read(self, before: PageMarker | None) -> bytes:
        """Read a page from the database, and return it as JSON."""
        # One more than is shown says that there is a next page.
        found = self._tasks.list_items(limit=TASKS_A_PAGE + 1, before=before)
        shown = found[:TASKS_A_PAGE]
        rows = [{"task_id": one.task_id.hex(), "name": one.name, "origin": one.origin} for one in shown]
        last = shown[-1].place if len(found) > TASKS_A_PAGE else None
        after = None if last is None else last.cursor
        return json.dumps({"tasks": rows, "next": after}, ensure_ascii=False, separators=(",", ":")).encode()
