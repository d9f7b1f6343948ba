"""How long a group of reports is held open: as long as it grows, where it is worth it, and never longer."""

from collections.abc import Sequence

from adserver.store.batch_window import LONGEST_S, QUIET_S, WORTH_BYTES, BatchWindow

MOST = 8 << 20


class Clocked:
    """A gathering over a clock that only its pauses move."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_paused = False
        self.gathering = BatchWindow(
            most_bytes=MOST,
            monotonic=lambda: self.now_s,
            pause=self._pause,
            is_paused=lambda: self.is_paused,
        )

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds

    def held_s(self, sizes: Sequence[int]) -> float:
        """How long a group is held of which so much waits at each look; the last size stays."""
        looks = iter(sizes)
        size, began_s = 0, self.now_s

        def waiting() -> int:
            nonlocal size
            size = next(looks, size)
            return size

        self.gathering.hold(waiting)
        return self.now_s - began_s


def test_a_report_that_comes_now_and_then_waits_for_nobody() -> None:
    clocked = Clocked()
    for _ in range(100):
        assert clocked.held_s([400]) == 0
        clocked.now_s += 0.1


def test_who_is_alone_with_much_waits_for_one_look() -> None:
    clocked = Clocked()
    for _ in range(10):
        assert clocked.held_s([300_000]) <= 1.01 * QUIET_S


def test_a_group_that_grows_is_held_for_a_second() -> None:
    held_s = Clocked().held_s(range(WORTH_BYTES, MOST, 10_000))
    assert LONGEST_S <= held_s <= LONGEST_S + 1.01 * QUIET_S


def test_a_group_that_grows_is_not_held_while_puts_are_paused() -> None:
    clocked, sizes = Clocked(), range(WORTH_BYTES, MOST, 10_000)
    clocked.is_paused = True
    assert clocked.held_s(sizes) == 0
    clocked.is_paused = False
    assert clocked.held_s(sizes) >= LONGEST_S


def test_a_group_goes_as_soon_as_it_is_full() -> None:
    assert Clocked().held_s([MOST]) == 0
    assert Clocked().held_s([MOST // 2, MOST]) <= 1.01 * QUIET_S


def test_small_calls_of_which_many_came_in_the_last_second_are_held() -> None:
    clocked = Clocked()
    while clocked.held_s([600, 1_200]) == 0:
        clocked.now_s += 0.001
    assert 0.05 < clocked.now_s < 0.5
    clocked.now_s += 1.0
    assert clocked.held_s([600]) == 0
