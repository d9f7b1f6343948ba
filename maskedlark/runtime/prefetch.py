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
"""Enough where the work on each item takes all that there is to work with."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def ahead(
    items: Iterable[_Item], work: Callable[[_Item], _Result], at_once: int = AT_ONCE
) -> Generator[_Result, None, None]:
    """Yield `work(item)` for each item, in order; errors of reading or working are raised in order, too.

    Close it (`contextlib.closing`): then no further item is worked on.

    Args:
        items: Read by one thread, and at leisure: no result waits for a later item.
        work: Safe to call from several threads.
        at_once: How many items to work on at the same time, if they come.

    Guarantees: at most `at_once` items have been begun of which the caller has not yet asked for the result
        behind. Once it is closed, `work` is not running any more.
    """
    source, context = iter(items), copy_context()
    # Two pools: a wait for the next item must not take a thread from the work, nor two threads read at once.
    reading = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
    working = ThreadPoolExecutor(at_once, thread_name_prefix="work-ahead")

    def begin() -> Future[_Result] | None:
        """Begin with the next item, if there is one."""
        for item in source:
            return working.submit(context.copy().run, work, item)
        return None

    begun = deque(reading.submit(begin) for _ in range(at_once))
    try:
        while (result := begun.popleft().result()) is not None:
            yield result.result()
            begun.append(reading.submit(begin))
    finally:
        reading.shutdown(wait=False, cancel_futures=True)  # it may wait for an item that does not come
        working.shutdown(cancel_futures=True)
