"""What stands still is seen, and nothing else is accused."""

from tests.chaos.watch import LOOK_EVERY_S, Stillness, share_of_processors

LIMIT_S = 12.0
LOOKS = int(LIMIT_S / LOOK_EVERY_S)


def looked(states: list[object], *, rests: frozenset[int] = frozenset(), share: float = 1.0) -> int:
    watched = Stillness(limit_s=LIMIT_S)
    for number, state in enumerate(states):
        watched.look(state, may_rest=number in rests, share=share)
    return watched.times


def test_a_state_that_lasts_longer_than_the_limit_is_seen_once() -> None:
    assert looked(["same"] * (LOOKS + 1)) == 0
    assert looked(["same"] * (LOOKS + 3)) == 1


def test_a_state_that_changes_in_time_is_right() -> None:
    assert looked([number // LOOKS for number in range(10 * LOOKS)]) == 0


def test_time_in_which_nobody_could_change_it_does_not_count() -> None:
    assert looked(["same"] * (3 * LOOKS), rests=frozenset({LOOKS, 2 * LOOKS})) == 0


def test_on_a_busy_machine_it_takes_as_much_longer() -> None:
    assert looked(["same"] * (2 * LOOKS + 1), share=0.5) == 0
    assert looked(["same"] * (2 * LOOKS + 3), share=0.5) == 1


def test_a_share_of_the_processors_is_never_more_than_one() -> None:
    assert 0 < share_of_processors() <= 1
