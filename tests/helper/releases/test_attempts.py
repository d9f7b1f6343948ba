"""A round may be begun and left uncharged a few times; after that it is charged whoever waits.

The attack: a Poisson round has the same sample at the same weights, and "slower than D" is told by leaving at
D. Uncharged, that is an oracle to be asked as often as one likes.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from helper.datasets.fair_cache import FairCache
from helper.gradient.engine import Batch, Interrupt, MaskedSum, never
from helper.ledger.records import ReleaseKey, key_of
from helper.releases.answering import Call
from helper.releases.attempts import MAX_UNCHARGED, Attempts
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.weights import QuantisedTensor
from maskedlark.releases.job import JobSpec
from tests.helper.parties import OTHER_WEIGHTS, WEIGHTS, FakeEngine, Scene
from tests.helper.releases.test_interrupted_rounds import asked, charged, serving
from tests.patience import HANGS_S
from tests.refusals import refused


class Oracle:
    """An ad server that leaves once it has seen that a round is being computed."""

    def __init__(self, scene: Scene, spec: JobSpec) -> None:
        self.scene, self.spec, self.batches = scene, spec, list[int]()
        oracle = self

        class Telling(FakeEngine):
            def masked_sum(
                self, tensors: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
            ) -> MaskedSum:
                oracle.batches.append(int(batch.mask_shares.any(axis=1).sum()))
                interrupt()
                return super().masked_sum(tensors, batch)

        scene.restart(engine_for=lambda model, loss, clip, classes: Telling(model.num_parameters, clip))

    def ask(self, round_index: int = 0, weights: bytes = WEIGHTS, **call: Any) -> bytes:
        before = len(self.batches)

        def gone() -> None:
            if len(self.batches) > before:
                raise JobRefused(JobReason.CANCELLED, "gone")

        job = self.scene.cores[0].jobs.at_work(key_of(self.spec), None)
        return job.answer(round_index, weights, Call(caller=None, check_awaited=gone, **call))

    def is_left(self, *given: Any) -> bool:
        """Whether a call ended without an answer."""
        try:
            self.ask(*given)
        except JobRefused as refusal:
            return refusal.reason is JobReason.CANCELLED
        return False


@pytest.fixture
def oracle(tmp_path: Path) -> Oracle:
    scene = Scene(tmp_path)
    spec = scene.job(scene.seal(60), sampling_numerator=1 << 31, rounds=3)
    scene.start(spec)
    return Oracle(scene, spec)


def test_a_sample_is_looked_at_a_few_times_for_nothing_and_then_charged(oracle: Oracle) -> None:
    assert [oracle.is_left() for _ in range(MAX_UNCHARGED)] == [True] * MAX_UNCHARGED
    assert charged(oracle.scene) == 0
    answer = oracle.ask()
    assert charged(oracle.scene) == 1
    assert len(set(oracle.batches)) == 1  # the oracle: each look is at the same sample
    assert len(oracle.batches) == MAX_UNCHARGED + 1
    assert oracle.ask() == answer
    assert len(oracle.batches) == MAX_UNCHARGED + 1  # and no look is left


def test_closing_the_job_waits_for_the_round_that_is_to_be_charged(oracle: Oracle) -> None:
    """The attack: CloseJob while the answer is held would end the last look uncharged, too."""
    assert all(oracle.is_left() for _ in range(MAX_UNCHARGED))
    held, waited = Event(), Event()

    def hold() -> None:
        held.set()
        assert waited.wait(HANGS_S)

    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(oracle.ask, hold=hold)
        assert held.wait(HANGS_S)
        jobs, encoded = oracle.scene.cores[0].jobs, encode(oracle.spec)
        closed = pool.submit(jobs.close, encoded, None, waited.set)
        assert len(answer.result(HANGS_S)) > 0
        assert closed.result(HANGS_S) == 1
    assert charged(oracle.scene) == 1


def test_a_caller_who_leaves_while_closing_waits_leaves_the_job_open(oracle: Oracle) -> None:
    attempts, encoded = Attempts(), encode(oracle.spec)
    object.__setattr__(oracle.scene.cores[0].jobs, "_attempts", attempts)
    for _ in range(MAX_UNCHARGED + 1):
        attempts.begin(key_of(oracle.spec), 0)

    def gone() -> None:
        raise JobRefused(JobReason.CANCELLED, "gone")

    with refused(JobReason.CANCELLED):
        oracle.scene.cores[0].jobs.close(encoded, None, gone)
    attempts.end(key_of(oracle.spec))
    assert attempts.begin(key_of(oracle.spec), 1)
    assert oracle.scene.cores[0].jobs.close(encoded, None, gone) == 0


def test_no_computation_begins_while_its_job_is_being_closed() -> None:
    attempts, job = Attempts(), ReleaseKey(b"task", b"job")
    with attempts.closing(job, lambda: None):
        with pytest.raises(JobRefused) as refused:
            attempts.begin(job, 0)
        assert attempts.begin(ReleaseKey(b"task", b"other"), 0)
        assert attempts.begin(ReleaseKey(b"another task", b"job"), 0)
    assert refused.value.reason is JobReason.JOB_CLOSED
    assert attempts.begin(job, 0)


def test_looks_at_other_weights_are_looks_at_the_same_round(oracle: Oracle) -> None:
    looks = [WEIGHTS, OTHER_WEIGHTS] * MAX_UNCHARGED
    assert [oracle.is_left(0, weights) for weights in looks[: MAX_UNCHARGED + 1]] == [
        *[True] * MAX_UNCHARGED,
        False,
    ]
    assert charged(oracle.scene) == 1


def test_each_round_has_its_own_looks(oracle: Oracle) -> None:
    for index in range(3):
        assert all(oracle.is_left(index) for _ in range(MAX_UNCHARGED))
        oracle.ask(index)
    assert charged(oracle.scene) == 3


def test_jobs_that_leave_memory_keep_their_count(oracle: Oracle) -> None:
    oracle.scene.cores[0].jobs._running = FairCache(0)
    other = replace(oracle.spec, job_id=b"o" * 16)
    for _ in range(MAX_UNCHARGED):
        assert oracle.is_left()
        oracle.scene.start(other)
    oracle.ask()
    assert charged(oracle.scene) == 1


def test_who_has_gone_before_the_work_begins_has_looked_at_nothing(oracle: Oracle) -> None:
    def gone() -> None:
        raise JobRefused(JobReason.CANCELLED, "gone")

    job = oracle.scene.cores[0].jobs.at_work(key_of(oracle.spec), None)
    for _ in range(2 * MAX_UNCHARGED):
        with refused(JobReason.CANCELLED):
            job.answer(0, WEIGHTS, Call(caller=None, check_awaited=gone))
    assert not oracle.batches
    assert oracle.is_left()


def test_a_helper_that_shuts_down_gives_the_round_up_uncharged(oracle: Oracle) -> None:
    def over() -> None:
        raise JobRefused(JobReason.CANCELLED, "shutting down")

    assert all(oracle.is_left() for _ in range(MAX_UNCHARGED))
    with pytest.raises(JobRefused, match="shutting down"):
        oracle.ask(check_serving=over)
    assert charged(oracle.scene) == 0


class HeldEngine(FakeEngine):
    """Computes until it is let go, or interrupted."""

    began, let_go = Event(), Event()

    def masked_sum(
        self, tensors: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
    ) -> MaskedSum:
        self.began.set()
        while not self.let_go.wait(0.01):
            interrupt()
        return super().masked_sum(tensors, batch)


def test_over_grpc_a_call_that_is_cancelled_once_too_often_is_charged(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.restart(engine_for=lambda model, loss, clip, classes: HeldEngine(model.num_parameters, clip))
    HeldEngine.let_go.clear()
    with serving(scene) as stub:
        for _ in range(MAX_UNCHARGED + 1):
            HeldEngine.began.clear()
            call = stub.RunRound(asked(spec), timeout=HANGS_S)
            assert HeldEngine.began.wait(HANGS_S)
            call.cancel()
        assert charged(scene) == 0
        HeldEngine.let_go.set()
        stub.RunRound(asked(spec), timeout=HANGS_S).__next__()
        assert charged(scene) == 1


def test_counts_are_of_the_round_that_was_begun_last() -> None:
    attempts = Attempts()
    one, two = ReleaseKey(b"task", b"one"), ReleaseKey(b"task", b"two")
    assert all(attempts.begin(one, 0) for _ in range(MAX_UNCHARGED))
    assert attempts.begin(two, 0)
    assert not attempts.begin(one, 0)
    assert attempts.begin(one, 1)
    assert all(attempts.begin(one, 1) for _ in range(MAX_UNCHARGED - 1))
    assert not attempts.begin(one, 1)
    attempts.forget(one)
    assert all(attempts.begin(one, 1) for _ in range(MAX_UNCHARGED))
    attempts.forget(ReleaseKey(b"task", b"unknown"))


def test_a_close_waits_for_each_computation_that_is_to_be_charged() -> None:
    attempts, job = Attempts(), ReleaseKey(b"task", b"job")
    for _ in range(MAX_UNCHARGED + 2):
        attempts.begin(job, 0)
    waits: list[int] = []

    def over() -> None:
        waits.append(len(waits))
        attempts.end(job)

    with attempts.closing(job, over), attempts.closing(job, over):
        assert waits == [0, 1]
    assert not attempts.begin(job, 0)
