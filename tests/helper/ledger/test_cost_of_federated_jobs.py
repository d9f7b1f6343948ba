"""Rounds of a federated job in any order: each job is charged with all rounds up to the highest.

Attack: uploads of all rounds are collected, and after each answer whichever round tells most is summed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from helper.ledger.budget_report import BudgetReport, open_ledger
from helper.ledger.records import Reservation
from helper.ledger.spending import Spending, check_fits, cost
from helper.releases.answering import Call
from maskedlark.errors import JobReason, JobRefused
from maskedlark.privacy.accounting import spent, spent_in_turn
from maskedlark.releases.budget import BudgetUse, DatasetBudget
from maskedlark.releases.update import MAX_PHASES, Phase, UpdateJob, UpdateSpec
from tests.helper.update_parties import UpdateScene
from tests.refusals import refused
from tests.update_builders import update_job, update_round, update_world

TASK = update_world(mechanism="gaussian", epsilon=3.0, collusion_epsilon=8.0).task
PHASES = (
    Phase(rounds=4, sampling_rate=0.05, noise_multiplier=1.5),
    Phase(rounds=1, sampling_rate=1.0, noise_multiplier=9.0),
    Phase(rounds=2, sampling_rate=0.02, noise_multiplier=1.0),
)
JOB = update_job(TASK, phases=PHASES)


def released(*indexes: int, job: UpdateJob = JOB) -> list[Reservation]:
    """What a ledger holds after some rounds, each over a dataset of its own."""
    return [
        Reservation(
            spec=UpdateSpec(dataset_id=bytes([index]) * 32, round=update_round(TASK, index, job=job)),
            rounds=1,
        )
        for index in indexes
    ]


@pytest.mark.parametrize("indexes", [(6,), (0, 6), (6, 0, 5), (0, 1, 2, 3, 4, 5, 6)])
def test_skipped_rounds_cost_what_they_would_if_they_had_been_released(indexes: Sequence[int]) -> None:
    assert cost(TASK, released(*indexes)) == spent(JOB.charges(TASK, 7), TASK.delta)


def test_the_order_of_rounds_does_not_change_what_they_cost() -> None:
    found = {cost(TASK, released(*order)) for order in permutations((0, 2, 5))}
    assert found == {spent(JOB.charges(TASK, 6), TASK.delta)}


@pytest.mark.parametrize("order", list(permutations((0, 2, 5))))
def test_rounds_that_are_charged_in_turn_cost_the_same_at_each_step(order: Sequence[int]) -> None:
    other = replace(JOB, job_id=b"v" * 16, phases=PHASES[1:])
    all_rounds = [*released(*order), *released(1, 0, job=other)]
    spending = Spending(TASK)
    for step, one in enumerate(all_rounds):
        assert spending.cost() == cost(TASK, all_rounds[:step])
        spending.add(one.spec, 1)
    assert spending.cost() == cost(TASK, all_rounds)


def test_rounds_of_two_jobs_are_charged_as_two_jobs() -> None:
    other = replace(JOB, job_id=b"v" * 16, phases=PHASES[1:])
    both = [JOB.charges(TASK, 5), other.charges(TASK, 2)]
    assert cost(TASK, [*released(4), *released(1, job=other)]) == spent_in_turn(both, TASK.delta)
    changed = replace(JOB, phases=PHASES[1:])  # of the same id
    assert cost(TASK, [*released(4), *released(1, job=changed)]) == spent_in_turn(both, TASK.delta)


def test_a_job_whose_next_phase_differs_is_not_of_one_setting_with_another_job() -> None:
    """Attack: after some rounds, go on with the next phase or with more of the first one in another job."""
    simple = replace(JOB, job_id=b"s" * 16, phases=PHASES[:1])
    simple_too, both = replace(simple, job_id=b"t" * 16), released(3, job=simple)
    assert cost(TASK, released(3)) == cost(TASK, both)
    one_setting = cost(TASK, [*both, *released(3, job=simple_too)])
    beside_mixed = cost(TASK, [*both, *released(3)])
    assert beside_mixed.ad_server > 1.2 * one_setting.ad_server
    assert beside_mixed.colluding > 1.2 * one_setting.colluding


def test_the_last_of_256_phases_asked_first_is_refused_like_the_whole_job() -> None:
    phases = tuple(
        Phase(rounds=1, sampling_rate=0.5, noise_multiplier=4.0 + index / 64) for index in range(MAX_PHASES)
    )
    job = update_job(TASK, phases=phases)
    (last,) = released(MAX_PHASES - 1, job=job)
    alone = spent(last.spec.charges(TASK, 1), TASK.delta)
    assert alone.ad_server < TASK.epsilon
    assert alone.colluding < TASK.collusion_epsilon
    with refused(JobReason.BUDGET_EXHAUSTED):
        check_fits(TASK, [], last)


def test_no_order_of_rounds_passes_the_budget() -> None:
    """Every order releases rounds of one and the same prefix, the longest that fits."""
    task = update_world(mechanism="gaussian", epsilon=0.36, collusion_epsilon=0.65).task
    job = update_job(task, phases=PHASES)
    most = max(
        rounds
        for rounds in range(job.rounds + 1)
        if (found := spent(job.charges(task, rounds), task.delta)).ad_server <= task.epsilon
        and found.colluding <= task.collusion_epsilon
    )
    assert 0 < most < job.rounds
    for order in (range(7), range(6, -1, -1), (4, 0, 6, 2, 5, 1, 3)):
        held: list[Reservation] = []
        indices = set[int]()
        for round_index, new in zip(order, released(*order, job=job), strict=True):
            try:
                check_fits(task, held, new)
            except JobRefused:
                continue
            held.append(new)
            indices.add(round_index)
        assert indices == set(range(most))


def test_helpers_report_and_ad_server_agree_on_a_job_with_skipped_rounds(tmp_path: Path) -> None:
    scene = UpdateScene(tmp_path, mechanism="gaussian", epsilon=8.0, collusion_epsilon=20.0)
    job = update_job(scene.task, phases=PHASES)
    for index in (0, 5, 2):
        one = scene.round(index, job=job)
        sealed = scene.sealed(one, scene.vectors(2, seed=index), seed=index)
        spec = UpdateSpec(dataset_id=scene.seal_round(one, sealed, bytes([index]) * 16), round=one)
        told = [core.queries.answer(spec, lambda _: b"", Call(caller=None)).spent for core in scene.cores]
    planned = BudgetUse.of_update(scene.task, job, what="", state="", rounds_charged=6, is_open=False)
    wanted = spent(planned.spent, scene.task.delta)
    assert told == [wanted, wanted]
    for party in scene.parties:
        engine = open_ledger(party.data, None)
        report = BudgetReport(engine)
        shown = [DatasetBudget.of(one, report.uses(one)) for one in report.datasets()]
        engine.dispose()
        assert {(one.ad_server.spent, one.colluding.held) for one in shown} == {
            (wanted.ad_server, wanted.colluding)
        }
        assert {use.use.rounds_answered for one in shown for use in one.uses} == {6}
