from collections.abc import Iterator
from hashlib import sha256
from itertools import count

import pytest

from maskedlark.errors import HelperUnavailable
from maskedlark.runtime.objects import (
    LONGEST_WAIT_S,
    MAX_READS,
    MAX_TRIES,
    Listed,
    ObjectLost,
    Retrying,
    StoreFailed,
)
from tests.stores import Faulty, InMemory

CONTENT = b"sealed bytes"


class Failing(InMemory):
    """Fails so many requests, then answers."""

    def __init__(self, failures: int, *, is_late: bool = False) -> None:
        super().__init__()
        self.failures = failures
        self.is_late = is_late
        self.asked = 0

    def _fail(self) -> None:
        self.asked += 1
        if self.asked <= self.failures:
            raise StoreFailed("Timeout")

    def put(self, name: str, content: bytes) -> None:
        if self.is_late:
            super().put(name, content)
        self._fail()
        if not self.is_late:
            super().put(name, content)

    def get(self, name: str, most_bytes: int) -> bytes:
        self._fail()
        return super().get(name, most_bytes)

    def list(self, folder: str, after: str = "") -> Iterator[list[Listed]]:
        self._fail()
        return super().list(folder, after)


def retrying(store: InMemory, waits: list[float] | None = None) -> Retrying:
    return Retrying(store, sleep=(list[float]() if waits is None else waits).append)


def test_a_request_that_fails_is_repeated_with_waits_within_bounds() -> None:
    store, waits = Failing(MAX_TRIES - 1), list[float]()
    store.objects["a"] = CONTENT
    assert retrying(store, waits).get("a", len(CONTENT)) == CONTENT
    assert len(waits) == MAX_TRIES - 1
    assert all(0 <= wait <= LONGEST_WAIT_S for wait in waits)
    assert len(set(waits)) > 1


def test_a_store_that_keeps_failing_is_unavailable_and_not_lost() -> None:
    store = Failing(1_000)
    with pytest.raises(HelperUnavailable) as caught:
        retrying(store).get("a", len(CONTENT))
    assert store.asked == MAX_TRIES
    assert caught.value.retry_after_s


def test_a_missing_object_is_lost_at_once() -> None:
    store = Failing(0)
    with pytest.raises(ObjectLost):
        retrying(store).get("a", len(CONTENT))
    assert store.asked == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_each_try_of_a_put_has_a_name_of_its_own(is_late: bool) -> None:
    store, numbers = Failing(2, is_late=is_late), count()
    assert retrying(store).put_fresh(lambda: f"f/{next(numbers)}", CONTENT) == "f/2"
    assert store.objects["f/2"] == CONTENT
    assert len(store.objects) == (3 if is_late else 1)


def test_a_listing_that_keeps_failing_is_unavailable() -> None:
    with pytest.raises(HelperUnavailable):
        list(retrying(Failing(MAX_TRIES)).list("f"))


def test_a_listing_goes_on_where_it_failed() -> None:
    names = [f"f/{number:02}" for number in range(40)]
    store = Faulty(InMemory(objects=dict.fromkeys(names, b""), modified_s=dict.fromkeys(names, 0.0)), 3, 0.3)
    pages = Retrying(store, sleep=list[float]().append).list("f")
    assert [one.name for page in pages for one in page] == names
    assert store.faults > 0


@pytest.mark.parametrize(("cuts", "swaps"), [(0.3, 0.0), (0.0, 0.3)])
def test_bytes_that_were_damaged_on_the_way_are_read_again(cuts: float, swaps: float) -> None:
    store = Faulty(InMemory(objects={"a": CONTENT, "b": b"others"}), seed=1, cuts=cuts, swaps=swaps)
    for _ in range(40):
        try:
            assert Retrying(store).read_exactly("a", len(CONTENT), sha256(CONTENT).digest()) == CONTENT
            Retrying(store).read_exactly("b", 6, sha256(b"others").digest())
        except ObjectLost:
            continue
    assert store.faults > 0


def test_a_name_that_is_taken_is_a_try_that_failed() -> None:
    """A put may come twice, and the second one find what the first one wrote."""
    store, numbers = InMemory(objects={"f/0": b"written by the first"}), count()
    assert retrying(store).put_fresh(lambda: f"f/{next(numbers)}", CONTENT) == "f/1"


@pytest.mark.parametrize("content", [CONTENT[:-1], b"", CONTENT + b"x", b"other bytes!"])
def test_bytes_that_stay_wrong_are_lost(content: bytes) -> None:
    store = Failing(0)
    store.objects["a"] = content
    with pytest.raises(ObjectLost):
        retrying(store).read_exactly("a", len(CONTENT), sha256(CONTENT).digest())
    assert store.asked == MAX_READS
