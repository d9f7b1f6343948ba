"""Tasks that protect a person: at each helper one budget over all datasets, jobs, queries and rounds.

Attacks: another dataset for each job, jobs and queries at once over different datasets, a restart in between,
jobs that are closed early, and several reports of one person in a dataset.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from helper.ledger.budget_report import BudgetReport, open_ledger
from helper.ledger.ledger import Ledger
from helper.ledger.records import Reservation, SignedTask, StoredQuery
from helper.ledger.spending import check_fits, cost
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.privacy.accounting import Charge, Epsilons, spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.budget import DatasetBudget, PlannedJob
from maskedlark.releases.job import JobSpec
from maskedlark.releases.update import Phase, UpdateSpec
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.reports.upload import Sealer
from maskedlark.runtime.database import open_database
from tests.builders import NOW, job_spec, world
from tests.helper.parties import ASKED, MODEL, Scene, make_task
from tests.patience import HANGS_S
from tests.update_builders import update_job, update_round, update_world

NOISE = 2.0
DELTA = 1e-5
PERSON: dict[str, Any] = {
    "unit": "user",
    "mechanism": "gaussian",
    "epsilon": 4.0,
    "collusion_epsilon": 6.0,
    "delta": DELTA,
}


def gaussian(rounds: int, *, noise: float = NOISE, **changes: Any) -> Charge:
    return Charge(
        mechanism=Mechanism.GAUSSIAN, noise_multiplier=noise, sampling_rate=1.0, rounds=rounds, **changes
    )


def reason_of(call: Callable[[], object]) -> tuple[JobReason, str]:
    with pytest.raises(JobRefused) as error:
        call()
    return error.value.reason, str(error.value)


def most_rounds(task: Task, noise: float = NOISE) -> int:
    """How many unsampled rounds a budget holds."""
    rounds = 1
    while within(task, spent([gaussian(rounds + 1, noise=noise)], DELTA)):
        rounds += 1
    return rounds


def within(task: Task, found: Epsilons) -> bool:
    return found.ad_server <= task.epsilon and found.colluding <= task.collusion_epsilon


def job(scene: Scene, dataset: bytes, number: int, **changes: Any) -> JobSpec:
    return scene.job(dataset, job_id=bytes([number]) * 16, noise_multiplier=NOISE, **changes)


def test_jobs_over_different_datasets_share_one_budget_at_both_helpers(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **PERSON)
    first, second = scene.seal(seed=1), scene.seal(seed=2)
    most = most_rounds(scene.task)
    assert most >= 3
    scene.start(job(scene, first, 1, rounds=most - 1))
    asked = encode(job(scene, second, 2, rounds=2))
    for core in scene.cores:
        reason, said = reason_of(lambda core=core: core.jobs.start(asked, MODEL, ASKED))  # type: ignore[misc]
        assert reason is JobReason.BUDGET_EXHAUSTED
        assert "this task" in said
        assert "another task" in said
    scene.start(job(scene, second, 3, rounds=1))


def test_with_unit_report_each_dataset_has_a_budget_of_its_own(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **{**PERSON, "unit": "report"})
    most = most_rounds(scene.task)
    for number in (1, 2):
        dataset = scene.seal(seed=number)
        scene.start(job(scene, dataset, number, rounds=most))
        reason, _ = reason_of(partial(scene.start, job(scene, dataset, 7, rounds=1)))
        assert reason is JobReason.BUDGET_EXHAUSTED  # its own budget is spent, and the next has all of one


def test_a_restart_and_an_early_end_leave_the_task_what_was_really_spent(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **PERSON)
    first, second = scene.seal(seed=1), scene.seal(seed=2)
    most = most_rounds(scene.task)
    open_job = job(scene, first, 1, rounds=most)
    scene.start(open_job)
    scene.run(open_job, 0)
    scene.restart()
    late = job(scene, second, 2, rounds=most - 1)
    reason, _ = reason_of(lambda: scene.start(late))
    assert reason is JobReason.BUDGET_EXHAUSTED
    for core in scene.cores:
        core.jobs.close(encode(open_job), None)
    scene.restart()
    scene.start(late)
    more = job(scene, first, 3, rounds=1)
    reason, _ = reason_of(lambda: scene.start(more))
    assert reason is JobReason.BUDGET_EXHAUSTED


def test_several_reports_of_a_person_cost_that_many_times_the_sensitivity(tmp_path: Path) -> None:
    """End to end: a task of three reports a person holds what one of a third of the noise would hold."""
    scene = Scene(tmp_path, **{**PERSON, "reports_per_user": 3, "epsilon": 8.0, "collusion_epsilon": 12.0})
    most = most_rounds(scene.task, noise=NOISE / 3)
    assert most >= 1
    dataset, other = scene.seal(seed=1), scene.seal(seed=2)
    reason, _ = reason_of(lambda: scene.start(job(scene, dataset, 1, rounds=most + 1)))
    assert reason is JobReason.BUDGET_EXHAUSTED
    whole = job(scene, dataset, 2, rounds=most)
    scene.start(whole)
    assert whole.charges(scene.task, most) == (gaussian(most, reports=3),)
    reason, _ = reason_of(lambda: scene.start(job(scene, other, 3, rounds=1)))
    assert reason is JobReason.BUDGET_EXHAUSTED


def test_the_report_on_any_dataset_shows_what_all_of_the_task_have_spent(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **PERSON)
    datasets = [scene.seal(seed=1), scene.seal(seed=2)]
    scene.start(job(scene, datasets[0], 1, rounds=2))
    planned = PlannedJob(rounds=1, batch_size=None, noise_multiplier=NOISE)
    for party in scene.parties:
        engine = open_ledger(party.data, None)
        report = BudgetReport(engine)
        shown = [DatasetBudget.of(one, report.uses(one), planned) for one in report.datasets()]
        engine.dispose()
        assert {one.dataset.dataset_id for one in shown} == set(datasets)
        held = spent([gaussian(2)], DELTA)
        after = spent([gaussian(3)], DELTA)
        for one in shown:
            assert (one.ad_server.held, one.colluding.held) == (held.ad_server, held.colluding)
            assert one.forecast is not None
            assert one.forecast.ad_server.held == after.ad_server


LABELS = world(**PERSON).task
UPDATES = update_world(mechanism="gaussian", epsilon=3.0, collusion_epsilon=5.0).task
AT_ONCE = 6


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    opened = Ledger(open_database(database_url))
    for task in (LABELS, UPDATES):
        stored = SignedTask(encoded=encode(task), origin=task.origin, role=0, signature=bytes(64))
        opened.add_task(task.task_id, stored)
        for number in range(AT_ONCE):
            name = dataset_of(task, number)
            opened.add_dataset(name, task.task_id, [name[-15:] + bytes([one]) for one in range(4)])
    yield opened
    opened.close()


def dataset_of(task: Task, number: int) -> bytes:
    return task.task_id[:30] + bytes([7, number])


def fits(task: Task, new: Reservation, meet: Callable[[], object]) -> Callable[[Sequence[Reservation]], None]:
    """A helper's own check; all threads have read the ledger before the first of them writes."""
    met = False

    def check(before: Sequence[Reservation]) -> None:
        nonlocal met
        if not met:
            met = True
            meet()
        check_fits(task, before, new)

    return check


def at_once(task: Task, tries: Sequence[Callable[[Callable[[], object]], bool]]) -> int:
    """How many of some calls took budget, made at the same time over different datasets."""
    barrier = Barrier(len(tries))

    def one(attempt: Callable[[Callable[[], object]], bool]) -> bool:
        try:
            return attempt(lambda: barrier.wait(HANGS_S))
        except JobRefused as refusal:
            return refusal.reason is not JobReason.BUDGET_EXHAUSTED

    with ThreadPoolExecutor(len(tries)) as pool:
        return sum(pool.map(one, tries))


def test_jobs_that_are_opened_at_once_over_different_datasets_pass_no_budget(ledger: Ledger) -> None:
    spec = job_spec(job_id=bytes(16), task_id=LABELS.task_id, noise_multiplier=1.0)
    most = most_rounds(LABELS, noise=1.0)
    assert 0 < most < AT_ONCE
    specs = [
        replace(spec, job_id=bytes([number + 1]) * 16, dataset_id=dataset_of(LABELS, number))
        for number in range(AT_ONCE)
    ]

    def opening(one: JobSpec) -> Callable[[Callable[[], object]], bool]:
        new = Reservation(spec=one, rounds=1)
        return lambda meet: ledger.open_job(one, b"", fits(LABELS, new, meet))

    assert at_once(LABELS, [opening(one) for one in specs]) == most
    held = ledger.reservations(dataset_of(LABELS, 0))
    assert len(held) == most
    assert all(ledger.reservations(dataset_of(LABELS, number)) == held for number in range(AT_ONCE))
    assert within(LABELS, cost(LABELS, held))


def test_rounds_that_are_charged_at_once_over_different_datasets_pass_no_budget(ledger: Ledger) -> None:
    phases = (Phase(rounds=AT_ONCE, sampling_rate=0.9, noise_multiplier=1.0),)
    made = update_job(UPDATES, phases=phases)
    specs = [
        UpdateSpec(dataset_id=dataset_of(UPDATES, number), round=update_round(UPDATES, number, job=made))
        for number in range(AT_ONCE)
    ]
    most = 0
    while most < AT_ONCE and within(
        UPDATES, spent(specs[0].charges(UPDATES)[:1] * (most + 1), UPDATES.delta)
    ):
        most += 1
    assert 0 < most < AT_ONCE

    def charging(one: UpdateSpec) -> Callable[[Callable[[], object]], bool]:
        new = Reservation(spec=one, rounds=1)
        stored = StoredQuery(spec=one, answer=b"answer")
        return lambda meet: ledger.add_query(stored, fits(UPDATES, new, meet))

    assert at_once(UPDATES, [charging(one) for one in specs]) == most
    assert len(ledger.reservations(dataset_of(UPDATES, 0))) == most


def test_a_name_that_looks_like_a_unit_does_not_make_a_task_a_persons(database_url: str) -> None:
    """Whom a budget protects is read from the task's bytes: within a string quotes are escaped."""
    posing = world(name='","unit":"user","x":"', mechanism="gaussian").task
    ledger = Ledger(open_database(database_url))
    ledger.add_task(
        posing.task_id, SignedTask(encoded=encode(posing), origin=posing.origin, role=0, signature=bytes(64))
    )
    assert posing.unit is PrivacyUnit.REPORT
    for number in (0, 1):
        name = dataset_of(posing, number)
        ledger.add_dataset(name, posing.task_id, [name[:15] + bytes([number])])
    spec = replace(
        UpdateSpec(dataset_id=dataset_of(posing, 0), round=update_round(posing)),
        dataset_id=dataset_of(posing, 0),
    )
    ledger.add_query(StoredQuery(spec=spec, answer=b"answer"), lambda _: None)
    assert len(ledger.reservations(dataset_of(posing, 0))) == 1
    assert ledger.reservations(dataset_of(posing, 1)) == ()
    ledger.close()


def test_whose_budget_a_dataset_draws_on_is_what_its_own_task_says(tmp_path: Path) -> None:
    """Two tasks in one ledger: the older protects single reports, the other one persons."""
    scene = Scene(tmp_path, **{**PERSON, "unit": "report"})
    scene.seal(seed=1)
    scene.task = make_task(scene.parties, **PERSON)
    scene.task_id = scene.task.task_id
    scene.sealer = Sealer(scene.register(scene.task), now=NOW)
    first, second = scene.seal(seed=2), scene.seal(seed=3)
    scene.start(job(scene, first, 1, rounds=most_rounds(scene.task)))
    reason, _ = reason_of(lambda: scene.start(job(scene, second, 2, rounds=1)))
    assert reason is JobReason.BUDGET_EXHAUSTED
