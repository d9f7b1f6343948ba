from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from maskedlark.runtime.keyed_lock import KeyedLock
from tests.patience import HANGS_S


def test_under_one_key_callers_act_one_after_the_other() -> None:
    turns, steps = KeyedLock(), list[int]()

    def act(number: int) -> None:
        with turns.hold(b"k"):
            steps.extend([number] * 1000)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(act, range(40)))
    assert len(steps) == 40_000
    assert sum(before != after for before, after in pairwise(steps)) == 39


def test_another_key_does_not_wait() -> None:
    turns = KeyedLock()
    with turns.hold(b"k"), ThreadPoolExecutor(1) as threads:

        def act() -> int:
            with turns.hold(b"other"):
                return len(turns)

        assert threads.submit(act).result(timeout=HANGS_S) == 2


def test_nothing_is_kept_of_keys_that_nobody_holds() -> None:
    turns = KeyedLock()
    for number in range(100):
        with turns.hold(number.to_bytes(2, "big")):
            pass
    with pytest.raises(ZeroDivisionError), turns.hold(b"k"):
        raise ZeroDivisionError
    assert len(turns) == 0
