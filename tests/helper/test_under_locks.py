"""Whatever threads share is read and changed under its lock: each call takes it as often as it must.

A race without the lock shows too seldom for a test of its own.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from helper.datasets.fair_cache import FairCache
from helper.datasets.prefetch_quota import PrefetchQuota
from helper.datasets.preparation_cache import Handle, PreparationCache
from helper.datasets.preparation_quota import PreparationQuota
from helper.datasets.segment_writer import ObjectWriter
from helper.datasets.storage_quota import StorageQuota
from helper.ledger.records import ReleaseKey, key_of
from helper.releases.attempts import Attempts
from helper.releases.work_quota import WorkQuota
from maskedlark import canonical
from maskedlark.interrupt import never
from tests.counted_lock import check
from tests.helper.parties import Scene

OWNER = "ads.example"
HANDLE = Handle(owner=OWNER, task_id=bytes(32), name=bytes(16))
PREPARED: Any = SimpleNamespace(discard=lambda: None)


def lend(cache: PreparationCache) -> None:
    with cache.lent(HANDLE, SimpleNamespace):
        pass


def test_preparations() -> None:
    cache = PreparationCache(1_000, lambda: 0.0)
    calls = [
        (lambda: cache.take(9, held=0, owner=OWNER), 1),
        (lambda: cache.num_bytes, 1),
        (lambda: cache.give_back(9, OWNER), 1),
        (lambda: cache.put(HANDLE, PREPARED, 0), 1),
        (lambda: lend(cache), 2),
        (lambda: cache.drop(HANDLE), 1),
        (lambda: cache.forget_overdue(OWNER), 1),
        (lambda: cache.forget_abandoned(1.0), 1),
    ]
    check(cache, "_lock", calls)


def test_the_quota_of_a_preparation() -> None:
    cache = PreparationCache(1 << 20, lambda: 0.0)
    quota = PreparationQuota(
        shelf=cache, head_start=PrefetchQuota(lambda: 9, room_bytes=1 << 20), owner=OWNER, share_length=80
    )
    calls = [
        (quota.await_turn, 1),
        (lambda: quota.begin(2, 100), 1),
        (quota.finish_chunk, 1),
        (lambda: quota.left_memory(1), 1),
        (quota.hand_over, 1),
        (quota.end, 1),
    ]
    check(quota, "_changed", calls)


def test_the_quota_of_chunks_ahead() -> None:
    quota = PrefetchQuota(lambda: 9, room_bytes=1 << 20)
    calls = [
        (lambda: quota.is_open(OWNER), 1),
        (lambda: quota.take(9, OWNER), 1),
        (lambda: quota.take(1 << 30, OWNER), 1),
        (lambda: quota.give_back(9, OWNER), 1),
    ]
    check(quota, "_lock", calls)


def test_the_quota_of_storage() -> None:
    quota = StorageQuota(1_000, lambda context: context)
    claim = quota.claim(OWNER, "one")
    calls = [
        (lambda: claim.resize(9), 1),
        (lambda: quota.num_bytes, 1),
        (lambda: quota.of(OWNER), 1),
        (lambda: quota.count("two", claim.tag, 9), 1),
        (lambda: claim.rename("three"), 1),
        (lambda: quota.drop(["two"]), 1),
        (claim.end, 1),
    ]
    check(quota, "_lock", calls)


def test_a_cache_of_ad_servers() -> None:
    cache: FairCache[str, int] = FairCache(100)
    calls = [
        (lambda: cache.put("key", 1, num_bytes=9, owner=OWNER), 1),
        (lambda: cache.get("key"), 1),
        (lambda: cache.pop("key"), 1),
    ]
    check(cache, "_lock", calls)


def test_objects_of_segments() -> None:
    store: Any = SimpleNamespace(put_fresh=lambda fresh_name, _content: fresh_name())
    quota = StorageQuota(1_000, lambda context: context)
    writer = ObjectWriter(store, "folder", bytes, quota)
    calls = [
        (lambda: writer.put(b"content", b"tag"), 2),  # its name is held; no other try is given up
        (lambda: writer.held, 1),
        (lambda: writer.drop({"one": 3}), 1),
        (lambda: writer.release({"one": 3}, is_committed=True), 1),
        (lambda: writer.put_back(["one"]), 1),
        (writer.take_dropped, 1),
    ]
    check(writer, "_lock", calls)


def test_attempts_and_turns_of_work() -> None:
    attempts, key = Attempts(), ReleaseKey(bytes(32), bytes(16))

    def close() -> None:
        with attempts.closing(key, never):
            pass

    for _ in range(3):
        attempts.begin(key, 0)
    calls = [
        (lambda: attempts.begin(key, 0), 1),
        (lambda: attempts.end(key), 1),
        (close, 3),
        (lambda: attempts.forget(key), 1),
    ]
    check(attempts, "_changed", calls)
    quota = WorkQuota(1_000, at_once=1)

    def take() -> None:
        with quota.taken(OWNER, 9):
            pass

    check(quota, "_changed", [(take, 2)])


def test_what_a_helper_keeps_of_jobs_tasks_and_its_ledger(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    core, dataset = scene.cores[0], scene.seal()
    spec = scene.job(dataset)
    encoded = canonical.encode(spec)
    calls: list[tuple[Callable[[], object], int]] = [
        (lambda: scene.start(spec), 1),
        (lambda: core.jobs.at_work(key_of(spec), None), 1),
        (lambda: core.jobs.close(encoded, None), 1),
    ]
    check(core.jobs, "_lock", calls)
    check(core.tasks, "_lock", [(lambda: core.tasks._keep({}, "key", "value"), 1)])
    check(core.tasks._open, "_lock", [(lambda: core.tasks._open.add(scene.task, 9, lambda: None), 1)])
    check(core.witness, "_lock", [(lambda: core.witness.check(None), 1), (core.witness.receipt, 1)])
    check(core.datasets.vault, "_counting", [(core.datasets.vault.count_once, 1)])
    keys = scene.parties[0].keys
    check(keys, "_lock", [(keys.ring, 1)])
