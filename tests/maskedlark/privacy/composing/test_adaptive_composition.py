"""Jobs whose settings hang on releases: the filters hold against whoever chooses, and cost nothing where they
need not."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from maskedlark.privacy.accounting import SEARCH_PRECISION, Charge, smallest_fitting, spent, spent_in_turn
from maskedlark.privacy.composing.composed_losses import _all_rounds
from maskedlark.privacy.composing.composition import adaptive_epsilon, compose_epsilon
from maskedlark.privacy.sample_size import EXPOSURE
from tests import charge_builders
from tests.maskedlark.privacy.composing.dp_accounting_losses import for_dp_accounting

DELTA = 1e-5
GRID = 1e-3


def gaussian(noise: float, rounds: int = 1, rate: float = 1.0) -> Charge:
    return charge_builders.gaussian(noise, rate=rate, rounds=rounds)


def laplace(noise: float, rounds: int = 1) -> Charge:
    return charge_builders.laplace(noise, rounds=rounds)


def epochs(noise: float, steps: int, count: int) -> Charge:
    return charge_builders.gaussian(noise, rounds=count, epoch_steps=steps, exposure=steps * EXPOSURE)


@pytest.mark.parametrize(
    "jobs",
    [
        [[epochs(1.0, 24, 5)]],
        [[epochs(1.0, 24, 2)], [epochs(1.0, 24, 3)]],
        [[gaussian(6.0, 30)], [gaussian(9.0, 5)], [gaussian(40.0)]],
        [[laplace(3.0)], [laplace(3.0, 4)]],
        [[laplace(3.0), gaussian(9.0)]],
        [[], [laplace(3.0), gaussian(9.0)]],
        [],
    ],
)
def test_one_job_one_setting_and_plain_gaussians_cost_what_they_would_anyway(
    jobs: Sequence[Sequence[Charge]],
) -> None:
    assert spent_in_turn(jobs, DELTA) == spent([one for job in jobs for one in job], DELTA)


@pytest.mark.parametrize(
    "jobs",
    [
        [[epochs(0.8, 24, 5)], [gaussian(20.0)]],
        [[epochs(1.0, 24, 5)], [epochs(1.5, 12, 5)]],
        [[gaussian(1.0, 200, 0.04)], [gaussian(1.3, 300, 0.04)]],
        [[laplace(20.0, 50)], [gaussian(6.0, 4)]],
        [[laplace(10.0)], [laplace(20.0)]],
    ],
)
def test_choosing_in_turn_never_costs_less_and_at_most_twice_as_much(jobs: list[list[Charge]]) -> None:
    fixed, in_turn = spent([one for job in jobs for one in job], DELTA), spent_in_turn(jobs, DELTA)
    assert fixed.ad_server <= in_turn.ad_server <= 2 * fixed.ad_server
    assert fixed.colluding <= in_turn.colluding <= 2 * fixed.colluding


def test_without_delta_pure_epsilons_add_up() -> None:
    assert spent_in_turn([[laplace(2.0)], [laplace(5.0)]], 0.0).ad_server == pytest.approx(0.7)
    assert spent_in_turn([[laplace(2.0)], [gaussian(5.0)]], 0.0).ad_server == math.inf


def test_samples_that_may_show_are_paid_for_in_turn_too() -> None:
    hidden = charge_builders.gaussian(1.0, rate=0.01, rounds=1_000, exposure=EXPOSURE)
    shows, other = replace(hidden, exposure=1e-9), [gaussian(50.0, 1, 0.5)]
    known = spent_in_turn([[hidden.without_sampling()], other], DELTA).ad_server
    assert spent_in_turn([[shows], other], DELTA).ad_server == known
    assert spent_in_turn([[hidden], other], DELTA).ad_server < 0.1 * known


def losses(charge: Charge) -> Any:
    return for_dp_accounting(_all_rounds(charge, GRID))


def chosen_delta(first: Charge, second: Sequence[Charge], epsilon: float) -> float:
    """What an adversary reaches that picks the second release by what the first one showed: the worse
    direction."""
    options, found = [losses(one) for one in second], 0.0
    before = losses(first)
    for direction in ("_pmf_remove", "_pmf_add"):
        pmf = getattr(before, direction).to_dense_pmf()
        shown = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
        ascending = (epsilon - shown)[::-1]
        left = [getattr(one, direction).get_delta_for_epsilon(ascending) for one in options]
        found = max(found, float(pmf._probs[::-1] @ np.max(left, axis=0)) + pmf._infinity_mass)
    return found


FIRST = {
    "sampled": gaussian(1.5, 30, 0.05),
    "gaussian": gaussian(4.0),
    "laplace": laplace(2.0),
    "allocated": epochs(1.5, 10, 2),
}
KINDS: dict[str, Callable[[float], Charge]] = {
    "gaussian": gaussian,
    "often": lambda noise: gaussian(noise, 100, 0.02),
    "seldom": lambda noise: gaussian(noise, 2, 0.005),
    "laplace": lambda noise: laplace(noise, 3),
    "allocated": lambda noise: epochs(noise, 20, 1),
}


def filling(kind: Callable[[float], Charge], first: Charge, epsilon: float, *, is_fixed: bool) -> Charge:
    """The second release with the least noise that a budget holds beside the first."""
    low, high = 0.1, 1e4
    while high / low > SEARCH_PRECISION:
        middle = math.sqrt(low * high)
        both = [first, kind(middle)]
        cost = (
            compose_epsilon(both, DELTA) if is_fixed else adaptive_epsilon(both, DELTA)
        )  # one noise, all of delta
        low, high = (low, middle) if cost <= epsilon else (middle, high)
    return kind(high)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.5, 4.0])
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST.keys())
def test_who_chooses_the_second_release_by_the_first_stays_within_delta(
    first: Charge, epsilon: float
) -> None:
    options = [filling(kind, first, epsilon, is_fixed=False) for kind in KINDS.values()]
    assert chosen_delta(first, options, epsilon) <= DELTA


@pytest.mark.slow
def test_what_is_proven_for_fixed_settings_does_not_hold_for_chosen_ones() -> None:
    first = FIRST["sampled"]
    options = [filling(kind, first, 1.5, is_fixed=True) for kind in KINDS.values()]
    assert chosen_delta(first, options, 1.5) > 1.02 * DELTA


@pytest.mark.slow
def test_who_chooses_which_phases_to_skip_stays_within_delta_if_skipped_ones_are_charged() -> None:
    first = FIRST["sampled"]
    options = [filling(KINDS[name], first, 1.5, is_fixed=True) for name in ("gaussian", "often", "seldom")]
    assert chosen_delta(first, options, 1.5) > 1.5 * DELTA  # each list alone fills 1.5
    assert chosen_delta(first, options, compose_epsilon([first, *options], DELTA)) <= DELTA


def test_the_noise_that_is_found_beside_earlier_jobs_fits_in_turn() -> None:
    earlier = [epochs(1.2, 24, 3)]
    noise = smallest_fitting(
        lambda each: (epochs(each, 12, 4),), 3.0, DELTA, already=earlier, collusion_epsilon=12.0
    )
    cost = spent_in_turn([earlier, [epochs(noise, 12, 4)]], DELTA)
    assert cost.ad_server <= 3.0
    assert cost.colluding <= 12.0


def filled(first: Charge, kind: Callable[[float], Charge], epsilon: float) -> Charge:
    """The release with the least noise that fits behind the first one in the same job."""
    low, high = 0.1, 1e4
    while high / low > SEARCH_PRECISION:
        middle = math.sqrt(low * high)
        cost = spent([first, kind(middle)], DELTA).colluding
        low, high = (low, middle) if cost <= epsilon else (middle, high)
    return kind(high)


def continued(first: Charge, epsilon: float) -> Charge:
    """The most rounds of another job at the setting of the first one."""
    fitting, too_many = 1, 1 << 10
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        both = [[first], [replace(first, rounds=middle, is_of_mixed_plan=False)]]
        fits = spent_in_turn(both, DELTA).colluding <= epsilon
        fitting, too_many = (middle, too_many) if fits else (fitting, middle)
    return replace(first, rounds=fitting)


@pytest.mark.slow
@pytest.mark.parametrize(("is_said", "is_broken"), [(False, True), (True, False)])
def test_going_on_with_a_job_or_its_setting_in_another_one_stays_within_delta_if_said(
    is_said: bool, is_broken: bool
) -> None:
    """After 30 rounds comes the job's next phase, or 47 more rounds like them in another job."""
    first = replace(gaussian(1.5, 30, 0.05), is_self_sampled=True, is_of_mixed_plan=is_said)
    next_phase = filled(first, lambda noise: replace(gaussian(noise, 1, 0.001), is_self_sampled=True), 1.5)
    reached = chosen_delta(first, [next_phase, continued(first, 1.5)], 1.5)
    assert (reached > 1.3 * DELTA) if is_broken else (reached <= DELTA)


def test_rounds_of_a_mixed_plan_are_not_of_one_setting_beside_another_job() -> None:
    alone = gaussian(1.5, 30, 0.05)
    mixed = replace(alone, is_of_mixed_plan=True)
    assert spent([mixed], DELTA) == spent([alone], DELTA)
    beside = spent_in_turn([[mixed], [alone]], DELTA).ad_server
    assert beside == spent_in_turn([[alone], [mixed]], DELTA).ad_server
    assert beside > 1.2 * spent_in_turn([[alone], [alone]], DELTA).ad_server


def test_whether_samples_are_hidden_in_turn_is_one_answer_for_all_of_them() -> None:
    """A job that is closed early has fewer rounds at the end: that must not hide what was taken as shown."""
    rare = replace(gaussian(1.0, 10, 0.01), exposure=EXPOSURE)
    shows = replace(gaussian(2.0, 100, 0.02), exposure=1e-8)
    both = spent_in_turn([[rare], [shows]], DELTA).ad_server
    known = [rare.without_sampling(), shows.without_sampling()]
    assert both == pytest.approx(adaptive_epsilon(known, DELTA / 16, noises=2), rel=1e-9)


@pytest.mark.parametrize(("part", "is_hidden"), [(0.49, True), (0.51, False)])
def test_samples_that_may_show_in_turn_take_half_of_delta_at_most(part: float, is_hidden: bool) -> None:
    adaptive = DELTA / 8
    hidden = replace(gaussian(2.0, 1, 0.02), exposure=0.0)
    other = gaussian(3.0, 1, 0.5)
    epsilon = adaptive_epsilon([hidden, other], adaptive / 2, noises=2)
    shows = replace(hidden, exposure=part * adaptive / (1 + math.exp(epsilon)))
    found = spent_in_turn([[shows], [other]], DELTA).ad_server
    known = adaptive_epsilon([hidden.without_sampling(), other], adaptive / 2, noises=2)
    assert found == pytest.approx(epsilon if is_hidden else known, rel=1e-9)
    assert known > 1.01 * epsilon


def test_epochs_that_are_counted_as_known_still_count_for_what_ratios_leave_out() -> None:
    few = [epochs(0.9, 24, 1), epochs(1.0, 24, 1)]
    many = [*few, *(epochs(20.0 + index, 40, 1) for index in range(200))]
    hidden, known = (
        adaptive_epsilon(few, 5e-10),
        adaptive_epsilon([one.without_sampling() for one in few], 5e-10),
    )
    assert hidden < 0.6 * known
    known = adaptive_epsilon([one.without_sampling() for one in many], 5e-10)
    assert adaptive_epsilon(many, 5e-10) == pytest.approx(known, rel=1e-9)


def test_a_filter_over_one_gaussian_is_the_best_of_its_orders_each_with_its_part_of_delta() -> None:
    noise, part = 2.0, 0.75 * DELTA / 8
    of_orders = [
        a / (2 * noise**2) + math.log((a - 1) / a) - math.log(a * part) / (a - 1)
        for a in (3, 5, 8, 12, 18, 28, 48, 96)
    ]
    assert adaptive_epsilon([gaussian(noise)], DELTA) == pytest.approx(min(of_orders), rel=1e-4)
