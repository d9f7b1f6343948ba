from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from maskedlark.runtime.turns import Turns
from tests.patience import HANGS_S


def test_under_one_key_callers_act_one_after_the_other() -> None:
    turns, steps = Turns(), list[int]()

    def act(number: int) -> None:
        with turns.alone(b"k"):
            steps.extend([number] * 1000)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(act, range(40)))
    assert len(steps) == 40_000
    assert sum(before != after for before, after in pairwise(steps)) == 39


def test_another_key_does_not_wait() -> None:
    turns = Turns()
    with turns.alone(b"k"), ThreadPoolExecutor(1) as threads:

        def act() -> int:
            with turns.alone(b"other"):
                return len(turns)

        assert threads.submit(act).result(timeout=HANGS_S) == 2


def test_nothing_is_kept_of_keys_that_nobody_holds() -> None:
    turns = Turns()
    for number in range(100):
        with turns.alone(number.to_bytes(2, "big")):
            pass
    with pytest.raises(ZeroDivisionError), turns.alone(b"k"):
        raise ZeroDivisionError
    assert len(turns) == 0
