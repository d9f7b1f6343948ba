"""How far preparations are ahead, by number and by bytes, and that nothing of it is lost."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event, Lock, Semaphore
from typing import Any

import pytest

from helper.datasets.datasets import Datasets, OpenShares
from helper.datasets.prefetch_quota import MOST_BYTES, MOST_CHUNKS, PrefetchQuota
from helper.datasets.preparation_cache import PreparationCache
from helper.executors.local import LocalExecutor
from maskedlark.errors import HelperUnavailable, JobRefused
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener
from maskedlark.runtime.prefetch import AT_ONCE
from tests.builders import shares_for
from tests.helper.parties import Scene
from tests.patience import HANGS_S

HANDLE = b"h" * 16
ROOM = 4 << 30
OWNER = "ads.example"


def taken(head_start: PrefetchQuota, num_bytes: int = 0, owner: str = OWNER) -> int:
    """How many chunks more an ad server can begin; they are given back."""
    count = 0
    while head_start.take(num_bytes, owner):
        count += 1
    for _ in range(count):
        head_start.give_back(num_bytes, owner)
    return count


@pytest.mark.parametrize(
    ("wanted", "more"), [(0, 0), (1, 0), (AT_ONCE, 0), (3, 1), (12, 10), (10_000, MOST_CHUNKS)]
)
def test_as_many_more_are_begun_as_are_wanted_up_to_a_bound(wanted: int, more: int) -> None:
    head_start = PrefetchQuota(lambda: wanted, room_bytes=ROOM)
    assert taken(head_start) == more
    assert head_start.is_open(OWNER) == (more > 0)


@pytest.mark.parametrize(
    ("room", "most"), [(ROOM, MOST_BYTES), (64 * 1000, 1000), (64 * 1000 - 1, 999), (63, 0)]
)
def test_their_bytes_are_bounded_and_a_small_part_of_the_room(room: int, most: int) -> None:
    head_start = PrefetchQuota(lambda: 10_000, room_bytes=room)
    assert not head_start.take(most // 2 + 1, OWNER)
    assert head_start.take(most // 2, OWNER)
    assert not head_start.is_open(OWNER)
    assert not head_start.take(1, OWNER)
    assert head_start.take(0, OWNER)


def test_one_ad_server_leaves_half_to_others_who_leave_half_of_that() -> None:
    head_start = PrefetchQuota(lambda: 2 + MOST_CHUNKS, room_bytes=ROOM)
    for owner, most in [("first", 30), ("second", 15), ("third", 8), ("fourth", 4)]:
        count = 0
        while head_start.take(1, owner):
            count += 1
        assert count == most
    for _ in range(30):
        head_start.give_back(1, "first")
    assert taken(head_start, 1, "second") == 9  # with 24 it has half of what 12 of the others leave


def test_bytes_of_one_ad_server_leave_half_to_others() -> None:
    head_start = PrefetchQuota(lambda: 2 + MOST_CHUNKS, room_bytes=64 * 1000)
    assert head_start.take(500, "first")
    assert not head_start.take(251, "second")
    assert head_start.take(250, "second")
    assert not head_start.is_open("first")
    head_start.give_back(500, "first")
    assert taken(head_start, 125, "second") == 2


def test_fewer_are_begun_once_fewer_are_wanted() -> None:
    wanted = [8]
    head_start = PrefetchQuota(lambda: wanted[0], room_bytes=ROOM)
    assert all(head_start.take(1, OWNER) for _ in range(6))
    wanted[0] = 4
    for _ in range(5):
        assert not head_start.take(1, OWNER)
        head_start.give_back(1, OWNER)
    assert head_start.take(1, OWNER)
    assert not head_start.take(1, OWNER)


def test_a_helpers_preparations_are_as_far_ahead_as_its_executor_wants_and_as_its_room_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalExecutor, "opens_at_once", lambda _: 5)
    scene = Scene(tmp_path)
    scene.restart(max_preparing_bytes=64 * 1000)
    head_start = scene.cores[0].datasets.head_start
    assert taken(head_start) == 3
    assert taken(head_start, 500) == taken(head_start, 251) == 1
    assert taken(head_start, 250) == 2


class Together:
    """Opens chunks once so many are begun at once, and counts how many ever were."""

    def __init__(self, count: int) -> None:
        self._meet, self._lock = Barrier(count), Lock()
        self.begun = self.most = 0

    def __call__(self, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        with self._lock:
            self.begun += 1
            self.most = max(self.most, self.begun)
        with suppress(BrokenBarrierError):
            self._meet.wait(HANGS_S)
        try:
            return opener.open(incoming)
        finally:
            with self._lock:
                self.begun -= 1


def datasets_of(scene: Scene, opened: OpenShares, head_start: PrefetchQuota) -> Datasets:
    return replace(scene.cores[0].datasets, open_shares=opened, head_start=head_start)


@pytest.mark.parametrize("more", [0, 1, 4])
def test_a_preparation_has_so_many_chunks_opened_at_once(tmp_path: Path, more: int) -> None:
    scene, opened = Scene(tmp_path), Together(AT_ONCE + more)
    shares, head_start = (
        shares_for(scene.reports(24), 0),
        PrefetchQuota(lambda: AT_ONCE + more, room_bytes=ROOM),
    )
    chunks = [shares[start : start + 2] for start in range(0, 24, 2)]
    with (
        datasets_of(scene, opened, head_start).prepare(scene.task_id, HANDLE, None) as preparation,
        closing(preparation.add_all(chunks)) as answers,
    ):
        assert [int(one.is_admitted.sum()) for one in answers] == [2] * 12
        assert preparation.finish().admitted == 24
    assert opened.most == AT_ONCE + more
    assert taken(head_start) == more


def test_chunks_that_are_too_large_for_a_head_start_are_opened_two_at_a_time(tmp_path: Path) -> None:
    scene, opened = Scene(tmp_path), Together(AT_ONCE)
    shares = shares_for(scene.reports(24), 0)
    chunks = [shares[start : start + 2] for start in range(0, 24, 2)]
    a_chunk = 2 * (scene.task.share_length + len(shares[0].share.ciphertext))
    head_start = PrefetchQuota(lambda: 10, room_bytes=64 * (2 * a_chunk - 1))
    with (
        datasets_of(scene, opened, head_start).prepare(scene.task_id, HANDLE, None) as preparation,
        closing(preparation.add_all(chunks)) as answers,
    ):
        assert sum(int(one.is_admitted.sum()) for one in answers) == 24
    assert opened.most == AT_ONCE
    assert taken(head_start, a_chunk - 1) == 1


def test_a_preparation_stays_as_far_ahead_as_it_was_at_first(tmp_path: Path) -> None:
    scene, begun = Scene(tmp_path), Semaphore(0)
    shares, head_start = shares_for(scene.reports(24), 0), PrefetchQuota(lambda: 5, room_bytes=ROOM)
    chunks = [shares[start : start + 2] for start in range(0, 24, 2)]

    def opened(opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        begun.release()
        return opener.open(incoming)

    with (
        datasets_of(scene, opened, head_start).prepare(scene.task_id, HANDLE, None) as preparation,
        closing(preparation.add_all(chunks)) as answers,
    ):
        next(answers)
        for _ in range(1 + 5):
            assert begun.acquire(timeout=HANGS_S)
        for _ in range(12 - 6):
            next(answers)
            assert begun.acquire(timeout=HANGS_S)


@pytest.mark.parametrize("more", [0, 2])
def test_a_chunk_that_cannot_be_begun_is_not_read(tmp_path: Path, more: int) -> None:
    scene, read, pause = Scene(tmp_path), list[int](), Event()
    shares, head_start = (
        shares_for(scene.reports(40), 0),
        PrefetchQuota(lambda: AT_ONCE + more, room_bytes=ROOM),
    )

    def chunks() -> Iterator[list[ShareForHelper]]:
        for start in range(0, 40, 2):
            read.append(start)
            yield shares[start : start + 2]

    with (
        datasets_of(scene, Together(1), head_start).prepare(scene.task_id, HANDLE, None) as preparation,
        closing(preparation.add_all(chunks())) as answers,
    ):
        for answered in range(1, 21):
            next(answers)
            pause.wait(0.01)  # in which more might be read
            assert len(read) <= answered + AT_ONCE + more


def test_a_chunk_that_waits_for_room_has_no_head_start_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, head_start = Scene(tmp_path), PrefetchQuota(lambda: 8, room_bytes=ROOM)
    shares, take, asked, is_refused = (
        shares_for(scene.reports(8), 0),
        PreparationCache.take,
        list[int](),
        Event(),
    )

    def asking(shelf: PreparationCache, num_bytes: int, **whose: Any) -> None:
        asked.append(num_bytes)
        if len(asked) == 1 + AT_ONCE:
            is_refused.set()
            raise HelperUnavailable("others take all the room")
        take(shelf, num_bytes, **whose)

    def opened(opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        assert is_refused.wait(HANGS_S)
        return opener.open(incoming)

    monkeypatch.setattr(PreparationCache, "take", asking)
    with (
        datasets_of(scene, opened, head_start).prepare(scene.task_id, HANDLE, None) as preparation,
        closing(preparation.add_all([shares[:2], shares[2:4], shares[4:6], shares[6:]])) as answers,
    ):
        assert [int(one.is_admitted.sum()) for one in answers] == [2] * 4
        assert taken(head_start) == 6
    assert len(asked) == 5


@pytest.mark.parametrize("ends", ["abandoned", "a chunk too large", "the stream", "opening"])
def test_a_head_start_ends_with_its_preparation(tmp_path: Path, ends: str) -> None:
    scene, head_start = Scene(tmp_path), PrefetchQuota(lambda: 8, room_bytes=ROOM)
    shares = shares_for(scene.reports(24), 0)
    datasets, pause = datasets_of(scene, Together(1), head_start), Event()
    calls = itertools.count(1)

    def fails(opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        if next(calls) == 3:
            raise OSError
        return opener.open(incoming)

    def chunks() -> Iterator[list[ShareForHelper]]:
        for start in range(0, 16, 2):
            yield shares[start : start + 2]
        if ends == "the stream":
            raise OSError
        if ends == "a chunk too large":
            yield shares * 200_000

    if ends == "opening":
        datasets = replace(datasets, open_shares=fails)
    with (
        suppress(OSError, JobRefused),
        datasets.prepare(scene.task_id, HANDLE, None) as preparation,
        closing(preparation.add_all(chunks())) as answers,
    ):
        for _ in answers:
            if ends == "abandoned":
                ends_at = time.monotonic() + HANGS_S
                while head_start._chunks.total() < 8 - 1 - AT_ONCE:  # one of eight is answered for
                    assert time.monotonic() < ends_at
                    pause.wait(0.01)
                break
    assert taken(head_start) == 6
    assert datasets.preparing_bytes == 0
