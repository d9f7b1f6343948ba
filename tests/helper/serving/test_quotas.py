"""Ad servers that fill a helper's memory, disk or bucket, over gRPC, and the others meanwhile."""

import os
import re
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from helper.core import HelperCore
from helper.datasets import segments
from helper.datasets.preparation_cache import KEPT_S, MAX_PREPARED_PER_TASK
from helper.datasets.preparation_quota import HELD_BYTES
from helper.datasets.sweeping import EXPIRED_KEPT_S, ORPHAN_S
from helper.serving.metrics import HelperMetrics
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.reports.dataset import ShareForHelper
from maskedlark.reports.upload import SealedShare
from maskedlark.rpc.faults import calling
from protos import helper_pb2 as pb
from tests.builders import NOW, shares_for
from tests.helper.parties import Scene
from tests.helper.served import stub_of
from tests.helper.serving.test_helper_service import END, chunk_message
from tests.helper.update_parties import UpdateScene
from tests.patience import HANGS_S
from tests.stores import InMemory

RIVAL, VICTIM = "rival.example", "victim.example"
HANDLE = b"h" * 16
KINDS = pytest.mark.parametrize("is_federated", [False, True], ids=["reports", "updates"])


@dataclass
class Tenant:
    """An ad server with one task at the helper, whose own preparations it names by handles."""

    scene: UpdateScene
    is_federated: bool

    def shares(self, count: int, seed: int = 0) -> list[ShareForHelper]:
        """Honest shares for helper 0."""
        if not self.is_federated:
            return shares_for(self.scene.reports(count, seed), 0)
        one = self.scene.round()
        return shares_for(self.scene.sealed(one, self.scene.vectors(count, seed), seed), 0)

    def header(self, handle: bytes = HANDLE) -> pb.PrepareRequest:
        encoded = canonical.encode(self.scene.round()) if self.is_federated else b""
        return pb.PrepareRequest(
            header=pb.PrepareRequest.Header(task_id=self.scene.task_id, handle=handle, update_round=encoded)
        )

    def prepare(
        self, helper: Any, shares: list[ShareForHelper], handle: bytes = HANDLE, chunk: int = 4
    ) -> list[pb.PrepareReply]:
        parts = [chunk_message(shares[at : at + chunk]) for at in range(0, len(shares), chunk)]
        with calling("helper"):
            return list(helper.PrepareDataset(iter([self.header(handle), *parts, END]), timeout=HANGS_S))

    def commit(self, helper: Any, replies: list[pb.PrepareReply], handle: bytes = HANDLE) -> int:
        admitted = np.frombuffer(b"".join(one.is_admitted for one in replies[:-1]), np.uint8)
        request = pb.CommitRequest(
            task_id=self.scene.task_id,
            handle=handle,
            chosen=np.packbits(admitted, bitorder="little").tobytes(),
            dataset_id=replies[-1].totals.admitted_digest,
        )
        with calling("helper"):
            return int(helper.CommitDataset(request, timeout=HANGS_S).size)

    def seal(self, helper: Any, count: int = 4, seed: int = 0, handle: bytes = HANDLE) -> int:
        return self.commit(helper, self.prepare(helper, self.shares(count, seed), handle), handle)


class World:
    """Helper 0 behind a port, and its two ad servers, each with a task of reports and one of updates."""

    def __init__(self, folder: Path) -> None:
        self.scene = UpdateScene(folder)
        self.store: InMemory | None = None

    @property
    def core(self) -> HelperCore:
        return self.scene.cores[0]

    @property
    def owned(self) -> dict[str, int]:
        return {owner: self.core.quota.of(owner) for owner in (RIVAL, VICTIM)}

    @property
    def on_disk(self) -> int:
        """The bytes that lie in the helper's folder and bucket."""
        files = sum(path.stat().st_size for path in self.files())
        return files + sum(map(len, self.store.objects.values() if self.store else ()))

    def files(self) -> list[Path]:
        """What is in the helper's folder once it has deleted what was given up."""
        self.core.datasets.vault.delete_dropped()
        return list((self.scene.parties[0].data / "datasets").iterdir())

    def tenant(self, host: str, *, is_federated: bool) -> Tenant:
        make = UpdateScene.tenant if is_federated else Scene.tenant
        return Tenant(scene=make(self.scene, f"https://{host}"), is_federated=is_federated)

    def restart(self, **how: Any) -> None:
        self.scene.restart(segments=self.store, **how)

    def pass_time(self, seconds: float) -> None:
        for party in self.scene.parties:
            party.now += seconds

    def stub(self) -> AbstractContextManager[Any]:
        return stub_of(self.core)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 4)
    return World(tmp_path)


def junk(number: int) -> ShareForHelper:
    """A share that opens nowhere."""
    return ShareForHelper(
        report_id=number.to_bytes(16, "little"),
        time_bucket=0,
        share=SealedShare(key_id=1, ciphertext=b"junk"),
    )


def refusal(call: Any, *given: Any, **named: Any) -> JobRefused:
    with pytest.raises(JobRefused) as refused:
        call(*given, **named)
    return refused.value


@KINDS
def test_a_rival_streams_junk_until_its_room_in_memory_is_full_and_the_victim_goes_on(
    world: World, is_federated: bool
) -> None:
    world.restart(max_preparing_bytes=8_000)
    rival = world.tenant(RIVAL, is_federated=is_federated)
    victims = [world.tenant(VICTIM, is_federated=one) for one in (False, True)]
    sent = SimpleQueue[pb.PrepareRequest]()
    sent.put(rival.header())
    with world.stub() as helper:
        replies = helper.PrepareDataset(iter(sent.get, None), timeout=HANGS_S)
        answered = 0

        def stream_junk() -> None:
            nonlocal answered
            with calling("helper"):
                for number in range(100):
                    sent.put(chunk_message([junk(number)]))
                    assert not any(next(replies).is_admitted)
                    answered += 1
                    assert world.core.datasets.preparing_bytes >= answered * HELD_BYTES
                    if answered == 20:
                        assert [one.seal(helper) for one in victims] == [4, 4]

        refused = refusal(stream_junk)
        assert refused.reason is JobReason.DATASET_TOO_LARGE
        assert "--max-preparing-bytes" in str(refused)
    assert 20 <= answered <= 0.75 * 8_000 / HELD_BYTES
    assert world.core.datasets.preparing_bytes == 0
    assert world.owned[RIVAL] == 0


@KINDS
def test_rivals_that_prepare_and_never_commit_fill_one_share_of_the_room_in_memory(
    world: World, is_federated: bool
) -> None:
    world.restart(max_preparing_bytes=8_000)
    rivals = [world.tenant(RIVAL, is_federated=is_federated)]
    victims = [world.tenant(VICTIM, is_federated=one) for one in (False, True)]
    with world.stub() as helper:
        rivals[0].prepare(helper, [junk(number) for number in range(28)])
        assert 28 * HELD_BYTES <= world.core.datasets.preparing_bytes <= 6_000
        with pytest.raises(HelperUnavailable) as full:
            rivals[0].prepare(helper, [junk(number) for number in range(28)], b"i" * 16)
        assert full.value.retry_after_s is not None
        assert [one.seal(helper) for one in victims] == [4, 4]
        world.pass_time(KEPT_S)  # its commit is overdue: it gives way
        rivals[0].prepare(helper, [junk(number) for number in range(28)], b"i" * 16)
    assert 28 * HELD_BYTES <= world.core.datasets.preparing_bytes <= 6_000


@KINDS
def test_many_chunks_take_no_more_memory_than_few(world: World, is_federated: bool) -> None:
    rival, sizes = world.tenant(RIVAL, is_federated=is_federated), []
    with world.stub() as helper:
        for chunk in (1, 40):
            rival.prepare(helper, [junk(number) for number in range(40)], chunk=chunk)
            ((_, kept),) = world.core.datasets.prepared._prepared.items()
            prepared: Any = kept.prepared
            sizes.append((kept.num_bytes, prepared.report_ids.nbytes, len(prepared.is_admitted)))
    assert sizes[0] == sizes[1]


@KINDS
def test_a_rival_that_never_commits_is_refused_at_its_quota_and_the_victim_goes_on(
    world: World, is_federated: bool
) -> None:
    world.restart(max_held_bytes=3_000)
    rivals = [world.tenant(RIVAL, is_federated=is_federated)]
    victims = [world.tenant(VICTIM, is_federated=one) for one in (False, True)]
    with world.stub() as helper:
        assert [one.seal(helper) for one in victims] == [4, 4]
        theirs = world.owned[VICTIM]
        error = None
        for number in range(60):
            if not number % MAX_PREPARED_PER_TASK:
                rivals.append(world.tenant(RIVAL + f":{number + 1}", is_federated=is_federated))
            try:
                rivals[-1].prepare(helper, rivals[-1].shares(4, seed=number), number.to_bytes(16, "little"))
            except JobRefused as refused:
                error = refused
                break
        assert error is not None
        assert error.reason is JobReason.QUOTA_EXCEEDED
        assert "--max-held-bytes" in str(error)
        numbers = [int(one) for one in re.findall(r"\d+", str(error))]
        assert numbers[0] == 3_000 >= numbers[1] >= world.owned[RIVAL] != theirs
        assert 2_000 < world.owned[RIVAL] <= 3_000
        assert [one.seal(helper, seed=99) for one in victims] == [4, 4]
        assert world.owned[VICTIM] == 2 * theirs
        world.pass_time(KEPT_S)  # what is overdue gives way to what its own ad server prepares
        rivals[-1].prepare(helper, rivals[-1].shares(4, seed=70))
    assert world.owned[RIVAL] <= 3_000
    assert world.core.quota.num_bytes == sum(world.owned.values())
    assert (
        f"helper_held_bytes {float(world.core.quota.num_bytes)}"
        in generate_latest(HelperMetrics(world.core).registry).decode()
    )


@KINDS
def test_streams_that_go_on_count_and_what_they_held_is_free_once_they_break(
    world: World, is_federated: bool
) -> None:
    world.restart(max_held_bytes=3_000)
    rival, victim = (world.tenant(host, is_federated=is_federated) for host in (RIVAL, VICTIM))
    shares, sent = rival.shares(16), SimpleQueue[pb.PrepareRequest]()
    sent.put(rival.header())
    sent.put(chunk_message(shares))
    with world.stub() as helper:
        replies = helper.PrepareDataset(iter(sent.get, None), timeout=HANGS_S)
        assert sum(next(replies).is_admitted) == 16
        open_bytes = world.owned[RIVAL]
        assert open_bytes > 1_500
        refused = refusal(rival.prepare, helper, shares, b"i" * 16)
        assert refused.reason is JobReason.QUOTA_EXCEEDED
        world.core.datasets.vault.delete_dropped()
        assert world.owned[RIVAL] == open_bytes  # what the refused one held is free again
        assert victim.seal(helper, 16) == 16
        replies.cancel()
        deadline = time.monotonic() + HANGS_S
        while world.owned[RIVAL]:  # the call ends in a thread of the server's
            world.core.datasets.vault.delete_dropped()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert rival.seal(helper, 16) == 16


@KINDS
@pytest.mark.parametrize("is_bucket", [False, True], ids=["files", "bucket"])
def test_committed_datasets_count_until_they_are_swept_also_after_restarts(
    world: World, is_federated: bool, is_bucket: bool
) -> None:
    world.store = InMemory(now=NOW) if is_bucket else None
    world.restart()
    rival, victim = (world.tenant(host, is_federated=is_federated) for host in (RIVAL, VICTIM))
    with world.stub() as helper:
        rival.seal(helper, 24)
        victim.seal(helper, 2)
    before = world.owned
    assert before[RIVAL] > before[VICTIM] > 0
    assert world.core.quota.num_bytes == world.on_disk
    world.restart(max_held_bytes=before[RIVAL] + 1)
    with world.stub() as helper:
        refused = refusal(rival.seal, helper, seed=3)
        assert refused.reason is JobReason.QUOTA_EXCEEDED
        assert victim.seal(helper, 2, seed=3) == 2
    assert (world.owned[RIVAL], world.owned[VICTIM]) == (before[RIVAL], 2 * before[VICTIM])
    world.pass_time(rival.scene.task.expires_at - NOW + EXPIRED_KEPT_S)
    world.core.sweeper.sweep()
    assert world.owned == {RIVAL: 0, VICTIM: 0}
    assert world.on_disk == 0


class PowerCut(BaseException):
    """The process is gone."""


def cut(*_: object) -> None:
    raise PowerCut


@KINDS
@pytest.mark.parametrize("is_bucket", [False, True], ids=["files", "bucket"])
def test_what_a_crash_left_counts_for_its_ad_server_until_it_is_swept(
    world: World, is_federated: bool, is_bucket: bool
) -> None:
    world.store = InMemory(now=NOW) if is_bucket else None
    world.restart()
    rival, victim = (world.tenant(host, is_federated=is_federated) for host in (RIVAL, VICTIM))
    with world.stub() as helper:
        replies = rival.prepare(helper, rival.shares(24))
        rival.prepare(helper, rival.shares(8, seed=1), b"i" * 16)  # which lies there without its commit
    datasets: Any = world.core.datasets
    expected = replies[-1].totals.admitted_digest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.ledger, "add_dataset", cut)
        with pytest.raises(PowerCut):
            datasets.commit(rival.scene.task_id, HANDLE, b"\xff" * 3, expected, None)
    world.restart()
    with world.stub() as helper:
        victim.seal(helper, 2)
    assert world.core.quota.num_bytes == world.on_disk
    left = world.owned[RIVAL]
    assert left > 0
    world.restart(max_held_bytes=left)
    with world.stub() as helper:
        assert refusal(rival.seal, helper, 8, seed=5).reason is JobReason.QUOTA_EXCEEDED
        assert victim.seal(helper, 2, seed=5) == 2
    for path in world.files():
        os.utime(path, (NOW, NOW))
    world.pass_time(ORPHAN_S)
    assert world.core.sweeper.sweep().orphans > 0
    assert world.owned[RIVAL] == 0
    assert world.core.quota.num_bytes == world.on_disk
    with world.stub() as helper:
        assert rival.seal(helper, 4, seed=5) == 4
