import errno
import threading
import time
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from numpy.typing import NDArray

from helper.core import HelperCore
from helper.datasets import sealed_segments, segment_store, segments
from helper.datasets import vault as vault_module
from helper.datasets.datasets import Datasets
from helper.datasets.frames import SealedSegment, open_segment
from helper.datasets.preparation_cache import Handle
from helper.datasets.segment_writer import SegmentWriter
from helper.datasets.sweeping import EXPIRED_KEPT_S, ORPHAN_S
from helper.datasets.vault import Vault, VaultDamaged, distinguish_damage
from helper.ledger.ledger import Ledger
from helper.ledger.records import Manifest
from maskedlark.audit_log import THIS_SERVICE, Actor
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.interrupt import never
from maskedlark.rpc.trust import host_of
from maskedlark.runtime import objects as objects_module
from maskedlark.runtime.disk import LEAST_FREE_BYTES
from maskedlark.runtime.objects import ObjectLost, Retrying, StoreFailed
from tests.builders import shares_for
from tests.helper.parties import NUM_VALUES, Scene
from tests.refusals import refused
from tests.stores import Faulty, FilesAsObjects, InMemory

SEGMENT = 4
RECORDS = 10
PLACES = pytest.mark.parametrize("is_bucket", [False, True], ids=["folder", "bucket"])


@pytest.fixture
def store() -> InMemory:
    return InMemory()


@pytest.fixture
def is_bucket() -> bool:
    return True


@pytest.fixture
def scene(tmp_path: Path, store: InMemory, is_bucket: bool, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Both helpers keep their datasets in one bucket, or in their folders, in segments of four records."""
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", SEGMENT)
    monkeypatch.setattr(objects_module, "FIRST_WAIT_S", 0.0)
    made = Scene(tmp_path)
    made.restart(segments=store if is_bucket else None)
    return made


@pytest.fixture
def stored(scene: Scene, store: InMemory, is_bucket: bool) -> MutableMapping[str, bytes]:
    """What is at rest, by name."""
    return store.objects if is_bucket else FilesAsObjects(*(one.data / "datasets" for one in scene.parties))


def uncached(scene: Scene) -> None:
    """Every round reads the store."""
    for core in scene.cores:
        core.datasets.kept.capacity_bytes = 0


def names(scene: Scene, dataset: bytes, role: int = 0) -> Manifest:
    return scene.cores[role].tasks._ledger.manifests.of(dataset)


def reason(scene: Scene, dataset: bytes) -> JobReason:
    with pytest.raises(JobRefused) as caught:
        list(scene.cores[0].datasets.pieces(dataset))
    return caught.value.reason


def test_a_dataset_in_a_bucket_is_the_one_in_a_folder(scene: Scene, store: InMemory, tmp_path: Path) -> None:
    dataset = scene.seal(RECORDS)
    for core in scene.cores:
        core.sweeper.sweep()
    assert len(store.objects) == 2 * 2 * 3
    assert not list(tmp_path.rglob("*.sealed"))
    other = Scene(tmp_path / "files")
    for role, core in enumerate(scene.cores):
        assert len(names(scene, dataset, role)) == 6
        opened = core.datasets.open(dataset)
        assert (np.diff([int.from_bytes(one.tobytes()[:6], "big") for one in opened.report_ids]) >= 0).all()
    uncached(scene)
    sums = []
    for one, its in ((scene, dataset), (other, other.seal(RECORDS))):
        spec = one.job(its)
        one.start(spec)
        sums.append(one.run(spec, 0).tolist())
    assert sums == [scene.plain_sum(RECORDS)] * 2


def test_names_and_salts_are_fresh_for_each_attempt(scene: Scene, store: InMemory) -> None:
    reports = scene.reports(RECORDS)
    scene.prepare(reports)
    first = dict(store.objects)
    scene.prepare(reports, handle=b"i" * 16)
    assert len(store.objects) == 2 * len(first)
    assert len(set(store.objects.values())) == len(store.objects)
    folders = {name.split("/")[0] for name in store.objects}
    assert len(folders) == 2  # one of each helper


def test_a_restarted_helper_reads_its_bucket_and_refuses_to_serve_without_it(
    scene: Scene, store: InMemory
) -> None:
    dataset = scene.seal(RECORDS)
    scene.restart(segments=store)
    assert len(scene.cores[0].datasets.open(dataset)) == RECORDS
    with pytest.raises(InvalidTask, match="--segments"):
        scene.restart()


def test_a_helper_that_was_given_a_bucket_reads_what_it_has_in_its_folder(
    tmp_path: Path, store: InMemory
) -> None:
    scene = Scene(tmp_path)
    dataset = scene.seal(RECORDS)
    scene.restart(segments=store)
    assert len(scene.cores[0].datasets.open(dataset)) == RECORDS
    newer = scene.seal(RECORDS, seed=1)
    assert len(scene.cores[0].datasets.open(newer)) == RECORDS
    assert store.objects


Damage = Callable[[MutableMapping[str, bytes], Sequence[str], Sequence[str]], None]


def cut(stored: MutableMapping[str, bytes], ours: Sequence[str], _: Sequence[str]) -> None:
    stored[ours[0]] = stored[ours[0]][:-1]


def empty(stored: MutableMapping[str, bytes], ours: Sequence[str], _: Sequence[str]) -> None:
    stored[ours[2]] = b""


def extend(stored: MutableMapping[str, bytes], ours: Sequence[str], _: Sequence[str]) -> None:
    stored[ours[3]] += b"\0"


def lose_records(stored: MutableMapping[str, bytes], ours: Sequence[str], _: Sequence[str]) -> None:
    del stored[ours[0]]


def lose_ranks(stored: MutableMapping[str, bytes], ours: Sequence[str], _: Sequence[str]) -> None:
    del stored[ours[5]]


def swap(stored: MutableMapping[str, bytes], ours: Sequence[str], _: Sequence[str]) -> None:
    stored[ours[0]], stored[ours[2]] = stored[ours[2]], stored[ours[0]]


def of_another(stored: MutableMapping[str, bytes], ours: Sequence[str], others: Sequence[str]) -> None:
    stored[ours[0]] = stored[others[0]]


def flip(stored: MutableMapping[str, bytes], ours: Sequence[str], _: Sequence[str]) -> None:
    damaged = bytearray(stored[ours[0]])
    damaged[-1] ^= 1
    stored[ours[0]] = bytes(damaged)


@PLACES
@pytest.mark.parametrize("damage", [cut, empty, extend, lose_records, lose_ranks, swap, of_another, flip])
def test_objects_that_are_not_what_was_put_are_a_lost_dataset(
    scene: Scene, stored: MutableMapping[str, bytes], damage: Damage
) -> None:
    dataset, other = scene.seal(RECORDS), scene.seal(RECORDS, seed=1)
    uncached(scene)
    damage(
        stored,
        [one.name for one in names(scene, dataset)],
        [one.name for one in names(scene, other)],
    )
    assert reason(scene, dataset) is JobReason.DATASET_LOST
    assert len(scene.cores[0].datasets.open(other)) == RECORDS


READERS: dict[str, Callable[[Datasets, bytes, bytes], Any]] = {
    "open": lambda datasets, dataset, _: datasets.open(dataset),
    "labels": lambda datasets, dataset, _: datasets.labels(dataset),
    "pieces": lambda datasets, dataset, _: list(datasets.pieces(dataset)),
    "records": lambda datasets, dataset, task: list(datasets.records(dataset, task).pieces(never)),
    "sealed": lambda datasets, dataset, task: [
        one.read() for one in datasets.records(dataset, task).sealed(never)
    ],
}


@PLACES
@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whoever_reads_a_lost_dataset_is_told_so_and_the_operator_where(
    scene: Scene,
    stored: MutableMapping[str, bytes],
    caplog: pytest.LogCaptureFixture,
    is_small: bool,
    read: Callable[[Datasets, bytes, bytes], Any],
) -> None:
    dataset, datasets = scene.seal(RECORDS), scene.cores[0].datasets
    if not is_small:
        uncached(scene)
    for one in names(scene, dataset):
        del stored[one.name]
    with refused(JobReason.DATASET_LOST, match="shares of the dataset are lost or damaged"):
        read(datasets, dataset, scene.task_id)
    (logged,) = {record.getMessage() for record in caplog.records if record.levelname == "ERROR"}
    assert logged.startswith(f"dataset {dataset.hex()}: a stored dataset cannot be read: ")
    files = {
        shown for one in names(scene, dataset) for shown in (one.name, f"{one.name.replace('/', '.')}.sealed")
    }
    assert logged.rpartition(" (")[2].removesuffix(")") in files


def test_a_dataset_that_two_threads_ask_for_at_once_is_read_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, datasets = scene.seal(RECORDS), scene.cores[0].datasets
    second, opened, reads = threading.Event(), [], 0
    found = Vault.read

    def read(self: Vault, *given: Any, **how: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads > 1:
            second.set()
        else:
            other.start()
            second.wait(0.2)  # the other one comes in here, if it can
        return found(self, *given, **how)

    other = threading.Thread(target=lambda: opened.append(datasets.open(dataset)))
    monkeypatch.setattr(Vault, "read", read)
    opened.append(datasets.open(dataset))
    other.join()
    assert reads == 1
    assert opened[0] is opened[1]


@PLACES
@pytest.mark.parametrize("rows", ["records", "ranks", "both"])
def test_a_ledger_whose_rows_name_another_attempt_gives_no_sum(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    """The seals hold by themselves, also if the digests do not tell."""
    dataset, other = scene.seal(RECORDS), scene.seal(RECORDS, seed=1)
    uncached(scene)
    ours, theirs = names(scene, dataset), names(scene, other)
    mixed = tuple(
        their if rows == "both" or own.holds_ranks == (rows == "ranks") else own
        for own, their in zip(ours, theirs, strict=True)
    )
    manifests = type(scene.cores[0].tasks._ledger.manifests)
    monkeypatch.setattr(manifests, "of", lambda *_: mixed)
    assert reason(scene, dataset) is JobReason.DATASET_LOST


@PLACES
@pytest.mark.parametrize("kept", [slice(2, None), slice(0, -2), slice(1, None), slice(0, 0)])
def test_a_manifest_that_lost_rows_gives_no_sum(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, kept: slice
) -> None:
    dataset = scene.seal(RECORDS)
    uncached(scene)
    left = names(scene, dataset)[kept]
    monkeypatch.setattr(type(scene.cores[0].tasks._ledger.manifests), "of", lambda *_: left)
    assert reason(scene, dataset) is JobReason.DATASET_LOST


def test_a_bucket_that_does_not_answer_is_unavailable_and_not_lost(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = scene.seal(RECORDS)
    uncached(scene)

    def away(*_: Any) -> bytes:
        raise StoreFailed("Timeout")

    with monkeypatch.context() as during:
        during.setattr(store, "get", away, raising=False)
        with pytest.raises(HelperUnavailable, match="object storage"):
            list(scene.cores[0].datasets.pieces(dataset))
    assert sum(len(piece.ranks) for piece in scene.cores[0].datasets.pieces(dataset)) == RECORDS


@PLACES
def test_a_full_segment_leaves_memory_before_the_next_one_comes(
    scene: Scene, stored: MutableMapping[str, bytes]
) -> None:
    held, put = [], SegmentWriter.add

    def watched(writer: SegmentWriter, rows: Any) -> None:
        put(writer, rows)
        held.append(writer.waiting)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentWriter, "add", watched)
        scene.prepare(scene.reports(RECORDS), chunk=1)
    assert max(held) < SEGMENT
    assert len(stored) == 3 * 2  # of both helpers, and of the tests' own preparation


class PowerCut(BaseException):
    """The process is gone."""


class Puts:
    """Ends the process before or after so many puts, to a bucket or a folder."""

    def __init__(self, after: int) -> None:
        self._left = after

    def around(self, put: Callable[..., Any]) -> Callable[..., Any]:
        def cutting(*given: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise PowerCut
            return put(*given)

        return cutting


@PLACES
@pytest.mark.parametrize("after", range(15))
def test_a_crash_at_any_put_leaves_a_whole_dataset_or_orphans(
    scene: Scene, store: InMemory, stored: MutableMapping[str, bytes], is_bucket: bool, after: int
) -> None:
    with suppress(PowerCut), pytest.MonkeyPatch.context() as during:
        kind = InMemory if is_bucket else segment_store.FolderStore
        name = "put" if is_bucket else "put_fresh"
        during.setattr(kind, name, Puts(after).around(getattr(kind, name)))
        scene.commit(scene.prepare(scene.reports(RECORDS)))
    scene.restart(segments=store if is_bucket else None)
    named, committed = set(), 0
    for core in scene.cores:
        for dataset in core.tasks._ledger.manifests.dataset_ids():
            named |= {one.name for one in core.tasks._ledger.manifests.of(dataset)}
            assert sum(len(piece.ranks) for piece in core.datasets.vault.pieces(dataset)) == RECORDS
            committed += 1
    for party, core in zip(scene.parties, scene.cores, strict=True):
        party.now = max(time.time(), party.now) + 2 * ORPHAN_S
        core.sweeper.sweep()
    assert committed == core_count(after)
    assert set(stored) == named


def core_count(after: int) -> int:
    """How many helpers commit: 6 puts prepare at both and in the tests' own way, and 4 commit at each."""
    return (after >= 10) + (after >= 14)


class Away(Ledger):
    """A ledger that commits a dataset and does not say so, or does not, the first time."""

    failures = 1
    is_committed = False

    def add_dataset(
        self,
        dataset_id: bytes,
        task_id: bytes,
        report_ids: Sequence[bytes],
        manifest: Manifest = (),
        actor: Actor = THIS_SERVICE,
    ) -> None:
        if self.failures:
            self.failures -= 1
            if self.is_committed:
                super().add_dataset(dataset_id, task_id, report_ids, manifest, actor)
            raise HelperUnavailable("the helper's database does not answer; ask again")
        super().add_dataset(dataset_id, task_id, report_ids, manifest, actor)


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_commit_that_the_ledger_did_not_answer_is_repeated_with_the_same_objects(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    monkeypatch.setattr(Away, "is_committed", is_committed)
    scene.restart(ledger_type=Away, segments=store)
    prepared = scene.prepare(scene.reports(RECORDS))
    for core in scene.cores:
        with pytest.raises(HelperUnavailable):
            core.datasets.commit(scene.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None)
    count = len(store.objects)
    dataset = scene.commit(prepared)
    assert len(store.objects) == count
    scene.restart(segments=store)
    assert len(scene.cores[0].datasets.open(dataset)) == RECORDS


@pytest.mark.parametrize("is_disjoint", [False, True])
def test_a_commit_in_doubt_is_not_undone_by_another_choice_of_the_same_preparation(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch, is_disjoint: bool
) -> None:
    monkeypatch.setattr(Away, "is_committed", True)
    scene.restart(ledger_type=Away, segments=store)
    reports = scene.reports(RECORDS)
    prepared, core = scene.prepare(reports), scene.cores[0]
    chosen = np.arange(RECORDS) < SEGMENT
    others = np.roll(chosen, SEGMENT) if is_disjoint else chosen | np.roll(chosen, 1)
    first, second = (scene.id_of(reports, one) for one in (chosen, others))

    def commit(of: NDArray[np.bool_], expected_id: bytes) -> None:
        bits = np.packbits(of, bitorder="little").tobytes()
        core.datasets.commit(scene.task_id, prepared.handle, bits, expected_id, None)

    with pytest.raises(HelperUnavailable):
        commit(chosen, first)
    with pytest.raises(JobRefused) as refused:
        commit(others, second)
    assert refused.value.reason is JobReason.UNKNOWN_DATASET
    with core.datasets.prepare(scene.task_id, prepared.handle, None) as newer:
        newer.finish()  # takes the handle, and what it held is dropped
    core.datasets.vault.delete_dropped()
    uncached(scene)
    assert sum(len(piece.ranks) for piece in core.datasets.pieces(first)) == SEGMENT


def test_a_put_that_fails_for_good_can_be_tried_again_later(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = scene.prepare(scene.reports(RECORDS))

    def away(*_: Any) -> None:
        raise StoreFailed("Timeout")

    with monkeypatch.context() as during:
        during.setattr(store, "put", away, raising=False)
        with pytest.raises(HelperUnavailable):
            scene.commit(prepared)
    dataset = scene.commit(prepared)
    assert len(scene.cores[0].datasets.open(dataset)) == RECORDS


@pytest.mark.parametrize(("damaged", "is_compared"), [(0.0, True), (0.02, True), (0.02, False)])
def test_rounds_over_a_faulty_bucket_give_no_wrong_sum(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch, damaged: float, is_compared: bool
) -> None:
    """Digests tell what is damaged, and lets it be read again; without them the seals do."""
    if not is_compared:
        monkeypatch.setattr(Retrying, "read_exactly", lambda store, name, *_: store.get(name, 1 << 20))
    dataset, rounds = scene.seal(RECORDS), 200 if is_compared else 50
    faulty = Faulty(store, seed=7, fails=0.05, cuts=damaged, swaps=damaged)
    scene.restart(segments=faulty)
    uncached(scene)
    spec = scene.job(dataset, rounds=rounds)
    scene.start(spec)
    expected, right, wrong = scene.plain_sum(RECORDS), 0, 0
    refusals = set[JobReason | None]()
    for number in range(rounds):
        while True:
            try:
                found = scene.run(spec, number).tolist()
                break
            except (HelperUnavailable, JobRefused) as error:
                refusals.add(getattr(error, "reason", None))
        right += found == expected
        wrong += found != expected
    assert (right, wrong) == (rounds, 0)
    assert refusals <= {None, JobReason.DATASET_LOST}
    assert faulty.faults > 20
    assert len(expected) == NUM_VALUES


@PLACES
def test_a_reader_that_leaves_ends_the_reading(scene: Scene) -> None:
    dataset = scene.seal(RECORDS)
    uncached(scene)

    def leave() -> None:
        raise PowerCut

    with pytest.raises(PowerCut):
        list(scene.cores[0].datasets.pieces(dataset, leave))


@PLACES
def test_nothing_of_a_dataset_is_at_rest_in_clear(scene: Scene, stored: MutableMapping[str, bytes]) -> None:
    dataset = scene.seal(RECORDS)
    together = b"".join(stored.values())
    opened = scene.cores[0].datasets.open(dataset)

    def found(rows: Iterable[Any]) -> bool:
        return any(row.tobytes() in together for row in rows)

    assert not found(opened.report_ids)
    assert not found(opened.shares.mask_shares)


def sealed_of(scene: Scene, dataset: bytes) -> Sequence[SealedSegment]:
    return scene.cores[0].datasets.records(dataset, scene.task_id).sealed(never)


@PLACES
def test_sealed_segments_open_to_the_records_of_the_dataset(scene: Scene) -> None:
    reports = scene.reports(3 * SEGMENT)
    prepared = scene.prepare(reports)
    chosen = np.ones(3 * SEGMENT, np.bool_)
    chosen[[0, SEGMENT, SEGMENT + 1, SEGMENT + 2, SEGMENT + 3]] = False  # of the second segment nothing
    dataset = scene.commit(replace(prepared, chosen=chosen, dataset_id=scene.id_of(reports, chosen)))
    uncached(scene)
    sealed, pieces = sealed_of(scene, dataset), list(scene.cores[0].datasets.pieces(dataset))
    assert [one.place.number for one in sealed] == [0, 2]
    assert [int(one.is_chosen.sum()) for one in sealed] == [SEGMENT - 1, SEGMENT]
    for one, piece in zip(sealed, pieces, strict=True):
        opened = open_segment(one.shape, one.place, one.key, one.read()).chosen(one.ranks)
        np.testing.assert_array_equal(opened.ranks, piece.ranks)
        np.testing.assert_array_equal(opened.rows.report_ids, piece.rows.report_ids)
        np.testing.assert_array_equal(opened.shares.features, piece.shares.features)
        np.testing.assert_array_equal(opened.shares.mask_shares, piece.shares.mask_shares)


def test_sealed_segments_end_when_the_caller_has_gone(scene: Scene) -> None:
    dataset = scene.seal(RECORDS)

    def gone() -> None:
        raise JobRefused(JobReason.CANCELLED, "the caller has gone")

    with pytest.raises(JobRefused) as caught:
        scene.cores[0].datasets.records(dataset, scene.task_id).sealed(gone)
    assert caught.value.reason is JobReason.CANCELLED


@PLACES
def test_segments_of_fewer_records_than_were_committed_are_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, describe = scene.seal(RECORDS), sealed_segments.describe_segment
    uncached(scene)

    def without_the_first(*given: Any, **named: Any) -> SealedSegment:
        one = describe(*given, **named)
        return replace(one, ranks=np.append(segments.NOT_CHOSEN, one.ranks[1:]))

    monkeypatch.setattr(vault_module, "describe_segment", without_the_first)
    with pytest.raises(JobRefused) as caught:
        sealed_of(scene, dataset)
    assert caught.value.reason is JobReason.DATASET_LOST
    assert reason(scene, dataset) is JobReason.DATASET_LOST


# --- what the quota counts


def folder_of(core: HelperCore) -> str:
    return core.datasets.vault._folder


def stored_bytes(store: InMemory) -> int:
    return sum(map(len, store.objects.values()))


def test_objects_that_were_given_up_count_until_they_are_deleted(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, shares = scene.cores[0], shares_for(scene.reports(RECORDS), 0)
    with core.datasets.prepare(scene.task_id, b"h" * 16, None) as preparation:
        preparation.add(shares)
    assert core.quota.num_bytes == stored_bytes(store) > 0
    with monkeypatch.context() as during:
        during.setattr(InMemory, "delete", _away)
        with pytest.raises(HelperUnavailable):
            core.datasets.vault.delete_dropped()
    assert core.quota.num_bytes == stored_bytes(store) > 0
    core.datasets.vault.delete_dropped()
    assert core.quota.num_bytes == stored_bytes(store) == 0


def test_every_try_of_a_put_counts_until_what_it_may_have_written_is_deleted(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, shares, put = scene.cores[0], shares_for(scene.reports(SEGMENT), 0), InMemory.put

    def put_and_fail(store: InMemory, name: str, content: bytes) -> None:
        put(store, name, content)
        raise StoreFailed("Timeout")

    with core.datasets.prepare(scene.task_id, b"h" * 16, None) as preparation:
        with monkeypatch.context() as during:
            during.setattr(InMemory, "put", put_and_fail)
            with pytest.raises(HelperUnavailable):
                preparation.add(shares)
        assert len(store.objects) == objects_module.MAX_TRIES
        assert core.quota.num_bytes >= stored_bytes(store)
    assert core.quota.num_bytes == stored_bytes(store) > 0
    core.datasets.vault.delete_dropped()
    assert core.quota.num_bytes == stored_bytes(store) == 0


@pytest.mark.parametrize("is_committed", [False, True])
def test_objects_of_a_commit_that_the_ledger_did_not_answer_count_until_they_are_deleted(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    prepared, core, add = scene.prepare(scene.reports(RECORDS)), scene.cores[0], Ledger.add_dataset
    for name in [one for one in store.objects if not one.startswith(folder_of(core))]:
        del store.objects[name]  # the other helper's

    def unanswered(*given: Any) -> None:
        if is_committed:
            add(*given)
        raise HelperUnavailable("the helper's database does not answer; ask again")

    with monkeypatch.context() as during:
        during.setattr(Ledger, "add_dataset", unanswered)
        with pytest.raises(HelperUnavailable):
            core.datasets.commit(scene.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None)
    core.datasets.prepared.drop(Handle(owner="ads.example", task_id=scene.task_id, name=prepared.handle))
    assert core.quota.num_bytes == stored_bytes(store) > 0
    core.datasets.vault.delete_dropped()
    assert core.quota.num_bytes == stored_bytes(store) > 0
    for party in scene.parties:
        party.now = scene.task.expires_at + EXPIRED_KEPT_S
    swept = core.sweeper.sweep()
    assert (swept.expired, swept.orphans > 0) == (int(is_committed), not is_committed)
    assert core.quota.num_bytes == stored_bytes(store) == 0


def test_objects_of_an_expired_dataset_count_while_the_store_does_not_delete_them(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, core = scene.seal(RECORDS), scene.cores[0]
    core.datasets.vault.delete_dropped()
    before = core.quota.num_bytes
    for party in scene.parties:
        party.now = scene.task.expires_at + EXPIRED_KEPT_S
    with monkeypatch.context() as during:
        during.setattr(InMemory, "delete", _away)
        with pytest.raises(HelperUnavailable):
            core.sweeper.sweep()
    assert core.tasks._ledger.manifests.of(dataset) == ()
    assert core.quota.num_bytes == before > 0
    core.datasets.vault.delete_dropped()
    assert core.quota.num_bytes == 0
    assert not [name for name in store.objects if name.startswith(folder_of(core))]


def test_nothing_is_prepared_while_it_is_not_known_what_the_bucket_holds(
    scene: Scene, store: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.restart(segments=store)
    shares = shares_for(scene.reports(SEGMENT), 0)
    with monkeypatch.context() as during:
        during.setattr(InMemory, "list", _away)
        with pytest.raises(HelperUnavailable):
            scene.cores[0].datasets.prepare(scene.task_id, b"h" * 16, None).add(shares)
    assert store.objects == {}
    scene.cores[0].datasets.prepare(scene.task_id, b"h" * 16, None).add(shares)


def test_an_object_that_this_helper_did_not_put_is_of_no_ad_server(scene: Scene, store: InMemory) -> None:
    folder = folder_of(scene.cores[0])
    store.put(f"{folder}/notes.txt", b"of somebody else")
    scene.restart(segments=store)
    scene.seal(RECORDS)
    own = sum(len(content) for name, content in store.objects.items() if name.startswith(f"{folder}/"))
    assert scene.cores[0].quota.of("ads.example") == own - len(b"of somebody else")


def _away(*_: object) -> Any:
    raise StoreFailed("Timeout")


def test_a_committed_dataset_is_one_entry_of_the_quota_however_many_objects_it_has(scene: Scene) -> None:
    dataset, core = scene.seal(RECORDS), scene.cores[0]
    core.datasets.vault.delete_dropped()
    assert len(core.tasks._ledger.manifests.of(dataset)) > 1
    assert set(core.quota._held) == {dataset.hex()}


@PLACES
def test_what_is_stored_is_listed_once_to_be_counted(
    scene: Scene, store: InMemory, is_bucket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.seal(RECORDS)
    listed, found = list[int](), Vault.list_objects

    def counted(vault: Vault) -> Any:
        listed.append(1)
        return found(vault)

    monkeypatch.setattr(Vault, "list_objects", counted)
    scene.restart(segments=store if is_bucket else None)
    assert len(listed) == 2 * (not is_bucket)  # the folders are listed at once
    for _ in range(2):
        scene.prepare(scene.reports(3))
        assert len(listed) == 2
    assert scene.cores[0].quota.num_bytes > 0


def test_a_disk_that_is_full_is_unavailable_until_there_is_room_for_as_much_as_was_lacking(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault, asked = scene.cores[0].datasets.vault, []
    monkeypatch.setattr(
        vault_module, "check_room", lambda folder, num_bytes: asked.append((folder, num_bytes))
    )

    def fail(*_: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer: Any = SimpleNamespace(num_bytes=1 << 40, add=fail, store=fail)
    calls = (lambda: vault.add(writer, None), lambda: vault.commit(writer, bytes(32), None))  # type: ignore[arg-type]
    for call in calls:
        vault.check_room()
        with pytest.raises(HelperUnavailable, match=r"cannot store the dataset \(No space left on device\)"):
            call()
        vault.check_room()
        writer.store = lambda *_: ()
        assert vault.commit(writer, bytes(32), None) == ()  # type: ignore[arg-type]
        writer.store = fail
    least, folder = LEAST_FREE_BYTES, scene.parties[0].data / "datasets"
    assert asked == [(folder, least), (folder, 1 << 40)] * 2


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (FileNotFoundError(2, "No such file"), VaultDamaged, "cannot be read: FileNotFoundError"),
        (IsADirectoryError(21, "Is a directory"), VaultDamaged, "IsADirectoryError"),
        (InvalidTag(), VaultDamaged, "InvalidTag"),
        (ObjectLost("gone"), VaultDamaged, "ObjectLost"),
        (ValueError("secret"), VaultDamaged, "ValueError"),
        (
            OSError(5, "Input/output error"),
            HelperUnavailable,
            r"at the moment \(Input/output error\); ask again",
        ),
        (PermissionError(13, "Permission denied"), HelperUnavailable, "Permission denied"),
    ],
)
def test_what_is_damaged_is_told_from_what_cannot_be_read_at_the_moment(
    error: Exception, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told) as caught, distinguish_damage():
        raise error
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    if isinstance(caught.value, HelperUnavailable):
        assert caught.value.retry_after_s == objects_module.RETRY_AFTER_S


def test_a_dataset_that_expired_while_it_was_read_is_on_nobodys_account(scene: Scene) -> None:
    dataset, datasets = scene.seal(RECORDS), scene.cores[0].datasets
    assert datasets._owner(dataset) == "ads.example"
    assert datasets._owner(bytes(32)) == ""


def test_an_opened_dataset_is_kept_in_memory_on_its_own_ad_servers_account(scene: Scene) -> None:
    other = scene.tenant("https://other.example")
    for one in (scene, other):
        one.cores[0].datasets.open(one.seal(RECORDS))
    kept = scene.cores[0].datasets.kept._kept.values()
    assert [one.owner for one in kept] == [host_of(scene.task.origin), "other.example"]
