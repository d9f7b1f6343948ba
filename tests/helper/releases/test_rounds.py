from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from helper.gradient.engine import Batch, Interrupt, MaskedSum, never
from helper.ledger.ledger import Ledger
from helper.ledger.records import ReleaseKey, StoredRound, key_of
from maskedlark import canonical
from maskedlark.audit_log import THIS_SERVICE, Actor
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.weights import QuantisedTensor
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare, combine
from tests.helper.parties import (
    ASKED,
    MODEL,
    NUM_VALUES,
    OTHER_WEIGHTS,
    WEIGHTS,
    FakeEngine,
    Scene,
    fake_engine_for,
)
from tests.patience import HANGS_S
from tests.refusals import refused


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def started(scene: Scene, **changes: Any) -> JobSpec:
    spec = scene.job(scene.seal(), **changes)
    scene.start(spec)
    return spec


def refusal(scene: Scene, spec: JobSpec, round_index: int, weights: bytes = WEIGHTS) -> JobReason:
    before = scene.cores[0].status().counts.rounds_answered
    with pytest.raises(JobRefused) as refused:
        scene.answer(0, spec, round_index, weights)
    assert scene.cores[0].status().counts.rounds_answered == before
    return refused.value.reason


# --- what a round gives


def test_the_two_answers_add_up_to_the_plain_sum_bit_for_bit(scene: Scene) -> None:
    dataset = scene.seal(50)
    spec = scene.job(dataset)
    scene.start(spec)
    assert scene.run(spec, 0).tolist() == scene.plain_sum(50)


def test_one_answer_alone_is_not_the_sum(scene: Scene) -> None:
    spec = started(scene)
    alone = AggregateShare.decode(scene.answer(0, spec, 0), NUM_VALUES)
    assert (alone.vector > 1 << 40).all()


def test_two_rounds_draw_other_blinds(scene: Scene) -> None:
    spec = started(scene)
    first, second = (AggregateShare.decode(scene.answer(0, spec, index), NUM_VALUES) for index in (0, 1))
    assert (first.vector != second.vector).all()


def test_a_dataset_under_k_gives_zeros_in_the_same_form(tmp_path: Path) -> None:
    scene = Scene(tmp_path, min_batch_size=21)
    spec = started(scene)
    assert scene.run(spec, 0).tolist() == [0] * NUM_VALUES


def test_helpers_that_were_shown_other_weights_are_noticed(scene: Scene) -> None:
    spec = started(scene)
    first, second = scene.answer(0, spec, 0, WEIGHTS), scene.answer(1, spec, 0, OTHER_WEIGHTS)
    with refused(JobReason.HELPERS_DISAGREE):
        combine(AggregateShare.decode(first, NUM_VALUES), AggregateShare.decode(second, NUM_VALUES))


def test_noise_of_both_helpers_is_in_the_sum(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mechanism="gaussian", epsilon=16.0, collusion_epsilon=1000.0)
    spec = started(scene, noise_multiplier=5.0)
    noise = scene.run(spec, 0) - np.array(scene.plain_sum(20))
    assert (np.abs(noise) < 12 * 5 * 2.0**32).all()  # 8 standard deviations of both helpers' noise
    assert (np.abs(noise) > 1000).all()


# --- once charged, once answered


def test_the_same_round_gets_the_same_bytes_and_is_charged_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mechanism="gaussian", epsilon=16.0, collusion_epsilon=1000.0)
    spec = started(scene, noise_multiplier=5.0)
    first = scene.answer(0, spec, 0)
    assert scene.answer(0, spec, 0) == first
    scene.restart()
    assert scene.answer(0, spec, 0) == first
    scene.answer(0, spec, 1)
    assert scene.answer(0, spec, 0) == first  # the round before the last one is still kept
    assert scene.cores[0].status().counts.rounds_answered == 2


def test_the_same_round_asked_for_many_times_at_once_is_computed_once(tmp_path: Path) -> None:
    engines: list[FakeEngine] = []

    def counted_engine(*given: Any) -> FakeEngine:
        engines.append(fake_engine_for(*given))
        return engines[-1]

    scene = Scene(tmp_path, mechanism="gaussian", epsilon=16.0, collusion_epsilon=1000.0)
    spec = started(scene, noise_multiplier=5.0)
    scene.restart(engine_for=counted_engine)
    with ThreadPoolExecutor(16) as threads:
        answers = set(threads.map(lambda _: scene.answer(0, spec, 0), range(64)))
    assert len(answers) == 1
    assert sum(engine.calls for engine in engines) == 1
    assert scene.cores[0].status().counts.rounds_answered == 1


def test_two_processes_on_one_ledger_release_one_answer(tmp_path: Path) -> None:
    """Both compute, as two processes would.

    The ledger lets one through and the other gives the same bytes.
    """
    scene = Scene(tmp_path, mechanism="gaussian", epsilon=16.0, collusion_epsilon=1000.0)
    spec = started(scene, noise_multiplier=5.0)
    other = scene.parties[0].open()
    first_computes, may_go_on = Event(), Event()

    class SlowEngine(FakeEngine):
        def masked_sum(
            self, tensors: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
        ) -> MaskedSum:
            first_computes.set()
            assert may_go_on.wait(HANGS_S)
            return super().masked_sum(tensors, batch)

    scene.restart(engine_for=lambda model, loss, clip, classes: SlowEngine(model.num_parameters, clip))
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(scene.answer, 0, spec, 0)
        assert first_computes.wait(HANGS_S)
        fast = other.jobs.at_work(key_of(spec), None).answer(0, WEIGHTS, ASKED)
        may_go_on.set()
        assert slow.result() == fast
    assert scene.cores[0].status().counts.rounds_answered == 1


def test_a_round_that_is_cut_off_by_closing_the_job_releases_nothing(scene: Scene) -> None:
    spec = started(scene)

    class ClosingEngine(FakeEngine):
        def masked_sum(
            self, tensors: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
        ) -> MaskedSum:
            scene.cores[0].jobs.close(canonical.encode(spec), None)
            return super().masked_sum(tensors, batch)

    scene.restart(engine_for=lambda model, loss, clip, classes: ClosingEngine(model.num_parameters, clip))
    assert refusal(scene, spec, 0) is JobReason.JOB_CLOSED


class PowerCut(Exception):
    """Not a domain error: what a dying process looks like from outside."""


class CutBeforeCommit(Ledger):
    """Dies after the answer was computed and before it was committed."""

    def add_round(
        self,
        job: ReleaseKey,
        round_index: int,
        answered: StoredRound,
        actor: Actor = THIS_SERVICE,
        *,
        numerics: bytes = b"",
    ) -> bool:
        raise PowerCut


class CutAfterCommit(Ledger):
    """Dies after the commit and before the answer was released."""

    def add_round(
        self,
        job: ReleaseKey,
        round_index: int,
        answered: StoredRound,
        actor: Actor = THIS_SERVICE,
        *,
        numerics: bytes = b"",
    ) -> bool:
        assert super().add_round(job, round_index, answered, actor, numerics=numerics)
        raise PowerCut


def test_a_crash_before_the_commit_charges_nothing_and_releases_nothing(scene: Scene) -> None:
    spec = started(scene)
    scene.restart(ledger_type=CutBeforeCommit)
    with pytest.raises(PowerCut):
        scene.answer(0, spec, 0)
    scene.restart()
    assert scene.cores[0].status().counts.rounds_answered == 0
    assert scene.run(spec, 0).tolist() == scene.plain_sum(20)


def test_a_crash_after_the_commit_is_charged_once_and_answered_from_the_ledger(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mechanism="gaussian", epsilon=16.0, collusion_epsilon=1000.0)
    spec = started(scene, noise_multiplier=5.0)
    scene.restart(ledger_type=CutAfterCommit)
    with pytest.raises(PowerCut):
        scene.answer(0, spec, 0)

    def no_engine(*_: Any) -> FakeEngine:
        return NeverCalled(NUM_VALUES, scene.task.clip)

    scene.restart(engine_for=no_engine)
    assert scene.answer(0, spec, 0) == scene.answer(0, spec, 0)
    assert scene.cores[0].status().counts.rounds_answered == 1


class NeverCalled(FakeEngine):
    """An engine for rounds that must not be computed again."""

    def masked_sum(
        self, tensors: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
    ) -> MaskedSum:
        raise AssertionError("computed again")


class ClosedMeanwhile(Ledger):
    """Another process closes the job after this one has seen it open."""

    def round(self, job: ReleaseKey, round_index: int) -> StoredRound | None:
        state = self.job_state(job)
        assert state is not None
        self.close_job(state.spec)
        return super().round(job, round_index)


def test_a_round_whose_answer_is_dropped_while_it_is_asked_for_is_not_computed_again(scene: Scene) -> None:
    spec = started(scene)
    scene.answer(0, spec, 0)
    scene.restart(
        ledger_type=ClosedMeanwhile,
        engine_for=lambda model, loss, clip, classes: NeverCalled(model.num_parameters, clip),
    )
    assert refusal(scene, spec, 0) is JobReason.ROUND_CLOSED


class CutInCommit(Ledger):
    """Dies when a dataset's shares are on disk and its reports not yet used up."""

    def add_dataset(self, *_: Any) -> None:
        raise PowerCut


def test_a_crash_while_a_dataset_is_committed_uses_no_report_up(scene: Scene) -> None:
    reports = scene.reports(10)
    scene.restart(ledger_type=CutInCommit)
    with pytest.raises(PowerCut):
        scene.commit(scene.prepare(reports))
    scene.restart()
    assert scene.cores[0].status().counts.datasets == 0
    scene.commit(scene.prepare(reports))


# --- refusals


def test_a_round_of_an_unknown_job_is_refused(scene: Scene) -> None:
    spec = started(scene)
    assert refusal(scene, replace(spec, job_id=b"?" * 16), 0) is JobReason.UNKNOWN_JOB


@pytest.mark.parametrize("call", ["at_work", "check_known"])
def test_another_origin_cannot_tell_a_job_that_is_there_from_one_that_is_not(scene: Scene, call: str) -> None:
    spec, stranger = started(scene), frozenset({"other.example"})
    told = []
    for key in (key_of(spec), ReleaseKey(scene.task_id, b"?" * 16), ReleaseKey(b"?" * 32, b"?" * 16)):
        with pytest.raises(JobRefused) as refused:
            getattr(scene.cores[0].jobs, call)(key, stranger)
        told.append((refused.value.reason, str(refused.value)))
    assert told[0] == told[1] == told[2]
    assert told[0][0] is JobReason.UNKNOWN_TASK


def test_a_round_of_somebody_else_after_a_restart_computes_nothing(scene: Scene) -> None:
    spec = started(scene)

    def never(*_: object) -> None:
        raise AssertionError("the job was made again for a stranger")

    scene.restart(engine_for=never)
    with refused(JobReason.UNKNOWN_TASK):
        scene.cores[0].jobs.at_work(key_of(spec), frozenset({"other.example"}))


def test_a_round_of_a_closed_job_is_refused(scene: Scene) -> None:
    spec = started(scene)
    scene.answer(0, spec, 0)
    scene.cores[0].jobs.close(canonical.encode(spec), None)
    assert refusal(scene, spec, 0) is JobReason.JOB_CLOSED
    assert refusal(scene, spec, 1) is JobReason.JOB_CLOSED


def test_an_answered_round_with_other_weights_is_refused(scene: Scene) -> None:
    spec = started(scene)
    for index in range(4):
        scene.answer(0, spec, index)
    for index in range(4):
        assert refusal(scene, spec, index, OTHER_WEIGHTS) is JobReason.ROUND_CHANGED


def test_a_round_ahead_of_the_next_one_is_refused(scene: Scene) -> None:
    spec = started(scene)
    assert refusal(scene, spec, 1) is JobReason.ROUND_OUT_OF_ORDER
    scene.answer(0, spec, 0)
    assert refusal(scene, spec, 2) is JobReason.ROUND_OUT_OF_ORDER


def test_after_an_answer_attempts_are_counted_anew_and_the_next_noise_is_drawn(tmp_path: Path) -> None:
    scene = Scene(tmp_path, mechanism="gaussian", epsilon=100.0, collusion_epsilon=1000.0)
    spec = scene.job(scene.seal(), rounds=2, noise_multiplier=5.0)
    scene.start(spec)
    jobs = scene.cores[0].jobs
    for index, is_drawn in ((0, True), (1, False)):  # there is no round after the last one
        scene.answer(0, spec, index)
        assert jobs._attempts._begun == {}
        assert bool(jobs._noise._ahead._kept) is is_drawn


def test_a_job_at_work_is_not_read_from_the_ledger_again_and_one_of_before_a_restart_once(
    scene: Scene,
) -> None:
    spec = started(scene)
    built = 0

    def counting(*arguments: Any) -> FakeEngine:
        nonlocal built
        built += 1
        return fake_engine_for(*arguments)

    scene.restart(engine_for=counting)
    jobs = scene.cores[0].jobs
    first = jobs.at_work(key_of(spec), None).running
    assert jobs.at_work(key_of(spec), None).running is first
    assert built == 1


def test_a_round_that_waits_for_another_one_ends_when_its_caller_has_gone(scene: Scene) -> None:
    class Gone(Exception):
        pass

    def gone() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise Gone

    looks: list[int] = []
    running = scene.cores[0].jobs.at_work(key_of(started(scene)), None).running
    with running._exclusively(gone):
        assert looks == []
        with pytest.raises(Gone), running._exclusively(gone):
            raise AssertionError
        assert looks == [1, 1]
    with running._exclusively(gone):
        pass


def test_the_model_of_a_job_that_was_closed_meanwhile_is_no_empty_file(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    running = scene.cores[0].jobs._running.get(key_of(spec))
    assert running is not None
    assert running._model_file() == MODEL
    monkeypatch.setattr(scene.cores[0].jobs._ledger, "job_model", lambda *_: b"")
    with refused(JobReason.JOB_CLOSED):
        running._model_file()


def test_a_round_of_a_job_that_the_ledger_has_lost_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    monkeypatch.setattr(scene.cores[0].jobs._ledger, "job_state", lambda *_: None)
    assert refusal(scene, spec, 0) is JobReason.UNKNOWN_JOB


def test_a_round_beyond_the_plan_is_refused(scene: Scene) -> None:
    spec = started(scene, rounds=1)
    scene.answer(0, spec, 0)
    assert refusal(scene, spec, 1) is JobReason.ROUND_BEYOND_PLAN
    assert refusal(scene, spec, 2**64 - 1) is JobReason.ROUND_BEYOND_PLAN


def test_a_round_that_the_job_has_left_behind_is_refused(scene: Scene) -> None:
    spec = started(scene)
    for index in range(3):
        scene.answer(0, spec, index)
    assert refusal(scene, spec, 0) is JobReason.ROUND_CLOSED


@pytest.mark.parametrize(
    "weights",
    [b"", WEIGHTS[:-1], WEIGHTS + b"\0", b"\x7f" + WEIGHTS[1:], WEIGHTS[:1] + b"\xff\x7f" + WEIGHTS[3:]],
)
def test_malformed_weights_are_refused(scene: Scene, weights: bytes) -> None:
    spec = started(scene)
    assert weights != WEIGHTS
    with refused(JobReason.MALFORMED):
        scene.cores[0].jobs.at_work(key_of(spec), None).answer(0, weights, ASKED)
    assert scene.cores[0].status().counts.rounds_answered == 0


def test_a_restarted_helper_needs_no_second_start(scene: Scene) -> None:
    spec = started(scene)
    scene.run(spec, 0)
    scene.restart()
    assert scene.run(spec, 1).tolist() == scene.plain_sum(20)
    encoded = canonical.encode(spec)
    assert scene.cores[0].jobs.start(encoded, MODEL, ASKED).rounds_answered == 2
