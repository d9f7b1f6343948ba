"""Instances that a process holds: never of two states at once, never older than allowed."""

import numpy as np
import pytest

from adserver.store.local.instances_at_hand import OLDEST_S, Changed, InstancesAtHand


def model(value: int) -> np.ndarray:
    return np.full(4, value, np.int64)


def changed(before: int, after: int, at_s: float = 0.0, **instances: int) -> Changed:
    held = {int(place[1:]): model(value) for place, value in instances.items()}
    return Changed(before=before, after=after, instances=held, at_s=at_s)


@pytest.fixture
def at_hand() -> InstancesAtHand:
    made = InstancesAtHand(weights=4)
    made.put(5, 0, model(50), at_s=0.0)
    made.put(5, 1, model(51), at_s=0.0)
    return made


def value(at_hand: InstancesAtHand, place: int, now_s: float = 0.0) -> int | None:
    found = at_hand.lately(place, now_s=now_s)
    return None if found is None else int(found.instance[0])


def test_what_was_read_is_given_until_it_is_too_old(at_hand: InstancesAtHand) -> None:
    assert value(at_hand, 0, OLDEST_S) == 50
    assert value(at_hand, 0, OLDEST_S * 1.01) is None
    assert value(at_hand, 2) is None


def test_a_transaction_of_this_process_moves_the_count_and_keeps_the_others(at_hand: InstancesAtHand) -> None:
    at_hand.move(changed(5, 7, at_s=9.0, p1=70))
    found = at_hand.lately(1, now_s=9.0)
    assert found is not None
    assert (found.returns, int(found.instance[0])) == (7, 70)
    assert value(at_hand, 0, 9.0) == 50
    assert at_hand.get(5, 0) is None


def test_a_transaction_after_one_of_another_process_forgets_the_others(at_hand: InstancesAtHand) -> None:
    at_hand.move(changed(6, 7, p1=70))
    assert (value(at_hand, 0), value(at_hand, 1)) == (None, 70)


def test_what_was_read_of_an_older_state_is_not_kept(at_hand: InstancesAtHand) -> None:
    at_hand.put(4, 0, model(40), at_s=1.0)
    at_hand.move(changed(3, 4, at_s=1.0, p1=41))
    assert (value(at_hand, 0), value(at_hand, 1)) == (50, 51)
    assert value(at_hand, 0, OLDEST_S * 1.01) is None


def test_no_more_is_held_than_64_mib(at_hand: InstancesAtHand) -> None:
    del at_hand
    wide = InstancesAtHand(weights=3 << 20)
    for place in range(4):
        wide.put(1, place, model(place), at_s=0.0)
    assert [wide.get(1, place) is None for place in range(4)] == [False, False, True, True]
