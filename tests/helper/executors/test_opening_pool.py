import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from helper.executors import processes
from helper.executors.processes import MAX_CHUNK, MIN_CHUNK, OpeningPool
from maskedlark.errors import HelperUnavailable, ReportReason
from tests.builders import examples, reports, shares_for, world

WORLD = world()
INCOMING = shares_for(reports(WORLD, examples(WORLD.task, 2 * MIN_CHUNK + 5)), 0)


@pytest.fixture(scope="module")
def pool() -> Iterator[OpeningPool]:
    with OpeningPool(2, worth_workers=0) as one:
        yield one


@pytest.mark.parametrize("most", [MIN_CHUNK, MAX_CHUNK], ids=["more parts than workers", "a part a worker"])
def test_the_pool_opens_what_one_process_opens(
    pool: OpeningPool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MAX_CHUNK", most)
    opener = WORLD.opener(0)
    bad = replace(INCOMING[100], share=replace(INCOMING[100].share, ciphertext=INCOMING[99].share.ciphertext))
    mixed = [*INCOMING[:100], bad, *INCOMING[101:]]
    here, there = opener.open(mixed), pool.open(opener, mixed)
    assert dict(there.admitted.dropped) == dict(here.admitted.dropped) == {ReportReason.NOT_OPENED: 1}
    assert (there.report_ids == here.report_ids).all()
    assert (there.admitted.is_admitted == here.admitted.is_admitted).all()
    assert (there.admitted.view_tags == here.admitted.view_tags).all()
    assert (there.shares.mask_shares == here.shares.mask_shares).all()
    assert (there.shares.features == here.shares.features).all()


def test_small_and_empty_chunks_need_no_workers() -> None:
    pool = OpeningPool(2, worth_workers=0)
    pool.close()  # a closed pool has no workers to ask
    assert len(pool.open(WORLD.opener(0), INCOMING[:3]).shares) == 3
    assert len(pool.open(WORLD.opener(0), []).shares) == 0


def test_the_first_few_thousand_shares_start_no_process() -> None:
    pool = OpeningPool(2, worth_workers=2 * len(INCOMING))
    for _ in range(2):
        assert pool.open(WORLD.opener(0), INCOMING).admitted.is_admitted.all()
    assert not pool._executor._processes
    pool.open(WORLD.opener(0), INCOMING)
    assert pool._executor._processes
    pool.close()


def test_a_killed_worker_is_a_retryable_error_and_the_next_call_works() -> None:
    with OpeningPool(2, worth_workers=0) as pool:
        pool.open(WORLD.opener(0), INCOMING)
        for process in list(pool._executor._processes.values()):
            os.kill(process.pid or 0, signal.SIGKILL)
        with pytest.raises(HelperUnavailable):
            open_until_it_fails(pool)
        assert pool.open(WORLD.opener(0), INCOMING).admitted.is_admitted.all()


def open_until_it_fails(pool: OpeningPool) -> None:
    for _ in range(200):  # the pool notices a moment after the kill
        pool.open(WORLD.opener(0), INCOMING)
        time.sleep(0.01)
