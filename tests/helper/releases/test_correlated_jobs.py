"""Correlated noise at helpers.

What each round takes out, through restarts, lost calls and rolled-back ledgers.

Two answers never show a difference of sums without noise.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helper.gradient.choose import engine_for
from helper.ledger.ledger import Ledger, sqlite_url
from helper.ledger.spending import cost
from helper.releases import carried_noise
from helper.releases.answering import Call
from maskedlark import canonical
from maskedlark.errors import InvalidTask, JobReason, JobRefused, MaskedLarkError
from maskedlark.privacy.accounting import Charge, Epsilons, spent
from maskedlark.privacy.correlated import sensitivity
from maskedlark.privacy.noise import Mechanism
from maskedlark.privacy.samplers import discrete_gaussian
from maskedlark.randomness import Stream, derive_key
from maskedlark.releases.job import JobSpec, noise_units
from maskedlark.runtime.database import open_database
from tests import reference
from tests.helper.parties import NUM_VALUES, OTHER_WEIGHTS, WEIGHTS, Scene

STEPS, EPOCHS, CARRIED, RECORDS, NOISE = 3, 3, 48, 60, 4.0
CORRELATED: dict[str, Any] = {
    "epoch_steps": STEPS,
    "sampling_numerator": 2**32 // STEPS,
    "rounds": STEPS * EPOCHS,
    "noise_multiplier": NOISE,
    "carried": CARRIED,
}
LARGEST_SUM = RECORDS * 260
"""In units, of the fake engine's values: nothing beside the noise."""


def make_scene(folder: Path, **changes: Any) -> Scene:
    budgets = {"epsilon": 16.0, "collusion_epsilon": 100.0}
    return Scene(folder, **{"mechanism": "gaussian", **budgets, "max_dataset_size": RECORDS, **changes})


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_scene(tmp_path)


def gaussian(key: bytes, scale: int) -> list[int]:
    return [int(value) for value in discrete_gaussian(scale, NUM_VALUES, Stream(key))]


def wanted_noise(scene: Scene, spec: JobSpec, role: int, index: int, sent: list[bytes]) -> NDArray[np.int64]:
    """One helper's noise of a round, by the reference; `sent` are the weights of all rounds so far."""
    keys = scene.parties[role].keys
    numerics = scene.cores[role].jobs.at_work(spec.job_id, None).running.computation.numerics
    key = partial(reference.correlated_key, keys._storage_key, spec.digest, numerics=numerics)
    return np.array(
        reference.correlated_noise(
            CARRIED,
            noise_units(scene.task, spec),
            gaussian,
            kept=key(b"kept", round_index=index, weights=sent[index]),
            own=key(b"own", round_index=index, weights=sent[index]),
            before=key(b"kept", round_index=index - 1, weights=sent[index - 1]) if index else None,
        )
    )


def gone_at_last() -> Callable[[], None]:
    """A caller who leaves when the answer is computed, so that nothing is charged."""
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise JobRefused(JobReason.CANCELLED, "gone")

    return check


def spent_on(scene: Scene, dataset: bytes) -> Epsilons:
    ledger = Ledger(open_database(sqlite_url(scene.parties[0].data / "ledger.sqlite3")))
    try:
        return cost(scene.task, ledger.reservations(dataset))
    finally:
        ledger.close()


def epochs(count: int) -> Epsilons:
    noise = NOISE / sensitivity(CARRIED, steps=STEPS, epochs=count)
    one = Charge(mechanism=Mechanism.GAUSSIAN, noise_multiplier=noise, sampling_rate=1.0, rounds=1)
    return spent([one], 1e-5)


def test_each_round_has_the_references_noise_through_restarts_and_lost_calls(scene: Scene) -> None:
    """Every round is first computed for other weights, for a caller who leaves."""
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    sent, total = [], np.zeros(NUM_VALUES, np.int64)
    for index in range(STEPS + 1):
        for core in scene.cores:
            with suppress(JobRefused):
                call = Call(caller=None, check_awaited=gone_at_last())
                core.jobs.at_work(spec.job_id, None).answer(index, OTHER_WEIGHTS, call)
        scene.restart()
        sent.append(WEIGHTS if index % 2 else OTHER_WEIGHTS)
        scene.answer(1, spec, index, sent[-1])
        noise = sum(wanted_noise(scene, spec, role, index, sent) for role in (0, 1))
        found = scene.run(spec, index, sent[-1]) - noise
        assert (found >= 0).all()
        assert (found <= LARGEST_SUM).all()
        if index < STEPS:
            total += found
    assert total.tolist() == scene.plain_sum(RECORDS)


def test_a_step_is_answered_for_its_first_charged_weights_only(scene: Scene) -> None:
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    first = scene.answer(0, spec, 0)
    for _ in range(2):
        assert scene.answer(0, spec, 0) == first
        with pytest.raises(JobRefused) as refused:
            scene.answer(0, spec, 0, OTHER_WEIGHTS)
        assert refused.value.reason is JobReason.ROUND_CHANGED
        scene.restart()
    for core in scene.cores:
        core.jobs.close(canonical.encode(spec), None)
    with pytest.raises(JobRefused):
        scene.answer(0, spec, 0, OTHER_WEIGHTS)


def without_noise_between(folder: Path) -> bool:
    """Whether a step asked for twice, with a rolled-back ledger between, shows a difference without noise.

    The rollback is complete, the witness's file included, so that nothing notices it.
    """
    scene = make_scene(folder / "now")
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    scene.run(spec, 0)
    for party in scene.parties:
        shutil.copytree(party.data, folder / "before" / party.data.name)
    first = scene.run(spec, 1, WEIGHTS)
    for party in scene.parties:
        shutil.rmtree(party.data)
        shutil.copytree(folder / "before" / party.data.name, party.data)
    scene.restart()
    second = scene.run(spec, 1, OTHER_WEIGHTS)
    return bool((np.abs(first - second) <= LARGEST_SUM).any())


def test_a_rolled_back_step_with_other_weights_has_other_noise(tmp_path: Path) -> None:
    assert not without_noise_between(tmp_path)


def test_a_build_whose_noise_forgets_the_weights_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant draws a step's noise from its number alone.

    Two answers differ by two sums, without noise.
    """

    def of_the_index_alone(secret: bytes, purpose: bytes, context: bytes) -> bytes:
        return derive_key(secret, purpose, context[:8])

    monkeypatch.setattr(carried_noise, "derive_key", of_the_index_alone)
    assert without_noise_between(tmp_path)


def test_helpers_and_jobs_have_noise_of_their_own(scene: Scene) -> None:
    dataset = scene.seal(RECORDS)
    jobs = [scene.job(dataset, **CORRELATED, job_id=name * 16) for name in (b"a", b"b")]
    noises = []
    for spec in jobs:
        scene.start(spec)
        noises += [wanted_noise(scene, spec, role, 0, [WEIGHTS]) for role in (0, 1)]
    for one, spec in enumerate(jobs):
        found = scene.run(spec, 0) - noises[2 * one] - noises[2 * one + 1]
        assert (np.abs(found) <= LARGEST_SUM).all()
    assert all((noises[i] != noises[j]).all() for i in range(4) for j in range(i))


@pytest.mark.parametrize(("answered", "begun"), [(0, 0), (1, 1), (STEPS, 1), (STEPS + 1, 2)])
def test_closing_gives_back_the_epochs_that_were_not_begun(scene: Scene, answered: int, begun: int) -> None:
    dataset = scene.seal(RECORDS)
    spec = scene.job(dataset, **CORRELATED)
    scene.start(spec)
    assert spent_on(scene, dataset) == epochs(EPOCHS)
    for index in range(answered):
        scene.run(spec, index)
    scene.restart()
    for core in scene.cores:
        core.jobs.close(canonical.encode(spec), None)
    assert spent_on(scene, dataset) == (epochs(begun) if begun else Epsilons(ad_server=0.0, colluding=0.0))


def test_a_correlated_job_that_passes_a_budget_is_refused(tmp_path: Path) -> None:
    """By what its epochs cost together, which is more than one by one."""
    least = epochs(EPOCHS).colluding
    scene = make_scene(tmp_path, collusion_epsilon=0.99 * least)
    dataset = scene.seal(RECORDS)
    with pytest.raises(JobRefused, match="collusion_epsilon") as refused:
        scene.start(scene.job(dataset, **CORRELATED))
    assert refused.value.reason is JobReason.BUDGET_EXHAUSTED
    scene.start(replace(scene.job(dataset, **CORRELATED), carried=None, is_sample_public=True))


def refusal(build: Callable[[], Any]) -> MaskedLarkError:
    with pytest.raises(MaskedLarkError) as refused:
        build()
    return refused.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epoch_steps": None, "sampling_numerator": 1 << 32}, "gains nothing where each round uses all"),
        ({"epoch_steps": None, "sampling_numerator": 1 << 30}, "not proven for Poisson"),
        ({"is_clip_adaptive": True}, "leave out the adaptive clip"),
        ({"rounds": 3 * 1_000 + 1}, "at most 1000 epochs"),
        ({"carried": 64}, "carried"),
    ],
)
def test_where_it_does_not_pay_or_is_not_proven_it_is_refused(
    scene: Scene, changes: dict[str, Any], words: str
) -> None:
    fits = scene.job(bytes(32), **CORRELATED)
    ids = {name: getattr(fits, name) for name in ("job_id", "task_id", "dataset_id", "model_digest", "loss")}
    refused = refusal(lambda: canonical.build(JobSpec, {**ids, **CORRELATED, **changes}))
    assert isinstance(refused, InvalidTask)
    assert words in str(refused)


def test_a_model_on_the_general_path_gets_independent_noise_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene(tmp_path)
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)

    def general(*arguments: Any) -> Any:
        engine = engine_for(*arguments)
        monkeypatch.setattr(type(engine), "path", "general")
        return engine

    scene.restart(engine_for=general)
    refused = refusal(lambda: scene.start(spec))
    assert isinstance(refused, JobRefused)
    assert refused.reason is JobReason.MALFORMED
    assert "exact path" in str(refused)


def test_a_task_of_laplace_noise_refuses_it(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, mechanism="laplace", norm="l1")
    refused = refusal(lambda: scene.start(scene.job(scene.seal(RECORDS), **CORRELATED)))
    assert isinstance(refused, JobRefused)
    assert refused.reason is JobReason.MALFORMED
    assert "independent noise" in str(refused)


def test_too_coarse_units_are_refused(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, frac_bits=16, collusion_epsilon=1e6, epsilon=1e6)
    spec = scene.job(scene.seal(RECORDS), **{**CORRELATED, "noise_multiplier": 0.9})
    refused = refusal(lambda: scene.start(spec))
    assert isinstance(refused, JobRefused)
    assert refused.reason is JobReason.NOISE_OUT_OF_RANGE
    assert "use more frac_bits" in str(refused)


def test_a_round_before_its_forerunner_is_refused(scene: Scene) -> None:
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    refused = refusal(lambda: scene.answer(0, spec, 1))
    assert isinstance(refused, JobRefused)
    assert refused.reason is JobReason.ROUND_OUT_OF_ORDER


def test_an_independent_jobs_bytes_have_no_trace_of_it(scene: Scene) -> None:
    assert b"carried" not in canonical.encode(scene.job(bytes(32)))
    spec = scene.job(bytes(32), **CORRELATED)
    assert canonical.decode(JobSpec, canonical.encode(spec)) == spec
