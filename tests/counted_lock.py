"""A lock that counts how often it was taken.

Whatever threads share is read and changed under its lock; a race without it shows too seldom for a test.
"""

from collections.abc import Callable, Sequence
from typing import Any


class Counted:
    """A lock that counts how often it was taken."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.taken = lock, 0

    def __enter__(self) -> None:
        self._lock.__enter__()
        self.taken += 1

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def check(shared: Any, lock: str, calls: Sequence[tuple[Callable[[], object], int]]) -> None:
    """Run the calls, in order, each of which takes the lock so often."""
    counted = Counted(getattr(shared, lock))
    setattr(shared, lock, counted)
    for number, (call, times) in enumerate(calls):
        counted.taken = 0
        call()
        assert (number, counted.taken) == (number, times)
