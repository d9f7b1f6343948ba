"""Nobody computes for a caller who has gone, and nobody waits in a queue without end."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from helper.gradient.choose import choose_engine
from helper.gradient.engine import Batch, Interrupt, MaskedSum, never
from helper.gradient.general.engine import GeneralEngine
from helper.gradient.general.masked_products import MaskedProducts
from helper.ledger.records import key_of
from helper.releases.answering import Call
from helper.serving.service import HelperService
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import QuantisedTensor, decode
from maskedlark.releases.job import JobSpec
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.faults import calling
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.helper.parties import MODEL, WEIGHTS, FakeEngine, Scene
from tests.helper.served import stub_of
from tests.patience import HANGS_S


class EndlessEngine(FakeEngine):
    """Computes until it is interrupted, and tells when it began and ended."""

    began, ended = Event(), Event()

    def masked_sum(
        self, tensors: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
    ) -> MaskedSum:
        self.began.set()
        try:
            while True:
                interrupt()
                time.sleep(0.01)
        finally:
            self.ended.set()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    EndlessEngine.began.clear()
    EndlessEngine.ended.clear()
    return Scene(tmp_path)


def serving(
    scene: Scene, room: FairQuota | None = None
) -> AbstractContextManager[helper_pb2_grpc.HelperStub]:
    return stub_of(HelperService(scene.cores[0], admission=room or FairQuota(4)), threads=8)


def endless(scene: Scene) -> JobSpec:
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.restart(engine_for=lambda model, loss, clip, classes: EndlessEngine(model.num_parameters, clip))
    return spec


def asked(spec: JobSpec) -> Iterator[pb.RoundRequest]:
    yield pb.RoundRequest(header=pb.RoundRequest.Header(task_id=spec.task_id, job_id=spec.job_id, round=0))
    yield pb.RoundRequest(weights=WEIGHTS)


def ask(stub: helper_pb2_grpc.HelperStub, spec: JobSpec, timeout_s: float = HANGS_S) -> bytes:
    with calling("north"):
        return b"".join(reply.chunk for reply in stub.RunRound(asked(spec), timeout=timeout_s))


def ask_past_the_deadline(stub: helper_pb2_grpc.HelperStub, spec: JobSpec) -> None:
    """Ask with a deadline that is over while the helper computes, however late it begins."""
    EndlessEngine.began.clear()
    timeout_s, until = 0.5, time.monotonic() + HANGS_S
    while not EndlessEngine.began.is_set():
        assert time.monotonic() < until
        with pytest.raises(HelperUnavailable, match=r"deadline|limit of calls") as told:
            ask(stub, spec, timeout_s)
        if "deadline" in str(told.value):
            timeout_s *= 2
        else:
            time.sleep(0.02)  # those before it are still on their way out


def charged(scene: Scene) -> int:
    return scene.cores[0].status().counts.rounds_answered


def test_a_cancelled_round_stops_within_a_second_and_is_not_charged(scene: Scene) -> None:
    spec = endless(scene)
    with serving(scene) as stub:
        call = stub.RunRound(asked(spec), timeout=HANGS_S)
        assert EndlessEngine.began.wait(HANGS_S)
        call.cancel()
        assert EndlessEngine.ended.wait(HANGS_S)
        assert charged(scene) == 0
    scene.restart()
    scene.answer(0, spec, 0)  # and can be asked again
    assert charged(scene) == 1


class OnceSummedEngine(FakeEngine):
    """Sums without a look at the interrupt, and tells when it is done."""

    summed = Event()

    def masked_sum(
        self, tensors: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
    ) -> MaskedSum:
        total = super().masked_sum(tensors, batch)
        self.summed.set()
        return total


def test_who_left_between_the_sum_and_the_charge_is_not_charged(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.restart(engine_for=lambda model, loss, clip, classes: OnceSummedEngine(model.num_parameters, clip))
    OnceSummedEngine.summed.clear()

    def gone() -> None:
        if OnceSummedEngine.summed.is_set():
            raise JobRefused(JobReason.CANCELLED, "gone")

    with pytest.raises(JobRefused, match="gone"):
        scene.cores[0].jobs.at_work(key_of(spec), None).answer(
            0, WEIGHTS, Call(caller=None, check_awaited=gone)
        )
    assert OnceSummedEngine.summed.is_set()
    assert charged(scene) == 0


def test_a_round_past_its_deadline_stops(scene: Scene) -> None:
    spec = endless(scene)
    with serving(scene) as stub:
        ask_past_the_deadline(stub, spec)
        assert EndlessEngine.ended.wait(HANGS_S)


def test_who_waits_for_another_computation_of_the_job_can_be_cancelled_too(scene: Scene) -> None:
    spec, room = endless(scene), FairQuota(2)
    with serving(scene, room) as stub:
        first, second = (stub.RunRound(asked(spec), timeout=HANGS_S) for _ in range(2))
        assert EndlessEngine.began.wait(HANGS_S)
        second.cancel()
        first.cancel()
        until = time.monotonic() + HANGS_S
        while room._held.total():
            assert time.monotonic() < until
            time.sleep(0.02)
        ask_past_the_deadline(stub, spec)  # both have left: there is room, and the third one computes


def test_a_helper_without_room_says_when_to_come_again_and_still_answers_light_calls(scene: Scene) -> None:
    spec = endless(scene)
    with serving(scene, FairQuota(1)) as stub:
        call = stub.RunRound(asked(spec), timeout=HANGS_S)
        assert EndlessEngine.began.wait(HANGS_S)
        with pytest.raises(HelperUnavailable, match="limit of calls") as refused:
            ask(stub, spec)
        assert refused.value.retry_after_s == 1.0
        assert stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).name == "north"
        call.cancel()


def test_a_server_with_too_many_calls_answers_that_it_is_full(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maskedlark.rpc.transport._CALLS_A_THREAD", 8)
    spec, timeout_s, seen = endless(scene), 0.25, set[float | None]()
    with stub_of(scene.cores[0], threads=1) as stub, ThreadPoolExecutor(20) as threads:
        while not {None, 1.0} <= seen:  # the ones at work or in the queue, at their deadline, and the
            timeout_s *= 2  # ones over the limit, at once; on a busy machine one kind may come alone
            assert timeout_s < HANGS_S
            answers = [threads.submit(ask, stub, spec, timeout_s) for _ in range(20)]
            errors = [answer.exception() for answer in answers]
            hints = [error.retry_after_s for error in errors if isinstance(error, HelperUnavailable)]
            assert len(hints) == 20
            seen.update(hints)


@pytest.mark.parametrize(
    "choose",
    [choose_engine, lambda *arguments: GeneralEngine(*arguments, why="a test")],
    ids=["exact", "general"],
)
def test_both_engines_stop_wherever_they_are_interrupted(scene: Scene, choose: Callable[..., Any]) -> None:
    model, rows = parse(MODEL, num_features=4), 5000
    engine = choose(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, scene.task.clip, 2)
    batch = Batch(
        features=np.zeros((rows, 4), np.uint8),
        labels=np.zeros((rows, 2), np.uint32),
        mask_shares=np.ones((rows, 2), np.uint64),
    )

    def calls(last: int | None) -> int:
        """How often the engine looks whether anybody waits, who leaves at the last of them."""
        seen = 0

        def interrupt() -> None:
            nonlocal seen
            seen += 1
            if seen == last:
                raise JobRefused(JobReason.CANCELLED, "gone")

        with pytest.raises(JobRefused, match="gone") if last else nullcontext():
            engine.masked_sum(decode(WEIGHTS, model.parameters), batch, interrupt)
        return seen

    whole = calls(None)
    assert whole >= rows / 512
    for last in (1, whole // 2, whole):
        assert calls(last) == last


def test_a_masked_sum_of_many_parameters_is_reduced_in_blocks_between_which_it_can_be_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(3)
    values, shares = (
        random.integers(-(1 << 30), 1 << 30, (5, 1000)),
        random.integers(0, 1 << 63, 5, np.uint64),
    )

    def total() -> tuple[list[int], int]:
        seen: list[None] = []
        products = MaskedProducts(1000, 1 << 30)
        products.add(values, shares)
        return products.total(lambda: seen.append(None)).tolist(), len(seen)

    whole, once = total()
    monkeypatch.setattr("helper.gradient.general.masked_products._BLOCK", 64)
    assert total() == (whole, 16)
    assert once == 1
