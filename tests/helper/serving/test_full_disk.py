"""A helper whose disk is full: callers may ask again, its operator is told, nothing is left behind."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from helper.datasets import segment_store, segment_writer
from maskedlark.errors import HelperUnavailable
from maskedlark.rpc.faults import calling
from maskedlark.runtime import disk
from maskedlark.runtime.database import is_away
from protos import helper_pb2 as pb
from tests.helper.parties import Scene
from tests.helper.served import stub_of
from tests.patience import HANGS_S


class Free(NamedTuple):
    """What a file system says of itself."""

    f_bavail: int
    f_frsize: int = 1


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@contextmanager
def stub(scene: Scene) -> Iterator[Any]:
    with stub_of(scene.cores[0], threads=2) as stub, calling("helper"):
        yield stub


def left_over(scene: Scene) -> list[str]:
    scene.cores[0].datasets.vault.delete_dropped()
    return [path.name for path in (scene.parties[0].data / "datasets").iterdir()]


def prepared_commit(scene: Scene) -> pb.CommitRequest:
    of = scene.prepare(scene.reports(30))
    return pb.CommitRequest(task_id=scene.task_id, handle=of.handle, chosen=of.bits, dataset_id=of.dataset_id)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_commit_on_a_full_disk_may_be_repeated_and_leaves_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    request = prepared_commit(scene)
    with monkeypatch.context() as during:
        if call == "fsync":
            during.setattr(os, "fsync", full)
        else:
            during.setattr(segment_store, "replacing", full)
        for _ in range(3):
            with pytest.raises(HelperUnavailable, match="No space left") as refused, stub(scene) as helper:
                helper.CommitDataset(request, timeout=HANGS_S)
            assert left_over(scene) == []
    assert "sealed" not in str(refused.value)
    with stub(scene) as helper:
        assert helper.CommitDataset(request, timeout=HANGS_S).size == 30
    scene.cores[0].check_well()


def test_a_helper_is_not_well_until_there_is_the_room_that_a_dataset_lacked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.cores[0].check_well()
    monkeypatch.setattr(os, "statvfs", lambda _: Free(disk.LEAST_FREE_BYTES))
    prepared = scene.prepare(scene.reports(30))
    monkeypatch.setattr(segment_writer, "estimate_bytes", lambda *_: disk.LEAST_FREE_BYTES + 1)
    commit = scene.cores[0].datasets.commit
    with monkeypatch.context() as during:
        during.setattr(os, "fsync", full)
        with pytest.raises(HelperUnavailable):
            commit(scene.task_id, prepared.handle, prepared.bits, prepared.dataset_id, None)
    with pytest.raises(HelperUnavailable, match="bytes free"):
        scene.cores[0].check_well()
    monkeypatch.setattr(os, "statvfs", lambda _: Free(disk.LEAST_FREE_BYTES + 1))
    scene.cores[0].check_well()


def test_a_disk_with_next_to_no_room_is_not_well_before_anything_fails(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: Free(disk.LEAST_FREE_BYTES - 1))
    with pytest.raises(HelperUnavailable, match="bytes free"):
        scene.cores[0].check_well()


def test_a_witness_that_cannot_be_written_is_a_full_disk_and_no_bug(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = prepared_commit(scene)
    with monkeypatch.context() as during:
        during.setattr(scene.cores[0].witness, "_write", full)
        with pytest.raises(HelperUnavailable, match="disk is full"), stub(scene) as helper:
            helper.CommitDataset(request, timeout=HANGS_S)
    with stub(scene) as helper:
        assert helper.CommitDataset(request, timeout=HANGS_S).size == 30


def test_only_a_full_disk_or_quota_is_told_as_one() -> None:
    assert is_away(OSError(errno.ENOSPC, "full"))
    assert is_away(OSError(errno.EDQUOT, "quota"))
    assert not is_away(OSError(errno.EACCES, "not yours"))
    assert not is_away(grpc.RpcError())
