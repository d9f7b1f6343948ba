import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from helper.datasets import preparing, segments
from helper.datasets.preparation_cache import MAX_PREPARED_PER_TASK, PreparationCache
from helper.datasets.preparation_quota import HELD_BYTES, ON_DISK
from helper.datasets.preparing import MAX_CHUNK_BYTES
from helper.datasets.segment_store import FolderStore
from helper.datasets.segment_writer import SegmentWriter
from helper.ledger.ledger import Ledger
from helper.ledger.records import Manifest
from helper.serving.metrics import HelperMetrics
from maskedlark import canonical
from maskedlark.audit_log import THIS_SERVICE, Actor
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused, ReportReason
from maskedlark.numbers import field
from maskedlark.randomness import seeded
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener
from maskedlark.reports.sealing import SealingKey, share_info
from maskedlark.reports.task import VIEW_NONCE_BYTES, Task
from maskedlark.reports.upload import SealedShare, Sealer
from maskedlark.rpc.transport import MAX_MESSAGE_BYTES
from maskedlark.runtime import durable_file
from tests.builders import NOW, examples, shares_for, split
from tests.helper.parties import Scene, make_task
from tests.patience import HANGS_S

HANDLE = b"h" * 16


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def refusal(call: Callable[..., object], *given: object) -> JobReason:
    with pytest.raises(JobRefused) as refused:
        call(*given)
    return refused.value.reason


def stored_objects(scene: Scene, role: int) -> list[bytes]:
    scene.cores[role].datasets.vault.delete_dropped()
    return [path.read_bytes() for path in (scene.parties[role].data / "datasets").iterdir()]


# --- preparing


def test_both_helpers_hold_the_same_dataset_and_their_masks_add_up(scene: Scene) -> None:
    dataset = scene.seal(30)
    first, second = (core.datasets.open(dataset) for core in scene.cores)
    np.testing.assert_array_equal(first.report_ids, second.report_ids)
    np.testing.assert_array_equal(first.shares.features, second.shares.features)
    sums = field.add(first.shares.mask_shares, second.shares.mask_shares)
    assert sorted(sums.ravel().tolist()) == [0] * 30 + [1] * 30


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_the_dataset_does_not_depend_on_the_chunks(scene: Scene, chunk: int) -> None:
    reports = scene.reports(20)
    assert scene.prepare(reports, chunk=chunk).dataset_id == scene.id_of(reports, np.ones(20, np.bool_))


def test_the_totals_name_the_dataset_that_all_admitted_reports_would_make(scene: Scene) -> None:
    reports = scene.reports(5)
    preparation = scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None)
    bad = replace(shares_for(reports, 0)[2], report_id=b"x" * 16)
    preparation.add([*shares_for(reports, 0)[:2], bad, *shares_for(reports, 0)[3:]])
    totals = preparation.finish()
    chosen = np.array([True, True, False, True, True])
    assert (totals.received, totals.admitted, totals.dropped) == (5, 4, Counter({ReportReason.NOT_OPENED: 1}))
    assert totals.admitted_digest == scene.id_of(reports, chosen)


def test_preparing_nothing_gives_empty_totals(scene: Scene) -> None:
    totals = scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None).finish()
    assert (totals.received, totals.admitted, totals.dropped) == (0, 0, Counter())


def sealed_plaintext(scene: Scene, plaintext: bytes, report_id: bytes) -> ShareForHelper:
    """A share of any plaintext, sealed as a browser would."""
    key = SealingKey(scene.bundle.key_lists[0].key_list.keys[0])
    bucket = scene.task.time_bucket(NOW)
    info = share_info(
        task_id=scene.task_id, report_id=report_id, time_bucket=bucket, role=0, key_id=key.key_id
    )
    return ShareForHelper(
        report_id=report_id,
        time_bucket=bucket,
        share=SealedShare(key_id=key.key_id, ciphertext=key.seal(plaintext, info)),
    )


def plaintext_of(task: Task) -> bytearray:
    return bytearray(split(task, examples(task, 1)[0], seeded(3)).share_0)


def hostile_shares(scene: Scene) -> dict[ReportReason, ShareForHelper]:
    """For each reason that a helper can drop a share for, a share of that kind (the two about repeats are
    tested below)."""
    honest = shares_for(scene.reports(1), 0)[0]
    labels_start = 1 + VIEW_NONCE_BYTES + scene.task.num_features

    def altered(start: int, content: bytes, number: int) -> ShareForHelper:
        plaintext = plaintext_of(scene.task)
        plaintext[start : start + len(content)] = content
        return sealed_plaintext(scene, bytes(plaintext), bytes([number]) * 16)

    ordinary = {
        ReportReason.MALFORMED: replace(honest, report_id=b"short"),
        ReportReason.WRONG_LENGTH: replace(
            honest, share=replace(honest.share, ciphertext=honest.share.ciphertext[:-30])
        ),
        ReportReason.UNKNOWN_KEY: replace(honest, share=replace(honest.share, key_id=77)),
        ReportReason.NOT_OPENED: replace(honest, time_bucket=honest.time_bucket + 1),
        ReportReason.OUTSIDE_TASK_PERIOD: replace(honest, time_bucket=0),
        ReportReason.WRONG_VERSION: altered(0, b"\x02", 1),
        ReportReason.LABEL_OUTSIDE_TASK: altered(labels_start, (9).to_bytes(4, "little"), 2),
        ReportReason.LABELS_REPEAT: altered(labels_start, bytes(8), 3),
        ReportReason.MASK_NOT_CANONICAL: altered(labels_start + 8, b"\xff" * 8, 4),
    }
    assert set(ordinary) == set(ReportReason) - {
        ReportReason.WRONG_TASK,  # the ad server's to see; a share of another task does not open
        ReportReason.DEFAULT_LABEL_MISSING,  # needs a third label, see below
        ReportReason.KEY_OUTSIDE_TASK,  # needs a measurement, see test_measurement_reports.py
        ReportReason.NOT_PROVEN,  # the ad server's to see, by two tags that differ
        ReportReason.IMPLAUSIBLE,  # the ad server's, of models that clear devices return
        ReportReason.UNKNOWN_ROUND,  # the ad server's, of updates
        ReportReason.ROUND_OVER,  # the same
        ReportReason.ROUND_CHANGED,  # a device's own
        ReportReason.CAP_REACHED,  # the same
        ReportReason.DUPLICATE_ID,
        ReportReason.ALREADY_USED,
    }
    return ordinary


def test_each_kind_of_wrong_share_is_dropped_for_its_reason_and_the_others_stand(scene: Scene) -> None:
    hostile = hostile_shares(scene)
    honest = shares_for(scene.reports(3, seed=5), 0)
    preparation = scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None)
    admitted = preparation.add([*hostile.values(), *honest])
    assert admitted.is_admitted.tolist() == [False] * len(hostile) + [True] * 3
    assert not admitted.view_tags[: len(hostile)].any()
    assert preparation.finish().dropped == Counter(dict.fromkeys(hostile, 1))


def test_a_share_without_the_default_label_is_dropped(tmp_path: Path) -> None:
    scene = Scene(tmp_path, labels={"kind": "classes", "size": 3, "default_label": 0})
    plaintext = plaintext_of(scene.task)
    labels_start = 1 + VIEW_NONCE_BYTES + scene.task.num_features
    plaintext[labels_start : labels_start + 8] = (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
    preparation = scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None)
    assert preparation.add([sealed_plaintext(scene, bytes(plaintext), b"r" * 16)]).dropped == {
        ReportReason.DEFAULT_LABEL_MISSING: 1
    }


def test_swapped_roles_do_not_open(scene: Scene) -> None:
    preparation = scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None)
    assert preparation.add(shares_for(scene.reports(2), 1)).dropped == {ReportReason.NOT_OPENED: 2}


def test_repeats_are_dropped_within_a_chunk_and_between_chunks(scene: Scene) -> None:
    shares = shares_for(scene.reports(3), 0)
    preparation = scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None)
    assert preparation.add([shares[0], shares[1], shares[0]]).is_admitted.tolist() == [True, True, False]
    second = preparation.add([shares[1], shares[2]])
    assert second.is_admitted.tolist() == [False, True]
    assert not second.view_tags[0].any()
    assert second.view_tags[1].any()
    assert preparation.finish().dropped == {ReportReason.DUPLICATE_ID: 2}


@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_what_does_not_open_takes_no_id_whatever_the_chunks(scene: Scene, chunk: int) -> None:
    first, second, *_ = shares_for(scene.reports(2), 0)
    junk = [replace(first, share=second.share), replace(first, time_bucket=first.time_bucket + 1)]
    sent = [*junk, first, *junk, first, second]
    preparation = scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None)
    parts = [preparation.add(sent[begin : begin + chunk]) for begin in range(0, len(sent), chunk)]
    admitted = np.concatenate([part.is_admitted for part in parts])
    assert admitted.tolist() == [False, False, True, False, False, False, True]
    assert preparation.finish().dropped == {ReportReason.NOT_OPENED: 4, ReportReason.DUPLICATE_ID: 1}


def test_reports_of_another_dataset_are_dropped(scene: Scene) -> None:
    reports = scene.reports(10)
    scene.commit(scene.prepare(reports[:6]))
    prepared = scene.prepare(reports, handle=b"i" * 16)
    assert prepared.chosen.tolist() == [False] * 6 + [True] * 4
    assert prepared.admitted[0].dropped == {ReportReason.ALREADY_USED: 6}
    scene.commit(prepared)


def test_more_reports_than_the_task_allows_are_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path, max_dataset_size=5)
    shares = shares_for(scene.reports(6), 0)
    preparation = scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None)
    preparation.add(shares[:5])
    assert refusal(preparation.add, shares[5:]) is JobReason.DATASET_TOO_LARGE


def test_a_chunk_that_would_take_too_much_memory_is_refused_before_it_is_opened(scene: Scene) -> None:
    empty = ShareForHelper(report_id=bytes(16), time_bucket=0, share=SealedShare(key_id=0, ciphertext=b""))
    preparation = scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None)
    assert (
        refusal(preparation.add, [empty] * (MAX_CHUNK_BYTES // scene.task.share_length + 1))
        is JobReason.TOO_LARGE
    )


def test_no_message_of_honest_shares_holds_more_than_a_chunk_may() -> None:
    assert MAX_MESSAGE_BYTES <= MAX_CHUNK_BYTES  # a sealed share is longer than an opened one


@pytest.mark.parametrize("handle", [b"", b"h" * 15, b"h" * 17])
def test_a_handle_of_another_length_is_refused(scene: Scene, handle: bytes) -> None:
    assert refusal(scene.cores[0].datasets.prepare, scene.task_id, handle, None) is JobReason.MALFORMED


# --- room


def test_a_stream_that_breaks_frees_its_room_and_one_that_is_finished_keeps_it(scene: Scene) -> None:
    datasets, shares = scene.cores[0].datasets, shares_for(scene.reports(4), 0)
    with datasets.prepare(scene.task_id, HANDLE, None) as broken:
        broken.add(shares)
        assert datasets.preparing_bytes > 0
    assert datasets.preparing_bytes == 0
    with datasets.prepare(scene.task_id, HANDLE, None) as whole:
        whole.add(shares)
        taken = datasets.preparing_bytes
        whole.finish()
    assert datasets.preparing_bytes == taken


def test_room_is_freed_by_the_commit_and_not_by_a_refused_one(scene: Scene) -> None:
    prepared = scene.prepare(scene.reports(5))
    taken = scene.cores[0].datasets.preparing_bytes
    assert refusal(scene.commit, replace(prepared, chosen=np.zeros(5, np.bool_))) is JobReason.DATASET_EMPTY
    assert scene.cores[0].datasets.preparing_bytes == taken > 0
    assert (
        f"helper_preparing_bytes {float(taken)}"
        in generate_latest(HelperMetrics(scene.cores[0]).registry).decode()
    )
    scene.commit(prepared)
    assert [core.datasets.preparing_bytes for core in scene.cores] == [0, 0]


def test_empty_chunks_and_chunks_of_dropped_reports_do_not_pile_up(scene: Scene) -> None:
    shares = shares_for(scene.reports(3), 0)
    with scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None) as preparation:
        for _ in range(100):
            assert not len(preparation.add([]).is_admitted)
        assert (len(preparation._rows), preparation._seen._runs) == (0, [])
        preparation.add(shares)
        for _ in range(5):
            preparation.add(shares[:1])
        assert preparation._writer is not None
        assert len(preparation._writer._waiting) == 1
        assert preparation._writer.waiting == 3
        assert preparation.finish().admitted == 3


def test_a_chunk_has_at_most_so_many_bytes_when_it_is_opened(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = shares_for(scene.reports(4), 0)
    monkeypatch.setattr(preparing, "MAX_CHUNK_BYTES", 3 * scene.task.share_length)
    with scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None) as preparation:
        assert refusal(preparation.add, shares) is JobReason.TOO_LARGE
        assert preparation.add(shares[:3]).is_admitted.all()


def test_a_chunk_is_opened_while_the_one_before_is_answered_and_admitted_behind_it(scene: Scene) -> None:
    shares = shares_for(scene.reports(9), 0)
    chunks = [shares[:3], [], shares[2:5], shares[5:]]
    with scene.cores[0].datasets.prepare(scene.task_id, HANDLE, None) as one_by_one:
        expected = [one_by_one.add(chunk) for chunk in chunks]
        totals = one_by_one.finish()
    is_opened = Event()

    def opened(opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        if incoming == chunks[2]:
            is_opened.set()
        return opener.open(incoming)

    datasets = replace(scene.cores[0].datasets, open_shares=opened)
    with (
        datasets.prepare(scene.task_id, HANDLE, None) as preparation,
        closing(preparation.add_all(chunks)) as answers,
    ):
        found = [next(answers), next(answers)]
        assert is_opened.wait(HANGS_S)
        found += answers
        assert preparation.finish() == totals
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.view_tags, other.view_tags)
        assert one.dropped == other.dropped
    assert [int(one.is_admitted.sum()) for one in found] == [3, 0, 2, 4]


def test_a_chunk_that_comes_when_the_preparation_is_over_takes_no_room(scene: Scene) -> None:
    shares, is_asked, is_over, is_read = shares_for(scene.reports(5), 0), Event(), Event(), Event()
    datasets = scene.cores[0].datasets

    def chunks() -> Iterator[list[ShareForHelper]]:
        yield shares[:2]
        is_asked.set()
        assert is_over.wait(HANGS_S)
        try:
            yield shares[2:]
        finally:
            is_read.set()

    with (
        datasets.prepare(scene.task_id, HANDLE, None) as preparation,
        closing(preparation.add_all(chunks())) as answers,
    ):
        next(answers)
        assert is_asked.wait(HANGS_S)
    is_over.set()
    del answers, preparation
    assert is_read.wait(HANGS_S)
    assert datasets.preparing_bytes == 0


def test_chunks_that_have_room_one_by_one_have_it_also_when_they_are_opened_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    scene, asked, is_asked_twice = Scene(tmp_path), list[int](), Event()
    shares, length = shares_for(scene.reports(12), 0), scene.task.share_length
    chunks = [shares[:4], shares[4:8], shares[8:]]
    least = 8 * (HELD_BYTES - (-length // ON_DISK)) + 4 * (HELD_BYTES + 2 * length)
    scene.restart(max_preparing_bytes=-(-4 * least // 3))
    take = PreparationCache.take

    def asking(shelf: PreparationCache, num_bytes: int, **whose: Any) -> None:
        try:
            take(shelf, num_bytes, **whose)
        finally:
            asked.append(num_bytes)
            if len(asked) == 2:
                is_asked_twice.set()

    def opened(opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        assert is_asked_twice.wait(HANGS_S)  # room for the second chunk, before the first is answered for
        return opener.open(incoming)

    monkeypatch.setattr(PreparationCache, "take", asking)
    datasets = replace(scene.cores[0].datasets, open_shares=opened)
    with (
        datasets.prepare(scene.task_id, HANDLE, None) as preparation,
        closing(preparation.add_all(chunks)) as answers,
    ):
        assert [int(one.is_admitted.sum()) for one in answers] == [4, 4, 4]
        assert preparation.finish().admitted == 12


def test_preparations_of_several_tasks_share_one_room(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.restart(max_preparing_bytes=5000)
    shares, other = shares_for(scene.reports(16), 0), id_of_another_task(scene)
    datasets = scene.cores[0].datasets
    with (
        datasets.prepare(scene.task_id, HANDLE, None) as first,
        datasets.prepare(other, HANDLE, None) as second,
    ):
        first.add(shares[:10])
        with pytest.raises(HelperUnavailable) as busy:
            second.add(shares[:10])
        assert busy.value.retry_after_s is not None
        assert refusal(first.add, shares + shares) is JobReason.DATASET_TOO_LARGE
    with datasets.prepare(other, HANDLE, None) as again:
        again.add(shares[:10])


def test_an_ad_server_has_one_share_of_the_room_however_many_origins_its_tasks_name(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.restart(max_preparing_bytes=5000)
    shares, names = shares_for(scene.reports(6), 0), frozenset({"ads.example"})
    datasets, taken = scene.cores[0].datasets, 0
    with ExitStack() as stack:
        for number in range(20):
            task = make_task(scene.parties, name="another", origin=f"https://ads.example:{1_000 + number}")
            scene.cores[0].tasks.register(canonical.encode(task), names)
            preparation = stack.enter_context(datasets.prepare(task.task_id, HANDLE, names))
            with suppress(HelperUnavailable):
                preparation.add(shares)
                taken += 1
        assert taken < 20
        assert datasets.preparing_bytes <= 0.75 * 5000


def test_what_fills_a_segment_leaves_memory_and_its_room(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    datasets, shares = scene.cores[0].datasets, shares_for(scene.reports(9), 0)
    folder, length = scene.parties[0].data / "datasets", scene.task.share_length
    with datasets.prepare(scene.task_id, HANDLE, None) as broken:
        broken.add(shares[:3])
        first = datasets.preparing_bytes
        assert list(folder.iterdir()) == []
        broken.add(shares[3:])
        assert datasets.preparing_bytes == 3 * first - 8 * (2 * length - -(-length // ON_DISK))
        assert len(list(folder.iterdir())) == 2
    assert datasets.preparing_bytes == 0
    assert stored_objects(scene, 0) == []


def test_a_preparation_in_segments_is_the_dataset_in_canonical_order(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    reports = scene.reports(30)
    bad = replace(reports[7], time_bucket=reports[7].time_bucket + 1)
    dataset = scene.commit(scene.prepare([*reports[:7], bad, *reports[8:]], chunk=3))
    first, second = (core.datasets.open(dataset) for core in scene.cores)
    expected = sorted(one.report_id for one in reports if one is not reports[7])
    assert [bytes(one) for one in first.report_ids] == expected
    np.testing.assert_array_equal(first.shares.features, second.shares.features)
    sums = field.add(first.shares.mask_shares, second.shares.mask_shares)
    assert sorted(sums.ravel().tolist()) == [0] * 29 + [1] * 29
    assert len(stored_objects(scene, 0)) == 2 * 8


def test_a_segment_that_has_no_room_on_the_disk_ends_the_preparation(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    datasets, shares = scene.cores[0].datasets, shares_for(scene.reports(9), 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as during:
        during.setattr(FolderStore, "put_fresh", full)
        with (
            pytest.raises(HelperUnavailable, match="No space left"),
            datasets.prepare(scene.task_id, HANDLE, None) as preparation,
        ):
            preparation.add(shares)
    assert datasets.preparing_bytes == 0
    assert stored_objects(scene, 0) == []
    scene.seal(9)


# --- committing


def test_committing_again_gives_the_same_answer_also_after_a_restart(scene: Scene) -> None:
    prepared = scene.prepare(scene.reports(10))
    scene.commit(prepared)
    scene.commit(prepared)
    scene.restart()
    scene.commit(prepared)
    assert scene.cores[0].status().counts.datasets == 1


def test_a_report_is_used_in_one_dataset_even_if_it_was_prepared_for_two(scene: Scene) -> None:
    reports = scene.reports(10)
    both = [scene.prepare(reports[:6], handle=b"1" * 16), scene.prepare(reports[5:], handle=b"2" * 16)]
    scene.commit(both[0])
    assert refusal(scene.commit, both[1]) is JobReason.REPORT_ALREADY_USED
    assert scene.cores[0].status().counts.datasets == 1
    assert len(stored_objects(scene, 0)) == 2 + 1  # and the records that are prepared still


def test_of_two_overlapping_datasets_committed_at_once_one_stands(scene: Scene) -> None:
    reports = scene.reports(12)
    both = [scene.prepare(reports[:8], handle=b"1" * 16), scene.prepare(reports[4:], handle=b"2" * 16)]
    datasets = scene.cores[0].datasets

    def commit(number: int) -> JobReason | None:
        one = both[number % 2]
        try:
            datasets.commit(scene.task_id, one.handle, one.bits, one.dataset_id, None)
        except JobRefused as error:
            return error.reason
        return None

    with ThreadPoolExecutor(8) as threads:
        outcomes = Counter(threads.map(commit, range(16)))
    assert scene.cores[0].status().counts.datasets == 1
    assert outcomes == {
        None: 8,
        JobReason.REPORT_ALREADY_USED: 8,
    }  # None for every repeat of the one that stands


class Interrupted(Ledger):
    """Does something else just before a dataset is committed."""

    before: Callable[[], object] | None = None

    def add_dataset(
        self,
        dataset_id: bytes,
        task_id: bytes,
        report_ids: Sequence[bytes],
        manifest: Manifest = (),
        actor: Actor = THIS_SERVICE,
    ) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()
        super().add_dataset(dataset_id, task_id, report_ids, manifest, actor)


def test_a_commit_does_not_wait_for_one_of_another_task(scene: Scene) -> None:
    scene.restart(ledger_type=Interrupted)
    other = copy(scene)
    other.task = make_task(scene.parties, name="another")
    other.task_id, other.bundle = other.task.task_id, other.register(other.task)
    other.sealer = Sealer(other.bundle, now=NOW)
    ours, theirs = scene.prepare(scene.reports(5)), other.prepare(other.reports(5))
    ledger = scene.cores[0].datasets.ledger
    assert isinstance(ledger, Interrupted)
    with ThreadPoolExecutor(1) as threads:
        ledger.before = lambda: threads.submit(other.commit, theirs).result(timeout=HANGS_S)
        scene.commit(ours)
    assert scene.cores[0].status().counts.datasets == 2


class AnotherProcess(Ledger):
    """Just before this process commits a dataset, another one commits the very same."""

    def add_dataset(
        self,
        dataset_id: bytes,
        task_id: bytes,
        report_ids: Sequence[bytes],
        manifest: Manifest = (),
        actor: Actor = THIS_SERVICE,
    ) -> None:
        super().add_dataset(dataset_id, task_id, report_ids, manifest, actor)
        super().add_dataset(dataset_id, task_id, report_ids, manifest, actor)


def test_a_dataset_that_another_process_commits_at_the_same_time_keeps_its_file(scene: Scene) -> None:
    scene.restart(ledger_type=AnotherProcess)
    dataset = scene.commit(scene.prepare(scene.reports(5)))
    assert len(stored_objects(scene, 0)) == 2
    scene.restart()
    assert len(scene.cores[0].datasets.open(dataset)) == 5


class Away(Ledger):
    """A ledger that does not answer the first time that a dataset is committed, and whether it has it."""

    failures = 1
    is_taken_down = False

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
            if self.is_taken_down:
                super().add_dataset(dataset_id, task_id, report_ids, manifest, actor)
            raise HelperUnavailable("the helper's database does not answer; ask again")
        super().add_dataset(dataset_id, task_id, report_ids, manifest, actor)


@pytest.mark.parametrize("segment", [4, 65_536])
@pytest.mark.parametrize("is_taken_down", [False, True])
def test_a_commit_that_the_ledger_did_not_answer_may_be_repeated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, segment: int, is_taken_down: bool
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", segment)
    monkeypatch.setattr(Away, "is_taken_down", is_taken_down)
    scene.restart(ledger_type=Away)
    prepared = scene.prepare(scene.reports(10))
    for core in scene.cores:
        with pytest.raises(HelperUnavailable):
            core.datasets.commit(scene.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None)
    dataset = scene.commit(prepared)
    assert len(stored_objects(scene, 0)) == 2 * -(-10 // segment)
    assert scene.cores[0].datasets.preparing_bytes == 0 or is_taken_down
    scene.restart()
    assert [len(core.datasets.open(dataset)) for core in scene.cores] == [10, 10]


@pytest.mark.parametrize("segment", [4, 65_536])
def test_a_commit_whose_name_was_not_made_durable_may_be_repeated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, segment: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", segment)
    prepared = scene.prepare(scene.reports(10))

    def broken(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as during:
        during.setattr(durable_file, "_sync_folder", broken)
        with pytest.raises(HelperUnavailable, match="Input/output"):
            scene.commit(prepared)
    dataset = scene.commit(prepared)
    scene.restart()
    assert len(scene.cores[0].datasets.open(dataset)) == 10


@pytest.mark.parametrize("segment", [4, 65_536])
def test_what_is_being_committed_is_pushed_out_by_nobody(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, segment: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", segment)
    prepared, store = scene.prepare(scene.reports(10)), SegmentWriter.store

    def others_come(writer: SegmentWriter, *given: Any) -> Manifest:
        for number in range(MAX_PREPARED_PER_TASK):
            scene.cores[0].datasets.prepare(scene.task_id, bytes([number]) * 16, None).finish()
        return store(writer, *given)

    monkeypatch.setattr(SegmentWriter, "store", others_come)
    dataset = scene.commit(prepared)
    scene.restart()
    assert len(scene.cores[0].datasets.open(dataset)) == 10


def test_a_part_of_the_admitted_reports_can_be_chosen_and_the_rest_sealed_later(scene: Scene) -> None:
    reports = scene.reports(10)
    prepared = scene.prepare(reports)
    half = prepared.chosen & (np.arange(10) < 5)
    scene.commit(replace(prepared, chosen=half, dataset_id=scene.id_of(reports, half)))
    rest = scene.prepare(reports, handle=b"i" * 16)
    assert rest.chosen.tolist() == [False] * 5 + [True] * 5


def test_an_unknown_handle_is_refused(scene: Scene) -> None:
    prepared = scene.prepare(scene.reports(5))
    assert refusal(scene.commit, replace(prepared, handle=b"?" * 16)) is JobReason.UNKNOWN_DATASET


def test_another_tasks_handle_is_refused(scene: Scene) -> None:
    prepared = scene.prepare(scene.reports(5))
    other = id_of_another_task(scene)
    commit = scene.cores[0].datasets.commit
    assert (
        refusal(commit, other, prepared.handle, prepared.bits, prepared.dataset_id, None)
        is JobReason.UNKNOWN_DATASET
    )
    scene.commit(prepared)
    assert (
        refusal(commit, other, prepared.handle, prepared.bits, prepared.dataset_id, None)
        is JobReason.UNKNOWN_DATASET
    )


def id_of_another_task(scene: Scene) -> bytes:
    task = make_task(scene.parties, name="another")
    scene.register(task)
    return task.task_id


def test_too_many_preparations_push_out_the_oldest(scene: Scene) -> None:
    reports = scene.reports(3)
    first = scene.prepare(reports)
    for number in range(MAX_PREPARED_PER_TASK):
        scene.prepare(reports, handle=bytes([number]) * 16)
    assert refusal(scene.commit, first) is JobReason.UNKNOWN_DATASET


def test_an_empty_choice_is_refused(scene: Scene) -> None:
    prepared = scene.prepare(scene.reports(5))
    assert refusal(scene.commit, replace(prepared, chosen=np.zeros(5, np.bool_))) is JobReason.DATASET_EMPTY


def test_a_choice_that_makes_another_dataset_than_expected_is_refused_and_can_be_corrected(
    scene: Scene,
) -> None:
    reports = scene.reports(5)
    prepared = scene.prepare(reports)
    fewer = prepared.chosen & (np.arange(5) > 0)
    assert refusal(scene.commit, replace(prepared, chosen=fewer)) is JobReason.DATASET_CHANGED
    scene.commit(prepared)


@pytest.mark.parametrize("bits", [b"", b"\x1f\x00", b"\x3f", b"\xff"])
def test_a_choice_of_another_length_is_refused(scene: Scene, bits: bytes) -> None:
    prepared = scene.prepare(scene.reports(5))
    commit = scene.cores[0].datasets.commit
    assert (
        refusal(commit, scene.task_id, prepared.handle, bits, prepared.dataset_id, None)
        is JobReason.MALFORMED
    )


def test_a_report_that_was_not_admitted_cannot_be_chosen(scene: Scene) -> None:
    reports = scene.reports(5)
    broken = replace(reports[0], time_bucket=reports[0].time_bucket + 1)
    prepared = scene.prepare([broken, *reports[1:]])
    everything = np.ones(5, np.bool_)
    forced = replace(prepared, chosen=everything, dataset_id=scene.id_of(reports, everything))
    assert refusal(scene.commit, forced) is JobReason.MALFORMED
    assert scene.cores[0].status().counts.datasets == 0


def test_a_dataset_is_read_from_disk_after_a_restart(scene: Scene) -> None:
    dataset = scene.seal(12)
    before = scene.cores[0].datasets.open(dataset)
    scene.restart()
    after = scene.cores[0].datasets.open(dataset)
    assert after is not before
    np.testing.assert_array_equal(after.shares.mask_shares, before.shares.mask_shares)


def test_a_dataset_whose_file_is_lost_is_a_typed_refusal(scene: Scene) -> None:
    dataset = scene.seal(5)
    scene.restart()
    next((scene.parties[0].data / "datasets").iterdir()).unlink()
    assert refusal(scene.cores[0].datasets.open, dataset) is JobReason.DATASET_LOST
