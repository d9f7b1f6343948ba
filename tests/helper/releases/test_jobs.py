import gc
import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import onnx
import pytest

import helper.ledger.ledger
from helper.gradient.choose import choose_engine
from helper.ledger.ledger import Ledger, sqlite_url
from helper.ledger.records import ReleaseKey, key_of
from helper.releases.answering import Call
from helper.releases.jobs import _check_path_hides
from maskedlark import canonical
from maskedlark.errors import InvalidModel, InvalidTask, JobReason, JobRefused, ModelReason
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.accounting import spent
from maskedlark.releases.job import JobSpec
from maskedlark.runtime.database import open_database
from tests import charge_builders
from tests.builders import world
from tests.helper.parties import ASKED, MODEL, NUM_VALUES, Scene, make_model, make_task
from tests.refusals import refused

NOISY: dict[str, Any] = {"mechanism": "gaussian", "epsilon": 2.0, "collusion_epsilon": 1000.0}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def noisy(tmp_path: Path) -> Scene:
    return Scene(tmp_path, **NOISY)


def refusal(
    scene: Scene, spec: JobSpec, model: bytes = MODEL, caller: frozenset[str] | None = None
) -> JobRefused:
    before = scene.cores[0].status().counts
    with pytest.raises(JobRefused) as refused:
        scene.cores[0].jobs.start(canonical.encode(spec), model, Call(caller=caller))
    assert scene.cores[0].status().counts == before
    return refused.value


def model_refusal(scene: Scene, spec: JobSpec, model: bytes) -> ModelReason:
    with pytest.raises(InvalidModel) as refused:
        scene.cores[0].jobs.start(canonical.encode(spec), model, ASKED)
    assert scene.cores[0].status().counts.open_jobs == 0
    return refused.value.reason


@pytest.mark.parametrize("path", ["exact", "general"])
@pytest.mark.parametrize("is_public", [False, True])
@pytest.mark.parametrize("carried", [None, 48])
@pytest.mark.parametrize("mechanism", ["none", "gaussian"])
def test_only_the_general_path_refuses_secret_samples_and_carried_noise(
    path: str, is_public: bool, carried: int | None, mechanism: str
) -> None:
    task = world(mechanism=mechanism).task
    correlated: dict[str, Any] = {} if carried is None else {"epoch_steps": 2, "carried": carried}
    spec = JobSpec(
        job_id=bytes(16),
        task_id=task.task_id,
        dataset_id=bytes(32),
        model_digest=bytes(32),
        loss=Loss.MSE,
        rounds=6,
        sampling_numerator=1 << 31,
        noise_multiplier=0.0 if mechanism == "none" else 1.0,
        is_sample_public=is_public,
        **correlated,
    )
    engine: Any = SimpleNamespace(path=path, reason="")
    is_refused = path == "general" and (carried is not None or (not is_public and mechanism != "none"))
    if not is_refused:
        _check_path_hides(task, spec, engine)
        return
    with refused(JobReason.MALFORMED):
        _check_path_hides(task, spec, engine)


def test_a_started_job_says_how_it_will_run(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    started = scene.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED)
    assert (started.path, started.reason, started.num_parameters, started.rounds_answered) == (
        "exact",
        "a fake",
        NUM_VALUES,
        0,
    )
    assert len(started.numerics_digest) == 32
    assert (started.epsilon_spent, started.collusion_epsilon_spent) == (math.inf, math.inf)  # no noise


def test_starting_again_gives_the_same_answer_and_takes_no_more_budget(noisy: Scene) -> None:
    spec = noisy.job(noisy.seal(), noise_multiplier=50.0)
    first = noisy.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED)
    assert noisy.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED) == first
    noisy.restart()
    assert noisy.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED) == first
    noisy.answer(0, spec, 0)
    again = noisy.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED)
    assert again == replace(first, rounds_answered=1)
    expected = spent(
        [charge_builders.gaussian(50.0, rounds=10)],
        noisy.task.delta,
    )
    assert (again.epsilon_spent, again.collusion_epsilon_spent) == (expected.ad_server, expected.colluding)


def test_a_started_job_may_be_asked_for_again_after_the_task_expired(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.parties[0].now = scene.task.expires_at
    scene.start(spec)
    assert refusal(scene, replace(spec, job_id=b"new".ljust(16))).reason is JobReason.TASK_EXPIRED


def test_a_job_on_an_expired_task_is_refused(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    scene.parties[0].now = scene.task.expires_at
    assert refusal(scene, spec).reason is JobReason.TASK_EXPIRED


@pytest.mark.parametrize("encoded", [b"", b"{}", b"\x00" * 100])
def test_bytes_that_are_no_job_are_refused(scene: Scene, encoded: bytes) -> None:
    with pytest.raises(InvalidTask):
        scene.cores[0].jobs.start(encoded, MODEL, ASKED)


def test_another_content_under_the_same_id_is_refused(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    assert refusal(scene, replace(spec, rounds=11)).reason is JobReason.JOB_CHANGED


def test_a_closed_job_is_not_started_again(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.cores[0].jobs.close(canonical.encode(spec), None)
    assert refusal(scene, spec).reason is JobReason.JOB_CLOSED


def test_an_unknown_task_is_refused(scene: Scene) -> None:
    assert (
        refusal(scene, replace(scene.job(scene.seal()), task_id=b"?" * 32)).reason is JobReason.UNKNOWN_TASK
    )


def test_an_unknown_dataset_is_refused(scene: Scene) -> None:
    assert refusal(scene, scene.job(b"?" * 32)).reason is JobReason.UNKNOWN_DATASET


def test_another_tasks_dataset_is_refused(scene: Scene) -> None:
    dataset = scene.seal()
    other = make_task(scene.parties, name="another")
    scene.register(other)
    assert refusal(scene, scene.job(dataset, task_id=other.task_id)).reason is JobReason.UNKNOWN_DATASET


def test_another_origins_task_is_refused(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    assert refusal(scene, spec, caller=frozenset({"other.example"})).reason is JobReason.UNKNOWN_TASK


def test_another_model_than_the_named_one_is_refused(scene: Scene) -> None:
    wide = parse(make_model(outputs=2), num_features=4)
    assert refusal(scene, scene.job(scene.seal(), model_digest=wide.digest)).reason is JobReason.MALFORMED


def test_bytes_that_are_no_model_are_refused(scene: Scene) -> None:
    assert model_refusal(scene, scene.job(scene.seal()), b"nonsense") is ModelReason.NOT_ONNX


def test_a_model_of_another_width_is_refused(scene: Scene) -> None:
    assert (
        model_refusal(scene, scene.job(scene.seal()), make_model(num_features=3)) is ModelReason.WRONG_SHAPE
    )


def test_a_loss_that_does_not_fit_the_model_is_refused(scene: Scene) -> None:
    assert (
        model_refusal(scene, scene.job(scene.seal(), loss=Loss.CROSS_ENTROPY), MODEL)
        is ModelReason.WRONG_LOSS
    )


def test_noise_that_no_sampler_can_draw_is_refused(noisy: Scene) -> None:
    dataset = noisy.seal()
    assert refusal(noisy, noisy.job(dataset, noise_multiplier=0.0)).reason is JobReason.NOISE_OUT_OF_RANGE
    assert refusal(noisy, noisy.job(dataset, noise_multiplier=1e6)).reason is JobReason.NOISE_OUT_OF_RANGE


def test_a_noise_multiplier_in_a_task_without_noise_is_refused(scene: Scene) -> None:
    assert (
        refusal(scene, scene.job(scene.seal(), noise_multiplier=1.0)).reason is JobReason.NOISE_OUT_OF_RANGE
    )


def test_a_job_whose_sum_could_wrap_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path, frac_bits=40, clip_norm=1024.0)
    ledger = Ledger(open_database(sqlite_url(scene.parties[0].data / "ledger.sqlite3")))
    for size, dataset in ((8191, b"d" * 32), (8192, b"e" * 32)):
        ledger.add_dataset(
            dataset, scene.task_id, [size.to_bytes(2, "big") + row.to_bytes(14, "big") for row in range(size)]
        )
    assert (
        refusal(scene, scene.job(b"e" * 32)).reason is JobReason.OVERFLOW
    )  # 2^13 records of 2^10 * 2^40 units: 2^63
    scene.cores[0].jobs.start(canonical.encode(scene.job(b"d" * 32)), MODEL, ASKED)
    ledger.close()


def test_a_job_past_the_budget_is_refused_and_told_what_is_left(noisy: Scene) -> None:
    dataset = noisy.seal()
    fits = noisy.job(dataset, noise_multiplier=10.0, rounds=10)
    noisy.start(fits)
    cost = spent(
        [charge_builders.gaussian(10.0, rounds=10)],
        noisy.task.delta,
    )
    refused = refusal(noisy, replace(fits, job_id=b"k" * 16, rounds=1000))
    assert refused.reason is JobReason.BUDGET_EXHAUSTED
    assert f"{2.0 - cost.ad_server:.4g} is left" in str(refused)


def test_the_budget_against_a_colluding_helper_counts_by_itself(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **{**NOISY, "epsilon": 16.0, "collusion_epsilon": 1.0})
    dataset = scene.seal(200)
    sampled = scene.job(dataset, noise_multiplier=10.0, rounds=100, sampling_numerator=1 << 30)
    refused = refusal(scene, sampled)
    assert refused.reason is JobReason.BUDGET_EXHAUSTED
    assert "collusion_epsilon would be" in str(refused)


def test_a_secret_sample_that_may_be_under_k_is_refused(noisy: Scene) -> None:
    small = noisy.job(noisy.seal(60), noise_multiplier=50.0, sampling_numerator=1 << 28)
    refused = refusal(noisy, small)
    assert refused.reason is JobReason.MALFORMED
    assert "is_sample_public" in str(refused)
    noisy.start(replace(small, is_sample_public=True))


def test_samples_of_the_general_path_are_charged_as_public_or_refused(
    noisy: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time may show what records hold, and so who is in a sample; see the threat model."""
    secret = noisy.job(noisy.seal(200), noise_multiplier=50.0, sampling_numerator=1 << 30)
    noisy.start(secret)
    assert secret.charge(noisy.task, 1).is_sampled

    def general(*arguments: Any) -> Any:
        engine = choose_engine(*arguments)
        monkeypatch.setattr(type(engine), "path", "general")
        return engine

    noisy.restart(engine_for=general)
    refused = refusal(noisy, replace(secret, job_id=b"g" * 16))
    assert refused.reason is JobReason.MALFORMED
    assert "is_sample_public" in str(refused)
    public = replace(secret, job_id=b"h" * 16, is_sample_public=True)
    noisy.start(public)
    assert not public.charge(noisy.task, 1).is_sampled


def test_epochs_that_were_not_begun_are_given_back_and_begun_ones_are_not(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **{**NOISY, "epsilon": 16.0, "collusion_epsilon": 1000.0})
    spec = scene.job(
        scene.seal(120), noise_multiplier=5.0, rounds=6, epoch_steps=2, sampling_numerator=1 << 31
    )
    scene.start(spec)
    for index in range(3):
        scene.answer(0, spec, index)
    scene.cores[0].jobs.close(canonical.encode(spec), None)
    ledger = Ledger(open_database(sqlite_url(scene.parties[0].data / "ledger.sqlite3")))
    (held,) = ledger.reservations(spec.dataset_id)
    ledger.close()
    (charged,) = held.spec.charges(scene.task, held.rounds)
    assert (charged.rounds, charged.epoch_steps) == (2, 2)


def test_rounds_that_were_not_run_are_given_back(noisy: Scene) -> None:
    dataset = noisy.seal()
    first = noisy.job(dataset, noise_multiplier=10.0, rounds=30)
    second = replace(first, job_id=b"k" * 16)
    noisy.start(first)
    assert refusal(noisy, second).reason is JobReason.BUDGET_EXHAUSTED
    noisy.answer(0, first, 0)
    assert noisy.cores[0].jobs.close(canonical.encode(first), None) == 1
    assert noisy.cores[0].jobs.close(canonical.encode(first), None) == 1
    noisy.restart()
    started = noisy.cores[0].jobs.start(canonical.encode(second), MODEL, ASKED)
    both = charge_builders.gaussian(10.0, rounds=31)
    assert started.epsilon_spent == spent([both], noisy.task.delta).ad_server


def test_a_job_that_its_ad_server_lost_is_closed_by_its_id(noisy: Scene) -> None:
    first = noisy.job(noisy.seal(), noise_multiplier=10.0, rounds=30)
    second = replace(first, job_id=b"k" * 16)
    noisy.start(first)
    noisy.answer(0, first, 0)
    jobs = noisy.cores[0].jobs
    with refused(JobReason.UNKNOWN_JOB):
        jobs.close_lost(key_of(second), None)
    assert refusal(noisy, second).reason is JobReason.BUDGET_EXHAUSTED
    assert jobs.close_lost(key_of(first), None) == jobs.close_lost(key_of(first), None) == 1
    with refused(JobReason.JOB_CLOSED):
        noisy.answer(0, first, 1)
    # The round that was answered stays charged
    started = jobs.start(canonical.encode(second), MODEL, ASKED)
    both = charge_builders.gaussian(10.0, rounds=31)
    assert started.epsilon_spent == spent([both], noisy.task.delta).ad_server


def test_each_dataset_has_its_own_budget(noisy: Scene) -> None:
    reports = noisy.reports(40)
    datasets = [
        noisy.commit(noisy.prepare(part, handle=bytes([n]) * 16))
        for n, part in enumerate((reports[:20], reports[20:]))
    ]
    for number, dataset in enumerate(datasets):
        noisy.start(noisy.job(dataset, job_id=bytes([number]) * 16, noise_multiplier=10.0, rounds=30))
    again = noisy.job(datasets[0], job_id=b"again".ljust(16), noise_multiplier=10.0, rounds=30)
    assert refusal(noisy, again).reason is JobReason.BUDGET_EXHAUSTED


def test_a_job_that_is_closed_before_it_is_started_reserves_nothing(noisy: Scene) -> None:
    spec = noisy.job(noisy.seal(), noise_multiplier=10.0)
    assert noisy.cores[0].jobs.close(canonical.encode(spec), None) == 0
    assert noisy.cores[0].jobs.close(canonical.encode(spec), None) == 0
    assert refusal(noisy, spec).reason is JobReason.JOB_CLOSED  # its start was on the way all the time
    noisy.restart()
    assert refusal(noisy, spec).reason is JobReason.JOB_CLOSED
    other = noisy.job(spec.dataset_id, job_id=b"other job".ljust(16), noise_multiplier=10.0, rounds=1)
    started = noisy.cores[0].jobs.start(canonical.encode(other), MODEL, ASKED)
    alone = charge_builders.gaussian(10.0)
    assert started.epsilon_spent == spent([alone], noisy.task.delta).ad_server


def test_a_job_on_an_unknown_dataset_is_not_closed(scene: Scene) -> None:
    with refused(JobReason.UNKNOWN_DATASET):
        scene.cores[0].jobs.close(canonical.encode(scene.job(b"?" * 32)), None)


def test_a_job_of_the_same_id_and_another_content_is_not_closed(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    with refused(JobReason.JOB_CHANGED):
        scene.cores[0].jobs.close(canonical.encode(replace(spec, rounds=spec.rounds + 1)), None)
    assert scene.cores[0].status().counts.open_jobs == 1


def test_a_closed_job_keeps_no_model(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.cores[0].jobs.close(canonical.encode(spec), None)
    assert (
        Ledger(open_database(sqlite_url(scene.parties[0].data / "ledger.sqlite3"))).job_model(key_of(spec))
        == b""
    )


def test_a_closed_job_leaves_nothing_of_its_engine_in_memory(scene: Scene) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.answer(0, spec, 0)
    engine = ref(scene.cores[0].jobs.at_work(key_of(spec), None).running.computation.engine)
    assert engine() is not None
    scene.cores[0].jobs.close(canonical.encode(spec), None)
    gc.collect()
    assert engine() is None


def test_a_job_is_known_from_memory_or_from_the_ledger_and_to_its_own_ad_server(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.restart()
    jobs, known, own = scene.cores[0].jobs, key_of(spec), frozenset({"ads.example"})
    jobs.check_known(known, own)  # from the ledger
    jobs.at_work(known, own)
    with refused(JobReason.UNKNOWN_JOB):
        jobs.check_known(known._replace(release_id=b"?" * 16), own)
    with refused(JobReason.UNKNOWN_TASK):
        jobs.check_known(known, frozenset({"rival.example"}))
    monkeypatch.setattr(jobs._ledger, "job_state", lambda _: None)
    jobs.check_known(known, own)  # from memory


def test_a_job_that_is_closed_while_it_is_looked_up_is_refused_as_closed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = scene.job(scene.seal())
    scene.start(spec)
    scene.restart()
    found = Ledger.job_model

    def closed_before(self: Ledger, job: ReleaseKey) -> bytes:
        self.close_job(spec)
        return found(self, job)

    monkeypatch.setattr(Ledger, "job_model", closed_before)
    with refused(JobReason.JOB_CLOSED):
        scene.cores[0].jobs.at_work(key_of(spec), None)


def test_a_dataset_that_has_had_all_its_jobs_starts_no_more_and_remembers_no_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper.ledger.ledger, "MAX_JOBS", 3)
    dataset, jobs = scene.seal(), scene.cores[0].jobs
    specs = [scene.job(dataset, job_id=bytes([number]) * 16) for number in range(6)]
    jobs.start(canonical.encode(specs[0]), MODEL, ASKED)
    for spec in specs[:5]:  # one that was started, and four that never were
        assert jobs.close(canonical.encode(spec), None) == 0
    ledger = Ledger(open_database(sqlite_url(scene.parties[0].data / "ledger.sqlite3")))
    assert [ledger.job_state(key_of(spec)) is not None for spec in specs] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    for spec in specs[3:]:  # remembered or not: what was closed before it arrived is not started
        assert refusal(scene, spec).reason is JobReason.TOO_MANY_JOBS
    assert [refusal(scene, spec).reason for spec in specs[:3]] == [JobReason.JOB_CLOSED] * 3
    ledger.close()


def test_closed_jobs_that_answered_nothing_are_not_read_with_the_budget(scene: Scene) -> None:
    dataset = scene.seal()
    never, unanswered, answered = (scene.job(dataset, job_id=bytes([number]) * 16) for number in range(3))
    for spec in (unanswered, answered):
        scene.start(spec)
    scene.answer(0, answered, 0)
    for spec in (never, unanswered, answered):
        scene.cores[0].jobs.close(canonical.encode(spec), None)
    ledger = Ledger(open_database(sqlite_url(scene.parties[0].data / "ledger.sqlite3")))
    assert [(one.key, one.rounds) for one in ledger.reservations(dataset)] == [(key_of(answered), 1)]
    ledger.close()


def test_the_ledger_does_not_grow_by_the_models_of_closed_jobs(scene: Scene) -> None:
    dataset, jobs, large = scene.seal(), scene.cores[0].jobs, _with_ballast(MODEL)
    file = scene.parties[0].data / "ledger.sqlite3"
    sizes = []
    for number in range(8):
        spec = scene.job(dataset, job_id=bytes([number]) * 16)
        jobs.start(canonical.encode(spec), large, ASKED)
        jobs.close(canonical.encode(spec), None)
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        sizes.append(file.stat().st_size)
    assert sizes[-1] - sizes[0] < len(large)


def test_a_start_that_nobody_waits_for_any_more_reserves_nothing(noisy: Scene) -> None:
    spec = noisy.job(noisy.seal(), noise_multiplier=50.0)

    def gone() -> None:
        raise JobRefused(JobReason.CANCELLED, "the caller has gone")

    with pytest.raises(JobRefused, match="gone"):
        noisy.cores[0].jobs.start(canonical.encode(spec), MODEL, Call(caller=None, check_awaited=gone))
    assert noisy.cores[0].status().counts.open_jobs == 0
    noisy.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED)
    noisy.cores[0].jobs.start(
        canonical.encode(spec), MODEL, Call(caller=None, check_awaited=gone)
    )  # what is reserved is told


def _with_ballast(model: bytes) -> bytes:
    """The same model with a megabyte that it does not use."""
    made = onnx.load_from_string(model)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.full(1 << 18, 0.5, np.float32), "ballast"))
    return bytes(made.SerializeToString())
