"""Jobs from the queue to their end, with two honest helpers in memory.

The same bits as training in the clear, whatever dies when.
"""

import errno
import math
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionInTime

from adserver.records.exported_model import ModelWeights
from adserver.records.job_record import Stop
from adserver.records.job_state import JobState
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.round_figures import RoundFigures, best_evaluated, noise_to_signal
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from adserver.store import job_folder
from adserver.store.job_files import submit
from adserver.store.leases import MAX_WORKERS_LOST, JobLeases
from adserver.training import runner as job_runner
from adserver.training.any_records import takes_one_record
from adserver.training.eval_set import read_eval_set
from adserver.training.export import export_job
from adserver.training.inference import evaluate, predict
from adserver.training.job_outcome import HELPER_UNAVAILABLE, INTERNAL_ERROR
from adserver.training.optimizers import fresh_moments, step
from adserver.training.runner import _check_started, mean_excess, mean_gradient
from adserver.training.trainer import Checkpoint
from adserver.training.worker import JOB_PATIENCE, JobWorker, _JobWaits
from adserver.views.job import print_job
from maskedlark.error_contract import contract
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused, ModelReason
from maskedlark.model import weights
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.started_job import StartedJob
from maskedlark.runtime import durable_file
from tests.adserver.job_world import (
    ENCODED_MODEL,
    IMPATIENT,
    MODEL,
    NUMERICS,
    RECORDS,
    Fuse,
    Killed,
    Sealed,
    Site,
    clipped_gradients,
    eval_set_npz,
    plan_for,
    sealed,
)
from tests.builders import NOW
from tests.patience import HANGS_S
from tests.postgres import Postgres
from tests.refusals import refused

LONG_AFTER_S = 3600.0


@pytest.fixture(scope="module")
def quiet() -> Sealed:
    """A dataset of a task without noise."""
    return sealed()


@pytest.fixture(scope="module")
def noisy() -> Sealed:
    return sealed(mechanism="gaussian")


@pytest.fixture
def site(tmp_path: Path, quiet: Sealed) -> Iterator[Site]:
    made = Site(tmp_path, quiet)
    yield made
    made.engine.dispose()


def masters(site: Site, job_id: bytes) -> tuple[NDArray[np.float32], ...]:
    stored = site.folder(job_id).checkpoint()
    assert stored is not None
    return Checkpoint.decode(stored).values()


def trained_in_the_clear(of: Sealed, plan: TrainingPlan) -> tuple[NDArray[np.float32], ...]:
    """Plain training: clear labels, the same samples and optimizer, no shares, no field, no checkpoint.

    `test_optimizers` shows that the optimizers take torch's steps.
    """
    shares, pair = of.datasets[0].shares, of.of.pair(0)
    values = tuple(value.copy() for value in MODEL.initial_values)
    moments = fresh_moments(plan.optimizer.kind, values)
    for index in range(plan.job.rounds):
        tensors = tuple(weights.quantise(value) for value in values)
        drawn = pair.sample(
            plan.job.round_transcript(round_index=index, weights=weights.encode(tensors), numerics=NUMERICS),
            RECORDS,
            plan.job.sampling_numerator,
        )
        gradients = clipped_gradients(
            tensors, shares.features[drawn], of.real_labels[drawn, None], of.of.task.clip
        )
        mean = gradients.sum(axis=(0, 1)) / 2.0**of.of.task.frac_bits / (plan.job.sampling_rate * RECORDS)
        weight, bias = np.split(mean.astype(np.float32), [4])
        step(
            plan.optimizer,
            rate=plan.optimizer.learning_rate * plan.schedule.factor(index, plan.job.rounds),
            steps_taken=index,
            masters=values,
            moments=moments,
            gradients=(weight.reshape(1, 4), bias),
        )
    return values


@pytest.mark.parametrize("kind", OptimizerKind)
@pytest.mark.parametrize("schedule", ScheduleKind)
def test_without_noise_the_trained_model_equals_training_in_the_clear_bit_for_bit(
    site: Site, quiet: Sealed, kind: OptimizerKind, schedule: ScheduleKind
) -> None:
    plan = plan_for(
        quiet,
        optimizer=Optimizer(kind=kind, learning_rate=0.3),
        schedule=Schedule(kind=schedule, step_rounds=2, warmup_rounds=3),
    )
    job = site.run(plan)
    assert job.state is JobState.DONE
    assert job.rounds_done == plan.job.rounds
    for ours, plain, initial in zip(
        masters(site, job.job_id), trained_in_the_clear(quiet, plan), MODEL.initial_values, strict=True
    ):
        assert ours.tobytes() == plain.tobytes()
        assert (ours != initial).any()


KILLS_MAY_COME_AT = (
    "helper 0 asked",
    "helper 0 stored",
    "helper 1 asked",
    "helper 1 stored",
    "figures not stored",
    "figures stored",
    "file not flushed",
)


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> Fuse:
    """Points inside the ad server at which it may be killed."""
    fuse = Fuse()
    record, fsync = JobLeases.record, os.fsync

    def recorded(self: JobLeases, job_id: bytes, figures: RoundFigures) -> None:
        fuse.point("figures not stored")
        record(self, job_id, figures)
        fuse.point("figures stored")

    def flushed(descriptor: int) -> None:
        fuse.point("file not flushed")
        fsync(descriptor)

    monkeypatch.setattr(JobLeases, "record", recorded)
    monkeypatch.setattr(os, "fsync", flushed)
    return fuse


def fused_site(folder: Path, of: Sealed, fuse: Fuse, burns_at: int) -> Site:
    fuse.burns_at, fuse.passed = 0, []
    site = Site(folder, of, fuse=fuse)
    site.submit(plan_for(of, rounds=3, noise_multiplier=1.0), eval_set_npz(of))
    fuse.burns_at, fuse.passed = burns_at, []
    return site


def test_a_job_killed_at_any_point_ends_in_the_same_bytes_as_an_undisturbed_one(
    tmp_path: Path, noisy: Sealed, mortal: Fuse
) -> None:
    undisturbed = fused_site(tmp_path / "undisturbed", noisy, mortal, 0)
    undisturbed.worker().run_one()
    (job,) = undisturbed.store.all()
    points = list(mortal.passed)
    assert job.state is JobState.DONE
    assert set(points) == set(KILLS_MAY_COME_AT)
    expected_files = {
        path.name: path.read_bytes()
        for path in undisturbed.folder(job.job_id).path.iterdir()
        if path.is_file()
    }
    expected_history = undisturbed.store.history(job.job_id)

    for burns_at in range(1, len(points) + 1):
        site = fused_site(tmp_path / str(burns_at), noisy, mortal, burns_at)
        with pytest.raises(Killed):
            site.worker().run_one()
        assert site.store.get(job.job_id).state is JobState.RUNNING
        site.clock.now_s += LONG_AFTER_S
        site.worker().run_one()

        assert site.store.get(job.job_id).state is JobState.DONE, points[burns_at - 1]
        files = {
            path.name: path.read_bytes() for path in site.folder(job.job_id).path.iterdir() if path.is_file()
        }
        assert files["checkpoint-00000003.npz"] == expected_files["checkpoint-00000003.npz"], points[
            burns_at - 1
        ]
        drawn = [line.partition(",")[0] for line in files["curves.csv"].decode().splitlines()]
        assert drawn == ["rounds_done", "0", "1", "2", "3"], points[burns_at - 1]
        history = site.store.history(job.job_id)
        assert [timeless(figures) for figures in history] == [
            timeless(figures) for figures in expected_history
        ]
        assert all(helper.computed == 3 for helper in site.helpers)  # asked again, but charged once
        site.engine.dispose()
    undisturbed.engine.dispose()


def timeless(figures: RoundFigures) -> RoundFigures:
    return replace(figures, finished_at_s=0.0)


def test_a_helper_that_is_down_makes_the_job_wait_and_then_go_on(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[JobState] = []
    waited = JobLeases.wait

    def spied(self: JobLeases, job_id: bytes, stop: Stop) -> None:
        waited(self, job_id, stop)
        states.append(site.store.get(job_id).state)

    monkeypatch.setattr(JobLeases, "wait", spied)
    site.helpers[1].failures = [HelperUnavailable("the helper restarts")] * 3
    job = site.run(plan_for(quiet))
    assert states == [JobState.WAITING] * 3
    assert job.state is JobState.DONE
    assert job.stop is None
    for ours, plain in zip(
        masters(site, job.job_id), trained_in_the_clear(quiet, plan_for(quiet)), strict=True
    ):
        assert ours.tobytes() == plain.tobytes()


def test_a_helper_that_stays_away_fails_the_job_and_a_resumed_one_loses_no_round(
    site: Site, quiet: Sealed
) -> None:
    plan = plan_for(quiet)
    down_at_round = 2
    site.helpers[0].down_from_round = down_at_round
    job = site.run(plan, backoff=IMPATIENT)
    assert (job.state, job.rounds_done) == (JobState.FAILED, down_at_round)
    assert job.stop is not None
    assert job.stop.reason == HELPER_UNAVAILABLE
    assert not job.is_closed
    site.helpers[0].down_from_round = None
    site.store.resume(job.job_id)
    before = [one.rounds_done for one in site.store.history(job.job_id)]
    site.helpers[1].asked.clear()
    site.worker().run_one()
    assert site.store.get(job.job_id).state is JobState.DONE
    assert before == list(range(1, down_at_round + 1))
    assert site.helpers[1].asked == list(range(down_at_round, plan.job.rounds))  # from its checkpoint on
    for ours, plain in zip(masters(site, job.job_id), trained_in_the_clear(quiet, plan), strict=True):
        assert ours.tobytes() == plain.tobytes()


def test_helpers_that_disagree_stop_the_job_before_the_optimizer_steps(site: Site, quiet: Sealed) -> None:
    disagrees_from = 2

    def spoil(share: AggregateShare) -> AggregateShare:
        return replace(share, agreement_tag=bytes(32)) if site.helpers[0].computed > disagrees_from else share

    site.helpers[0].spoil = spoil
    job = site.run(plan_for(quiet))
    assert (job.state, job.rounds_done) == (JobState.REFUSED, disagrees_from)
    assert job.stop is not None
    assert job.stop.reason == JobReason.HELPERS_DISAGREE
    stored = site.folder(job.job_id).checkpoint()
    assert stored is not None
    assert Checkpoint.decode(stored).rounds_done == disagrees_from


def test_helpers_of_different_numerics_are_refused_before_any_round(site: Site, quiet: Sealed) -> None:
    site.helpers[1].numerics = bytes([1]) * 32
    job = site.run(plan_for(quiet))
    assert job.state is JobState.REFUSED
    assert job.stop is not None
    assert job.stop.reason == JobReason.HELPERS_DISAGREE
    assert not site.helpers[0].answers


def test_a_refusal_by_one_helper_stops_the_job_with_its_reason(site: Site, quiet: Sealed) -> None:
    site.helpers[1].failures = [JobRefused(JobReason.BUDGET_EXHAUSTED, "nothing is left")]
    job = site.run(plan_for(quiet))
    assert job.state is JobState.REFUSED
    assert job.stop is not None
    assert (job.stop.reason, job.stop.cause) == ("budget_exhausted", "nothing is left")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"numerics_digest": b"n" * 32}, "different numerics"),
        ({"path": "general"}, "different gradient paths, exact and general"),
        ({"num_parameters": 6}, "count 5 and 6 parameters, but the model has 5"),
    ],
)
def test_helpers_whose_answers_could_not_be_added_are_refused(changes: dict[str, Any], told: str) -> None:
    first = StartedJob(
        path="exact",
        reason="",
        numerics_digest=bytes(32),
        num_parameters=5,
        epsilon_spent=1.0,
        collusion_epsilon_spent=1.0,
        rounds_answered=0,
    )
    _check_started(first, replace(first, epsilon_spent=2.0, rounds_answered=1), num_parameters=5)
    with refused(JobReason.HELPERS_DISAGREE, match=told):
        _check_started(first, replace(first, **changes), num_parameters=5)
    with refused(JobReason.HELPERS_DISAGREE, match="count 5 and 5 parameters, but the model has 4"):
        _check_started(first, first, num_parameters=4)


def test_no_step_is_taken_by_a_sum_that_no_reports_have(quiet: Sealed) -> None:
    plan, most = plan_for(quiet), RECORDS * quiet.of.task.clip.sensitivity

    def answered(value: int) -> AggregateShare:
        return AggregateShare(vector=np.array([value, 0, 0, 0, 0], np.uint64), agreement_tag=bytes(32))

    assert mean_gradient(plan, answered(most), answered(0))[0] > 0
    with refused(JobReason.SUM_OUT_OF_RANGE):
        mean_gradient(plan, answered(most), answered(1))


def test_a_job_waits_a_week_for_a_helper() -> None:
    assert JOB_PATIENCE.give_up_after_s == 7 * 24 * 60 * 60


def test_a_diverging_job_fails_and_keeps_its_last_finite_weights(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([np.ones(5), np.ones(5), np.full(5, 1e12)])
    monkeypatch.setattr(job_runner, "mean_gradient", lambda *_: next(steps))
    job = site.run(plan_for(quiet))
    assert (job.state, job.rounds_done) == (JobState.FAILED, 2)
    assert job.stop is not None
    assert job.stop.reason == ModelReason.DIVERGED
    assert "learning rate" in job.stop.cause
    stored = site.folder(job.job_id).checkpoint()
    assert stored is not None
    assert Checkpoint.decode(stored).rounds_done == 2


def test_a_job_of_a_file_for_one_record_a_run_exports_one_for_any_number(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.ModelProto.FromString(ENCODED_MODEL)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    fixed = proto.SerializeToString()
    plan = plan_for(quiet)
    files = site.folder(site.run(plan).job_id)
    of_any = export_job(files, plan)
    # The parser reads both files as one function.
    monkeypatch.setattr(type(files), "model", lambda _: fixed)
    exported = export_job(files, plan)
    assert takes_one_record(fixed)
    assert not takes_one_record(exported.encoded)
    records = np.random.default_rng(1).integers(0, 256, (5, 4), np.uint8)
    np.testing.assert_array_equal(predict(exported.encoded, records), predict(of_any.encoded, records))


@pytest.mark.parametrize("stops_at", [None, 2, 3])
def test_the_weights_that_did_best_on_the_evaluation_set_are_kept_and_shown(
    site: Site,
    quiet: Sealed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stops_at: int | None,
) -> None:
    mean, signs = job_runner.mean_gradient, iter([1, 1, -40, -40, -40])
    monkeypatch.setattr(job_runner, "mean_gradient", lambda *given: next(signs) * mean(*given))
    plan = plan_for(
        quiet,
        batch_size=RECORDS,
        eval_every=1,
        optimizer=Optimizer(kind=OptimizerKind.SGD, learning_rate=0.1),
    )
    site.helpers[0].down_from_round = stops_at
    job = site.run(plan, eval_set_npz(quiet), backoff=IMPATIENT)
    if stops_at is not None:
        site.helpers[0].down_from_round = None
        site.store.resume(job.job_id)
        site.worker().run_one()
        job = site.store.get(job.job_id)
    history = site.store.history(job.job_id)
    losses = [figures.loss for figures in history if figures.loss is not None]
    assert losses.index(min(losses)) == 2
    files = site.folder(job.job_id)
    best, latest = export_job(files, plan, ModelWeights.BEST), export_job(files, plan)
    assert (best.rounds_done, latest.rounds_done) == (2, 5)
    records = read_eval_set(eval_set_npz(quiet))
    found = [
        evaluate(one.encoded, records.features, records.labels, plan.job.loss).loss for one in (best, latest)
    ]
    assert found == [losses[2], losses[5]]
    print_job(job, history)
    shown = " ".join(capsys.readouterr().out.split())
    assert "best after 2 rounds" in shown
    assert "the calibrated loss rose" in shown
    # What calibration mends is no rise
    print_job(job, tuple(replace(one, calibrated_loss=0.1) for one in history))
    assert "rose" not in capsys.readouterr().out
    print_job(job, tuple(replace(one, calibrated_loss=None) for one in history))
    assert "the loss rose" in " ".join(capsys.readouterr().out.split())
    print_job(job, history)
    said = " ".join(capsys.readouterr().out.split())
    assert "rose from" in said
    assert "before the first round: train with more reports or a larger epsilon" in said
    # Some records do not tell losses apart that differ by 1 %, and figures no less than they print
    for first, last in ((0.4743, 0.47434), (0.4743, 0.478), (0.00102, 0.00104)):
        ends = tuple(replace(history[at], calibrated_loss=loss) for at, loss in ((0, first), (-1, last)))
        print_job(job, ends)
        assert "rose" not in capsys.readouterr().out


def test_without_an_evaluation_no_weights_are_the_best(site: Site, quiet: Sealed) -> None:
    job = site.run(plan_for(quiet, rounds=1))
    with pytest.raises(JobRefused, match="eval-set") as refusal:
        export_job(site.folder(job.job_id), plan_for(quiet, rounds=1), ModelWeights.BEST)
    assert refusal.value.reason is JobReason.WRONG_STATE


def test_a_bug_fails_the_job_without_detail(site: Site, quiet: Sealed) -> None:
    site.helpers[0].failures = [ZeroDivisionError("secret detail")]
    job = site.run(plan_for(quiet))
    assert job.state is JobState.FAILED
    assert job.stop is not None
    assert job.stop.reason == INTERNAL_ERROR
    assert "secret" not in job.stop.cause


def away() -> OperationalError:
    """What SQLite raises after it has waited for its lock in vain."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT
    return OperationalError("INSERT", None, error)


@pytest.mark.parametrize(
    "error",
    [
        away(),
        InterfaceError("SELECT", None, Exception("connection already closed")),
        DBAPIError("SELECT", None, Exception("server closed the connection"), connection_invalidated=True),
        NoConnectionInTime("QueuePool limit reached"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("method", ["record", "let_go"])
def test_a_database_that_is_away_for_a_moment_costs_a_job_nothing(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    failures, works = [error], getattr(JobLeases, method)

    def flaky(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        works(*arguments)

    monkeypatch.setattr(JobLeases, method, flaky)
    plan = plan_for(quiet)
    job_id, worker = site.submit(plan), site.worker()
    worker.run_one()
    assert not failures
    assert site.store.get(job_id).state in (
        JobState.QUEUED,
        JobState.RUNNING,
    )  # running: until its lease is over
    site.clock.now_s += LONG_AFTER_S
    worker.run_one()
    job = site.store.get(job_id)
    assert (job.state, job.stop) == (JobState.DONE, None)
    assert [helper.computed for helper in site.helpers] == [
        plan.job.rounds
    ] * 2  # asked again, and charged once
    for ours, plain in zip(masters(site, job_id), trained_in_the_clear(quiet, plan), strict=True):
        assert ours.tobytes() == plain.tobytes()


def test_a_full_disk_costs_a_job_nothing_and_it_goes_on_once_there_is_room(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, works = [OSError(errno.ENOSPC, "No space left on device")], os.fsync

    def flaky(descriptor: int) -> None:
        if failures:
            raise failures.pop()
        works(descriptor)

    plan = plan_for(quiet)
    job_id, worker = site.submit(plan), site.worker()
    monkeypatch.setattr(os, "fsync", flaky)
    assert not worker.run_one()
    assert (site.store.get(job_id).state, failures) == (JobState.QUEUED, [])
    site.clock.now_s += LONG_AFTER_S
    worker.run_one()
    assert (site.store.get(job_id).state, site.store.get(job_id).stop) == (JobState.DONE, None)
    assert [helper.computed for helper in site.helpers] == [plan.job.rounds] * 2  # charged once
    for ours, plain in zip(masters(site, job_id), trained_in_the_clear(quiet, plan), strict=True):
        assert ours.tobytes() == plain.tobytes()


def test_a_worker_whose_database_is_away_rests_longer_each_time_and_no_longer_than_a_minute(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_at_s: list[float] = []

    def unavailable(_: JobLeases) -> None:
        tried_at_s.append(site.clock.now_s - NOW)
        raise away()

    monkeypatch.setattr(JobLeases, "claim", unavailable)
    worker = site.worker()
    for _ in range(200):
        assert not worker.run_one()
        site.clock.now_s += 1
    assert tried_at_s == [0, 1, 3, 7, 15, 31, 63, 123, 183]


def test_a_short_pause_follows_a_short_one_once_the_database_was_there_between(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no job was done meanwhile."""
    works, failures, tried_at_s = JobLeases.claim, list[Exception](), list[float]()

    def flaky(leases: JobLeases) -> Any:
        tried_at_s.append(site.clock.now_s - NOW)
        if failures:
            raise failures.pop()
        return works(leases)

    monkeypatch.setattr(JobLeases, "claim", flaky)
    worker = site.worker()
    for _ in range(4):
        failures.append(away())
        worker.run_one()
        site.clock.now_s += 1
        worker.run_one()
    assert tried_at_s == [0, 1, 1, 2, 2, 3, 3, 4]


def test_a_clock_that_is_set_back_does_not_keep_a_worker_at_rest(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, worker, works = site.submit(plan_for(quiet)), site.worker(monotonic=monotonic), JobLeases.claim
    monkeypatch.setattr(JobLeases, "claim", raising(away()))
    site.clock.now_s += 86_400
    assert not worker.run_one()
    site.clock.now_s -= 86_400
    monkeypatch.setattr(JobLeases, "claim", works)
    sleep(1.1)
    assert worker.run_one()
    assert site.store.get(job_id).state is JobState.DONE


def test_no_number_of_moments_without_a_database_looks_like_lost_workers(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a round can be recorded nor the job let go of; leases run out meanwhile."""
    record, let_go = JobLeases.record, JobLeases.let_go
    monkeypatch.setattr(JobLeases, "record", raising(away()))
    monkeypatch.setattr(JobLeases, "let_go", raising(away()))
    job_id, worker = site.submit(plan_for(quiet)), site.worker()
    for _ in range(2 * MAX_WORKERS_LOST):
        worker.run_one()
        site.clock.now_s += LONG_AFTER_S
    monkeypatch.setattr(JobLeases, "record", record)
    monkeypatch.setattr(JobLeases, "let_go", let_go)
    worker.run_one()
    job = site.store.get(job_id)
    assert (job.state, job.stop) == (JobState.DONE, None)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def wrong_statement(engine: Engine) -> SQLAlchemyError:
    """What the engine raises for a column that there is not."""
    with pytest.raises(SQLAlchemyError) as raised, engine.connect() as connection:
        connection.exec_driver_sql("SELECT no_such_column FROM jobs")
    return raised.value


@pytest.mark.parametrize("where", ["at a helper", "in the store"])
def test_a_statement_that_is_wrong_is_a_bug_and_no_moment_of_the_database(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    error = wrong_statement(site.engine)
    if where == "in the store":
        monkeypatch.setattr(JobLeases, "record", raising(error))
    else:
        site.helpers[0].failures = [error]
    job = site.run(plan_for(quiet))
    assert job.state is JobState.FAILED
    assert job.stop is not None
    assert job.stop.reason == INTERNAL_ERROR


@pytest.mark.parametrize("reason", [JobReason.PEER_FAILED, JobReason.BAD_ANSWER])
def test_what_a_helper_would_answer_again_stops_the_job_until_it_is_resumed(
    site: Site, quiet: Sealed, reason: JobReason
) -> None:
    assert not contract(reason).is_retryable
    site.helpers[1].failures = [JobRefused(reason, "its operator's log says why")]
    job = site.run(plan_for(quiet))
    assert job.state is JobState.REFUSED
    assert job.stop is not None
    assert job.stop.reason == reason
    site.store.resume(job.job_id)
    site.worker().run_one()
    assert site.store.get(job.job_id).state is JobState.DONE


def test_a_done_job_is_closed_at_both_helpers(site: Site, quiet: Sealed) -> None:
    job = site.run(plan_for(quiet, rounds=1))
    assert job.is_closed
    assert all(helper.closed == {job.job_id} for helper in site.helpers)


def test_a_job_is_closed_later_if_a_helper_is_down_at_its_end(site: Site, quiet: Sealed) -> None:
    job_id = site.submit(plan_for(quiet))
    site.store.cancel(job_id)
    site.helpers[1].failures = [HelperUnavailable("down")]
    worker = site.worker()
    worker.run_one()
    assert not site.store.get(job_id).is_closed
    site.clock.now_s += LONG_AFTER_S
    worker.run_one()
    assert site.store.get(job_id).is_closed


def test_a_helper_that_is_away_does_not_keep_the_other_one_from_giving_budget_back(
    site: Site, quiet: Sealed
) -> None:
    job_id = site.submit(plan_for(quiet))
    site.store.cancel(job_id)
    site.helpers[0].failures = [HelperUnavailable("down")]
    site.worker().run_one()
    assert [helper.closed for helper in site.helpers] == [set(), {job_id}]
    assert not site.store.get(job_id).is_closed


def test_a_helper_that_is_away_is_asked_to_close_one_job_at_a_time(site: Site, quiet: Sealed) -> None:
    """Each such call lasts a deadline, and jobs that are queued wait meanwhile."""
    for number in range(5):
        plan = plan_for(quiet)
        site.store.cancel(site.submit(replace(plan, job=replace(plan.job, job_id=bytes([number]) * 16))))
    site.helpers[0].failures = [HelperUnavailable("down") for _ in range(5)]
    site.worker().run_one()
    assert len(site.helpers[0].failures) == 4
    assert len(site.helpers[1].closed) == 5


def test_a_helper_that_is_away_is_not_asked_again_at_once(site: Site, quiet: Sealed) -> None:
    site.store.cancel(site.submit(plan_for(quiet)))
    site.helpers[0].failures = [HelperUnavailable("down") for _ in range(3)]
    worker = site.worker()
    for later_s, left in ((0.0, 2), (0.0, 2), (4.9, 2), (0.2, 1), (1.0, 1), (LONG_AFTER_S, 0)):
        site.clock.now_s += later_s
        worker.run_one()
        assert len(site.helpers[0].failures) == left


def test_a_job_that_a_helper_refuses_to_close_is_asked_for_again_much_later_and_others_are_closed_meanwhile(
    site: Site, quiet: Sealed
) -> None:
    """It may be another helper that answers for a moment, or an older ledger.

    A refusal is not taken for an end.
    """
    worker, first = site.worker(), site.submit(plan_for(quiet))
    site.store.cancel(first)
    site.helpers[0].failures = [JobRefused(JobReason.UNKNOWN_TASK, "another helper")]
    worker.run_one()
    assert site.helpers[1].closed == {first}
    second = site.submit(replace(plan_for(quiet), job=replace(plan_for(quiet).job, job_id=b"2" * 16)))
    site.store.cancel(second)
    worker.run_one()
    assert [site.store.get(job_id).is_closed for job_id in (first, second)] == [False, True]
    site.clock.now_s += LONG_AFTER_S
    worker.run_one()
    assert site.store.get(first).is_closed


def in_a_held_round(site: Site, quiet: Sealed) -> tuple[bytes, JobWorker]:
    """A job, and the worker that waits for an answer in one of its rounds."""
    for helper in site.helpers:
        helper.hold = Event()
    job_id, worker = site.submit(plan_for(quiet)), site.worker()
    worker.start()
    assert site.helpers[0].holding.wait(HANGS_S)
    return job_id, worker


def test_cancelling_stops_a_round_that_would_run_for_ever(site: Site, quiet: Sealed) -> None:
    job_id, worker = in_a_held_round(site, quiet)
    began_s = monotonic()
    site.store.cancel(job_id)
    while not site.store.get(job_id).is_closed:
        assert monotonic() - began_s < HANGS_S
        sleep(0.01)
    worker.stop()
    assert site.store.get(job_id).state is JobState.CANCELLED
    assert all(helper.closed == {job_id} for helper in site.helpers)


def test_stopping_the_worker_leaves_the_running_job_queued_for_the_next_one(
    site: Site, quiet: Sealed
) -> None:
    job_id, worker = in_a_held_round(site, quiet)
    worker.stop()
    assert site.store.get(job_id).state is JobState.QUEUED
    for helper in site.helpers:
        helper.hold = None
    site.worker().run_one()
    assert site.store.get(job_id).state is JobState.DONE


def test_a_worker_that_lost_its_lease_lets_go_of_the_job(site: Site, quiet: Sealed) -> None:
    for helper in site.helpers:
        helper.hold = Event()
    job_id = site.submit(plan_for(quiet))
    late = Thread(target=site.worker(lease_s=-1.0).run_one)  # its lease is over as soon as it is taken
    late.start()
    assert site.helpers[0].holding.wait(HANGS_S)
    taken = JobLeases(site.engine, site.clock, owner="another", lease_s=60.0).claim()
    late.join(HANGS_S)
    assert taken is not None
    assert taken.job_id == job_id
    assert site.store.get(job_id).state is JobState.RUNNING
    assert site.store.get(job_id).rounds_done == 0


@pytest.mark.parametrize(
    "after_write", [False, True], ids=["before its checkpoint is there", "before the old ones go"]
)
def test_a_worker_that_was_stopped_at_a_checkpoint_does_not_undo_its_successors_rounds(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch, after_write: bool
) -> None:
    stopped, go_on = Event(), Event()
    plan = plan_for(quiet)
    job_id = site.submit(plan)
    paused = Thread(target=site.worker(lease_s=-1.0).run_one)  # its lease is over as soon as it is taken
    write = durable_file.write_durably

    def stopping(path: Path, content: bytes) -> None:
        is_here = current_thread() is paused and path.name == "checkpoint-00000002.npz"
        if is_here and not after_write:
            stopped.set()
            go_on.wait(HANGS_S)
        write(path, content)
        if is_here and after_write:
            stopped.set()
            go_on.wait(HANGS_S)

    monkeypatch.setattr(job_folder, "write_durably", stopping)
    paused.start()
    assert stopped.wait(HANGS_S)
    site.worker().run_one()
    assert site.store.get(job_id).state is JobState.DONE
    go_on.set()
    paused.join(HANGS_S)
    assert site.store.get(job_id).state is JobState.DONE
    stored = site.folder(job_id).checkpoint()
    assert stored is not None
    assert Checkpoint.decode(stored).rounds_done == plan.job.rounds
    for ours, plain in zip(masters(site, job_id), trained_in_the_clear(quiet, plan), strict=True):
        assert ours.tobytes() == plain.tobytes()


def test_jobs_run_in_the_order_of_their_submission(site: Site, quiet: Sealed) -> None:
    order = [bytes([9]) * 16, bytes([3]) * 16]
    for job_id in order:
        site.submit(plan_for(quiet, rounds=1, job_id=job_id))
        site.clock.now_s += 1
    worker = site.worker()
    worker.run_one()
    assert [site.store.get(job_id).state for job_id in order] == [JobState.DONE, JobState.QUEUED]


def test_the_curves_and_the_history_hold_loss_and_accuracy(site: Site, quiet: Sealed) -> None:
    whole_batches = plan_for(
        quiet,
        batch_size=RECORDS,
        eval_every=2,
        optimizer=Optimizer(kind=OptimizerKind.SGD, learning_rate=0.1),
    )
    job = site.run(whole_batches, eval_set_npz(quiet))
    history = site.store.history(job.job_id)
    assert [figures.rounds_done for figures in history] == [0, 1, 2, 3, 4, 5]
    assert [figures.rounds_done for figures in history if figures.loss is not None] == [0, 2, 4, 5]
    first, last = history[0].loss, history[-1].loss
    assert first is not None
    assert last is not None
    assert last < first
    assert all(figures.noise_to_signal == 0.0 for figures in history[1:])
    names = {path.name for path in site.folder(job.job_id).path.iterdir()}
    assert names == {"checkpoint-00000005.npz", "curves.csv", "events"}


def test_an_unparsable_model_file_is_refused_with_the_parsers_reason(site: Site, quiet: Sealed) -> None:
    plan = plan_for(quiet)
    cut = ENCODED_MODEL[:-10]
    submit(site.engine, site.data_dir, plan, model=cut, eval_set=None, clock=site.clock)
    site.worker().run_one()
    job = site.store.get(plan.job.job_id)
    assert job.state is JobState.REFUSED
    assert job.stop is not None
    assert job.stop.reason in set(ModelReason)


@pytest.fixture
def on_postgresql(tmp_path: Path, quiet: Sealed, postgres: Postgres) -> Iterator[Site]:
    made = Site(tmp_path, quiet, url=postgres.new_database())
    yield made
    made.engine.dispose()


def test_on_postgresql_a_server_whose_clock_is_ahead_takes_no_job_that_another_holds(
    on_postgresql: Site, quiet: Sealed
) -> None:
    job_id = on_postgresql.submit(plan_for(quiet))
    holder = on_postgresql.worker(lease_s=LONG_AFTER_S)._leases
    assert holder.claim() is not None
    on_postgresql.clock.now_s += 2 * LONG_AFTER_S
    assert not on_postgresql.worker().run_one()
    assert on_postgresql.store.get(job_id).state is JobState.RUNNING
    assert holder.is_held(job_id)


def test_on_postgresql_leases_are_moments_of_the_databases_clock(on_postgresql: Site, quiet: Sealed) -> None:
    job_id = on_postgresql.submit(plan_for(quiet))
    on_postgresql.clock.now_s = 0.0
    with on_postgresql.engine.connect() as connection:
        now_s = float(connection.exec_driver_sql("SELECT extract(epoch FROM now())").scalar_one())
    assert on_postgresql.worker(lease_s=0.0)._leases.claim() is not None
    assert now_s <= on_postgresql.store.get(job_id).lease_until_s
    assert on_postgresql.worker().run_one()
    assert on_postgresql.store.get(job_id).state is JobState.DONE


@pytest.mark.parametrize("burns_at", [3, 6, 9, 14])
def test_an_ad_server_with_another_data_folder_ends_the_job_of_one_that_was_killed(
    on_postgresql: Site, quiet: Sealed, tmp_path: Path, burns_at: int
) -> None:
    plan = plan_for(quiet)
    job_id = on_postgresql.submit(plan, eval_set_npz(quiet))
    on_postgresql.fuse.burns_at = burns_at
    with pytest.raises(Killed):
        on_postgresql.worker(lease_s=0.0).run_one()
    assert on_postgresql.worker(data_dir=tmp_path / "another machine").run_one()
    assert on_postgresql.store.get(job_id).state is JobState.DONE
    trained = masters(on_postgresql, job_id)
    for ours, plain in zip(trained, trained_in_the_clear(quiet, plan), strict=True):
        assert ours.tobytes() == plain.tobytes()
    kept = {path.name for path in (tmp_path / "another machine" / "jobs" / job_id.hex()).iterdir()}
    assert kept == {"curves.csv", "events"}


def test_an_end_that_no_database_would_record_is_not_tried_again(
    site: Site, quiet: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[bytes] = []
    error = wrong_statement(site.engine)

    def let_go(_: JobLeases, job_id: bytes, *_rest: object) -> None:
        attempts.append(job_id)
        raise error

    monkeypatch.setattr(JobLeases, "let_go", let_go)
    job_id, worker = site.submit(plan_for(quiet)), site.worker()
    with pytest.raises(type(error)):
        worker.run_one()
    worker.run_one()
    assert attempts == [job_id]


def test_a_workers_thread_goes_on_after_an_error_and_ends_and_begins_again_when_told_so(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker, threads, has_run = site.worker(), list[Thread](), Event()

    def run_one(_: JobWorker) -> bool:
        threads.append(current_thread())
        if len(threads) == 1:
            raise RuntimeError("one bad moment")
        has_run.set()
        return False

    monkeypatch.setattr(JobWorker, "run_one", run_one)
    for _ in range(2):
        has_run.clear()
        worker.start()
        assert has_run.wait(HANGS_S)
        worker.stop()
        assert not threads[-1].is_alive()
    assert (threads[-1].name, threads[-1].daemon) == ("job-worker", True)
    assert "continues after an unexpected error" in caplog.text
    assert threads[0] is threads[1]
    assert threads[0] is not threads[-1]


def test_a_worker_pauses_between_looks_for_a_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, steps, is_over = site.worker(poll_s=0.7), list[Any](), iter([False, False, True])
    monkeypatch.setattr(JobWorker, "run_one", lambda _: steps.append("look"))
    stopping: Any = SimpleNamespace(is_set=lambda: next(is_over), wait=steps.append)
    monkeypatch.setattr(worker, "_stopping", stopping)
    worker._run()
    assert steps == ["look", 0.7] * 2


def test_a_worker_that_never_ran_is_stopped_and_a_stopping_one_is_waited_for_ten_seconds(site: Site) -> None:
    waited: list[float] = []
    worker = site.worker()
    worker.stop()
    thread: Any = SimpleNamespace(join=waited.append)
    worker._thread = thread
    worker.stop()
    worker.stop(timeout_s=3.0)
    assert waited == [10.0, 3.0]
    assert worker._stopping.is_set()


def test_what_a_waiting_job_waits_for_is_in_the_store_until_it_goes_on(site: Site, quiet: Sealed) -> None:
    told: list[Any] = []
    leases: Any = SimpleNamespace(wait=lambda job_id, stop: told.append((job_id, stop)), go_on=told.append)
    waits = _JobWaits(leases, b"job")
    waits.helper_down(HelperUnavailable("north is away"))
    waits.helpers_back()
    assert told == [(b"job", Stop(reason=HELPER_UNAVAILABLE, cause="north is away")), b"job"]


class FakeLeases:
    """Leases of one job, which count how often it is renewed."""

    def __init__(self) -> None:
        self.held = True
        self.error: Exception | None = None
        self.renewed = 0
        self.abandoned: list[bytes] = []

    def is_held(self, _: bytes) -> bool:
        if self.error is not None:
            raise self.error
        return self.held

    def renew(self, _: bytes) -> bool:
        self.renewed += 1
        return self.held

    def release_abandoned(self, *, but: bytes) -> None:
        self.abandoned.append(but)


@pytest.mark.parametrize(
    ("held", "is_away", "passed_s", "renewed", "is_interrupted"),
    [
        (True, False, 20.0, 0, False),
        (True, False, 20.1, 1, False),
        (False, False, 20.1, 0, True),
        (True, True, 59.9, 0, False),
        (True, True, 60.0, 0, True),
    ],
    ids=["fresh", "a third is over", "lost", "unknown, and valid", "unknown, and over"],
)
def test_a_lease_is_renewed_after_a_third_and_holds_while_the_database_is_away(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    held: bool,
    is_away: bool,
    passed_s: float,
    *,
    renewed: int,
    is_interrupted: bool,
) -> None:
    looks: list[Callable[[], bool]] = []

    @contextmanager
    def watching(look: Callable[[], bool], **how: object) -> Iterator[None]:
        assert how == {"name": "job-lease", "every_s": 0.01}
        looks.append(look)
        yield

    monkeypatch.setattr("adserver.training.worker.watching", watching)
    leases, worker, interrupted = FakeLeases(), site.worker(lease_s=60.0), Event()
    monkeypatch.setattr(worker, "_leases", leases)
    leases.held, leases.error = held, away() if is_away else None
    with worker._lease_kept(b"j" * 16, interrupted):
        site.clock.now_s += passed_s
        assert looks[0]() is is_interrupted
        assert looks[0]() is is_interrupted  # and is not renewed again
    assert (leases.renewed, interrupted.is_set()) == (renewed, is_interrupted)
    assert leases.abandoned == [b"j" * 16] * renewed
    worker.stop()
    assert looks[0]()
    assert interrupted.is_set()


def test_the_noise_beside_a_gradient_is_that_of_all_parameters_over_the_expected_batch(
    tmp_path: Path, noisy: Sealed
) -> None:
    site = Site(tmp_path, noisy)
    plan = plan_for(noisy, noise_multiplier=0.5)
    job = site.run(plan)
    noise = plan.noise_norm(MODEL.num_parameters)
    rounds = [one for one in site.store.history(job.job_id) if one.gradient_norm is not None]
    assert rounds
    for one in rounds:
        assert one.gradient_norm is not None
        assert one.noise_to_signal == noise_to_signal(one.gradient_norm, noise)
    site.engine.dispose()


@pytest.mark.parametrize(
    ("bound", "units", "fakes", "mean"),
    [(2.0**-29, 1, 0.0, 0.5), (2.0**-29, 1, 0.2, 0.625), (1.0, 2**29, 0.5, 2.0**-29)],
)
def test_a_mean_of_indicators_is_divided_by_a_unit_and_by_the_rate_of_real_reports(
    quiet: Sealed, bound: float, units: int, fakes: float, mean: float
) -> None:
    plan = plan_for(quiet)
    task = replace(plan.task, fake_report_rate=fakes)
    plan = replace(plan, task=task, job=replace(plan.job, task_id=task.task_id))
    clip = Clip(norm=Norm.L2, bound=bound, frac_bits=32, is_counted=True)
    assert clip.count_units == units
    assert mean_excess(plan, clip, math.ldexp(0.5, -32)) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([0.7, 0.5, 0.4], 2),
        ([0.7, 0.4, 0.403, 0.5], 2),  # the latest that is as good
        ([0.7, 0.4, 0.403, 0.4065], 2),  # as good as the least, not as the one before
        ([0.1, 0.4, 0.5], 1),  # the submitted model is none of them
        ([0.7, math.nan, 0.5, math.nan], 2),
        ([0.7, math.nan, math.nan], 1),
        ([0.7, math.inf, 0.5, 0.502], 3),
        ([0.7, None, -1.0, -0.995, -0.9], 3),
        ([0.7, 0.5, 0.0, 0.0, 1e-9], 3),
        ([0.7], None),
    ],
)
def test_the_best_round_is_the_latest_that_is_as_good(losses: list[float | None], best: int | None) -> None:
    figures = [
        RoundFigures(rounds_done=done, finished_at_s=0.0, loss=loss) for done, loss in enumerate(losses)
    ]
    found = best_evaluated(figures)
    assert (None if found is None else found.rounds_done) == best


def test_of_two_classes_the_best_round_is_that_of_the_loss_which_calibration_leaves() -> None:
    losses = [(0.69, 0.36), (0.357, 0.355), (0.37, 0.34), (0.38, 0.341)]
    figures = [
        RoundFigures(rounds_done=done, finished_at_s=0.0, loss=loss, calibrated_loss=calibrated)
        for done, (loss, calibrated) in enumerate(losses)
    ]
    assert best_evaluated(figures) == figures[3]
    uncalibrated = [replace(one, calibrated_loss=None) for one in figures]
    assert best_evaluated(uncalibrated) == uncalibrated[1]
