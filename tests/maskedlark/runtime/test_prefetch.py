from collections.abc import Iterator
from contextlib import closing
from contextvars import ContextVar
from threading import Barrier, Event

import pytest

from maskedlark.runtime.prefetch import AT_ONCE, ahead
from tests.patience import HANGS_S

NAMED: ContextVar[str] = ContextVar("named")


def test_results_come_in_the_order_of_their_items() -> None:
    later = Event()

    def work(number: int) -> int:
        if number % 2:
            later.set()
        else:
            assert later.wait(HANGS_S)  # an odd number, which comes behind it, is worked on at the same time
            later.clear()
        return number

    assert list(ahead(range(20), work)) == list(range(20))


def test_the_next_item_is_worked_on_while_the_caller_has_a_result() -> None:
    begun = [Event() for _ in range(2)]
    with closing(ahead(range(2), lambda number: begun[number].set())) as results:
        next(results)
        assert begun[1].wait(HANGS_S)


def test_no_more_items_are_begun_than_are_worked_on_at_once() -> None:
    read = list[int]()

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    with closing(ahead(items(), lambda number: number)) as results:
        for asked in range(50):
            assert next(results) == asked
            assert len(read) <= asked + AT_ONCE


def test_as_many_items_are_worked_on_at_once_as_is_said() -> None:
    meet = Barrier(5)
    assert len(list(ahead(range(10), lambda _: meet.wait(HANGS_S), 5))) == 10


def test_no_result_waits_for_a_later_item() -> None:
    answered = Event()

    def items() -> Iterator[int]:
        yield 1
        assert answered.wait(HANGS_S)
        yield 2

    with closing(ahead(items(), lambda number: number)) as results:
        assert next(results) == 1
        answered.set()
        assert list(results) == [2]


def test_what_work_or_reading_raises_is_raised_in_its_turn() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 0
        raise KeyError("no more")

    with closing(ahead(items(), lambda number: 1 // number)) as results:
        assert next(results) == 1
        with pytest.raises(ZeroDivisionError):
            next(results)
    with closing(ahead(items(), lambda number: number)) as results:
        assert [next(results), next(results)] == [1, 0]
        with pytest.raises(KeyError):
            next(results)


def test_once_it_is_closed_nothing_is_worked_on_and_no_item_awaited() -> None:
    closed, ended, worked = Event(), Event(), list[int]()

    def items() -> Iterator[int]:
        try:
            yield 1
            assert closed.wait(HANGS_S)
            yield 2
        finally:
            ended.set()

    results = ahead(items(), worked.append)
    next(results)
    results.close()  # although the second item has not come
    assert worked == [1]
    closed.set()
    del results
    assert ended.wait(HANGS_S)
    assert worked == [1]


def test_work_knows_the_context_of_the_caller() -> None:
    NAMED.set("a trace")
    assert list(ahead(range(3), lambda _: NAMED.get())) == ["a trace"] * 3
