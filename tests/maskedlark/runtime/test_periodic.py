"""A thread that works now and then."""

import logging
from threading import Event

import pytest

from maskedlark.runtime.periodic import IsStopped, Periodic
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
