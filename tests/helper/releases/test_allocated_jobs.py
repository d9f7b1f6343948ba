"""Random allocation through restarts, cancelled calls, jobs side by side, closing and adaptive clipping.

Each record takes part once an epoch of a job, and a begun epoch is charged whole in both budgets.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helper.gradient.choose import choose_engine
from helper.ledger.ledger import Ledger, sqlite_url
from helper.ledger.records import key_of
from helper.ledger.spending import cost
from helper.releases.answering import Call
from maskedlark import canonical
from maskedlark.errors import JobReason, JobRefused
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.adaptive_clip import RoundInput
from maskedlark.releases.job import JobSpec
from maskedlark.runtime.database import open_database
from tests import charge_builders
from tests.helper.parties import ASKED, MODEL, OTHER_WEIGHTS, WEIGHTS, Scene
from tests.refusals import refused
from tests.simulation.participation import Participation

STEPS = 4
EPOCHS = 3
RECORDS = 400
NOISE = 3.0
ALLOCATED: dict[str, Any] = {
    "epoch_steps": STEPS,
    "sampling_numerator": 2**32 // STEPS,
    "rounds": STEPS * EPOCHS,
}


@pytest.fixture
def counted() -> Iterator[Participation]:
    participation = Participation()
    with participation.counted():
        yield participation


@pytest.fixture
def exact(tmp_path: Path) -> Scene:
    return Scene(tmp_path, max_dataset_size=RECORDS)


def noisy(folder: Path, **changes: Any) -> Scene:
    return Scene(
        folder,
        **{
            "mechanism": "gaussian",
            "epsilon": 16.0,
            "collusion_epsilon": 100.0,
            "max_dataset_size": RECORDS,
            **changes,
        },
    )


def gone() -> None:
    raise JobRefused(JobReason.CANCELLED, "gone")


def spent_on(scene: Scene, dataset: bytes, role: int = 0) -> Epsilons:
    ledger = Ledger(open_database(sqlite_url(scene.parties[role].data / "ledger.sqlite3")))
    try:
        return cost(scene.task, ledger.reservations(dataset))
    finally:
        ledger.close()


def epochs(count: int) -> Epsilons:
    """What so many epochs cost, but for the chance that a step's size shows."""
    charged = charge_builders.gaussian(NOISE, rounds=count, epoch_steps=STEPS)
    return spent([charged], 1e-5)


def assert_charged(scene: Scene, dataset: bytes, count: int) -> None:
    for role in (0, 1):
        found, expected = spent_on(scene, dataset, role), epochs(count)
        assert found.colluding == pytest.approx(expected.colluding)
        assert found.ad_server == pytest.approx(expected.ad_server, rel=0.01)


def test_an_epochs_sums_are_those_of_all_records_once_through_restarts_and_lost_calls(
    exact: Scene, counted: Participation
) -> None:
    """Without noise: the helpers end between any two rounds, and calls are lost before and after them."""
    spec = exact.job(exact.seal(RECORDS), **ALLOCATED)
    exact.start(spec)
    total = np.zeros(5, np.int64)
    for index in range(STEPS):
        for core in exact.cores:
            with suppress(JobRefused):
                core.jobs.at_work(key_of(spec), None).answer(
                    index, OTHER_WEIGHTS, Call(caller=None, check_awaited=gone)
                )
        exact.restart()
        exact.answer(0, spec, index)  # one helper has charged it, the other has not
        exact.restart()
        total += exact.run(spec, index)
    assert total.tolist() == exact.plain_sum(RECORDS)
    assert not counted.violations()
    assert len(counted.rounds) == 2 * RECORDS


def test_jobs_side_by_side_have_slots_of_their_own(exact: Scene, counted: Participation) -> None:
    dataset = exact.seal(RECORDS)
    jobs = [exact.job(dataset, **ALLOCATED, job_id=name * 16) for name in (b"a", b"b")]
    for spec in jobs:
        exact.start(spec)
    sums: dict[bytes, list[list[int]]] = {spec.job_id: [] for spec in jobs}
    for index in range(2 * STEPS):
        for spec in jobs:
            sums[spec.job_id].append(exact.run(spec, index).tolist())
    assert not counted.violations()
    assert len(counted.rounds) == 2 * RECORDS * 2 * 2  # helpers, records, epochs, jobs
    first, second = (np.array(rounds) for rounds in sums.values())
    assert (first != second).any(axis=1).all()
    for rounds in (first, second):
        for epoch in range(2):
            of_epoch = rounds[epoch * STEPS : (epoch + 1) * STEPS].sum(axis=0)
            assert of_epoch.tolist() == exact.plain_sum(RECORDS)


@pytest.mark.parametrize(("answered", "begun"), [(0, 0), (1, 1), (STEPS, 1), (STEPS + 1, 2)])
def test_closing_gives_back_the_epochs_that_were_not_begun_in_both_budgets(
    tmp_path: Path, answered: int, begun: int
) -> None:
    scene = noisy(tmp_path)
    dataset = scene.seal(RECORDS)
    spec = scene.job(dataset, noise_multiplier=NOISE, **ALLOCATED)
    scene.start(spec)
    assert_charged(scene, dataset, EPOCHS)  # reserved whole
    for index in range(answered):
        scene.run(spec, index)
    scene.restart()
    for core in scene.cores:
        assert core.jobs.close(canonical.encode(spec), None) == answered
    if begun:
        assert_charged(scene, dataset, begun)
    else:
        assert spent_on(scene, dataset) == Epsilons(ad_server=0.0, colluding=0.0)


@pytest.mark.parametrize("which", ["epsilon", "collusion_epsilon"])
def test_what_is_given_back_can_be_spent_and_no_epoch_more(tmp_path: Path, which: str) -> None:
    of = epochs(EPOCHS)
    budget = {"epsilon": of.ad_server * 1.02, "collusion_epsilon": of.colluding * 1.001}
    scene = noisy(tmp_path, **{which: budget[which]})
    dataset = scene.seal(RECORDS)
    first = scene.job(dataset, noise_multiplier=NOISE, **ALLOCATED)
    scene.start(first)
    scene.run(first, 0)
    for core in scene.cores:
        core.jobs.close(canonical.encode(first), None)
    rest = scene.job(dataset, noise_multiplier=NOISE, **ALLOCATED, job_id=b"r" * 16)
    with refused(JobReason.BUDGET_EXHAUSTED, which):
        scene.start(rest)
    fits = replace(rest, rounds=STEPS * (EPOCHS - 1))
    scene.start(fits)
    for index in range(fits.rounds):
        scene.run(fits, index)
    assert_charged(scene, dataset, EPOCHS)


def test_a_bound_that_moves_moves_nobody_to_another_round(tmp_path: Path, counted: Participation) -> None:
    """Each round of an adaptive job brings its own bound, and is tried with others before."""
    scene = noisy(tmp_path)
    dataset = scene.seal(RECORDS)
    spec = scene.job(dataset, noise_multiplier=NOISE, **ALLOCATED, is_clip_adaptive=True)
    scene.restart(engine_for=choose_engine)
    start(scene, spec)
    for index in range(STEPS + 1):
        for share in (1.0, 0.25):
            with suppress(JobRefused):
                ask(scene, spec, index, share, check_awaited=once_begun(counted))
        scene.restart(engine_for=choose_engine)
        ask(scene, spec, index, 0.5 / (index + 1))
    assert not counted.violations()
    assert len(set(counted.computed)) == 2 * (STEPS + 1)
    assert len(counted.computed) > 2 * (STEPS + 1)
    for core in scene.cores:
        core.jobs.close(canonical.encode(spec), None)
    assert_charged(scene, dataset, 2)


def start(scene: Scene, spec: JobSpec) -> None:
    for core in scene.cores:
        core.jobs.start(canonical.encode(spec), MODEL, ASKED)


def ask(scene: Scene, spec: JobSpec, index: int, share: float, **call: Any) -> None:
    sent = RoundInput(weights=WEIGHTS, bound=share * scene.task.clip.bound).encode()
    for core in scene.cores:
        core.jobs.at_work(key_of(spec), None).answer(index, sent, Call(caller=None, **call))


def once_begun(counted: Participation) -> Callable[[], None]:
    """An ad server that leaves when it sees that the round is computed."""
    before = len(counted.computed)

    def check() -> None:
        if len(counted.computed) > before:
            gone()

    return check
