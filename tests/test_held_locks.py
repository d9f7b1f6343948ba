"""The watch over locks sees what is used without one, and nothing else."""

from collections.abc import Callable
from threading import Condition, Lock, Thread

import pytest

from tests.held_locks import Guarded, watched


class Shelf:
    """Two locks, of two things; `careless` takes none."""

    def __init__(self) -> None:
        self._lock, self._changed = Lock(), Condition()
        self._kept: list[int] = [1]
        self._waiting = self._kept[0]

    def put(self) -> None:
        with self._lock:
            self._kept.append(1)

    def careless(self) -> None:
        self._kept.append(1)

    def count(self) -> int:
        return self._waiting

    def wait(self) -> None:
        with self._changed:
            self._changed.wait(0.001)
            self._waiting += 1

    def careless_wait(self) -> None:
        self._waiting = 0

    def wrong_lock(self) -> None:
        with self._changed:
            self._kept.append(1)


BOTH = (Guarded(Shelf, "_lock", ("_kept",)), Guarded(Shelf, "_changed", (), ("_waiting",)))


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (Shelf.put, []),
        (Shelf.wait, []),
        (Shelf.count, []),
        (Shelf.careless, ["Shelf._kept without _lock: careless"]),
        (Shelf.wrong_lock, ["Shelf._kept without _lock: wrong_lock"]),
        (Shelf.careless_wait, ["Shelf._waiting without _changed: careless_wait"]),
    ],
)
def test_only_uses_without_the_lock_are_found(use: Callable[[Shelf], object], found: list[str]) -> None:
    with watched(BOTH) as unguarded:
        use(Shelf())
    assert [one.partition(", line")[0] for one in unguarded] == found


def test_a_lock_that_another_thread_holds_is_not_ours() -> None:
    with watched(BOTH) as unguarded:
        shelf = Shelf()
        with shelf._lock:
            thread = Thread(target=shelf.careless)
            thread.start()
            thread.join()
    assert len(unguarded) == 1


def test_nothing_is_watched_afterwards() -> None:
    with watched(BOTH) as unguarded:
        pass
    Shelf().careless()
    assert not unguarded
