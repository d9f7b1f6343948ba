"""The one policy for a helper that does not answer.

Later each time, never all at once, and never before the helper asked for.
"""

from threading import Event

import pytest

from adserver.peers.retrying import BRIEF, ONCE, Backoff, with_retries
from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ModelReason,
)


class Waits(Event):
    """Notes how long it was to be waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return False


def _waits(*errors: MaskedLarkError, backoff: Backoff) -> list[float]:
    """The waits before a call that fails so, one time after the other, is answered."""
    left, waits = list(errors), Waits()

    def call() -> None:
        if left:
            raise left.pop(0)

    with_retries(call, backoff, cancelled=waits)
    return waits.seconds


def test_waits_double_up_to_the_longest_and_no_two_callers_wait_alike() -> None:
    backoff = Backoff(first_s=1.0, longest_s=8.0)
    first, second = (_waits(*[HelperUnavailable("down")] * 6, backoff=backoff) for _ in range(2))
    for one in (first, second):
        for wait_s, least in zip(one, (1.0, 2.0, 4.0, 8.0, 8.0, 8.0), strict=True):
            assert least <= wait_s <= min(8.0, least + backoff.first_s)
    assert first[:3] != second[:3]


def test_a_helper_that_says_when_it_has_room_is_not_asked_before() -> None:
    full, soon = HelperUnavailable("full", retry_after_s=30.0), HelperUnavailable("full", retry_after_s=0.0)
    first, second = _waits(full, soon, backoff=Backoff(first_s=0.1, longest_s=1.0))
    assert first == 30.0
    assert 0.2 <= second <= 0.3


@pytest.mark.parametrize(
    "error",
    [
        JobRefused(JobReason.BUDGET_EXHAUSTED, "no"),
        InvalidTask("no"),
        InvalidModel(ModelReason.TOO_LARGE, "no"),
    ],
)
def test_what_would_fail_again_is_not_asked_again(error: MaskedLarkError) -> None:
    with pytest.raises(type(error)):
        _waits(error, backoff=BRIEF)


def test_once_is_once() -> None:
    with pytest.raises(HelperUnavailable):
        _waits(HelperUnavailable("down"), backoff=ONCE)


def test_each_cause_that_is_another_than_the_one_before_is_told_once() -> None:
    told: list[str] = []
    causes = [HelperUnavailable(cause) for cause in ("nobody", "nobody", "starting")]
    _waits(*causes, backoff=Backoff(first_s=0.0, longest_s=0.0, tell=lambda cause: told.append(str(cause))))
    assert told == ["nobody", "starting"]
