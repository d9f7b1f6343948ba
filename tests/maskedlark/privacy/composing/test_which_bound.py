"""Which of the bounds counts, at the edges where that changes, each against its own formula."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from maskedlark.privacy.charge import GAUSSIAN_SLACK, Charge
from maskedlark.privacy.composing import composition
from maskedlark.privacy.composing.analytic_gaussian import gaussian_epsilon
from maskedlark.privacy.composing.composition import (
    adaptive_epsilon,
    are_gaussian_if_known,
    compose_epsilon,
    is_one_setting,
)
from maskedlark.privacy.composing.merged_charges import merge
from maskedlark.privacy.composing.renyi import ORDERS, divergences_of, epsilon_of_divergences, most_left_out
from maskedlark.privacy.mechanism import Mechanism
from tests.charge_builders import gaussian, laplace

DELTA = 1e-5
FILTER_ORDERS = (3, 5, 8, 12, 18, 28, 48, 96)
NOISELESS = Charge(mechanism=Mechanism.NONE, noise_multiplier=0.0, sampling_rate=1.0, rounds=1)


@pytest.mark.parametrize("delta", [-1e-300, 1.0, 1.5, math.nan])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    for composed in (compose_epsilon, adaptive_epsilon):
        with pytest.raises(ValueError, match="delta must be in"):
            composed([gaussian(1.0)], delta)


def test_what_has_no_noise_costs_infinity_and_nothing_costs_nothing() -> None:
    for composed in (compose_epsilon, adaptive_epsilon):
        assert composed([gaussian(5.0), NOISELESS], DELTA) == math.inf
        assert composed([], DELTA) == 0.0
    assert compose_epsilon([laplace(4.0, rounds=3)], 0.0) == pytest.approx(0.75, rel=1e-5)
    assert compose_epsilon([gaussian(4.0)], 0.0) == math.inf
    assert compose_epsilon([gaussian(4.0, 0.5)], 0.0) == math.inf
    assert compose_epsilon([gaussian(4.0), laplace(4.0)], 0.0) == math.inf


@pytest.mark.parametrize(
    ("left_out", "epsilon", "kept", "expected"),
    [
        (0.0, math.inf, 0.0, True),
        (1e-9, 0.0, 2e-9, True),
        (1e-9, 0.0, 1.99e-9, False),
        (1e-9, math.log(3), 4.0001e-9, True),
        (1e-9, math.log(3), 3.9999e-9, False),
        (1e-320, 699.9, 1.0, True),
        (1e-320, 700.0, 1.0, False),
        (1e-320, math.inf, 1.0, False),
    ],
)
def test_what_is_left_out_is_covered_up_to_its_part_of_delta(
    left_out: float, epsilon: float, kept: float, *, expected: bool
) -> None:
    assert composition._covers(left_out, epsilon, kept) is expected


def of_filter(divergences: Sequence[float], delta: float, left_out: float) -> float:
    part = 0.75 * delta / 8
    found = [
        divergences[ORDERS.tolist().index(a)] + math.log((a - 1) / a) - math.log(a * part) / (a - 1)
        for a in FILTER_ORDERS
    ]
    return float(max(0.0, min(found)) + 2 * left_out)


@pytest.mark.parametrize(
    "charges",
    [
        [gaussian(0.4), laplace(3.0)],
        [gaussian(2.0, 0.1, 40), gaussian(9.0)],
        [gaussian(1.5, 0.1, 4, reports=3)],
        [gaussian(1.5, 0.1, 4, is_of_labels=True), laplace(2.0)],
        [gaussian(1.5, rounds=3, epoch_steps=12, reports=2), gaussian(2.0)],
        [gaussian(30.0, 0.01)],
    ],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_a_filter_is_the_best_of_its_orders_and_twice_what_is_left_out(
    charges: list[Charge], delta: float
) -> None:
    parts = merge(charges, 1)
    left_out = 0.0
    for key, rounds in parts.epochs.items():
        left_out += rounds * key.reports * most_left_out(key.steps)
    for key, rounds in parts.sampled.items():
        if key.reports > 1 or key.is_of_labels:
            left_out += rounds * most_left_out(1)
    expected = of_filter(divergences_of(parts)[0].tolist(), delta, left_out)
    assert adaptive_epsilon(charges, delta) == pytest.approx(expected, rel=1e-12)
    assert composition._filter_epsilon(parts, delta, 0.125) == pytest.approx(
        expected - 2 * left_out + 0.25, rel=1e-11
    )


def test_a_filter_that_leaves_out_too_much_takes_samples_as_known() -> None:
    charge = gaussian(1.5, rounds=3, epoch_steps=12, reports=2)
    left_out = 6 * (2.0**-38 + 12 * 2.0**-42)
    known = merge([charge], 1).without_sampling()
    for share, is_hidden in ((0.2499, True), (0.2501, False)):
        delta = left_out / share
        of_known = of_filter(divergences_of(known)[0].tolist(), delta, 0.0)
        of_hidden = of_filter(divergences_of(merge([charge], 1))[0].tolist(), delta, left_out)
        assert of_hidden < 0.9 * of_known
        expected = of_hidden if is_hidden else of_known
        assert adaptive_epsilon([charge], delta) == pytest.approx(expected, rel=1e-12)


def test_a_filter_of_hardly_any_delta_costs_infinity_or_the_pure_sum() -> None:
    for part, is_finite in ((1.01e-300, True), (0.99e-300, False)):
        delta = part * 8 / 0.75
        assert math.isfinite(adaptive_epsilon([gaussian(2.0)], delta)) is is_finite
    pure = pytest.approx(0.5 + 0.2, rel=1e-5)
    assert adaptive_epsilon([laplace(2.0), laplace(5.0)], 0.0) == pure
    assert adaptive_epsilon([laplace(2.0), laplace(5.0, epoch_steps=4)], 1e-300) == pure
    for gauss in (gaussian(50.0), gaussian(50.0, 0.5), gaussian(50.0, epoch_steps=3)):
        assert adaptive_epsilon([laplace(2.0), gauss], 1e-300) > 1.0


def test_many_settings_in_turn_are_fewer_only_past_the_number_that_is_composed() -> None:
    assert composition.MAX_COMPOSED == 8
    for count in (8, 9):
        charges = [
            *(laplace(3.0 + at) for at in range(3)),
            *(gaussian(1.5, epoch_steps=2 + at) for at in range(3)),
            *(gaussian(2.0 + at, 0.25) for at in range(count - 6)),
        ]
        parts = merge(charges, 1) if count == 8 else merge(charges, 1).fewer()
        left_out = sum(most_left_out(2 + at) for at in range(3))
        expected = of_filter(divergences_of(parts)[0].tolist(), DELTA, left_out)
        assert adaptive_epsilon(charges, DELTA) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("charge", "delta", "is_composed"),
    [
        (gaussian(2.0, 0.5, 1 << 20), DELTA, True),
        (gaussian(2.0, 0.5, (1 << 20) + 1), DELTA, False),
        (gaussian(2.0, 0.5, 1 << 19, reports=2), DELTA, True),
        (gaussian(2.0, 0.5, (1 << 19) + 1, reports=2), DELTA, False),
        (gaussian(2.0, 0.5), 1e-11, True),
        (gaussian(2.0, 0.5), 0.999e-11, False),
        (laplace(1 / 1.01e-3), 0.0, False),
        (laplace(1 / 1.01e-3), 1e-11, True),
        (laplace(1 / 0.99e-3), 1e-11, False),
    ],
)
def test_losses_are_composed_where_that_is_quick_and_precise(
    charge: Charge, delta: float, *, is_composed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def composed(precision: float, charges: Sequence[Charge], delta: float) -> float:
        asked.append((precision, [one.rounds for one in charges], delta))
        return 1e-7

    monkeypatch.setattr(composition, "loss_distribution_epsilon", composed)
    others = merge([charge], 1).others()
    found = composition._of_few.__wrapped__(0.0, others, delta)
    assert asked == ([(0.0, [charge.rounds], delta)] if is_composed else [])
    assert (found == 1e-7) is is_composed


def test_without_others_there_is_one_gaussian() -> None:
    assert composition._of_few.__wrapped__(0.0, (), DELTA) == 0.0
    assert composition._of_few.__wrapped__(0.25, (), DELTA) == gaussian_epsilon(2.0, DELTA)
    precision = 3 / (2.0 * GAUSSIAN_SLACK) ** 2
    assert compose_epsilon([gaussian(2.0, rounds=3)], DELTA) == pytest.approx(
        gaussian_epsilon(precision**-0.5, DELTA), rel=1e-12
    )


def test_the_smallest_of_all_bounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "loss_distribution_epsilon", lambda *_: math.inf)
    for charges in ([gaussian(3.0, 0.999)], [gaussian(3.0, 0.01)], [gaussian(3.0), gaussian(3.0, 0.2)]):
        parts = merge(charges, 1)
        known = gaussian_epsilon(parts.without_sampling().precision ** -0.5, DELTA)
        hidden = epsilon_of_divergences(divergences_of(parts)[0], DELTA)
        found = composition._of_few.__wrapped__(parts.precision, parts.others(), DELTA)
        assert found == pytest.approx(min(known, hidden), rel=1e-12)
    # beyond the few: many sampled ones next to a rate of 1 cost no more than known ones
    many = [gaussian(3.0 + at / 100, 0.9999) for at in range(9)]
    known = gaussian_epsilon(merge(many, 1).without_sampling().precision ** -0.5, DELTA)
    assert compose_epsilon(many, DELTA) == pytest.approx(known, rel=1e-12)
    for epochs in ([gaussian(3.0 + at, epoch_steps=2) for at in range(9)],):
        parts = merge(epochs, 1)
        expected = min(
            composition._quick_epsilon(parts.fewer(), DELTA),
            composition._quick_epsilon(parts.without_sampling(), DELTA),
        )
        assert compose_epsilon(epochs, DELTA) == expected


def test_renyi_divergences_keep_a_thousandth_of_delta_for_what_they_leave_out() -> None:
    for charges, kept in (
        ([gaussian(2.0, 0.1, 5)], 1.0),
        ([gaussian(2.0, epoch_steps=6)], 0.999),
        ([gaussian(2.0, 0.1, 5, reports=2)], 0.999),
    ):
        parts = merge(charges, 1)
        divergences, left_out = divergences_of(parts)
        assert (left_out > 0) is (kept < 1)
        expected = epsilon_of_divergences(divergences, kept * DELTA)
        assert composition._renyi_epsilon(parts, DELTA) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(
    ("charge", "is_singly"),
    [
        (gaussian(2.0, 0.1, 5, reports=2), True),
        (gaussian(2.0, 0.1, 5, is_of_labels=True), False),
        (gaussian(2.0, rounds=2, epoch_steps=6), False),
    ],
)
def test_where_tails_are_too_much_for_delta_reports_are_charged_singly_or_samples_as_known(
    charge: Charge, *, is_singly: bool
) -> None:
    parts, delta = merge([charge], 1), 1e-10
    other = parts.singly() if is_singly else parts.without_sampling()
    divergences = divergences_of(other)[0]
    if is_singly:
        expected = epsilon_of_divergences(divergences, delta)
    else:
        expected = gaussian_epsilon(other.precision**-0.5, delta)
    assert composition._renyi_epsilon(parts, delta) == pytest.approx(expected, rel=1e-12)


def test_pure_epsilons_count_only_where_all_are_laplace() -> None:
    slow = laplace(4.0, rounds=2)
    assert composition._quick_epsilon(merge([slow], 1), 1e-9) == pytest.approx(0.5, rel=1e-5)
    epoch = laplace(4.0, epoch_steps=3)
    assert composition._pure_sum(merge([slow, epoch], 1)) == pytest.approx(0.75, rel=1e-5)
    assert composition._quick_epsilon(merge([slow, epoch], 1), 0.0) == pytest.approx(0.75, rel=1e-5)
    for more in (gaussian(9.0), gaussian(9.0, 0.5), gaussian(9.0, epoch_steps=3)):
        assert composition._quick_epsilon(merge([slow, more], 1), 0.0) == math.inf
        assert np.isfinite(composition._quick_epsilon(merge([slow, more], 1), 1e-9))


ONE = gaussian(2.0, 0.5, 3)


@pytest.mark.parametrize(
    ("charges", "is_one", "is_gaussian"),
    [
        ([], True, True),
        ([ONE], True, False),
        ([ONE, gaussian(2.0, 0.5, 9)], True, False),
        ([ONE, gaussian(2.5, 0.5, 3)], False, False),
        ([gaussian(2.0), gaussian(7.0, rounds=4)], True, True),
        ([gaussian(2.0), ONE], False, False),
        ([gaussian(2.0, is_of_mixed_plan=True)], False, True),
        ([gaussian(2.0, epoch_steps=3, overlap=0.5)], False, True),
        ([gaussian(2.0, epoch_steps=3, overlap=0.5), gaussian(3.0)], False, True),
        ([gaussian(2.0, epoch_steps=3)], True, False),
        ([laplace(2.0)], True, False),
    ],
)
def test_charges_whose_order_is_irrelevant(charges: list[Charge], *, is_one: bool, is_gaussian: bool) -> None:
    assert is_one_setting(iter(charges)) is is_one
    assert are_gaussian_if_known(charges) is is_gaussian
