"""The room of one preparation: nothing of it is lost, whatever happens, and who waits is told."""

from concurrent.futures import ThreadPoolExecutor
from threading import Condition

import pytest

from helper.datasets.prefetch_quota import PrefetchQuota
from helper.datasets.preparation_cache import PreparationCache
from helper.datasets.preparation_quota import HELD_BYTES, ON_DISK, PreparationQuota
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.runtime.prefetch import AT_ONCE
from tests.patience import HANGS_S

OWNER, OTHER = "ads.example", "shop.example"
LENGTH = 80
OF_ONE = 2 * LENGTH + HELD_BYTES


class Parts:
    """A room on a shelf of so many reports, of which one ad server has three quarters."""

    def __init__(self, reports: int = 1_000, head_start: int = 3) -> None:
        self.shelf = PreparationCache(reports * OF_ONE, lambda: 0.0)
        self.head_start = PrefetchQuota(lambda: AT_ONCE + head_start, room_bytes=1 << 30)
        self.room = PreparationQuota(
            shelf=self.shelf, head_start=self.head_start, owner=OWNER, share_length=LENGTH
        )

    @property
    def ahead(self) -> int:
        """How many chunks have a head start."""
        return self.head_start._chunks.total()

    @property
    def bytes_ahead(self) -> int:
        return self.head_start._bytes.total()


def test_only_chunks_beyond_the_first_ones_take_a_head_start_until_those_are_answered() -> None:
    parts = Parts()
    for _ in range(AT_ONCE + 3):
        assert parts.room.await_turn()
        assert parts.room.begin(2, 100)
    assert (parts.ahead, parts.bytes_ahead) == (3, 300)
    assert parts.shelf.num_bytes == (AT_ONCE + 3) * 2 * OF_ONE
    for left in (2, 1, 0, 0, 0):
        parts.room.finish_chunk()
        assert (parts.ahead, parts.bytes_ahead) == (left, 100 * left)


def test_what_left_memory_takes_less_room_and_what_is_handed_over_is_not_given_back() -> None:
    parts = Parts()
    assert parts.room.begin(10, 0)
    parts.room.left_memory(4)
    left = 10 * OF_ONE - 4 * (2 * LENGTH - LENGTH // ON_DISK)
    assert parts.shelf.num_bytes == left
    assert parts.room.hand_over() == left
    assert parts.room.hand_over() == 0
    parts.room.end()
    assert parts.shelf.num_bytes == left


def test_the_end_gives_back_everything_and_begins_nothing_more() -> None:
    parts = Parts()
    for _ in range(4):
        assert parts.room.begin(3, 100)
    parts.room.end()
    assert (parts.shelf.num_bytes, parts.ahead, parts.bytes_ahead) == (0, 0, 0)
    assert not parts.room.await_turn()
    assert not parts.room.begin(1, 0)
    parts.room.end()
    assert parts.shelf.num_bytes == 0


@pytest.mark.parametrize("ends", [True, False])
def test_a_chunk_without_a_turn_waits_for_an_answer_or_for_the_end(ends: bool) -> None:
    parts = Parts(head_start=0)
    for _ in range(AT_ONCE):
        assert parts.room.begin(1, 100)
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(parts.room.await_turn), threads.submit(parts.room.begin, 1, 100)
        assert not any(one.done() for one in waiting)
        (parts.room.end if ends else parts.room.finish_chunk)()
        begun = waiting[1].result(HANGS_S)
        parts.room.end()  # of the one that got no turn, as the other took it
        waiting[0].result(HANGS_S)
    assert begun is not ends
    assert (parts.shelf.num_bytes, parts.ahead) == (0, 0)


def test_a_chunk_that_finds_no_room_waits_while_others_of_it_are_unanswered_and_is_refused_then() -> None:
    parts = Parts(reports=8)
    parts.shelf.take(4 * OF_ONE, held=0, owner=OTHER)
    assert parts.room.begin(3, 0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(parts.room.begin, 2, 0)
        assert not waiting.done()
        parts.room.finish_chunk()
        with pytest.raises(HelperUnavailable):
            waiting.result(HANGS_S)
    with pytest.raises(JobRefused):
        parts.room.begin(4, 0)
    assert parts.room.begin(1, 0)
    parts.room.end()
    assert parts.shelf.num_bytes == 4 * OF_ONE


@pytest.mark.parametrize(
    "error",
    [
        JobRefused(JobReason.DATASET_TOO_LARGE, "too large"),
        HelperUnavailable("full"),
        OSError("the disk"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_chunk_whose_room_cannot_be_taken_keeps_no_head_start(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    parts = Parts()
    parts.room._changed = Condition()  # the watched one cannot be taken twice by one thread
    for _ in range(AT_ONCE):
        assert parts.room.begin(1, 100)
    seen: list[int] = []

    def refused(*_: object, **__: object) -> None:
        seen.append(parts.ahead)
        while parts.room._unanswered and isinstance(error, JobRefused | HelperUnavailable):
            parts.room.finish_chunk()
        raise error

    monkeypatch.setattr(parts.shelf, "take", refused)
    with pytest.raises(type(error)) as raised:
        parts.room.begin(1, 100)
    assert raised.value is error
    assert seen == [1]
    assert (parts.ahead, parts.bytes_ahead) == (0, 0)
