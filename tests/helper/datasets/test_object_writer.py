"""Which objects may still be committed, which are given up, and what counts meanwhile."""

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from helper.datasets.segment_writer import ObjectWriter, SegmentPlan, tag_in
from helper.datasets.storage_quota import StorageQuota

TAG = b"t" * 16
CONTENT = b"0123456789"


class Tries:
    """A store that needs some tries, and may fail for good."""

    def __init__(self, tries: int, error: Exception | None = None) -> None:
        self._tries, self._error = tries, error

    def put_fresh(self, fresh_name: Callable[[], str], content: bytes) -> str:
        assert content == CONTENT
        names = [fresh_name() for _ in range(self._tries)]
        if self._error is not None:
            raise self._error
        return names[-1]


def writer_of(store: Any) -> tuple[ObjectWriter, StorageQuota]:
    quota, numbers = StorageQuota(1_000, lambda context: context), count(1)
    return ObjectWriter(store, "folder", lambda size: next(numbers).to_bytes(size, "big"), quota), quota


def name(number: int) -> str:
    return f"folder/{TAG.hex()}/{number:032x}"


@pytest.mark.parametrize("tries", [1, 3])
def test_the_last_try_is_held_and_those_before_are_given_up_and_count(tries: int) -> None:
    writer, quota = writer_of(Tries(tries))
    assert writer.put(CONTENT, TAG) == name(tries)
    assert writer.held == {name(tries)}
    assert quota.num_bytes == 10 * (tries - 1)
    assert writer.take_dropped() == [name(number) for number in range(1, tries)]
    assert writer.take_dropped() == []


def test_of_a_put_that_fails_every_try_is_given_up_and_counts() -> None:
    writer, quota = writer_of(Tries(2, OSError("full")))
    with pytest.raises(OSError, match="full"):
        writer.put(CONTENT, TAG)
    assert writer.held == frozenset()
    assert quota.num_bytes == 20
    assert writer.take_dropped() == [name(1), name(2)]


def test_what_is_released_is_held_no_longer_and_counts_unless_it_is_committed() -> None:
    writer, quota = writer_of(Tries(1))
    first, second, third = (writer.put(CONTENT, TAG) for _ in range(3))
    writer.release({first: 10}, is_committed=True)
    assert (set(writer.held), quota.num_bytes) == ({second, third}, 0)
    writer.release({second: 10}, is_committed=False)
    assert (set(writer.held), quota.num_bytes) == ({third}, 10)
    assert writer.take_dropped() == []
    writer.drop({third: 10})
    assert (writer.held, quota.num_bytes) == (frozenset(), 20)
    assert writer.take_dropped() == [third]
    writer.put_back([third, first])
    assert writer.take_dropped() == sorted([first, third])
    assert tag_in(first) == TAG


def test_a_plan_says_nothing_by_itself() -> None:
    assert (SegmentPlan().round_id, SegmentPlan().most_records) == (b"", None)
    store: Any = SimpleNamespace()
    assert writer_of(store)[0].held == frozenset()
