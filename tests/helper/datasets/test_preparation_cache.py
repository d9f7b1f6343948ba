from collections import Counter
from dataclasses import dataclass, replace
from threading import Event, Lock, Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helper.datasets.preparation_cache import (
    KEPT_S,
    MAX_PREPARED,
    MAX_PREPARED_PER_TASK,
    RETRY_AFTER_S,
    Handle,
    PreparationCache,
    opened_bytes,
)
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.randomness import seeded
from maskedlark.reports.dataset import OpenedDataset, PreparedShares
from tests.builders import examples, open_dataset, reports, shares_for, world
from tests.measured import measuring_world
from tests.measured import opened as opened_shares
from tests.patience import HANGS_S

WORLD = world()
OPENED: PreparedShares = WORLD.opener(0).open(shares_for(reports(WORLD, examples(WORLD.task, 3)), 0))


class Prepared:
    """Counts how often it was discarded."""

    def __init__(self) -> None:
        self.discarded = 0

    def discard(self) -> None:
        self.discarded += 1


PREPARED = Prepared()

NORTH, SOUTH = "north.example", "south.example"


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def shelf_of(capacity_bytes: int = 0, clock: Clock | None = None) -> PreparationCache:
    return PreparationCache(capacity_bytes, clock or Clock())


def opened(number: int) -> OpenedDataset:
    return open_dataset(bytes([number]) * 32, OPENED, OPENED.admitted.is_admitted)


def found(shelf: PreparationCache, of: Handle) -> object:
    kept = shelf._prepared.get(of)
    return None if kept is None else kept.prepared


def handle(task: int, name: int, owner: str = NORTH) -> Handle:
    return Handle(owner=owner, task_id=bytes([task]) * 32, name=bytes([name]) * 16)


def test_what_is_lent_is_pushed_out_by_nobody_and_kept_again() -> None:
    shelf, one = shelf_of(), Prepared()
    shelf.put(handle(1, 0), one, 0)
    with shelf.lent(handle(1, 0), Prepared) as lent:
        assert lent is one
        for name in range(1, MAX_PREPARED_PER_TASK + 1):
            shelf.put(handle(1, name), Prepared(), 0)
        assert one.discarded == 0
    assert found(shelf, handle(1, 0)) is one


def test_of_two_preparations_of_a_handle_the_newer_is_kept_once_the_other_comes_back() -> None:
    shelf, one, newer = shelf_of(10), Prepared(), Prepared()
    shelf.take(4, held=0, owner=NORTH)
    shelf.put(handle(1, 0), one, 4)
    with shelf.lent(handle(1, 0), Prepared):
        shelf.put(handle(1, 0), newer, 0)
        assert shelf.num_bytes == 4
    assert found(shelf, handle(1, 0)) is newer
    assert (one.discarded, newer.discarded, shelf.num_bytes) == (1, 0, 0)


def test_nothing_is_lent_where_nothing_is_kept() -> None:
    shelf = shelf_of()
    with shelf.lent(handle(1, 0), Prepared) as lent:
        assert lent is None
    assert found(shelf, handle(1, 0)) is None


def test_what_is_of_another_kind_is_not_lent_and_stays() -> None:
    shelf, one = shelf_of(), Prepared()
    shelf.put(handle(1, 0), one, 0)

    class Other(Prepared):
        pass

    with shelf.lent(handle(1, 0), Other) as lent:
        assert lent is None
    assert found(shelf, handle(1, 0)) is one


def test_two_that_finish_at_once_are_kept_one_after_the_other() -> None:
    is_second_there, inside, most = Event(), 0, 0

    class Announced:
        """A lock that says that a second thread wants it."""

        def __init__(self) -> None:
            self._lock, self._wanted = Lock(), 0

        def __enter__(self) -> None:
            self._wanted += 1
            if self._wanted == 2:
                is_second_there.set()
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def clock() -> float:
        """Asked by who keeps a preparation; the first one goes on once the second one wants to keep one."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 2:
            is_second_there.set()
        assert is_second_there.wait(HANGS_S)
        inside -= 1
        return 0.0

    shelf = PreparationCache(0, clock)
    shelf._lock = Announced()  # type: ignore[assignment]
    threads = [Thread(target=shelf.put, args=(handle(1, name), Prepared(), 0)) for name in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_S)
    assert most == 1
    assert len(shelf._prepared) == 2


def test_an_ad_servers_overdue_preparations_are_forgotten_oldest_first_and_nobody_elses() -> None:
    clock = Clock()
    shelf, mine, newer, theirs = shelf_of(clock=clock), Prepared(), Prepared(), Prepared()
    shelf.put(handle(1, 0, SOUTH), theirs, 0)
    shelf.put(handle(2, 0), mine, 0)
    clock.now = 1.0
    shelf.put(handle(3, 0), newer, 0)
    clock.now = KEPT_S - 0.5
    assert not shelf.forget_overdue(NORTH)
    clock.now = KEPT_S
    assert shelf.forget_overdue(NORTH)
    assert not shelf.forget_overdue(NORTH)
    assert (mine.discarded, newer.discarded, theirs.discarded) == (1, 0, 0)
    shelf.forget_abandoned(KEPT_S)
    assert (mine.discarded, newer.discarded, theirs.discarded) == (1, 0, 1)
    clock.now = KEPT_S + 1.0
    shelf.forget_abandoned(KEPT_S)
    assert (newer.discarded, len(shelf._prepared)) == (1, 0)


def test_a_preparation_is_found_until_it_is_dropped() -> None:
    shelf = shelf_of()
    shelf.put(handle(1, 1), PREPARED, 0)
    assert found(shelf, handle(1, 1)) is PREPARED
    assert found(shelf, handle(2, 1)) is None
    shelf.drop(handle(1, 1))
    shelf.drop(handle(1, 1))
    assert found(shelf, handle(1, 1)) is None


def test_what_is_forgotten_for_whatever_reason_is_discarded_once() -> None:
    clock = Clock()
    shelf = shelf_of(100, clock)
    replaced, dropped, pushed_out, overdue, kept = (Prepared() for _ in range(5))
    for number, one in enumerate((pushed_out, dropped, Prepared(), Prepared())):
        shelf.put(handle(1, number), one, 0)
        shelf.drop(handle(1, 1))
    shelf.put(handle(2, 1), replaced, 0)
    shelf.take(60, held=0, owner=NORTH)
    shelf.put(handle(3, 1), overdue, 60)
    clock.now = KEPT_S
    shelf.put(handle(2, 1), kept, 0)
    shelf.take(40, held=0, owner=SOUTH)
    shelf.take(60, held=0, owner=NORTH)
    discarded = [one.discarded for one in (replaced, dropped, pushed_out, overdue, kept)]
    assert discarded == [1, 1, 1, 1, 0]


def test_a_task_keeps_its_newest_preparations_only() -> None:
    shelf = shelf_of()
    for name in range(MAX_PREPARED_PER_TASK + 1):
        shelf.put(handle(1, name), PREPARED, 0)
    kept = [found(shelf, handle(1, name)) is not None for name in range(MAX_PREPARED_PER_TASK + 1)]
    assert kept == [False] + [True] * MAX_PREPARED_PER_TASK


def test_preparing_again_under_a_handle_makes_it_the_newest() -> None:
    shelf = shelf_of()
    for name in (0, 1, 0, 2):
        shelf.put(handle(1, name), PREPARED, 0)
    assert [found(shelf, handle(1, name)) is not None for name in (0, 1, 2)] == [True, False, True]


def test_all_tasks_together_keep_a_bounded_number() -> None:
    shelf = shelf_of()
    for task in range(MAX_PREPARED + 3):
        shelf.put(handle(task, 0), PREPARED, 0)
    assert sum(found(shelf, handle(task, 0)) is not None for task in range(MAX_PREPARED + 3)) == MAX_PREPARED


def test_past_that_number_who_has_the_most_loses_the_oldest() -> None:
    shelf = shelf_of()
    shelf.put(handle(0, 0, SOUTH), PREPARED, 0)
    for task in range(1, MAX_PREPARED + 3):
        shelf.put(handle(task, 0), PREPARED, 0)
    assert found(shelf, handle(0, 0, SOUTH)) is PREPARED
    assert [found(shelf, handle(task, 0)) is not None for task in (1, 2, 3, 4)] == [False, False, False, True]


def test_who_finds_no_room_for_a_preparation_is_told_when_to_come_again() -> None:
    shelf = shelf_of(100)
    shelf.take(60, held=0, owner=NORTH)
    with pytest.raises(HelperUnavailable) as busy:
        shelf.take(41, held=0, owner=SOUTH)
    assert busy.value.retry_after_s == RETRY_AFTER_S
    shelf.take(40, held=0, owner=SOUTH)
    shelf.give_back(60, NORTH)
    shelf.take(60, held=0, owner=NORTH)


def test_one_ad_server_leaves_a_quarter_of_the_room_to_others() -> None:
    shelf = shelf_of(100)
    shelf.take(40, held=0, owner=NORTH)
    shelf.take(35, held=0, owner=NORTH)
    with pytest.raises(HelperUnavailable):
        shelf.take(1, held=0, owner=NORTH)
    shelf.take(25, held=0, owner=SOUTH)


def test_a_preparation_that_would_never_fit_is_refused_for_good() -> None:
    shelf = shelf_of(100)
    shelf.take(60, held=0, owner=NORTH)
    with pytest.raises(JobRefused, match="--max-preparing-bytes") as refused:
        shelf.take(16, held=60, owner=NORTH)
    assert refused.value.reason is JobReason.DATASET_TOO_LARGE


def test_a_finished_preparation_makes_room_only_once_its_commit_is_overdue() -> None:
    clock = Clock()
    shelf = shelf_of(100, clock)
    for task, owner in ((1, NORTH), (2, SOUTH)):
        shelf.take(50, held=0, owner=owner)
        shelf.put(handle(task, 0, owner), PREPARED, 50)
        clock.now += 1
    clock.now = KEPT_S - 1
    with pytest.raises(HelperUnavailable):
        shelf.take(10, held=0, owner=SOUTH)
    clock.now = KEPT_S
    shelf.take(10, held=0, owner=SOUTH)
    assert [found(shelf, handle(task, 0, owner)) is not None for task, owner in ((1, NORTH), (2, SOUTH))] == [
        False,
        True,
    ]


def test_who_is_at_its_own_limit_pushes_out_its_own_overdue_preparations_alone() -> None:
    clock = Clock()
    shelf = shelf_of(100, clock)
    for task, owner, size in ((1, SOUTH, 10), (2, NORTH, 70)):
        shelf.take(size, held=0, owner=owner)
        shelf.put(handle(task, 0, owner), PREPARED, size)
    clock.now = KEPT_S
    shelf.take(10, held=0, owner=NORTH)
    assert [found(shelf, handle(task, 0, owner)) is not None for task, owner in ((1, SOUTH), (2, NORTH))] == [
        True,
        False,
    ]


_STEPS = st.tuples(
    st.sampled_from(["take", "break", "finish", "commit", "wait"]),
    st.integers(0, 4),
    st.integers(0, 2),
    st.integers(1, 80),
)


@given(st.lists(_STEPS, max_size=60))
def test_the_room_taken_is_that_of_the_preparations_that_there_are_and_never_more_than_there_is(
    steps: list[tuple[str, int, int, int]],
) -> None:
    clock = Clock()
    shelf = shelf_of(200, clock)
    unfinished: Counter[Handle] = Counter()
    finished: dict[Handle, int] = {}
    for step, task, name, number in steps:
        one = handle(task, name, (NORTH, SOUTH)[task % 2])
        match step:
            case "take":
                try:
                    shelf.take(number, held=unfinished[one], owner=one.owner)
                except (HelperUnavailable, JobRefused):
                    continue
                unfinished[one] += number
            case "break":
                shelf.give_back(unfinished.pop(one, 0), one.owner)
            case "finish":
                finished[one] = unfinished.pop(one, 0)
                shelf.put(one, PREPARED, finished[one])
            case "commit":
                shelf.drop(one)
            case _:
                clock.now += 20 * number
        kept = sum(size for known, size in finished.items() if found(shelf, known) is not None)
        assert shelf.num_bytes == unfinished.total() + kept <= 200
        for owner in (NORTH, SOUTH):
            of_one = sum(
                size
                for known, size in finished.items()
                if known.owner == owner and found(shelf, known) is not None
            )
            assert of_one + sum(size for known, size in unfinished.items() if known.owner == owner) <= 150


def test_what_is_opened_takes_the_bytes_of_all_its_arrays() -> None:
    of = measuring_world()
    measurement = of.task.measurement
    assert measurement is not None
    keys = np.zeros((3, len(measurement.keys)), np.uint32)
    columns = np.zeros((3, measurement.num_columns), np.int64)
    shares, _ = opened_shares(of, keys, columns, seeded(1, "shares"))
    whole = OpenedDataset(dataset_id=bytes(32), report_ids=np.zeros((3, 16), np.uint8), shares=shares)
    plain = replace(whole, shares=replace(shares, measured=None))
    task = of.task
    assert opened_bytes(plain) == 3 * (16 + task.num_features + (4 + 8) * task.num_candidates)
    assert opened_bytes(whole) - opened_bytes(plain) == keys.nbytes + columns.nbytes
