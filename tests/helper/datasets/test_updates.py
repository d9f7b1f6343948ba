"""Preparations and datasets of federated rounds: bounds, refusals, and shares that are sealed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag

from helper.core import HelperCore
from helper.datasets import preparing, segments, updates
from helper.datasets.frames import SealedSegment, open_segment
from helper.datasets.preparation_cache import MAX_PREPARED_PER_TASK
from helper.datasets.segments import SegmentRows
from helper.ledger.ledger import Ledger
from maskedlark import canonical
from maskedlark.errors import JobReason, JobRefused
from maskedlark.interrupt import Interrupt, never
from maskedlark.reports.dataset import ShareForHelper
from tests.builders import shares_for
from tests.helper.parties import make_task
from tests.helper.update_parties import UpdateScene
from tests.update_builders import FORM, update_settings

HANDLE = b"h" * 16


@pytest.fixture
def scene(tmp_path: Path) -> UpdateScene:
    return UpdateScene(tmp_path)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment has two shares: what is prepared does not wait in memory."""
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 2)


@pytest.fixture
def core(scene: UpdateScene) -> HelperCore:
    return scene.cores[0]


def incoming(scene: UpdateScene, count: int, seed: int = 0) -> list[ShareForHelper]:
    return shares_for(scene.sealed(scene.round(), scene.vectors(count, seed), seed), 0)


def prepare(
    scene: UpdateScene, shares: list[ShareForHelper], handle: bytes = HANDLE, task_id: bytes | None = None
) -> bytes:
    """Prepare at helper 0; the id of the dataset of all that is admitted."""
    encoded = canonical.encode(scene.round())
    with scene.cores[0].datasets.prepare_round(
        task_id or scene.task_id, handle, encoded, None
    ) as preparation:
        preparation.add(shares)
        return preparation.finish().admitted_digest


def files(scene: UpdateScene) -> list[Path]:
    """What is in helper 0's folder once it has deleted what was given up."""
    scene.cores[0].datasets.vault.delete_dropped()
    return sorted((scene.parties[0].data / "datasets").iterdir())


def refusal(call: Any, *given: Any) -> JobReason:
    with pytest.raises(JobRefused) as refused:
        call(*given)
    return refused.value.reason


def test_a_handle_has_sixteen_bytes(scene: UpdateScene, core: HelperCore) -> None:
    encoded = canonical.encode(scene.round())
    for handle in (b"", b"h" * 15, b"h" * 17):
        assert (
            refusal(core.datasets.prepare_round, scene.task_id, handle, encoded, None) is JobReason.MALFORMED
        )


def test_past_the_bound_on_a_tasks_preparations_the_oldest_goes_with_its_file_and_its_room(
    scene: UpdateScene, core: HelperCore
) -> None:
    prepare(scene, incoming(scene, 2), b"0" * 16)
    one, taken = core.quota.num_bytes, core.datasets.preparing_bytes
    (first,) = files(scene)
    for number in range(1, MAX_PREPARED_PER_TASK + 1):
        prepare(scene, incoming(scene, 2, seed=number), b"%d" % number * 16)
    assert len(files(scene)) == MAX_PREPARED_PER_TASK
    assert not first.exists()
    assert core.quota.num_bytes == MAX_PREPARED_PER_TASK * one
    assert core.datasets.preparing_bytes == MAX_PREPARED_PER_TASK * taken
    commit = core.datasets.commit
    assert refusal(commit, scene.task_id, b"0" * 16, b"\x03", b"d" * 32, None) is JobReason.UNKNOWN_DATASET


def test_an_ad_server_pushes_out_no_preparation_of_another_one(scene: UpdateScene, core: HelperCore) -> None:
    expected = prepare(scene, incoming(scene, 2))
    rival = make_task(scene.parties, origin="https://rival.example", **update_settings())
    scene.register(rival)
    own, scene.task, scene.task_id = scene.task_id, rival, rival.task_id
    for number in range(2 * MAX_PREPARED_PER_TASK):
        prepare(scene, [], b"%d" % number * 16)
    assert core.datasets.commit(own, HANDLE, b"\x03", expected, None) == 2


def test_what_is_prepared_again_under_a_handle_replaces_what_was(
    scene: UpdateScene, core: HelperCore
) -> None:
    prepare(scene, incoming(scene, 5))
    expected = prepare(scene, incoming(scene, 2, seed=1))
    assert len(files(scene)) == 1
    assert core.datasets.commit(scene.task_id, HANDLE, b"\x03", expected, None) == 2
    assert core.datasets.preparing_bytes == 0
    assert core.quota.num_bytes == sum(path.stat().st_size for path in files(scene))


def test_a_choice_that_makes_another_dataset_is_refused_and_may_be_corrected(
    scene: UpdateScene, core: HelperCore
) -> None:
    expected, commit = prepare(scene, incoming(scene, 3)), core.datasets.commit
    assert refusal(commit, scene.task_id, HANDLE, b"\x03", expected, None) is JobReason.DATASET_CHANGED
    assert len(files(scene)) == 1
    assert commit(scene.task_id, HANDLE, b"\x07", expected, None) == 3


def test_a_refused_dataset_leaves_no_more_than_was_prepared(scene: UpdateScene, core: HelperCore) -> None:
    shares = incoming(scene, 3)
    first, second = prepare(scene, shares, b"1" * 16), prepare(scene, shares[:2], b"2" * 16)
    commit = core.datasets.commit
    assert commit(scene.task_id, b"1" * 16, b"\x07", first, None) == 3
    before = files(scene)
    assert len(before) == 4 + 1  # the second one's segment waits for another choice
    for _ in range(2):
        assert (
            refusal(commit, scene.task_id, b"2" * 16, b"\x03", second, None) is JobReason.REPORT_ALREADY_USED
        )
    assert files(scene) == before
    assert core.quota.num_bytes >= sum(path.stat().st_size for path in files(scene))


def test_a_dataset_that_another_process_has_committed_meanwhile_keeps_its_file(
    scene: UpdateScene, core: HelperCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, add = prepare(scene, incoming(scene, 3)), Ledger.add_dataset

    def faster(ledger: Ledger, *given: Any) -> None:
        add(ledger, *given)
        add(ledger, *given)

    monkeypatch.setattr(Ledger, "add_dataset", faster)
    assert core.datasets.commit(scene.task_id, HANDLE, b"\x07", expected, None) == 3
    assert len(files(scene)) == 4
    assert len(list(core.datasets.round_records(scene.round(), expected).pieces(never))) == 2


def test_a_preparation_whose_dataset_may_be_committed_becomes_no_other_one(
    scene: UpdateScene, core: HelperCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = incoming(scene, 3)
    whole, commit = prepare(scene, shares), core.datasets.commit
    part = prepare(scene, shares[:2], b"p" * 16)

    def away(*_: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as during:
        during.setattr(Ledger, "add_dataset", away)
        with pytest.raises(TimeoutError):
            commit(scene.task_id, HANDLE, b"\x07", whole, None)
    assert refusal(commit, scene.task_id, HANDLE, b"\x03", part, None) is JobReason.UNKNOWN_DATASET
    assert commit(scene.task_id, HANDLE, b"\x07", whole, None) == 3


def test_a_chunk_has_at_most_so_many_bytes_when_it_is_opened(
    scene: UpdateScene, core: HelperCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = incoming(scene, 3)
    most = 3 * FORM.payload_bytes(0)
    encoded = canonical.encode(scene.round())
    with core.datasets.prepare_round(scene.task_id, HANDLE, encoded, None) as preparation:
        monkeypatch.setattr(preparing, "MAX_CHUNK_BYTES", most - 1)
        assert refusal(preparation.add, shares) is JobReason.TOO_LARGE
        assert core.datasets.preparing_bytes == 0
        monkeypatch.setattr(preparing, "MAX_CHUNK_BYTES", most)
        assert preparation.add(shares).is_admitted.all()


def test_a_round_has_at_most_as_many_reports_as_its_task_allows(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path, max_dataset_size=4)
    encoded, shares = canonical.encode(scene.round()), incoming(scene, 5)
    with scene.cores[0].datasets.prepare_round(scene.task_id, HANDLE, encoded, None) as preparation:
        preparation.add(shares[:4])
        assert refusal(preparation.add, shares[4:]) is JobReason.DATASET_TOO_LARGE


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (("MOST_SHARES", 1), [1] * 5),
        (("MOST_COORDINATES", 2 * FORM.length), [2, 2, 1]),
        (("MOST_BYTES", 3 * FORM.payload_bytes(0)), [3, 2]),
        (("MOST_BYTES", 1), [1] * 5),
    ],
)
def test_a_segment_is_what_one_worker_adds_up_at_once(
    scene: UpdateScene, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int], expected: list[int]
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 100)
    monkeypatch.setattr(updates, *limit)
    core = scene.cores[0]
    dataset = prepare(scene, incoming(scene, 5))
    core.datasets.commit(scene.task_id, HANDLE, b"\x1f", dataset, None)
    sealed = core.datasets.round_records(scene.round(), dataset).sealed(never)
    assert [one.place.records for one in sealed] == expected


def opened(part: SealedSegment) -> SegmentRows:
    return open_segment(part.shape, part.place, part.key, part.read()).rows(part.is_chosen)


def test_sealed_shares_open_to_those_that_are_read_here(scene: UpdateScene, core: HelperCore) -> None:
    dataset, one = prepare(scene, incoming(scene, 5)), scene.round()
    with pytest.MonkeyPatch.context() as patch:  # the dataset is the chosen shares, not all that was written
        patch.setattr("helper.datasets.datasets.dataset_id", lambda *_, rows: dataset)
        core.datasets.commit(scene.task_id, HANDLE, b"\x15", dataset, None)
    records = core.datasets.round_records(one, dataset)
    assert records.count == 3
    pieces, sealed = list(records.pieces(never)), records.sealed(never)
    assert [len(piece.ranks) for piece in pieces] == [1, 1, 1]
    for part, piece in zip(sealed, pieces, strict=True):
        frames, rows = part.read(), opened(part)
        np.testing.assert_array_equal(rows.report_ids, piece.rows.report_ids)
        np.testing.assert_array_equal(rows.shares.features, piece.shares.features)
        assert all(payload.tobytes() not in frames for payload in piece.shares.features)


def test_sealed_shares_that_are_cut_or_moved_do_not_open(scene: UpdateScene, core: HelperCore) -> None:
    dataset, one = prepare(scene, incoming(scene, 3)), scene.round()
    core.datasets.commit(scene.task_id, HANDLE, b"\x07", dataset, None)
    records = core.datasets.round_records(one, dataset)
    first, second = records.sealed(never)
    frames = first.read()
    for cut in (frames[:-1], frames + b"\0", b""):
        with pytest.raises(ValueError, match="not as long as it says"):
            opened(replace(first, read=partial(bytes, cut)))
    with pytest.raises(InvalidTag):
        opened(replace(first, place=replace(first.place, number=1)))
    with pytest.raises(InvalidTag):
        opened(replace(first, key=bytes(32)))
    assert repr(first.key) not in repr(first)
    for path in files(scene):
        path.unlink()
    assert refusal(second.read) is JobReason.DATASET_LOST


def test_updates_are_read_only_as_those_of_their_round(scene: UpdateScene, core: HelperCore) -> None:
    dataset = prepare(scene, incoming(scene, 3))
    core.datasets.commit(scene.task_id, HANDLE, b"\x07", dataset, None)
    other = core.datasets.round_records(scene.round(1), dataset)
    reads: list[Callable[[Interrupt], Any]] = [lambda _: list(other.pieces(never)), other.sealed]
    reads += [lambda _: core.datasets.open(dataset), core.datasets.records(dataset, scene.task_id).sealed]
    for read in reads:
        assert refusal(read, never) is JobReason.DATASET_LOST
    assert len(list(core.datasets.round_records(scene.round(), dataset).pieces(never))) == 2


def test_ids_that_have_not_sixteen_bytes_are_dropped_and_counted(
    scene: UpdateScene, core: HelperCore
) -> None:
    shares = [replace(one, report_id=b"short") for one in incoming(scene, 2)]
    encoded = canonical.encode(scene.round())
    with core.datasets.prepare_round(scene.task_id, HANDLE, encoded, None) as preparation:
        assert not preparation.add(shares).is_admitted.any()
        totals = preparation.finish()
    assert (totals.received, totals.admitted) == (2, 0)
    prepared: Any = core.datasets.prepared._prepared
    (kept,) = prepared.values()
    np.testing.assert_array_equal(kept.prepared.report_ids, np.zeros((2, 16), np.uint8))
