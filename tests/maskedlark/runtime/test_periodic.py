"""A thread that works now and then."""

import logging
from threading import Event
from threading import enumerate as enumerate_threads

import pytest

from maskedlark.runtime.periodic import IsStopped, Periodic, watching
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
