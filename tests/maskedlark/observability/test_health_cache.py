"""How often the question is asked, and what those are told who ask meanwhile."""

from threading import Event, Thread

from maskedlark.observability.health_cache import FRESH_S, STALE_S, Wellness
from tests.patience import HANGS_S


class Service:
    """One that is well or not, and counts who asks."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.asked = 0
        self.is_well = True

    def check(self) -> None:
        self.asked += 1
        if not self.is_well:
            raise RuntimeError("not well")

    def clock(self) -> float:
        return self.now


def test_an_answer_is_kept_for_a_second_and_no_longer() -> None:
    service = Service()
    wellness = Wellness(service.check, service.clock)
    assert [wellness.is_well for _ in range(1_000)] == [True] * 1_000
    service.is_well = False
    service.now += FRESH_S / 2
    assert wellness.is_well
    assert service.asked == 1
    service.now += FRESH_S / 2
    assert not wellness.is_well
    service.is_well = True
    assert not wellness.is_well
    service.now += FRESH_S
    assert wellness.is_well
    assert service.asked == 3


def test_who_asks_while_another_one_finds_out_does_not_wait() -> None:
    begun, may_end = Event(), Event()

    def check() -> None:
        begun.set()
        assert may_end.wait(HANGS_S)
        raise RuntimeError("not well")

    service = Service()
    wellness = Wellness(check, service.clock)
    slow = Thread(target=lambda: wellness.is_well)
    slow.start()
    assert begun.wait(HANGS_S)
    service.now += STALE_S / 2
    assert wellness.is_well  # what was known before
    service.now += STALE_S / 2
    assert not wellness.is_well  # what the check looks at hangs
    may_end.set()
    slow.join(HANGS_S)
    assert not wellness.is_well
