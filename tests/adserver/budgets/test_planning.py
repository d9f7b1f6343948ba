"""Planning a job: what is found fits, a little more does not, and what is predicted is what is measured."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adserver.budgets.headroom import JobLimits, Limit, default_batch_size
from adserver.budgets.planner import Option, Planner, choose
from adserver.records.submissions import PlanConstraints
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.numbers.fixed_point import decode_signed
from maskedlark.privacy.accounting import Charge, spent_in_turn
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from maskedlark.releases.release import units_of_each_helper
from maskedlark.reports.task import Task
from tests.builders import world

SIZE = 2_000
PARAMETERS = 500


def task_of(**changes: Any) -> Task:
    return world(
        **{
            "mechanism": "gaussian",
            "min_batch_size": 100,
            "epsilon": 3.0,
            "collusion_epsilon": 1e6,
            **changes,
        }
    ).task


TASK = task_of()
EARLIER = (Charge(mechanism=Mechanism.GAUSSIAN, noise_multiplier=5.0, sampling_rate=0.1, rounds=200),)


def room(task: Task = TASK, **changes: Any) -> JobLimits:
    return replace(JobLimits(task=task, dataset_size=SIZE, is_allocated=False), **changes)


def planner(of: JobLimits, gradient_norm: float | None = None) -> Planner:
    return Planner(room=of, num_parameters=PARAMETERS, gradient_norm=gradient_norm)


def wish(
    rounds: int | None = None, batch_size: float | None = None, noise_multiplier: float | None = None
) -> PlanConstraints:
    return PlanConstraints(rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier)


def fits(of: JobLimits, option: Option) -> bool:
    cost = of.cost(
        rounds=option.rounds, batch_size=option.batch_size, noise_multiplier=option.noise_multiplier
    )
    asked = math.inf if of.epsilon is None else of.epsilon
    return (
        cost.alone.ad_server <= asked
        and cost.together.ad_server <= of.task.epsilon
        and cost.together.colluding <= of.task.collusion_epsilon
    )


ROOMS = {
    "empty": room(),
    "asked": room(epsilon=1.0),
    "partly spent": room(already=EARLIER),
    "collusion": room(task_of(collusion_epsilon=20.0)),
    "laplace": room(task_of(mechanism="laplace", norm="l1", epsilon=8.0)),
    "split": room(task_of(noise="split"), epsilon=1.0),
}


@pytest.mark.parametrize("of", ROOMS.values(), ids=ROOMS.keys())
def test_the_noise_that_is_found_fits_and_three_percent_less_does_not(of: JobLimits) -> None:
    found = planner(of).plan(wish(rounds=50, batch_size=200.0)).recommended
    assert fits(of, found)
    assert not fits(of, replace(found, noise_multiplier=0.97 * found.noise_multiplier))


@pytest.mark.parametrize("of", ROOMS.values(), ids=ROOMS.keys())
def test_the_rounds_that_are_found_fit_and_three_percent_more_do_not(of: JobLimits) -> None:
    found = planner(of).plan(wish(batch_size=200.0, noise_multiplier=8.0)).recommended
    assert found.rounds >= 1
    assert fits(of, found)
    assert not fits(of, replace(found, rounds=math.ceil(1.03 * found.rounds) + 1))


def test_the_batch_that_is_found_fits_and_a_larger_one_does_not() -> None:
    of = room(epsilon=1.0)
    found = planner(of).plan(wish(rounds=100, noise_multiplier=4.0)).recommended
    assert TASK.min_batch_size < found.batch_size < SIZE
    assert fits(of, found)
    assert not fits(of, replace(found, batch_size=1.03 * found.batch_size + 1))


@pytest.mark.parametrize(
    "of", [room(epsilon=2.0), room(already=EARLIER), room(task_of(collusion_epsilon=5.0))]
)
def test_of_several_batches_all_reports_are_recommended_which_no_other_betters(of: JobLimits) -> None:
    plan = planner(of).plan(wish(rounds=100))
    same_rounds = [option for option in plan.alternatives if option.rounds == 100]
    assert len(same_rounds) >= 4
    assert plan.recommended.batch_size == default_batch_size(SIZE) == SIZE
    for option in same_rounds:  # noise is found to 1 %
        assert plan.recommended.noise_to_signal <= 1.01 * option.noise_to_signal
        assert plan.recommended.cost.together.colluding <= 1.02 * option.cost.together.colluding


def test_of_jobs_worth_the_same_the_one_of_least_epsilon_with_one_helper_is_chosen() -> None:
    first = planner(room(), 0.2).plan(wish(rounds=40, batch_size=1_000.0)).recommended

    def like(worth: float, colluding: float) -> Option:
        """Return a job worth so much of the first, at such a part of its epsilon in collusion."""
        together = replace(first.cost.together, colluding=colluding * first.cost.together.colluding)
        ratio = math.sqrt(first.rounds / (worth * first.steps_worth) - 1)
        return replace(first, noise_to_signal=ratio, cost=replace(first.cost, together=together))

    cheap, dear, worse = like(0.98, 0.5), like(1.0, 1.0), like(0.9, 0.1)
    assert choose([dear, cheap, worse]) == cheap
    assert choose([like(0.99, 0.995), dear]) == dear  # epsilons as near are equal
    assert choose([worse]) == worse


def test_every_alternative_fits_and_the_recommended_is_among_them() -> None:
    of = room(already=EARLIER, epsilon=2.0)
    for asked in (
        wish(rounds=40),
        wish(rounds=40, noise_multiplier=20.0),
        wish(batch_size=500.0, noise_multiplier=20.0),
    ):
        plan = planner(of).plan(asked)
        assert plan.recommended in plan.alternatives
        assert len(plan.alternatives) >= 2
        assert all(fits(of, option) for option in plan.alternatives)


def test_what_is_spent_already_costs_noise() -> None:
    first, second = (
        planner(of).plan(wish(rounds=50, batch_size=500.0)).recommended
        for of in (room(), room(already=EARLIER))
    )
    assert second.noise_multiplier > first.noise_multiplier
    job = room().charge(rounds=50, batch_size=500.0, noise_multiplier=second.noise_multiplier)
    assert second.cost.together == spent_in_turn([EARLIER, [job]], 1e-5)


@pytest.mark.parametrize(
    ("of", "limit"),
    [
        (room(epsilon=0.5), Limit.ASKED),
        (room(), Limit.AD_SERVER),
        (room(task_of(collusion_epsilon=5.0)), Limit.COLLUDING),
    ],
)
def test_the_limit_that_binds_is_named(of: JobLimits, limit: Limit) -> None:
    assert planner(of).plan(wish(rounds=100, batch_size=200.0)).recommended.limit is limit


@pytest.mark.parametrize(
    "task",
    [TASK, task_of(noise="split"), task_of(mechanism="laplace", norm="l1")],
    ids=["full", "split", "laplace"],
)
def test_the_predicted_noise_is_what_two_helpers_noise_measures(task: Task) -> None:
    option = planner(room(task), gradient_norm=0.25).option(rounds=1, batch_size=200.0, noise_multiplier=30.0)
    units = units_of_each_helper(task, 30.0, task.clip.sensitivity)
    lengths = []
    for trial in range(40):
        both = sum(
            noise_vector(task.mechanism, units, PARAMETERS, seeded(trial, f"helper {role}"))
            for role in (0, 1)
        )
        lengths.append(np.linalg.norm(decode_signed(np.asarray(both), task.frac_bits) / 200.0))
    assert np.sqrt(np.mean(np.square(lengths))) == pytest.approx(option.noise_norm, rel=0.03)
    assert option.noise_to_signal == pytest.approx(option.noise_norm / 0.25)


def test_without_an_assumption_the_gradient_is_as_long_as_it_can_be() -> None:
    assert planner(room(task_of(clip_norm=0.5))).plan(wish(rounds=5)).gradient_norm == 0.5


@pytest.mark.parametrize(
    ("of", "asked", "reason"),
    [
        (
            room(epsilon=0.01),
            wish(rounds=500, batch_size=1_000.0, noise_multiplier=1.0),
            JobReason.BUDGET_EXHAUSTED,
        ),
        (room(epsilon=0.01), wish(rounds=500, noise_multiplier=1.0), JobReason.BUDGET_EXHAUSTED),
        (room(epsilon=0.01), wish(noise_multiplier=0.5), JobReason.BUDGET_EXHAUSTED),
        (room(already=(replace(EARLIER[0], rounds=100_000),)), wish(rounds=5), JobReason.BUDGET_EXHAUSTED),
        (room(), wish(rounds=5, batch_size=99.0), JobReason.MALFORMED),
        (room(), wish(rounds=5, batch_size=SIZE + 1.0), JobReason.MALFORMED),
        (room(), wish(rounds=5, batch_size=math.nan), JobReason.MALFORMED),
        (room(), wish(rounds=5, noise_multiplier=0.0), JobReason.NOISE_OUT_OF_RANGE),
        (room(), wish(rounds=5, noise_multiplier=math.nan), JobReason.NOISE_OUT_OF_RANGE),
    ],
)
def test_what_cannot_fit_is_refused(of: JobLimits, asked: PlanConstraints, reason: JobReason) -> None:
    with pytest.raises(JobRefused) as refusal:
        planner(of).plan(asked)
    assert refusal.value.reason is reason


def test_a_task_without_noise_cannot_be_planned_for() -> None:
    with pytest.raises(JobRefused) as refusal:
        room(task_of(mechanism="none"))
    assert refusal.value.reason is JobReason.NOISE_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (wish(batch_size=500.0), "both missing"),
        (wish(rounds=0), "rounds"),
        (wish(rounds=1_000_001), "rounds"),
        (PlanConstraints(rounds=None, batch_size=None, noise_multiplier=None, max_epochs=0), "max_epochs"),
    ],
)
def test_a_wish_that_leaves_too_much_open_or_is_out_of_range_is_refused(
    asked: PlanConstraints, reason: str
) -> None:
    with pytest.raises(InvalidTask, match=reason):
        planner(room()).plan(asked)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_epsilon_and_the_assumption_are_positive_and_finite(bad: float) -> None:
    with pytest.raises(InvalidTask, match="epsilon must be positive"):
        room(epsilon=bad)
    for norm in (bad, 1e-320):
        with pytest.raises(InvalidTask, match="gradient_norm must be positive"):
            planner(room(), gradient_norm=norm).plan(wish(rounds=5))


LARGE = JobLimits(task=task_of(epsilon=3.0, collusion_epsilon=6.0), dataset_size=20_000)
OPEN = wish()


def worth(of: JobLimits, *, steps: int, epochs: int) -> float:
    """What the best job at some steps and epochs is worth, found without the planner's shortcuts."""
    batch_size = of.dataset_size / steps
    noise = of.noise_for(rounds=steps * epochs, batch_size=batch_size)
    return (
        planner(of, 0.2)
        .option(rounds=steps * epochs, batch_size=batch_size, noise_multiplier=noise)
        .steps_worth
    )


@pytest.mark.parametrize(
    "of",
    [
        LARGE,
        replace(LARGE, epsilon=0.4),
        replace(LARGE, is_allocated=False),
        replace(LARGE, already=(replace(EARLIER[0], rounds=10),)),
    ],
    ids=["both", "asked", "poisson", "partly spent"],
)
def test_of_all_jobs_the_one_worth_most_steps_is_found_within_both_budgets(of: JobLimits) -> None:
    best = planner(of, 0.2).plan(OPEN).recommended
    assert fits(of, best)
    assert best.cost.together.colluding <= 6.0
    for steps, epochs in ((1, 1), (1, 10), (2, 10), (6, 5), (17, 10), (50, 2)):
        assert worth(of, steps=steps, epochs=epochs) <= best.steps_worth * 1.001


def test_more_epochs_are_never_worth_less_and_their_limit_is_kept() -> None:
    plans = [planner(LARGE, 0.2).plan(replace(OPEN, max_epochs=most)) for most in (1, 4, 10)]
    assert [plan.recommended.steps_worth for plan in plans] == sorted(
        plan.recommended.steps_worth for plan in plans
    )
    for plan, most in zip(plans, (1, 4, 10), strict=True):
        for option in plan.alternatives:
            assert option.rounds * option.batch_size <= 1.0001 * most * LARGE.dataset_size


def test_the_search_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    planner(LARGE).plan(OPEN, lambda done, of: told.append((done, of)))
    assert told
    assert all(0 <= done < of for done, of in told)


def test_where_no_job_fits_the_search_says_why() -> None:
    with pytest.raises(JobRefused) as refusal:
        planner(replace(LARGE, already=(replace(EARLIER[0], rounds=100_000),))).plan(OPEN)
    assert refusal.value.reason is JobReason.BUDGET_EXHAUSTED


def test_an_epsilon_above_the_budget_is_refused() -> None:
    room(epsilon=TASK.epsilon)
    with pytest.raises(InvalidTask, match=r"but the whole budget of task .* ask for at most that"):
        room(epsilon=1.01 * TASK.epsilon)
