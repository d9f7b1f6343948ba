"""What is kept for a moment: made once for all who ask, anew when it is old, and never twice at once."""

from threading import Event

import pytest

from adserver.dashboard.ttl_cache import TtlCache
from maskedlark.errors import HelperUnavailable
from tests.patience import HANGS_S


class Tick:
    """A clock that a test sets, and how often something was made."""

    now_s = 0.0
    made = 0

    def __call__(self) -> float:
        return self.now_s

    def make(self) -> int:
        self.made += 1
        return self.made


def test_a_young_value_is_not_made_again() -> None:
    tick = Tick()
    kept: TtlCache[int] = TtlCache(lasts_s=1.0, threads=1, elapsed=tick)
    assert [kept.refresh("a", tick.make).result(HANGS_S) for _ in range(3)] == [1, 1, 1]
    assert kept.refresh("b", tick.make).result(HANGS_S) == 2
    tick.now_s = 1.0
    assert kept.refresh("a", tick.make).result(HANGS_S) == 3
    kept.close()


def test_who_asks_meanwhile_waits_for_the_same_making() -> None:
    tick, go = Tick(), Event()
    kept: TtlCache[int] = TtlCache(lasts_s=1.0, threads=1, elapsed=tick)

    def slowly() -> int:
        assert go.wait(HANGS_S)
        return tick.make()

    asked = [kept.refresh("a", slowly) for _ in range(4)]
    go.set()
    assert [one.result(HANGS_S) for one in asked] == [1, 1, 1, 1]
    kept.close()


def test_what_failed_is_tried_again() -> None:
    tick = Tick()
    kept: TtlCache[int] = TtlCache(lasts_s=1.0, threads=1, elapsed=tick)

    def fail() -> int:
        raise OSError("once")

    with pytest.raises(OSError, match="once"):
        kept.refresh("a", fail).result(HANGS_S)
    assert kept.refresh("a", tick.make).result(HANGS_S) == 1
    kept.close()


def test_an_old_value_is_shown_while_the_next_is_made() -> None:
    tick, go = Tick(), Event()
    kept: TtlCache[int] = TtlCache(lasts_s=1.0, threads=1, elapsed=tick)
    assert kept.refresh("a", tick.make).result(HANGS_S) == 1
    tick.now_s = 5.0

    def slowly() -> int:
        assert go.wait(HANGS_S)
        return tick.make()

    assert kept.soon("a", slowly, wait_s=0.0) == 1
    go.set()
    assert kept.refresh("a", slowly).result(HANGS_S) == 2
    assert kept.soon("new", lambda: 7, wait_s=HANGS_S) == 7
    kept.close()


def test_a_value_of_the_same_stamp_is_not_made_again_however_old() -> None:
    tick = Tick()
    kept: TtlCache[int] = TtlCache(lasts_s=1.0, threads=1, elapsed=tick)
    assert kept.soon("a", tick.make, wait_s=HANGS_S, stamp=(3, 4)) == 1
    tick.now_s = 500.0
    assert kept.soon("a", tick.make, wait_s=HANGS_S, stamp=(3, 4)) == 1
    assert kept.soon("a", tick.make, wait_s=HANGS_S, stamp=(3, 5)) == 2
    kept.close()


def test_without_a_lifetime_only_the_stamp_keeps_a_value() -> None:
    tick = Tick()
    kept: TtlCache[int] = TtlCache(lasts_s=0.0, threads=1, elapsed=tick)
    assert [kept.refresh("a", tick.make, stamp).result(HANGS_S) for stamp in (1, 1, 2, 2, 1)] == [
        1,
        1,
        2,
        2,
        3,
    ]
    assert [kept.refresh("a", tick.make).result(HANGS_S) for _ in range(2)] == [4, 5]
    assert kept.made_so_far == tick.made == 5
    kept.close()


def test_what_is_there_is_a_future_that_is_done() -> None:
    tick = Tick()
    kept: TtlCache[int] = TtlCache(lasts_s=1.0, threads=1, elapsed=tick)
    kept.refresh("a", tick.make).result(HANGS_S)
    assert kept.refresh("a", tick.make).done()
    kept.close()


def test_while_enough_is_being_made_nothing_more_is_started() -> None:
    tick, go = Tick(), Event()
    kept: TtlCache[int] = TtlCache(lasts_s=1.0, threads=1, most_making=2, elapsed=tick)

    def slowly() -> int:
        assert go.wait(HANGS_S)
        return tick.make()

    assert [kept.soon(key, slowly, wait_s=0.0) for key in "abcde"] == [None] * 5
    with pytest.raises(HelperUnavailable, match="busy with other pages: retry"):
        kept.refresh("c", slowly)
    going = [kept.refresh(key, slowly) for key in "ab"]
    go.set()
    assert [one.result(HANGS_S) for one in going] == [1, 2]
    assert kept.made_so_far == 2  # and none of the others waits
    assert kept.soon("c", slowly, wait_s=HANGS_S) == 3
    kept.close()
