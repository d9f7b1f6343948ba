"""Calls of many threads are served in batches, each exactly once."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from adserver.store.group_commit import GroupCommit
from tests.patience import HANGS_S


def test_calls_that_wait_share_the_next_batch() -> None:
    first_is_served, go_on = Event(), Event()
    batches: list[list[int]] = []

    def serve(calls: Sequence[int]) -> None:
        batches.append(list(calls))
        first_is_served.set()
        assert go_on.wait(HANGS_S)

    together = GroupCommit(serve)
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(together.call, 0)
        assert first_is_served.wait(HANGS_S)
        others = [pool.submit(together.call, number) for number in range(1, 6)]
        while len(together._queue) < 5:
            assert not first.done()
        go_on.set()
        for one in (first, *others):
            one.result(HANGS_S)
    assert batches[0] == [0]
    assert sorted(batches[1]) == [1, 2, 3, 4, 5]


def test_every_call_of_many_threads_is_served_once_in_bounded_batches() -> None:
    served: list[int] = []
    sizes: list[int] = []

    def serve(calls: Sequence[int]) -> None:
        sizes.append(len(calls))
        served.extend(calls)

    together = GroupCommit(serve, most=3)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(together.call, range(2_000)))
    assert sorted(served) == list(range(2_000))
    assert max(sizes) <= 3


def test_what_fails_is_raised_to_each_of_the_batch_and_the_next_is_served() -> None:
    answered: list[int] = []

    def serve(calls: Sequence[int]) -> None:
        if any(number < 0 for number in calls):
            raise OSError("the disk is full")
        answered.extend(calls)

    together = GroupCommit(serve)
    with pytest.raises(OSError, match="the disk is full"):
        together.call(-1)
    together.call(7)
    assert answered == [7]


def test_a_batch_that_fails_is_raised_to_all_who_share_it() -> None:
    is_served, go_on = Event(), Event()

    def serve(calls: Sequence[int]) -> None:
        if calls == [0]:
            is_served.set()
            assert go_on.wait(HANGS_S)
            return
        raise OSError("the disk is full")

    together = GroupCommit(serve)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(together.call, 0)
        assert is_served.wait(HANGS_S)
        others = [pool.submit(together.call, number) for number in (1, 2, 3)]
        while len(together._queue) < 3:
            assert not first.done()
        go_on.set()
        first.result(HANGS_S)
        assert {type(one.exception(30)) for one in others} == {OSError}
