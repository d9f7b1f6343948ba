"""Poisoned reports at two real helpers: dropped before anything is summed, and nothing of a proof is kept."""

from pathlib import Path
from typing import Any

import pytest

from helper.datasets import datasets as datasets_module
from helper.datasets.proofs import fast_residues
from maskedlark.randomness import seeded
from maskedlark.reports.dataset import ShareOpener
from maskedlark.reports.proofs.check import residues
from maskedlark.reports.upload import Report
from maskedlark.rpc.transport import make_channel
from protos.helper_pb2_grpc import HelperStub
from tests.builders import shares_for, split
from tests.helper.parties import Scene
from tests.helper.serving.test_helper_service import Wire, serve
from tests.maskedlark.reports.malicious import malformed
from tests.maskedlark.reports.sealed import sealed


def poisoned(scene: Scene, count: int) -> list[Report]:
    """Reports of kinds that no honest browser sends."""
    shape, task, reports = scene.task.proof_shape, scene.task, []
    assert shape is not None
    [example] = scene.examples(1)
    for number, (_, parts) in zip(range(count), malformed(shape, seeded(5)), strict=False):
        report_id = b"poisoned" + number.to_bytes(8, "little")
        view = split(task, example, seeded(number), report_id).share_0[: task.view_length]
        reports.append(sealed(scene.bundle, (view + parts[0].tail(), view + parts[1].tail()), report_id))
    return reports


def test_the_sum_with_poisoned_reports_is_bit_equal_to_the_sum_without_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path, proof=True)
    mixed = [*poisoned(scene, 20), *scene.reports(30)]
    prepared = scene.prepare(mixed)
    assert prepared.chosen.tolist() == [False] * 20 + [True] * 30
    dataset = scene.commit(prepared)
    spec = scene.job(dataset)
    scene.start(spec)
    assert scene.run(spec, 0).tolist() == scene.plain_sum(30)


@pytest.mark.parametrize("proof", [False, True])
def test_proofs_are_checked_by_the_compiled_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proof: bool
) -> None:
    scene, given = Scene(tmp_path, proof=proof), []

    def opener(**how: Any) -> ShareOpener:
        given.append(how["residues_of"])
        return ShareOpener(**how)

    monkeypatch.setattr(datasets_module, "ShareOpener", opener)
    with scene.cores[0].datasets.prepare(scene.task_id, b"h" * 16, None):
        pass
    assert given == [fast_residues if proof else residues]


def test_a_stored_dataset_has_the_bytes_that_it_has_without_proofs(tmp_path: Path) -> None:
    sizes = []
    for proof in (False, True):
        scene = Scene(tmp_path / str(proof), proof=proof)
        dataset = scene.seal(30)
        manifests = [core.tasks._ledger.manifests.of(dataset) for core in scene.cores]
        sizes.append([one.num_bytes for manifest in manifests for one in manifest])
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) == 4


def test_a_dataset_with_proofs_is_read_back_after_a_restart(tmp_path: Path) -> None:
    scene = Scene(tmp_path, proof=True)
    dataset = scene.seal(30)
    scene.restart()
    read = scene.cores[0].datasets.vault.read(dataset)
    assert len(read) == 30
    spec = scene.job(dataset)
    scene.start(spec)
    assert scene.run(spec, 0).tolist() == scene.plain_sum(30)


def test_a_helper_answers_17_bytes_a_report_with_and_without_proofs(tmp_path: Path) -> None:
    sizes = []
    for proof in (False, True):
        scene = Scene(tmp_path / str(proof), proof=proof)
        server, port = serve(scene, 0)
        with make_channel(f"127.0.0.1:{port}", None) as channel:
            replies = Wire(stub=HelperStub(channel)).prepare(
                scene.task_id, [shares_for(scene.reports(30), 0)]
            )
        server.stop(None).wait()
        assert (len(replies[0].is_admitted), len(replies[0].view_tags)) == (30, 16 * 30)
        sizes.append([reply.ByteSize() for reply in replies])
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("proof", [False, True])
def test_preparing_takes_room_for_the_longer_plaintext(tmp_path: Path, *, proof: bool) -> None:
    scene = Scene(tmp_path, proof=proof)
    scene.prepare(scene.reports(30))
    assert scene.cores[0].datasets.preparing_bytes >= 30 * scene.task.share_length
