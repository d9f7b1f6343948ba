import os
from dataclasses import replace
from pathlib import Path

import pytest

from helper.datasets import segments
from helper.datasets.sweeping import EXPIRED_KEPT_S, ORPHAN_S
from helper.ledger.records import Position
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.runtime import objects
from maskedlark.runtime.objects import StoreFailed
from tests.builders import NOW, shares_for
from tests.helper.parties import Scene
from tests.stores import InMemory

RECORDS = 10
SEGMENT = 4
STORES = pytest.mark.parametrize("is_bucket", [False, True], ids=["files", "bucket"])


@pytest.fixture
def store() -> InMemory:
    return InMemory(now=NOW)


@pytest.fixture
def scene(tmp_path: Path, store: InMemory, is_bucket: bool, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", SEGMENT)
    made = Scene(tmp_path)
    made.restart(segments=store if is_bucket else None)
    return made


def pass_time(scene: Scene, seconds: float) -> None:
    """Let the helpers' clocks go on; files are as old as the test's beginning."""
    for party in scene.parties:
        party.now += seconds
        for path in (party.data / "datasets").iterdir():
            os.utime(path, (NOW, NOW))


def held(scene: Scene, store: InMemory) -> int:
    """How many files and objects there are."""
    files = [path for party in scene.parties for path in (party.data / "datasets").iterdir()]
    return len(files) + len(store.objects)


def sweep(scene: Scene) -> tuple[int, int]:
    swept = [core.sweeper.sweep() for core in scene.cores]
    return sum(one.orphans for one in swept), sum(one.expired for one in swept)


def crash_in_commit(scene: Scene, is_bucket: bool, store: InMemory) -> None:
    """Both helpers end between writing a dataset and committing it."""
    prepared = scene.prepare(scene.reports(RECORDS))
    for core in scene.cores:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core.datasets.ledger, "add_dataset", _power_cut)
            with pytest.raises(PowerCut):
                core.datasets.commit(scene.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None)
    scene.restart(segments=store if is_bucket else None)


class PowerCut(BaseException):
    """The process is gone."""


def _away(*_: object) -> None:
    raise StoreFailed("Timeout")


def _power_cut(*_: object) -> None:
    raise PowerCut


@STORES
def test_orphans_go_once_they_are_old(scene: Scene, store: InMemory, is_bucket: bool) -> None:
    crash_in_commit(scene, is_bucket, store)
    before = held(scene, store)
    assert before
    pass_time(scene, ORPHAN_S - 1)
    assert sweep(scene) == (0, 0)
    assert held(scene, store) == before
    pass_time(scene, 1)
    assert sweep(scene)[0] == before
    assert held(scene, store) == 0


@STORES
def test_what_is_committed_stays(scene: Scene, store: InMemory, is_bucket: bool) -> None:
    dataset = scene.seal(RECORDS)
    sweep(scene)  # what the tests' own preparation dropped
    before = held(scene, store)
    pass_time(scene, 10 * ORPHAN_S)
    assert sweep(scene) == (0, 0)
    assert held(scene, store) == before
    assert len(scene.cores[0].datasets.open(dataset)) == RECORDS


@STORES
def test_objects_of_a_preparation_that_goes_on_stay_however_old_they_are(
    scene: Scene, store: InMemory, is_bucket: bool
) -> None:
    shares = shares_for(scene.reports(RECORDS), 0)
    with scene.cores[0].datasets.prepare(scene.task_id, b"h" * 16, None) as preparation:
        preparation.add(shares)
        pass_time(scene, 10 * ORPHAN_S)
        before = held(scene, store)
        assert before
        assert sweep(scene) == (0, 0)
        assert held(scene, store) == before
        assert preparation.finish().admitted == RECORDS


@STORES
def test_a_preparation_that_nobody_commits_is_swept_after_a_day(
    scene: Scene, store: InMemory, is_bucket: bool
) -> None:
    scene.prepare(scene.reports(RECORDS))
    pass_time(scene, ORPHAN_S - 1)
    sweep(scene)
    assert held(scene, store) > 0
    pass_time(scene, 1)
    sweep(scene)
    assert held(scene, store) == 0
    assert [core.quota.num_bytes for core in scene.cores] == [0, 0]
    assert [core.datasets.preparing_bytes for core in scene.cores] == [0, 0]


@pytest.mark.parametrize("is_bucket", [False])
def test_a_file_that_no_helper_wrote_does_not_end_a_sweep_and_stays(scene: Scene) -> None:
    scene.seal(RECORDS)
    folder = scene.parties[0].data / "datasets"
    for name in ("notes.txt.sealed", f"{'ab' * 31}.sealed", "notes.txt"):
        (folder / name).write_bytes(b"of somebody else")
    pass_time(scene, EXPIRED_KEPT_S + scene.task.expires_at - NOW)
    assert sweep(scene)[1] == 2
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("is_bucket", [True])
def test_objects_of_a_preparation_that_was_given_up_go_at_once(scene: Scene, store: InMemory) -> None:
    scene.prepare(scene.reports(RECORDS))
    assert store.objects
    for core in scene.cores:
        for _ in range(2):
            core.datasets.prepare(scene.task_id, b"h" * 16, None).finish()  # pushes the other one out
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "delete", _away, raising=False)
            patch.setattr(objects, "FIRST_WAIT_S", 0.0)
            with pytest.raises(HelperUnavailable):
                core.datasets.vault.delete_dropped()
        assert core.datasets.vault.delete_dropped() > 0
        assert core.datasets.vault.delete_dropped() == 0
    assert not store.objects


@STORES
def test_a_commit_in_doubt_that_nobody_repeats_is_prepared_anew_after_a_day(
    scene: Scene, is_bucket: bool
) -> None:
    prepared = scene.prepare(scene.reports(RECORDS))
    core = scene.cores[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core.datasets.ledger, "add_dataset", _power_cut)
        with pytest.raises(PowerCut):
            core.datasets.commit(scene.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None)
    pass_time(scene, ORPHAN_S)
    assert core.sweeper.sweep().orphans > 0
    with pytest.raises(JobRefused) as caught:
        core.datasets.commit(scene.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None)
    assert caught.value.reason is JobReason.UNKNOWN_DATASET
    scene.commit(scene.prepare(scene.reports(RECORDS)))


@STORES
def test_a_dataset_goes_a_week_after_its_task_but_not_while_a_job_is_open(
    scene: Scene, store: InMemory, is_bucket: bool
) -> None:
    dataset = scene.seal(RECORDS)
    spec = scene.job(dataset, rounds=2)
    scene.start(spec)
    sweep(scene)
    before = held(scene, store)
    pass_time(scene, scene.task.expires_at - NOW + EXPIRED_KEPT_S)
    assert sweep(scene) == (0, 0)
    assert scene.run(spec, 0).tolist() == scene.plain_sum(RECORDS)  # resumed long after the task's end
    for core in scene.cores:
        core.jobs.close(canonical.encode(spec), None)
    pass_time(scene, -1)
    assert sweep(scene) == (0, 0)
    assert held(scene, store) == before
    pass_time(scene, 1)
    assert sweep(scene) == (0, 2)
    assert held(scene, store) == 0
    scene.restart(segments=None)  # nothing is in a bucket any more
    assert scene.cores[0].counts().datasets == 1


@STORES
def test_no_job_begins_over_a_dataset_that_may_be_swept(scene: Scene, is_bucket: bool) -> None:
    dataset = scene.seal(RECORDS)
    pass_time(scene, scene.task.expires_at - NOW)
    with pytest.raises(JobRefused) as caught:
        scene.start(scene.job(dataset))
    assert caught.value.reason is JobReason.TASK_EXPIRED


@STORES
def test_a_ledger_that_was_rolled_back_sweeps_nothing(scene: Scene, store: InMemory, is_bucket: bool) -> None:
    crash_in_commit(scene, is_bucket, store)
    pass_time(scene, ORPHAN_S)
    before = held(scene, store)
    scene.cores[0].witness._seen = Position(sequence=99, head=bytes(32))  # what the ledger does not know
    with pytest.raises(JobRefused) as caught:
        scene.cores[0].sweeper.sweep()
    assert caught.value.reason is JobReason.LEDGER_ROLLED_BACK
    assert held(scene, store) == before


@STORES
def test_what_another_ledger_may_name_is_no_orphan_of_a_new_one(
    scene: Scene, store: InMemory, is_bucket: bool
) -> None:
    """An operator starts with the keys and datasets, and forgets which ledger they belong to."""
    scene.seal(RECORDS)
    sweep(scene)
    before = held(scene, store)
    pass_time(scene, 10 * ORPHAN_S)
    for party, core in zip(scene.parties, scene.cores, strict=True):
        core.tasks._ledger.close()
        for path in party.data.glob("ledger.sqlite3*"):
            path.rename(path.with_name(f"forgotten-{path.name}"))
    scene.restart(segments=store if is_bucket else None)
    assert sweep(scene) == (0, 0)
    assert held(scene, store) == before


@STORES
def test_a_sweep_that_is_to_stop_removes_nothing_more(scene: Scene, store: InMemory, is_bucket: bool) -> None:
    crash_in_commit(scene, is_bucket, store)
    pass_time(scene, ORPHAN_S)
    before = held(scene, store)
    assert scene.cores[0].sweeper.sweep(lambda: True).orphans == 0
    assert held(scene, store) == before


@pytest.mark.parametrize("is_bucket", [False])
def test_a_sweep_that_is_to_stop_looks_at_no_dataset_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        scene.seal(5, seed=seed)
    sweeper, looks, fates = scene.cores[0].sweeper, list[int](), list[bytes]()
    monkeypatch.setattr(type(sweeper), "_fate", lambda _, dataset: fates.append(dataset))

    def stops_at(number: int) -> int:
        looks.clear()
        fates.clear()
        sweeper._expire_objects(lambda: looks.append(1) or len(looks) >= number)  # type: ignore[func-returns-value]
        return len(looks)

    assert [(stops_at(number), len(fates)) for number in (1, 2, 9)] == [(1, 0), (2, 1), (3, 3)]


@pytest.mark.parametrize("is_bucket", [True])
def test_helpers_that_share_a_bucket_leave_each_others_objects_alone(scene: Scene, store: InMemory) -> None:
    dataset = scene.seal(RECORDS)
    store.put("other/file", b"x")
    pass_time(scene, 10 * ORPHAN_S)
    sweep(scene)
    assert "other/file" in store.objects
    assert [len(core.datasets.open(dataset)) for core in scene.cores] == [RECORDS, RECORDS]


@pytest.mark.parametrize("is_bucket", [False], ids=["files"])
def test_a_dataset_whose_task_is_not_in_the_ledger_is_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = scene.seal(RECORDS)
    sweeper = scene.cores[0].sweeper
    monkeypatch.setattr(type(sweeper.ledger), "task", lambda *_: None)
    scene.parties[0].now += 100 * EXPIRED_KEPT_S
    assert sweeper._fate(dataset).name == "KEPT"


@pytest.mark.parametrize("is_bucket", [False])
@pytest.mark.parametrize(
    ("after_s", "has_open_job", "fate"),
    [(-0.001, False, "KEPT"), (0.0, False, "EXPIRED"), (9e9, False, "EXPIRED"), (0.0, True, "KEPT")],
)
def test_a_dataset_expires_so_long_after_its_task_unless_a_job_is_open(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, after_s: float, has_open_job: bool, fate: str
) -> None:
    dataset, ledger = scene.seal(5), scene.cores[0].sweeper.ledger
    ends_s = scene.task.expires_at + 1_000.0
    sweeper = replace(scene.cores[0].sweeper, keep_expired_s=1_000.0, clock=lambda: ends_s + after_s)
    monkeypatch.setattr(ledger, "has_open_job", lambda asked: asked == dataset and has_open_job)
    assert sweeper._fate(dataset).name == fate
    assert sweeper._fate(bytes(32)).name == "ORPHAN"
    assert [sweeper._is_old(ends_s + after_s - age_s) for age_s in (86_399.0, 86_401.0)] == [False, True]


@pytest.mark.parametrize("is_bucket", [False])
@pytest.mark.parametrize(("orphans", "expired"), [(0, 0), (2, 0), (0, 3), (2, 3)])
def test_a_sweep_is_logged_if_it_removed_anything(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    orphans: int,
    expired: int,
) -> None:
    sweeper = scene.cores[0].sweeper
    monkeypatch.setattr(type(sweeper), "_expire_objects", lambda *_: expired)
    monkeypatch.setattr(type(sweeper), "_remove_orphans", lambda *_: orphans)
    caplog.set_level("INFO")
    swept = sweeper.sweep()
    assert (swept.orphans, swept.expired) == (orphans, expired)
    told = [one.getMessage() for one in caplog.records if "swept" in one.getMessage()]
    wanted = f"swept: {orphans} orphans, {expired} datasets of tasks that are over"
    assert told == ([wanted] if orphans or expired else [])
