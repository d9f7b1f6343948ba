from collections.abc import Callable
from hashlib import sha256
from threading import Event, Lock, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helper.datasets.segment_writer import tag_in
from helper.datasets.storage_quota import TAG_BYTES, StorageQuota
from maskedlark.errors import JobReason, JobRefused
from tests.patience import HANGS_S

NORTH, SOUTH = "north.example", "south.example"


def key_for(context: bytes) -> bytes:
    return sha256(context).digest()


def quota_of(most_bytes: int, make_room: Callable[[str], bool] = lambda _: False) -> StorageQuota:
    return StorageQuota(most_bytes, key_for, make_room)


def test_an_ad_server_holds_as_much_as_is_allowed_and_no_byte_more() -> None:
    quota = quota_of(10)
    first, second = quota.claim(NORTH, "first"), quota.claim(NORTH, "second")
    first.resize(6)
    second.resize(4)
    with pytest.raises(JobRefused, match=r"at most 10 bytes.*--max-held-bytes.*you have 10") as refused:
        second.resize(5)
    assert refused.value.reason is JobReason.QUOTA_EXCEEDED
    assert quota.of(NORTH) == 10
    first.resize(5)
    second.resize(5)
    assert quota.of(NORTH) == quota.num_bytes == 10


def test_what_one_ad_server_holds_takes_nothing_of_anothers_and_is_in_no_message_to_it() -> None:
    quota = quota_of(1_000)
    quota.claim(NORTH, "theirs").resize(977)
    mine = quota.claim(SOUTH, "mine")
    mine.resize(1_000)
    with pytest.raises(JobRefused) as refused:
        mine.resize(1_001)
    assert "977" not in str(refused.value)
    assert (quota.of(NORTH), quota.of(SOUTH), quota.num_bytes) == (977, 1_000, 1_977)


def test_a_claim_ends_once_and_what_is_deleted_is_free() -> None:
    quota = quota_of(10)
    claim = quota.claim(NORTH, "one.unfinished")
    claim.resize(4)
    claim.rename("one.sealed")
    claim.rename("one.sealed")
    assert quota.of(NORTH) == 4
    again = quota.claim(NORTH, "two.unfinished")
    again.resize(5)
    again.rename("one.sealed")  # which replaces the file
    assert quota.of(NORTH) == 5
    quota.drop(["one.sealed", "unknown"])
    quota.drop(["one.sealed"])
    again.end()
    claim.end()
    assert (quota.num_bytes, quota._held, dict(quota._sums)) == (0, {}, {})


def test_a_claim_of_nothing_has_nothing_to_rename() -> None:
    quota = quota_of(10)
    quota.count("one.sealed", quota.tag(NORTH), 3)
    quota.claim(NORTH, "empty").rename("one.sealed")
    assert quota.of(NORTH) == 3


def test_what_lies_there_counts_though_it_is_more_than_is_allowed() -> None:
    quota = quota_of(10)
    quota.count("before", quota.tag(NORTH), 25)
    with pytest.raises(JobRefused, match="you have 25"):
        quota.claim(NORTH, "new").resize(1)
    quota.claim(NORTH, "before").resize(9)  # less than before is no growth
    assert quota.of(NORTH) == 9


def test_overdue_preparations_make_room_until_there_is_none_left() -> None:
    overdue = ["old", "older"]

    def make_room(owner: str) -> bool:
        assert owner == NORTH
        if overdue:
            quota.drop([overdue.pop()])
            return True
        return False

    quota = quota_of(10, make_room)
    for name in overdue:
        quota.count(name, quota.tag(NORTH), 4)
    quota.claim(NORTH, "new").resize(5)
    assert (overdue, quota.of(NORTH)) == (["old"], 9)
    with pytest.raises(JobRefused):
        quota.claim(NORTH, "newer").resize(6)
    assert overdue == []


def test_a_tag_is_of_one_ad_server_and_found_in_the_name_of_its_object() -> None:
    quota = quota_of(1)
    assert len({quota.tag(NORTH), quota.tag(SOUTH)}) == 2
    assert len(quota.tag(NORTH)) == TAG_BYTES
    assert tag_in(f"folder/{quota.tag(NORTH).hex()}/f00d") == quota.tag(NORTH)
    for foreign in ("notes.txt", "folder/notes.txt", "folder/of somebody/f00d", ""):
        assert tag_in(foreign) == b""


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.booleans()), max_size=30))
def test_the_sums_are_those_of_what_is_held(steps: list[tuple[str, int, bool]]) -> None:
    quota, held = quota_of(20), dict[str, int]()
    for name, num_bytes, is_dropped in steps:
        if is_dropped:
            quota.drop([name])
            held.pop(name, None)
            continue
        fits = sum(held.values()) - held.get(name, 0) + num_bytes <= 20
        try:
            quota.claim(NORTH, name).resize(num_bytes)
            assert fits
            held[name] = num_bytes
        except JobRefused:
            assert not fits
    assert quota.of(NORTH) == quota.num_bytes == sum(held.values()) <= 20


class Announced:
    """A lock that says that a second thread wants it."""

    def __init__(self, is_second_there: Event) -> None:
        self._lock, self._is_second_there = Lock(), is_second_there
        self._wanted = 0

    def __enter__(self) -> None:
        self._wanted += 1
        if self._wanted == 2:
            self._is_second_there.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_two_claims_at_once_cannot_both_have_the_last_bytes() -> None:
    quota, is_second_there, came = quota_of(10), Event(), list[int]()
    quota._lock = Announced(is_second_there)  # type: ignore[assignment]

    class Gated(dict[str, object]):
        def get(self, name: str, default: object = None) -> object:
            """The first one looks, and goes on once the second one is there, before or behind the lock."""
            came.append(1)
            if len(came) == 1:
                assert is_second_there.wait(HANGS_S)
            is_second_there.set()
            return super().get(name, default)

    quota._held = Gated()  # type: ignore[assignment]
    refused = []

    def take(name: str) -> None:
        try:
            quota.claim(NORTH, name).resize(6)
        except JobRefused:
            refused.append(name)

    threads = [Thread(target=take, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_S)
    assert len(refused) == 1
    assert quota._sums[quota.tag(NORTH)] == 6
