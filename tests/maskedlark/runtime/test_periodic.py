"""A thread that works now and then."""

import gc
import logging
from collections.abc import Iterator
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import cast

import pytest

from maskedlark.runtime.periodic import IsStopped, Periodic, SharedWatch, watching
from tests.patience import HANGS_S


def test_it_works_again_after_an_error_that_it_survives(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    again = Event()

    def work(_: IsStopped) -> None:
        seen.append(len(seen))
        if len(seen) == 1:
            raise OSError("once")
        again.set()

    every = Periodic(work, name="sweep", every_s=0.001, survives=(OSError,))
    with caplog.at_level(logging.ERROR):
        every.start()
        assert again.wait(HANGS_S)
        every.stop()
    assert "sweep failed" in caplog.text


def test_stopping_ends_the_wait_and_tells_the_work_that_is_under_way() -> None:
    begun, told = Event(), Event()

    def work(is_stopped: IsStopped) -> None:
        begun.set()
        while not is_stopped():
            pass
        told.set()

    every = Periodic(work, name="sweep", every_s=3_600.0, survives=())
    every.start()
    assert begun.wait(HANGS_S)
    every.stop()
    assert told.is_set()


def test_a_look_that_says_enough_is_the_last_one_and_none_comes_after_the_block() -> None:
    enough, looks = Event(), list[int]()

    def look() -> bool:
        looks.append(len(looks))
        if len(looks) == 2:
            enough.set()
        return enough.is_set()

    with watching(look, name="watch", every_s=0.001):
        assert enough.wait(HANGS_S)
    assert looks == [0, 1]


def test_a_block_that_fails_ends_its_looks() -> None:
    seen = Event()

    def look() -> bool:
        seen.set()
        return False

    def fail() -> None:
        with watching(look, name="failing", every_s=0.001):
            assert seen.wait(HANGS_S)
            raise OSError("at work")

    with pytest.raises(OSError, match="at work"):
        fail()
    assert "failing" not in [one.name for one in enumerate_threads()]


def test_one_thread_looks_for_every_block_until_its_look_says_enough() -> None:
    watch, looks, again = SharedWatch(name="shared", every_s=0.001), list[str](), Event()

    def look(name: str, *, is_enough: bool) -> bool:
        looks.append(name)
        if looks.count("goes on") > 1:
            again.set()
        return is_enough

    with (
        watch.looking(lambda: look("ends", is_enough=True)),
        watch.looking(lambda: look("goes on", is_enough=False)),
    ):
        assert again.wait(HANGS_S)
        assert [one.name for one in enumerate_threads()].count("shared") == 1
    assert looks.count("ends") == 1


def test_a_shared_thread_ends_once_there_is_nothing_to_look_at_and_another_one_begins() -> None:
    watch, seen = SharedWatch(name="ends", every_s=0.001), Event()

    def look() -> bool:
        seen.set()
        return False

    for _ in range(2):
        with watch.looking(look):
            assert seen.wait(HANGS_S)
            (thread,) = [one for one in enumerate_threads() if one.name == "ends"]
        thread.join(HANGS_S)
        assert not thread.is_alive()
        seen.clear()


def test_a_look_that_fails_ends_no_other_ones(caplog: pytest.LogCaptureFixture) -> None:
    watch, seen = SharedWatch(name="failing look", every_s=0.001), Event()
    failed = Event()

    def fail() -> bool:
        failed.set()
        raise OSError("at a look")

    def look() -> bool:
        if failed.is_set():
            seen.set()
        return False

    with caplog.at_level(logging.ERROR), watch.looking(fail), watch.looking(look):
        assert seen.wait(HANGS_S)
    assert "failing look failed" in caplog.text


def test_a_block_that_got_no_thread_leaves_the_next_one_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, seen = SharedWatch(name="refused", every_s=0.001), Event()

    def look() -> bool:
        seen.set()
        return True

    def refuse(_thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"), watch.looking(lambda: False):
            pass
    with watch.looking(look):
        assert seen.wait(HANGS_S)


def test_a_block_that_ends_within_a_look_as_garbage_holds_nobody_up() -> None:
    watch, collected = SharedWatch(name="collecting", every_s=0.001), Event()

    def call() -> Iterator[None]:
        with watch.looking(lambda: False):
            yield

    def look() -> bool:
        gc.collect()
        collected.set()
        return True

    around: list[object] = [call()]
    around.append(around)  # a cycle, which nothing but a collection ends
    next(cast("Iterator[None]", around[0]))
    del around
    with watch.looking(look):
        assert collected.wait(HANGS_S)
