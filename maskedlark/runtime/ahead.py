"""Work on the items of a stream in order, the next ones begun while the caller has the result of one.

>>> list(ahead([1, 2, 3], lambda number: number * 10))
[10, 20, 30]
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

AT_ONCE: Final = 2
"""Enough where each item's work takes all there is to work with."""
MOST_AT_ONCE: Final = 32
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def ahead(
    items: Iterable[_Item], work: Callable[[_Item], _Result], at_once: Callable[[], int] = lambda: AT_ONCE
) -> Generator[_Result, None, None]:
    """`work(item)` for each item, in order. What reading or work raises, is raised in its turn.

    Close it (`contextlib.closing`): then no further item is worked on.

    Args:
        items: Read by one thread, and at leisure: no result waits for a later item.
        work: Safe to call from several threads.
        at_once: On how many items to work at the same time, from 1 to `MOST_AT_ONCE`; asked for each result.

    Guarantees: at most so many items have been begun of which the caller has not yet asked for the result
        behind. Once it is closed, `work` is not running any more.
    """
    source, context = iter(items), copy_context()
    reading = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
    working = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="work-ahead")

    def begin() -> Future[_Result] | None:
        """Begin with the next item, if there is one."""
        for item in source:
            return working.submit(context.copy().run, work, item)
        return None

    begun = deque[Future[Future[_Result] | None]]()
    try:
        while True:
            while len(begun) < max(1, min(MOST_AT_ONCE, at_once())):
                begun.append(reading.submit(begin))
            result = begun.popleft().result()
            if result is None:
                return
            yield result.result()
    finally:
        reading.shutdown(wait=False, cancel_futures=True)  # it may wait for an item that does not come
        working.shutdown(cancel_futures=True)
