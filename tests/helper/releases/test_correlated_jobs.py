"""Correlated noise at helpers.

What each round takes out, through restarts, lost calls and rolled-back ledgers.

Two answers never show a difference of sums without noise.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import update

from helper.gradient.choose import choose_engine
from helper.ledger.ledger import Ledger, sqlite_url
from helper.ledger.records import key_of
from helper.ledger.round_state import KEPT_ANSWERS
from helper.ledger.schema import ROUNDS
from helper.ledger.spending import cost
from helper.releases.answering import Call
from helper.releases.correlated_noise import CorrelatedNoise, SeedDamaged, StepSeed
from helper.releases.rounds import RunningJob
from maskedlark import canonical
from maskedlark.errors import InvalidTask, JobReason, JobRefused, MaskedLarkError
from maskedlark.interrupt import never
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.correlated import OWN_SCALE, sensitivity
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.samplers import discrete_gaussian
from maskedlark.randomness import Stream, derive_key, seeded
from maskedlark.releases.job import JobSpec
from maskedlark.runtime.database import open_database
from tests import charge_builders, reference
from tests.builders import NOW
from tests.helper.parties import ASKED, MODEL, NUM_VALUES, OTHER_WEIGHTS, WEIGHTS, Scene
from tests.refusals import refused

STEPS, EPOCHS, CARRIED, RECORDS, NOISE = 3, 3, 48, 60, 4.0
CORRELATED: dict[str, Any] = {
    "epoch_steps": STEPS,
    "sampling_numerator": 2**32 // STEPS,
    "rounds": STEPS * EPOCHS,
    "noise_multiplier": NOISE,
    "carried": CARRIED,
    "is_sample_public": True,
}
MASKS: Final = 3
"""Which of the sealer's draws for a report becomes its masks."""
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


def seed_of(scene: Scene, spec: JobSpec, role: int, index: int) -> bytes:
    """What one helper made a round's noise from, opened by the reference."""
    answered = scene.cores[role]._ledger.round(key_of(spec), index)
    assert answered is not None
    assert answered.sealed_seed is not None
    storage_key = scene.parties[role].keys._storage_key
    return reference.opened_seed(storage_key, spec.digest, index, answered.sealed_seed)


def wanted_noise(scene: Scene, spec: JobSpec, role: int, index: int) -> NDArray[np.int64]:
    """One helper's noise of an answered round, by the reference."""
    seed = seed_of(scene, spec, role, index)
    before = seed_of(scene, spec, role, index - 1) if index else None
    return np.array(
        reference.correlated_noise(
            CARRIED,
            spec.noise_units(scene.task),
            gaussian,
            kept=reference.correlated_key(seed, b"kept"),
            own=reference.correlated_key(seed, b"own"),
            before=reference.correlated_key(before, b"kept") if before else None,
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
    one = charge_builders.gaussian(noise)
    return spent([one], 1e-5)


def test_each_round_has_the_references_noise_through_restarts_and_lost_calls(scene: Scene) -> None:
    """Every round is first computed for other weights, for a caller who leaves."""
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    total = np.zeros(NUM_VALUES, np.int64)
    for index in range(STEPS + 1):
        for core in scene.cores:
            with suppress(JobRefused):
                call = Call(caller=None, check_awaited=gone_at_last())
                core.jobs.at_work(key_of(spec), None).answer(index, OTHER_WEIGHTS, call)
        scene.restart()
        sent = WEIGHTS if index % 2 else OTHER_WEIGHTS
        scene.answer(1, spec, index, sent)
        answered = scene.run(spec, index, sent)
        found = answered - sum(wanted_noise(scene, spec, role, index) for role in (0, 1))
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
        with refused(JobReason.ROUND_CHANGED):
            scene.answer(0, spec, 0, OTHER_WEIGHTS)
        scene.restart()
    for core in scene.cores:
        core.jobs.close(canonical.encode(spec), None)
    with refused(JobReason.JOB_CLOSED):
        scene.answer(0, spec, 0, OTHER_WEIGHTS)


class RolledBack:
    """A scene whose helpers can be put back to where they stood, the witness's files included.

    So nothing notices it.
    """

    def __init__(self, folder: Path) -> None:
        self.scene = make_scene(folder / "now")
        self._before = folder / "before"

    def keep(self) -> None:
        for party in self.scene.parties:
            shutil.copytree(party.data, self._before / party.data.name)

    def go_back(self) -> None:
        for party in self.scene.parties:
            shutil.rmtree(party.data)
            shutil.copytree(self._before / party.data.name, party.data)
        self.scene.restart()

    def begun(self) -> JobSpec:
        """A job with one round answered, where the helpers are kept."""
        spec = self.scene.job(self.scene.seal(RECORDS), **CORRELATED)
        self.scene.start(spec)
        self.scene.run(spec, 0)
        self.keep()
        return spec


def shows_two_weights(folder: Path) -> bool:
    """Whether one step, asked for at two weights, shows a difference of sums without noise."""
    one = RolledBack(folder)
    spec = one.begun()
    first = one.scene.run(spec, 1, WEIGHTS)
    one.go_back()
    return bool((np.abs(first - one.scene.run(spec, 1, OTHER_WEIGHTS)) <= LARGEST_SUM).all())


def shows_two_histories(folder: Path) -> bool:
    """Whether one step, at the same weights after two histories, takes the noise of the steps before off."""
    one = RolledBack(folder)
    spec = one.begun()
    first, after_first = one.scene.run(spec, 1, WEIGHTS), one.scene.run(spec, 2, WEIGHTS)
    one.go_back()
    second, after_second = one.scene.run(spec, 1, OTHER_WEIGHTS), one.scene.run(spec, 2, WEIGHTS)
    kept = (after_second - after_first) * (64 / CARRIED)  # 64 (u - u'), if all else is the same
    small = 2 * LARGEST_SUM + 2 * 10 * OWN_SCALE
    return bool((np.abs(first - second - kept) <= small).all())


def shows_two_masks(folder: Path) -> bool:
    """Whether a dataset that is sealed again, one record's masks changed, meets the noise of before."""
    one = RolledBack(folder)
    scene, made = one.scene, one.scene.examples(RECORDS)
    drawn: list[bytes] = []
    fresh = seeded(99, "one record")

    def draw(count: int) -> bytes:
        drawn.append(fresh(count))
        return drawn[-1]

    one.keep()
    others = scene.reports(made)[1:]
    scene.commit(
        sealed := scene.prepare([scene.sealer.report(made[0], unix_s=NOW, randomness=draw), *others])
    )
    spec = scene.job(sealed.dataset_id, **CORRELATED)

    def answers() -> list[bytes]:
        scene.cores[0].jobs.start(canonical.encode(spec), MODEL, ASKED)
        return [scene.answer(0, spec, index) for index in range(STEPS)]

    first = answers()
    one.go_back()
    drawn[MASKS] = bytes(byte ^ (place % 8 == 0) for place, byte in enumerate(drawn[MASKS]))
    again = iter(drawn)
    changed = scene.sealer.report(made[0], unix_s=NOW, randomness=lambda _: next(again))
    resealed = scene.prepare([changed, *others])
    assert resealed.dataset_id == sealed.dataset_id
    scene.commit(resealed)
    return any(early == late for early, late in zip(first, answers(), strict=True))


ATTACKS = (shows_two_weights, shows_two_histories, shows_two_masks)


@pytest.mark.parametrize("attack", ATTACKS)
def test_rolled_back_helpers_never_make_a_noise_twice(tmp_path: Path, attack: Callable[[Path], bool]) -> None:
    assert not attack(tmp_path)


@pytest.mark.parametrize(
    ("attack", "is_of_weights"), [(one, one is not shows_two_weights) for one in ATTACKS]
)
def test_a_build_that_derives_its_seeds_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[[Path], bool], is_of_weights: bool
) -> None:
    """The mutants' seeds follow from the helper's key, the job and the step, or from its weights too."""
    asked: list[bytes] = []
    answer, new_seed = RunningJob.answer, CorrelatedNoise.new_seed

    def remembered(self: RunningJob, served: Any, index: int, weights: bytes, call: Call) -> bytes:
        asked.append(weights if is_of_weights else b"")
        return answer(self, served, index, weights, call)

    def derived(self: CorrelatedNoise, job: JobSpec, index: int) -> StepSeed:
        key = derive_key(self._noise_key(job.digest), b"mutant", bytes([index]) + asked[-1])
        return new_seed(CorrelatedNoise(self._noise_key, self._ledger, Stream(key)), job, index)

    monkeypatch.setattr(RunningJob, "answer", remembered)
    monkeypatch.setattr(CorrelatedNoise, "new_seed", derived)
    assert attack(tmp_path)


def test_a_round_whose_predecessor_is_not_answered_has_no_noise(scene: Scene) -> None:
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    carried = scene.cores[0].jobs._carried
    with refused(JobReason.ROUND_OUT_OF_ORDER):
        carried.of_round(spec, 1, carried.new_seed(spec, 1), scale=8, count=3, interrupt=lambda: None)


@pytest.mark.parametrize(
    ("has_seed", "mechanism", "more"),
    [(False, Mechanism.GAUSSIAN, 0), (True, Mechanism.LAPLACE, 0), (True, Mechanism.GAUSSIAN, 1)],
)
def test_no_other_noise_is_drawn_for_a_correlated_job(
    scene: Scene, has_seed: bool, mechanism: Mechanism, more: int
) -> None:
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    at_work = scene.cores[0].jobs.at_work(key_of(spec), None)
    seed = StepSeed(secret=bytes(32), sealed=b"") if has_seed else None
    draw = at_work.running._noise_source(at_work.served, 0, seed, never)
    with pytest.raises(AssertionError, match="Gaussian"):
        draw(mechanism, spec.noise_units(scene.task) + more, NUM_VALUES)


def test_a_job_of_independent_noise_has_no_noise_of_a_seed(scene: Scene) -> None:
    spec, noise = scene.job(bytes(32)), scene.cores[0].jobs._carried
    with pytest.raises(AssertionError, match="independent"):
        noise.of_round(spec, 0, StepSeed(secret=bytes(32), sealed=b""), scale=9, count=1, interrupt=never)


def test_the_noise_of_a_correlated_job_has_the_jobs_scale_whatever_is_asked_for(scene: Scene) -> None:
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    at_work = scene.cores[0].jobs.at_work(key_of(spec), None)
    draw = at_work.running._noise_source(at_work.served, 0, StepSeed(secret=bytes(32), sealed=b""), never)
    units = spec.noise_units(scene.task)
    assert draw(Mechanism.GAUSSIAN, units, 9).tolist() == draw(Mechanism.GAUSSIAN, units // 2, 9).tolist()


def test_helpers_and_jobs_have_noise_of_their_own(scene: Scene) -> None:
    dataset = scene.seal(RECORDS)
    noises = []
    for name in (b"a", b"b"):
        spec = scene.job(dataset, **CORRELATED, job_id=name * 16)
        scene.start(spec)
        found = scene.run(spec, 0)
        of_job = [wanted_noise(scene, spec, role, 0) for role in (0, 1)]
        assert (np.abs(found - of_job[0] - of_job[1]) <= LARGEST_SUM).all()
        noises += of_job
    assert all((noises[i] != noises[j]).any() for i in range(4) for j in range(i))


def test_seeds_are_dropped_with_the_answers_and_never_shown(scene: Scene) -> None:
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    ledger = scene.cores[0]._ledger

    def has_seed() -> list[bool]:
        rows = [ledger.round(key_of(spec), index) for index in range(spec.rounds)]
        return [row.sealed_seed is not None for row in rows if row is not None]

    for index in range(KEPT_ANSWERS + 1):
        scene.run(spec, index)
    assert has_seed() == [False] + [True] * KEPT_ANSWERS
    secret, row = seed_of(scene, spec, 0, 1), ledger.round(key_of(spec), 1)
    assert row is not None
    assert secret not in (scene.parties[0].data / "ledger.sqlite3").read_bytes()
    assert "sealed_seed" not in repr(row)
    assert repr(StepSeed(secret=secret, sealed=b"")) == "StepSeed()"
    scene.cores[0].jobs.close(canonical.encode(spec), None)
    assert not any(has_seed())


@pytest.mark.parametrize("damage", [b"", bytes(60)])
def test_a_damaged_seed_ends_the_round_uncharged(scene: Scene, damage: bytes) -> None:
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    scene.run(spec, 0)
    change_seeds(scene, damage)
    with pytest.raises(SeedDamaged, match="round 0"):
        scene.answer(0, spec, 1)
    assert scene.cores[0]._ledger.round(key_of(spec), 1) is None


def test_a_job_begun_before_seeds_were_kept_goes_on(scene: Scene) -> None:
    """Its next round takes nothing out, and the one after that does."""
    spec = scene.job(scene.seal(RECORDS), **CORRELATED)
    scene.start(spec)
    scene.run(spec, 0)
    change_seeds(scene, None)
    first = scene.run(spec, 1)
    scale = spec.noise_units(scene.task)
    for role in (0, 1):
        seed = seed_of(scene, spec, role, 1)
        kept, own = (reference.correlated_key(seed, purpose) for purpose in (b"kept", b"own"))
        first = first - reference.correlated_noise(CARRIED, scale, gaussian, kept=kept, own=own, before=None)
    assert (np.abs(first) <= LARGEST_SUM).all()
    second = scene.run(spec, 2) - sum(wanted_noise(scene, spec, role, 2) for role in (0, 1))
    assert (np.abs(second) <= LARGEST_SUM).all()


def change_seeds(scene: Scene, sealed: bytes | None) -> None:
    """Put something else in the place of all seeds of both helpers."""
    for party in scene.parties:
        engine = open_database(sqlite_url(party.data / "ledger.sqlite3"))
        with engine.begin() as connection:
            connection.execute(update(ROUNDS).values(sealed_seed=sealed))
        engine.dispose()


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
    with refused(JobReason.BUDGET_EXHAUSTED, "collusion_epsilon"):
        scene.start(scene.job(dataset, **CORRELATED))
    scene.start(replace(scene.job(dataset, **CORRELATED), carried=None))


def refusal(build: Callable[[], Any]) -> MaskedLarkError:
    with pytest.raises(MaskedLarkError) as refused:
        build()
    return refused.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epoch_steps": None, "sampling_numerator": 1 << 32}, "gains nothing if each round uses all"),
        ({"epoch_steps": None, "sampling_numerator": 1 << 30}, "not proven for Poisson"),
        ({"is_clip_adaptive": True}, "leave out the adaptive clip"),
        ({"rounds": 3 * 1_000 + 1}, "limited to 1000 epochs"),
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
        engine = choose_engine(*arguments)
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
    independent = scene.job(scene.seal(RECORDS), noise_multiplier=NOISE)
    scene.start(independent)
    scene.answer(0, independent, 0)
    stored = scene.cores[0]._ledger.round(key_of(independent), 0)
    assert stored is not None
    assert stored.sealed_seed is None
    assert b"carried" not in canonical.encode(scene.job(bytes(32)))
    spec = scene.job(bytes(32), **CORRELATED)
    assert canonical.decode(JobSpec, canonical.encode(spec)) == spec
