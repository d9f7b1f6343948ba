"""The Renyi divergences of every kind of release against sums and integrals of 60 digits."""

import math
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest

from maskedlark.privacy.charge import GAUSSIAN_SLACK, LAPLACE_SLACK
from maskedlark.privacy.composing import random_allocation, renyi
from maskedlark.privacy.composing.likelihood_ratios import sample_ratios
from maskedlark.privacy.composing.merged_charges import ChargeParts, Setting
from maskedlark.privacy.composing.random_allocation import LEAST_NOISE, MAX_STEPS, epoch_ratios
from maskedlark.privacy.composing.renyi import (
    ORDERS,
    divergences_of,
    epsilon_of_divergences,
    most_left_out,
    pure_epsilons,
)
from maskedlark.privacy.mechanism import Mechanism

GAUSSIAN, LAPLACE = Mechanism.GAUSSIAN, Mechanism.LAPLACE
CHECKED = (2, 3, 17, 64, 256, 1024)  # of the orders
PLACES = [int(np.flatnonzero(order == ORDERS)[0]) for order in CHECKED]


@pytest.fixture(autouse=True)
def sixty_digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


def parts_of(
    precision: float = 0.0,
    laplace: dict[Setting, int] | None = None,
    sampled: dict[Setting, int] | None = None,
    epochs: dict[Setting, int] | None = None,
) -> ChargeParts:
    return ChargeParts(
        precision=precision,
        laplace=laplace or {},
        sampled=sampled or {},
        epochs=epochs or {},
        is_noiseless=False,
    )


def one_sampled(noise: float, rate: float) -> list[float]:
    """The textbook sum, with cancellation that 60 digits and more can take."""
    found = []
    z, q = mpmath.mpf(noise), mpmath.mpf(rate)
    for order in CHECKED:
        moment = mpmath.fsum(
            mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(k * (k - 1) / (2 * z * z))
            for k in range(order + 1)
        )
        found.append(float(mpmath.log(moment) / (order - 1)))
    return found


def test_the_orders_are_all_small_ones_and_few_large_ones() -> None:
    assert ORDERS.tolist() == [*range(2, 65), 80, 96, 128, 192, 256, 512, 1024]


@pytest.mark.parametrize(
    ("noise", "rate"),
    [(1.0, 0.01), (0.3, 0.2), (5.0, 0.999), (40.0, 1e-9), (0.07, 0.5), (1000.0, 0.1), (3.0, 1.0)],
)
def test_a_sampled_gaussian_costs_the_textbooks_sum(noise: float, rate: float) -> None:
    found = renyi._renyi_divergences(noise, rate)
    assert len(found) == len(ORDERS)
    assert found[PLACES].tolist() == pytest.approx(one_sampled(noise, rate), rel=3e-12, abs=0.0)
    assert (np.diff(found) > 0).all()


@pytest.mark.parametrize(
    ("noise", "rate"),
    [
        (1.0, 1.0),
        (1.0, 0.25),
        (1 / 499.0, 0.5),
        (1 / 600.0, 0.5),
        (1 / 500.5, 0.5),
        (0.002, 0.5),
        (1 / 499.5, 0.5),
        (1e6, 1e-9),
        (20.0, 0.01),
    ],
)
def test_a_sampled_laplace_release_costs_the_logarithm_of_its_largest_ratio(
    noise: float, rate: float
) -> None:
    rounds, pure = pure_epsilons({Setting(LAPLACE, noise, rate): 7, Setting(LAPLACE, 4.0): 3})
    largest = 1 + mpmath.mpf(rate) * mpmath.expm1(1 / mpmath.mpf(noise))
    exact = float(mpmath.log(largest)) if 1 / noise <= 500 else 1 / noise
    assert rounds.tolist() == [7.0, 3.0]
    assert pure.tolist() == pytest.approx([exact, 0.25], rel=1e-13, abs=0.0)


def test_the_epsilon_of_divergences_is_the_least_of_all_orders() -> None:
    for scale in (0.01, 0.3, 4.0):
        for delta in (1e-9, 1e-3, 0.4):
            divergences = scale * ORDERS / 2
            if any(delta**2 > -math.expm1(-one) for one in divergences):
                expected = mpmath.mpf(0)
            else:
                expected = min(
                    r + mpmath.log(1 - 1 / mpmath.mpf(a)) - mpmath.log(delta * a) / (a - 1)
                    for a, r in zip(ORDERS.tolist(), divergences.tolist(), strict=True)
                )
            found = epsilon_of_divergences(divergences, delta)
            assert found == pytest.approx(max(0.0, float(expected)), rel=1e-12, abs=1e-15)


def test_a_divergence_that_alone_gives_delta_at_epsilon_0_costs_nothing() -> None:
    # delta = sqrt(1 - e^-r): r = -ln(1 - delta^2), where the orders' own bounds are above 0
    delta, others = 1e-3, np.full(len(ORDERS), 5.0)
    least = -math.log1p(-(delta**2))
    for place in (0, 30, len(ORDERS) - 1):
        divergences = others.copy()
        divergences[place] = least * (1 - 1e-6)
        assert epsilon_of_divergences(divergences, delta) == 0.0
    for place in (0, 30):
        divergences = others.copy()
        divergences[place] = least * (1 + 1e-6)
        assert epsilon_of_divergences(divergences, delta) > 0.05
    assert epsilon_of_divergences(np.full(len(ORDERS), 0.3), 0.9) == 0.0
    # all orders' bounds are below 0 here, the divergence alone is too large
    assert epsilon_of_divergences(np.full(len(ORDERS), 1.65), 0.899) == 0.0


def of_two_laplaces(noise: float, rate: float, order: int) -> float:
    """The larger divergence of 1 - q + q R at one order, by the density of the sum of two noises."""
    b, q = mpmath.mpf(noise), mpmath.mpf(rate)

    def density(y: mpmath.mpf) -> mpmath.mpf:
        return (1 + abs(y) / b) * mpmath.exp(-abs(y) / b) / (4 * b)

    def ratio(y: mpmath.mpf) -> mpmath.mpf:
        return 1 - q + q * density(y - 1) / density(y)

    ends = [-60 * b, -10 * b, -b, 0, mpmath.mpf(1) / 2, 1, 1 + b, 1 + 10 * b, 1 + 60 * b]
    with mpmath.workdps(15):
        moments = [mpmath.quad(lambda y, a=a: density(y) * ratio(y) ** a, ends) for a in (order, 1 - order)]
        return float(max(mpmath.log(one) for one in moments) / (order - 1))


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 1.0), (0.5, 0.3), (6.0, 1.0)])
def test_two_laplace_noises_cost_no_less_than_the_integral_and_hardly_more(noise: float, rate: float) -> None:
    found = renyi._laplace_divergences(Setting(LAPLACE, noise, rate, noises=2))
    for order in (2, 64):
        exact = of_two_laplaces(noise, rate, order)
        assert exact <= found[order - 2] <= exact * 1.002 + 1e-11
    assert (found <= pure_epsilons({Setting(LAPLACE, noise, rate): 1})[1]).all()


def test_two_laplace_noises_cost_no_more_than_one_where_the_grid_is_coarse() -> None:
    noise = 2.0**20  # what rounding may have lost is more than the divergence itself
    found = renyi._laplace_divergences(Setting(LAPLACE, noise, noises=2))
    assert found[0] == pytest.approx(1 / noise**2, rel=1e-12, abs=0.0)
    assert (found <= ORDERS / (2 * noise**2)).all()
    little = renyi._laplace_divergences(Setting(LAPLACE, 0.08, noises=2))
    assert 0.97 * 12.5 < little[-1] <= 12.5


def test_several_sampled_reports_cost_the_smaller_of_two_bounds() -> None:
    noise, rate, reports = 2.0, 0.05, 3
    of_one = reports * renyi._renyi_divergences(noise / math.sqrt(reports), rate)
    together, tails = sample_ratios(noise, rate, reports).divergences(ORDERS)
    found, left_out = renyi._sample_divergences(noise, rate, reports)
    assert (found < of_one).any()
    assert found.tolist() == np.minimum(of_one, together).tolist()
    assert left_out == tails > 0


def test_of_sampled_reports_whose_tails_are_too_much_each_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, rate, reports = 1.5, 0.125, 4
    _, tails = sample_ratios(noise, rate, reports).divergences(ORDERS)
    monkeypatch.setattr(renyi, "most_left_out", lambda steps: tails * steps)
    assert (
        renyi._sample_divergences.__wrapped__(noise, rate, reports)[1] == tails
    )  # exactly as much as may be
    monkeypatch.setattr(renyi, "most_left_out", lambda steps: 0.75 * tails * steps)
    found, left_out = renyi._sample_divergences.__wrapped__(noise, rate, reports)
    exact = [reports * one for one in one_sampled(noise / 2, rate)]
    assert left_out == 0.0
    assert found[PLACES].tolist() == pytest.approx(exact, rel=1e-11, abs=0.0)


def test_what_may_be_left_out_grows_with_the_steps() -> None:
    assert most_left_out(1) == 2.0**-38 + 2.0**-42
    assert most_left_out(1000) == 2.0**-38 + 1000 * 2.0**-42


SLACK = {
    GAUSSIAN: lambda noise: noise * GAUSSIAN_SLACK,
    LAPLACE: lambda noise: 1 / (1 / noise + LAPLACE_SLACK),
}


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
@pytest.mark.parametrize(("noise", "steps"), [(0.9, 7), (LEAST_NOISE * 1.001, 2)])
def test_an_epoch_costs_what_its_ratios_do(mechanism: Mechanism, noise: float, steps: int) -> None:
    found, left_out = renyi._epoch_divergences(Setting(mechanism, noise, steps=steps))
    ratios = epoch_ratios(mechanism, SLACK[mechanism](noise), steps).points()
    exact, tails = ratios.divergences(ORDERS)
    assert 0 < tails <= most_left_out(steps)
    assert (found.tolist(), left_out) == (exact.tolist(), tails)


def known(mechanism: Mechanism, noise: float) -> list[float]:
    continuous = SLACK[mechanism](noise)
    of_gaussian = ORDERS / (2 * continuous**2)
    return list(of_gaussian if mechanism is GAUSSIAN else np.minimum(of_gaussian, 1 / continuous))


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
@pytest.mark.parametrize(("noise", "steps"), [(0.069, 3), (9.0, MAX_STEPS + 1)])
def test_an_epoch_that_is_not_computed_costs_as_if_its_slot_were_known(
    mechanism: Mechanism, noise: float, steps: int
) -> None:
    found, left_out = renyi._epoch_divergences(Setting(mechanism, noise, steps=steps))
    assert found.tolist() == pytest.approx(known(mechanism, noise), rel=1e-14, abs=0.0)
    assert left_out == 0.0


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
def test_an_epoch_of_which_too_much_is_left_out_costs_as_if_its_slot_were_known(
    mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Setting(mechanism, 1.5, steps=3)
    _, tails = epoch_ratios(mechanism, SLACK[mechanism](1.5), 3).points().divergences(ORDERS)
    monkeypatch.setattr(renyi, "most_left_out", lambda steps: tails * steps / 3)
    assert renyi._epoch_divergences.__wrapped__(key)[1] == tails  # exactly as much as may be
    monkeypatch.setattr(renyi, "most_left_out", lambda steps: 0.999 * tails * steps / 3)
    found, left_out = renyi._epoch_divergences.__wrapped__(key)
    assert found.tolist() == pytest.approx(known(mechanism, 1.5), rel=1e-14, abs=0.0)
    assert left_out == 0.0


@pytest.mark.parametrize(("rate", "steps"), [(0.2, 1), (1.0, 6)])
def test_one_label_against_another_costs_what_the_pairs_of_ratios_do(
    rate: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = 1.25
    continuous = noise * GAUSSIAN_SLACK
    points = (
        sample_ratios(continuous, rate, 1)
        if steps == 1
        else epoch_ratios(GAUSSIAN, continuous, steps).points()
    )
    exact, tails = points.against_negative().divergences(ORDERS)
    key = Setting(GAUSSIAN, noise, rate, steps=steps, is_of_labels=True)
    found, left_out = renyi._divergences_of_labels(key)
    known_sample = 2 * ORDERS / continuous**2
    assert found.tolist() == np.minimum(exact, known_sample).tolist()
    assert left_out == tails > 0
    monkeypatch.setattr(renyi, "most_left_out", lambda steps: 0.5 * tails)
    found, left_out = renyi._divergences_of_labels.__wrapped__(key)
    assert (found.tolist(), left_out) == (known_sample.tolist(), 0.0)


@pytest.mark.parametrize(("noise", "steps"), [(0.069, 1), (0.069, 4), (9.0, MAX_STEPS + 1)])
def test_labels_of_what_is_not_computed_cost_twice_the_shift(noise: float, steps: int) -> None:
    key = Setting(GAUSSIAN, noise, 0.5 if steps == 1 else 1.0, steps=steps, is_of_labels=True)
    found, left_out = renyi._divergences_of_labels(key)
    assert found.tolist() == pytest.approx((2 * ORDERS / (noise * GAUSSIAN_SLACK) ** 2).tolist(), rel=1e-14)
    assert left_out == 0.0


@pytest.mark.parametrize("count", [1, 5])
def test_the_divergences_of_all_kinds_add_up_and_so_does_what_they_leave_out(count: int) -> None:
    slack = GAUSSIAN_SLACK
    labels_sampled = Setting(GAUSSIAN, 1.5, 0.1, is_of_labels=True)
    labels_epoch = Setting(GAUSSIAN, 1.5, steps=5, is_of_labels=True)
    two_noises = Setting(LAPLACE, 2.0, noises=2)
    of_sampled_labels, of_epoch_labels = (
        renyi._divergences_of_labels(key) for key in (labels_sampled, labels_epoch)
    )
    several = renyi._sample_divergences(1.2 * slack, 0.05, 3)
    epoch = renyi._epoch_divergences(Setting(GAUSSIAN, 1.5, steps=4))
    single = renyi._renyi_divergences(0.8 * slack, 0.02)
    quiet = 2 * renyi._renyi_divergences(0.069 / math.sqrt(2) * slack, 0.02)
    zero = np.zeros(len(ORDERS))
    cases = [
        (parts_of(precision=3.0), 3 * ORDERS / 2, 0.0, 1),
        (parts_of(laplace={Setting(LAPLACE, 0.5): count}), np.minimum(2.0, ORDERS * 2.0), 0.0, count),
        (parts_of(laplace={Setting(LAPLACE, 8.0): count}), np.minimum(0.125, ORDERS / 128), 0.0, count),
        (parts_of(laplace={two_noises: count}), renyi._laplace_divergences(two_noises), 0.0, count),
        (parts_of(sampled={labels_sampled: count}), *of_sampled_labels, count),
        (parts_of(sampled={Setting(GAUSSIAN, 0.8, 0.02): count}), single, 0.0, count),
        (parts_of(sampled={Setting(GAUSSIAN, 1.2, 0.05, reports=3): count}), *several, count),
        (parts_of(sampled={Setting(GAUSSIAN, 0.069, 0.02, reports=2): count}), quiet, 0.0, count),
        (parts_of(epochs={labels_epoch: count}), *of_epoch_labels, count),
        (
            parts_of(epochs={Setting(GAUSSIAN, 3.0, steps=4, reports=4): count}),
            4 * epoch[0],
            4 * epoch[1],
            count,
        ),
        (parts_of(), zero, 0.0, 1),
    ]
    whole, whole_left_out = zero.copy(), 0.0
    for parts, of_one, left_out, times in cases:
        found, found_left_out = divergences_of(parts)
        assert found.tolist() == pytest.approx((times * of_one).tolist(), rel=1e-13, abs=0.0)
        assert found_left_out == pytest.approx(times * left_out, rel=1e-13, abs=0.0)
        whole, whole_left_out = whole + times * of_one, whole_left_out + times * left_out
    merged = parts_of(
        precision=3.0,
        laplace={key: count for parts, *_ in cases for key in parts.laplace},
        sampled={key: count for parts, *_ in cases for key in parts.sampled},
        epochs={key: count for parts, *_ in cases for key in parts.epochs},
    )
    found, found_left_out = divergences_of(merged)
    assert found.tolist() == pytest.approx(whole.tolist(), rel=1e-13)
    assert found_left_out == pytest.approx(whole_left_out, rel=1e-13, abs=0.0)


def test_the_least_noise_whose_ratios_are_computed_is_credited() -> None:
    noise = LEAST_NOISE / GAUSSIAN_SLACK * (1 + 1e-15)
    assert noise * GAUSSIAN_SLACK >= random_allocation.LEAST_NOISE
    found, _ = renyi._epoch_divergences(Setting(GAUSSIAN, noise, steps=40))
    assert found[0] < known(GAUSSIAN, noise)[0] - 1
