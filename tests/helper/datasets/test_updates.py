"""Preparations and datasets of federated rounds: bounds, refusals, and shares that are sealed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag

from helper.core import HelperCore
from helper.datasets import update_preparing, update_vault
from helper.datasets.preparation_cache import MAX_PREPARED_PER_TASK
from helper.datasets.update_vault import StoredUpdate, open_updates
from helper.ledger.ledger import Ledger
from maskedlark import canonical
from maskedlark.errors import JobReason, JobRefused
from maskedlark.reports.dataset import ShareForHelper
from tests.builders import shares_for
from tests.helper.parties import make_task
from tests.helper.update_parties import UpdateScene
from tests.update_builders import update_settings

HANDLE = b"h" * 16


@pytest.fixture
def scene(tmp_path: Path) -> UpdateScene:
    return UpdateScene(tmp_path)


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
    with scene.cores[0].updates.prepare(task_id or scene.task_id, handle, encoded, None) as preparation:
        preparation.add(shares)
        return preparation.finish().admitted_digest


def files(scene: UpdateScene, suffix: str = "") -> list[Path]:
    return sorted((scene.parties[0].data / "datasets").glob(f"*{suffix}"))


def refusal(call: Any, *given: Any) -> JobReason:
    with pytest.raises(JobRefused) as refused:
        call(*given)
    return refused.value.reason


def test_a_handle_has_sixteen_bytes(scene: UpdateScene, core: HelperCore) -> None:
    encoded = canonical.encode(scene.round())
    for handle in (b"", b"h" * 15, b"h" * 17):
        assert refusal(core.updates.prepare, scene.task_id, handle, encoded, None) is JobReason.MALFORMED


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
    commit = core.updates.commit
    assert refusal(commit, scene.task_id, b"0" * 16, b"\x03", b"d" * 32, None) is JobReason.UNKNOWN_DATASET


def test_an_ad_server_pushes_out_no_preparation_of_another_one(scene: UpdateScene, core: HelperCore) -> None:
    expected = prepare(scene, incoming(scene, 2))
    rival = make_task(scene.parties, origin="https://rival.example", **update_settings())
    scene.register(rival)
    own, scene.task, scene.task_id = scene.task_id, rival, rival.task_id
    for number in range(2 * MAX_PREPARED_PER_TASK):
        prepare(scene, [], b"%d" % number * 16)
    assert core.updates.commit(own, HANDLE, b"\x03", expected, None) == 2


def test_what_is_prepared_again_under_a_handle_replaces_what_was(
    scene: UpdateScene, core: HelperCore
) -> None:
    prepare(scene, incoming(scene, 5))
    expected = prepare(scene, incoming(scene, 2, seed=1))
    assert len(files(scene)) == 1
    assert core.updates.commit(scene.task_id, HANDLE, b"\x03", expected, None) == 2
    assert core.datasets.preparing_bytes == 0
    assert core.quota.num_bytes == sum(path.stat().st_size for path in files(scene))


def test_a_choice_that_makes_another_dataset_is_refused_and_may_be_corrected(
    scene: UpdateScene, core: HelperCore
) -> None:
    expected, commit = prepare(scene, incoming(scene, 3)), core.updates.commit
    assert refusal(commit, scene.task_id, HANDLE, b"\x03", expected, None) is JobReason.DATASET_CHANGED
    assert files(scene, ".updates") == []
    assert commit(scene.task_id, HANDLE, b"\x07", expected, None) == 3


def test_a_refused_dataset_leaves_no_file_and_takes_no_quota(scene: UpdateScene, core: HelperCore) -> None:
    shares = incoming(scene, 3)
    first, second = prepare(scene, shares, b"1" * 16), prepare(scene, shares[:2], b"2" * 16)
    commit = core.updates.commit
    assert commit(scene.task_id, b"1" * 16, b"\x07", first, None) == 3
    before = files(scene, ".updates")
    for expected in (JobReason.REPORT_ALREADY_USED, JobReason.UNKNOWN_DATASET):
        assert refusal(commit, scene.task_id, b"2" * 16, b"\x03", second, None) is expected
    assert files(scene, ".updates") == before
    assert core.quota.num_bytes == sum(path.stat().st_size for path in files(scene))


def test_a_dataset_that_another_process_has_committed_meanwhile_keeps_its_file(
    scene: UpdateScene, core: HelperCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, add = prepare(scene, incoming(scene, 3)), Ledger.add_dataset

    def faster(ledger: Ledger, *given: Any) -> None:
        add(ledger, *given)
        add(ledger, *given)

    monkeypatch.setattr(Ledger, "add_dataset", faster)
    assert core.updates.commit(scene.task_id, HANDLE, b"\x07", expected, None) == 3
    assert len(files(scene, ".updates")) == 1


def test_a_preparation_whose_dataset_may_be_committed_becomes_no_other_one(
    scene: UpdateScene, core: HelperCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = incoming(scene, 3)
    whole, commit = prepare(scene, shares), core.updates.commit
    part = prepare(scene, shares[:2], b"p" * 16)

    def away(*_: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as during:
        during.setattr(Ledger, "add_dataset", away)
        with pytest.raises(TimeoutError):
            commit(scene.task_id, HANDLE, b"\x07", whole, None)
    assert refusal(commit, scene.task_id, HANDLE, b"\x03", part, None) is JobReason.UNKNOWN_DATASET
    assert commit(scene.task_id, HANDLE, b"\x07", whole, None) == 3


def test_a_chunk_has_at_most_so_many_bytes_of_ciphertext(
    scene: UpdateScene, core: HelperCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = incoming(scene, 3)
    most = sum(len(one.share.ciphertext) for one in shares)
    encoded = canonical.encode(scene.round())
    with core.updates.prepare(scene.task_id, HANDLE, encoded, None) as preparation:
        monkeypatch.setattr(update_preparing, "MAX_CHUNK_BYTES", most - 1)
        assert refusal(preparation.add, shares) is JobReason.TOO_LARGE
        assert core.datasets.preparing_bytes == 0
        monkeypatch.setattr(update_preparing, "MAX_CHUNK_BYTES", most)
        assert preparation.add(shares).is_admitted.all()


@pytest.mark.parametrize("most_shares", [1, 2, 10])
def test_sealed_shares_open_to_those_of_the_file(
    scene: UpdateScene, core: HelperCore, most_shares: int
) -> None:
    expected, one = prepare(scene, incoming(scene, 5)), scene.round()
    with pytest.MonkeyPatch.context() as patch:  # the dataset is the chosen shares, not all of the file
        patch.setattr("helper.datasets.updates.dataset_id", lambda *_, rows: expected)
        core.updates.commit(scene.task_id, HANDLE, b"\x15", expected, None)
    records = core.updates.records(one, expected)
    plain = list(records.shares())
    sealed = records.sealed(most_shares)
    assert [len(part.rows) for part in sealed] == {1: [1, 1, 1], 2: [2, 1], 10: [3]}[most_shares]
    opened = [
        share for part in sealed for share in open_updates(part.header, part.rows, part.key, part.read())
    ]
    assert opened == plain
    assert all(isinstance(share, StoredUpdate) for share in opened)
    frames = sealed[0].read()
    assert all(share.payload not in frames for share in plain)


def test_sealed_shares_that_are_cut_or_moved_do_not_open(scene: UpdateScene, core: HelperCore) -> None:
    expected, one = prepare(scene, incoming(scene, 3)), scene.round()
    core.updates.commit(scene.task_id, HANDLE, b"\x07", expected, None)
    (part,) = core.updates.records(one, expected).sealed(10)
    frames = part.read()
    for cut in (frames[:-1], frames + b"\0", b""):
        with pytest.raises(ValueError, match="not as long as it says"):
            list(open_updates(part.header, part.rows, part.key, cut))
    with pytest.raises(InvalidTag):
        list(open_updates(part.header, list(part.rows)[::-1], part.key, frames))
    with pytest.raises(InvalidTag):
        list(open_updates(part.header, part.rows, bytes(32), frames))
    assert repr(part.key) not in repr(part)
    (path,) = files(scene, ".updates")
    path.unlink()
    assert refusal(part.read) is JobReason.DATASET_LOST


def test_a_file_of_another_layout_is_lost_and_not_read(
    scene: UpdateScene, core: HelperCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as during:
        during.setattr(update_vault, "_MAGIC", b"MLUP\x7f\0\0\0")
        expected = prepare(scene, incoming(scene, 3))
    core.updates.commit(scene.task_id, HANDLE, b"\x07", expected, None)
    shares = core.updates.shares(scene.round(), expected)
    assert refusal(list, shares) is JobReason.DATASET_LOST


def test_ids_that_have_not_sixteen_bytes_are_dropped_and_counted(
    scene: UpdateScene, core: HelperCore
) -> None:
    shares = [replace(one, report_id=b"short") for one in incoming(scene, 2)]
    encoded = canonical.encode(scene.round())
    with core.updates.prepare(scene.task_id, HANDLE, encoded, None) as preparation:
        assert not preparation.add(shares).is_admitted.any()
        totals = preparation.finish()
    assert (totals.received, totals.admitted) == (2, 0)
    prepared: Any = core.datasets.prepared._prepared
    (kept,) = prepared.values()
    np.testing.assert_array_equal(kept.prepared.report_ids, np.zeros((2, 16), np.uint8))
