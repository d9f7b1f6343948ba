"""What releases cost: against exact sums over the discrete mechanisms, the classical moments accountant, and
published tables."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

from maskedlark.errors import JobReason
from maskedlark.privacy.accounting import (
    LAPLACE_SLACK,
    NOISE_MULTIPLIERS,
    SEARCH_PRECISION,
    Charge,
    Epsilons,
    compose_epsilon,
    spent,
    spent_in_turn,
)
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import MIN_SCALE
from tests.builders import fitting_noise
from tests.refusals import refused

DELTA = 1e-6
NOISY = [Mechanism.LAPLACE, Mechanism.GAUSSIAN]


def charge(
    mechanism: Mechanism, noise_multiplier: float, sampling_rate: float = 1.0, rounds: int = 1
) -> Charge:
    return Charge(
        mechanism=mechanism, noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, rounds=rounds
    )


def gaussian(noise_multiplier: float, sampling_rate: float = 1.0, rounds: int = 1) -> Charge:
    return charge(Mechanism.GAUSSIAN, noise_multiplier, sampling_rate, rounds)


def laplace(noise_multiplier: float, sampling_rate: float = 1.0, rounds: int = 1) -> Charge:
    return charge(Mechanism.LAPLACE, noise_multiplier, sampling_rate, rounds)


def noise_pmf(mechanism: Mechanism) -> NDArray[np.float64]:
    """The discrete mechanism at the smallest scale that a release may have, out to where nothing is left."""
    scaled = np.abs(np.arange(-40 * MIN_SCALE, 40 * MIN_SCALE + 1)) / MIN_SCALE
    weights = np.exp(-scaled if mechanism is Mechanism.LAPLACE else -scaled * scaled / 2)
    return np.asarray(weights / weights.sum())


def hockey_stick(pmf: NDArray[np.float64], shift: int, sampling_rate: float, epsilon: float) -> float:
    """The exact delta of one sampled release with this noise, in the worse of both directions."""
    without, shifted = np.append(pmf, np.zeros(shift)), np.append(np.zeros(shift), pmf)
    sampled = (1 - sampling_rate) * without + sampling_rate * shifted
    return max(
        float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
        for p, q in [(sampled, without), (without, sampled)]
    )


def moments_accountant(noise_multiplier: float, sampling_rate: float, rounds: int, delta: float) -> float:
    """Abadi et al. 2016 with integer moments 1 to 32, as the DP-FedAvg paper used it."""
    best = math.inf
    for moment in range(1, 33):
        k = np.arange(moment + 2)
        log_choose = gammaln(moment + 2) - gammaln(k + 1) - gammaln(moment + 2 - k)
        exponent = (k * k - k) / (2 * noise_multiplier**2)
        log_sum = logsumexp(
            log_choose
            + (moment + 1 - k) * math.log1p(-sampling_rate)
            + k * math.log(sampling_rate)
            + exponent
        )
        best = min(best, (rounds * max(log_sum, 0.0) - math.log(delta)) / moment)
    return best


@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("sampling_rate", [1.0, 0.3, 0.02])
@pytest.mark.parametrize("mechanism", NOISY)
def test_the_ad_servers_epsilon_covers_the_discrete_release_and_is_tight(
    mechanism: Mechanism, noise_multiplier: float, sampling_rate: float
) -> None:
    one = noise_pmf(mechanism)
    both = np.fft.irfft(np.fft.rfft(one, 2 * len(one)) ** 2, 2 * len(one)).clip(0)  # both helpers' noise
    shift = round(MIN_SCALE / noise_multiplier)
    epsilon = spent([charge(mechanism, noise_multiplier, sampling_rate)], DELTA).ad_server
    assert hockey_stick(both, shift, sampling_rate, epsilon) <= DELTA
    assert hockey_stick(both, shift, sampling_rate, 0.98 * epsilon - 0.001) > DELTA


@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("mechanism", NOISY)
def test_the_colluding_epsilon_covers_one_helpers_noise_without_sampling(
    mechanism: Mechanism, noise_multiplier: float
) -> None:
    shift = round(MIN_SCALE / noise_multiplier)
    epsilon = spent([charge(mechanism, noise_multiplier, 0.02)], DELTA).colluding
    assert hockey_stick(noise_pmf(mechanism), shift, 1.0, epsilon) <= DELTA
    assert hockey_stick(noise_pmf(mechanism), shift, 1.0, 0.98 * epsilon - 0.001) > DELTA


@pytest.mark.parametrize("parts", [1, 4])
def test_composed_laplace_covers_the_exact_losses_however_a_report_spreads_over_coordinates(
    parts: int,
) -> None:
    rounds, noise_multiplier = 6, 2.0
    shift = round(MIN_SCALE / noise_multiplier) // parts  # of each coordinate
    pmf = noise_pmf(Mechanism.LAPLACE)
    x = np.arange(len(pmf)) - len(pmf) // 2
    losses = np.abs(x + shift) - np.abs(
        x
    )  # in units of 1 / MIN_SCALE, seen at x under the world without the shift
    one = np.bincount(losses + shift, weights=pmf, minlength=2 * shift + 1)
    composed = one
    for _ in range(rounds * parts - 1):
        composed = np.convolve(composed, one)
    values = (np.arange(len(composed)) - rounds * parts * shift) / MIN_SCALE

    def delta_at(epsilon: float) -> float:
        return float((composed * np.maximum(0, 1 - np.exp(epsilon - values))).sum())

    epsilon = spent([laplace(noise_multiplier, rounds=rounds)], DELTA).colluding
    assert delta_at(epsilon) <= DELTA
    assert epsilon < rounds / noise_multiplier
    if parts == 1:
        assert delta_at(0.99 * epsilon) > DELTA


@pytest.mark.parametrize(("noise_multiplier", "rounds"), [(0.7, 1), (1.0, 1), (3.0, 50), (200.0, 1000)])
def test_unsampled_gaussian_rounds_cost_what_the_closed_form_says(
    noise_multiplier: float, rounds: int
) -> None:
    mu = math.sqrt(rounds) / noise_multiplier
    epsilon = spent([gaussian(noise_multiplier, rounds=rounds)], DELTA).colluding
    assert norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
        -mu / 2 - epsilon / mu
    ) == pytest.approx(7 / 8 * DELTA, rel=1e-3)  # an eighth is kept for settings that hang on releases


def test_the_ad_server_alone_faces_both_helpers_gaussian_noise() -> None:
    assert spent([gaussian(1.0)], DELTA).ad_server == pytest.approx(
        spent([gaussian(math.sqrt(2))], DELTA).colluding
    )


@pytest.mark.parametrize(("noise_multiplier", "rounds", "epsilon"), [(30.0, 1000, 2.35), (10.0, 50, 1.477)])
def test_the_ad_server_alone_faces_both_helpers_laplace_noise(
    noise_multiplier: float, rounds: int, epsilon: float
) -> None:
    one = laplace(noise_multiplier, rounds=rounds)
    assert spent([one], 1e-5).ad_server == pytest.approx(epsilon, rel=1e-3)
    common = spent([replace(one, is_common=True)], 1e-5)  # drawn alike by both helpers: there is one noise
    assert common.ad_server == pytest.approx(spent([one], 1e-5).colluding, rel=1e-9)


@pytest.mark.parametrize("parts", [1, 4])
def test_both_laplace_noises_cover_losses_composed_from_below(parts: int) -> None:
    """However a report spreads over coordinates; each exact loss is rounded down to a fine grid."""
    rounds, noise_multiplier, step = 6, 2.0, 1e-4
    shift = round(MIN_SCALE / noise_multiplier) // parts
    one = noise_pmf(Mechanism.LAPLACE)
    r = math.exp(-1 / MIN_SCALE)  # the sum's law in closed form: the transform's tails are noise
    far = np.abs(np.arange(len(one)) - len(one) // 2)
    law = r**far * (far + (1 + r * r) / (1 - r * r))
    both = law / law.sum()
    losses = np.floor(np.log(both[shift:] / both[:-shift]) / step).astype(int)
    lowest = int(losses.min())
    counts = np.bincount(losses - lowest, weights=both[shift:])
    size = 1 << (rounds * parts * len(counts)).bit_length()
    composed = np.fft.irfft(np.fft.rfft(counts, size) ** (rounds * parts), size).clip(0)
    values = step * (np.arange(size) + rounds * parts * lowest)

    def delta_at(epsilon: float) -> float:
        above = values > epsilon
        return float((composed[above] * -np.expm1(epsilon - values[above])).sum())

    epsilon = spent([laplace(noise_multiplier, rounds=rounds)], DELTA).ad_server
    assert delta_at(epsilon) <= DELTA
    if parts == 1:
        assert delta_at(0.98 * epsilon) > DELTA


@pytest.mark.parametrize("scale", [MIN_SCALE, 4 * MIN_SCALE])
def test_the_sum_of_two_discrete_laplaces_is_covered_by_the_continuous_one(scale: int) -> None:
    """The proof's lemma: a step of one unit moves the continuous quantile by less than 1 + slack."""
    r = math.exp(-1 / scale)
    units = np.arange(1, 30 * scale)
    # the logarithms of tail(n) / tail(n - 1), discrete, and the continuous quantiles found by bisection
    offset = (1 + r * r) / (1 - r * r) + r / (1 - r)
    log_tail = -(units + 1) / scale + math.log((1 - r) / (1 + r) ** 2) + np.log(units + 1 + offset)
    low, high = np.zeros(len(units)), units + 2.0
    for _ in range(60):
        middle = (low + high) / 2
        is_before = -middle / scale + np.log((middle + 2 * scale) / (4 * scale)) > log_tail
        low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)
    steps = np.diff(low)
    assert (steps > 1 - 1e-8).all()
    assert (steps < 1 + LAPLACE_SLACK + 1e-8).all()
    assert (low - units - 0.5 > -1e-7).all()
    assert (low - units - 0.5 < 5 / (12 * scale) + 1e-7).all()


@pytest.mark.parametrize(("rate", "rounds"), [(1.0, 7), (0.1, 20)])
def test_laplace_at_delta_zero_costs_the_pure_sum(rate: float, rounds: int) -> None:
    cost = spent([laplace(2.0, rate, rounds)], 0.0)
    assert cost.ad_server == pytest.approx(rounds * math.log(1 + rate * (math.exp(0.5) - 1)))
    assert cost.colluding == pytest.approx(rounds * 0.5)


def test_gaussian_noise_costs_infinity_at_delta_zero() -> None:
    assert spent([gaussian(5.0, 0.1), laplace(5.0)], 0.0) == Epsilons(ad_server=math.inf, colluding=math.inf)


def test_the_renyi_bound_agrees_with_dp_accounting_where_only_it_is_used() -> None:
    accountant = RdpAccountant([*range(2, 65), 80, 96, 128, 192, 256, 512, 1024])
    accountant.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(0.9)), 2_000)
    assert compose_epsilon([gaussian(0.9, 0.01, 2_000)], 1e-12) == pytest.approx(
        accountant.get_epsilon(1e-12), rel=1e-3
    )


# Table 1 of the DP-FedAvg paper: users, expected sample, noise, then epsilon after 1, 10, ... 10^6 rounds at
# delta = users^-1.1.
TABLE_1 = [
    (1e5, 1e2, 1.0, [0.97, 0.98, 1.00, 1.07, 1.18, 2.21, 7.50]),
    (1e6, 1e1, 1.0, [0.68, 0.69, 0.69, 0.69, 0.69, 0.72, 0.73]),
    (1e6, 1e3, 1.0, [1.17, 1.17, 1.20, 1.28, 1.39, 2.44, 8.13]),
    (1e6, 1e4, 1.0, [1.73, 1.92, 2.08, 3.06, 8.49, 32.38, 187.01]),
    (1e6, 1e3, 3.0, [0.47, 0.47, 0.48, 0.48, 0.49, 0.67, 1.95]),
    (1e9, 1e3, 1.0, [0.84, 0.84, 0.84, 0.85, 0.88, 0.88, 0.88]),
]
# Table 2: users, expected sample, epsilon after 5,000 rounds at noise 1 and delta = 10^-9.
TABLE_2 = [
    (763_430, 5_000, 4.634),
    (763_430, 1_667, 2.314),
    (763_430, 1_250, 2.038),
    (1e8, 5_000, 1.152),
    (1e8, 1_667, 0.991),
    (1e8, 1_250, 0.987),
]


@pytest.mark.parametrize(("users", "sample", "noise", "published"), TABLE_1)
def test_table_1_of_dp_fedavg_is_bettered(
    users: float, sample: float, noise: float, published: Sequence[float]
) -> None:
    delta = users**-1.1
    for power, printed in enumerate(published):
        theirs = moments_accountant(noise, sample / users, 10**power, delta)
        assert theirs == pytest.approx(printed, abs=0.0051)
        assert compose_epsilon([gaussian(noise, sample / users, 10**power)], delta) <= theirs


@pytest.mark.parametrize(("users", "sample", "printed"), TABLE_2)
def test_table_2_of_dp_fedavg_is_bettered(users: float, sample: float, printed: float) -> None:
    theirs = moments_accountant(1.0, sample / users, 5_000, 1e-9)
    assert theirs == pytest.approx(printed, abs=0.00051)
    assert compose_epsilon([gaussian(1.0, sample / users, 5_000)], 1e-9) <= theirs


charges_of_any_kind = st.lists(
    st.builds(
        charge,
        st.sampled_from(NOISY),
        st.floats(0.8, 40.0),
        st.sampled_from([1.0, 0.3, 0.01]),
        st.integers(1, 200),
    ),
    max_size=3,
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    charges=charges_of_any_kind,
    more=st.sampled_from([laplace(3.0, 0.1, 10), gaussian(3.0, 0.1, 10), gaussian(20.0)]),
)
def test_one_more_charge_never_costs_less_and_collusion_never_sees_less(
    charges: list[Charge], more: Charge
) -> None:
    def about(epsilon: float) -> float:
        return (
            0.98 * epsilon - 0.002
        )  # two numbers may come from different bounds, each right, and one a little looser

    before, after = spent(charges, DELTA), spent([*charges, more], DELTA)
    assert after.ad_server >= about(before.ad_server)
    assert after.colluding >= about(before.colluding)
    assert after.colluding >= about(after.ad_server)


@settings(max_examples=15, deadline=None)
@given(charges=charges_of_any_kind)
def test_order_and_splitting_of_charges_do_not_matter(charges: list[Charge]) -> None:
    split = [
        charge(c.mechanism, c.noise_multiplier, c.sampling_rate) for c in charges for _ in range(c.rounds)
    ]
    assert spent(split[::-1], DELTA) == spent(charges, DELTA)


@pytest.mark.parametrize("mechanism", NOISY)
def test_more_noise_or_less_sampling_or_more_delta_costs_less(mechanism: Mechanism) -> None:
    base = spent([charge(mechanism, 2.0, 0.1, 100)], DELTA)
    assert spent([charge(mechanism, 2.5, 0.1, 100)], DELTA).ad_server < base.ad_server
    assert spent([charge(mechanism, 2.5, 0.1, 100)], DELTA).colluding < base.colluding
    assert spent([charge(mechanism, 2.0, 0.05, 100)], DELTA).ad_server < base.ad_server
    assert spent([charge(mechanism, 2.0, 0.05, 100)], DELTA).colluding == base.colluding
    assert spent([charge(mechanism, 2.0, 0.1, 100)], 1e-4).ad_server < base.ad_server


def test_nothing_charged_is_nothing_spent() -> None:
    assert spent([], DELTA) == Epsilons(ad_server=0.0, colluding=0.0)


@pytest.mark.parametrize("others", [[], [gaussian(5.0)], [laplace(5.0, 0.1)]])
def test_a_release_without_a_mechanism_costs_infinity(others: list[Charge]) -> None:
    assert spent([*others, charge(Mechanism.NONE, 0.0)], DELTA) == Epsilons(
        ad_server=math.inf, colluding=math.inf
    )


@pytest.mark.parametrize("mechanism", NOISY)
def test_noise_multipliers_outside_the_sound_range_are_counted_conservatively(mechanism: Mechanism) -> None:
    smallest, largest = NOISE_MULTIPLIERS
    assert spent([charge(mechanism, smallest / 2)], DELTA).ad_server == math.inf
    assert spent([charge(mechanism, 1e300, rounds=10**6)], 1e-12) == spent(
        [charge(mechanism, largest, rounds=10**6)], 1e-12
    )
    assert 0 < spent([charge(mechanism, 1e300, rounds=10**6)], 1e-12).colluding < 0.1


@pytest.mark.parametrize("mechanism", NOISY)
@pytest.mark.parametrize("noise_multiplier", [NOISE_MULTIPLIERS[0], 1e-3, 0.05, 1e6])
@pytest.mark.parametrize("rate", [1e-12, 0.5, 1.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-9, 0.5])
def test_extreme_settings_cost_a_number(
    mechanism: Mechanism, noise_multiplier: float, rate: float, delta: float
) -> None:
    for rounds in (1, 10**6, 10**30):
        cost = spent([charge(mechanism, noise_multiplier, rate, rounds)], delta)
        assert cost.ad_server >= 0
        assert cost.colluding >= 0
        assert noise_multiplier > 1 or cost.colluding > 1


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mechanism", NOISY)
def test_a_noise_multiplier_that_is_not_positive_and_finite_is_refused(
    mechanism: Mechanism, noise_multiplier: float
) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        charge(mechanism, noise_multiplier)


@pytest.mark.parametrize("noise_multiplier", [1.0, math.nan])
def test_a_noise_multiplier_without_a_mechanism_is_refused(noise_multiplier: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        charge(Mechanism.NONE, noise_multiplier)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0001, math.nan, math.inf])
def test_a_sampling_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="sampling_rate"):
        gaussian(1.0, rate)


@pytest.mark.parametrize("rounds", [0, -1, 1.5, math.nan, math.inf])
def test_a_number_of_rounds_that_is_not_a_positive_integer_is_refused(rounds: int) -> None:
    with pytest.raises(ValueError, match="rounds"):
        gaussian(1.0, 1.0, rounds)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan, math.inf])
def test_a_delta_outside_its_range_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        spent([gaussian(1.0)], delta)
    with pytest.raises(ValueError, match="delta"):
        spent([], delta)


def fit(
    epsilon: float,
    collusion_epsilon: float,
    *,
    mechanism: Mechanism = Mechanism.GAUSSIAN,
    already: Sequence[Charge] = (),
    rounds: int = 300,
) -> float:
    return fitting_noise(
        epsilon,
        DELTA,
        mechanism=mechanism,
        sampling_rate=0.05,
        rounds=rounds,
        already=already,
        collusion_epsilon=collusion_epsilon,
    )


@pytest.mark.parametrize("already", [[], [gaussian(20.0, 0.05, 100)], [laplace(2_000.0, 0.05, 100)]])
@pytest.mark.parametrize(("epsilon", "collusion_epsilon"), [(2.0, math.inf), (math.inf, 8.0), (2.0, 8.0)])
@pytest.mark.parametrize("mechanism", NOISY)
def test_the_fitting_noise_is_the_smallest_within_both_budgets(
    mechanism: Mechanism, epsilon: float, collusion_epsilon: float, already: list[Charge]
) -> None:
    found = fit(epsilon, collusion_epsilon, mechanism=mechanism, already=already)
    beside = [[one] for one in already]
    cost = spent_in_turn([*beside, [charge(mechanism, found, 0.05, 300)]], DELTA)
    assert cost.ad_server <= epsilon
    assert cost.colluding <= collusion_epsilon
    less = spent_in_turn([*beside, [charge(mechanism, found / SEARCH_PRECISION, 0.05, 300)]], DELTA)
    assert less.ad_server > epsilon or less.colluding > collusion_epsilon


def test_what_was_spent_already_asks_for_more_noise() -> None:
    assert fit(2.0, math.inf, already=[gaussian(1.5, 0.05, 100)]) > 1.05 * fit(2.0, math.inf)


@pytest.mark.parametrize(("ad_server", "colluding"), [(0.9, math.inf), (math.inf, 0.9)])
def test_a_budget_that_is_used_up_refuses_the_job_and_says_what_is_spent(
    ad_server: float, colluding: float
) -> None:
    already = [gaussian(1.0, 0.05, 10)]
    before = spent(already, DELTA)
    with refused(JobReason.BUDGET_EXHAUSTED) as refusal:
        fit(before.ad_server * ad_server, before.colluding * colluding, already=already)
    assert f"{before.ad_server:.4g} of" in str(refusal.value)
    assert f"{before.colluding:.4g} of" in str(refusal.value)


def test_a_job_without_a_mechanism_fits_no_budget() -> None:
    with refused(JobReason.BUDGET_EXHAUSTED):
        fit(math.inf, 1e9, mechanism=Mechanism.NONE)


def test_two_infinite_budgets_ask_for_the_least_noise_there_is() -> None:
    assert fit(math.inf, math.inf) == NOISE_MULTIPLIERS[0]


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_budget_that_is_not_positive_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="budget"):
        fit(budget, 1.0)
    with pytest.raises(ValueError, match="budget"):
        fit(1.0, budget)


def test_impossible_job_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds"):
        fit(1.0, 1.0, rounds=0)
