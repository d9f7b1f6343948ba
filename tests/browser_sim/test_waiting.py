"""An ad server that is starting is asked again, and the reader is told what for."""

import pytest

from browser_sim.waiting import patiently
from maskedlark.errors import HelperUnavailable


class Site:
    """Fails with each of some causes, then answers."""

    def __init__(self, *causes: str) -> None:
        self.causes = list(causes)
        self.told: list[str] = []
        self.pauses: list[float] = []

    def answer(self) -> int:
        if self.causes:
            raise HelperUnavailable(self.causes.pop(0))
        return 7

    def ask(self, give_up_after_s: float) -> int:
        return patiently(
            self.answer,
            give_up_after_s=give_up_after_s,
            tell=self.told.append,
            pause=self.pauses.append,
        )


def test_it_is_asked_until_it_answers_and_each_new_cause_is_told_once() -> None:
    site = Site("nobody", "nobody", "starting", "nobody")
    assert site.ask(60) == 7
    assert site.told == ["nobody", "starting", "nobody"]
    assert site.pauses == [0.25, 0.5, 1.0, 2.0]


def test_after_the_time_the_last_cause_is_raised() -> None:
    site = Site(*["nobody"] * 100)
    with pytest.raises(HelperUnavailable, match="nobody"):
        site.ask(10)
    assert 10 <= sum(site.pauses) < 15
