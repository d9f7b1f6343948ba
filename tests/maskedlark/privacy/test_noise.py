"""The noise has exactly the distribution it claims.

Every statistical test is seeded: it gives the same verdict each time.
"""

import math
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import MIN_SCALE, noise_bytes, noise_scale, noise_vector, tail_bound
from maskedlark.privacy.samplers import MAX_SCALE, discrete_gaussian, discrete_laplace
from maskedlark.randomness import Randomness, below, seeded

Sampler = Callable[[int, int, Randomness], NDArray[np.int64]]
SAMPLERS: list[Sampler] = [discrete_laplace, discrete_gaussian]
NOISY = [Mechanism.LAPLACE, Mechanism.GAUSSIAN]


def weights(sampler: Sampler, values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """The definition, before it is normalised."""
    scaled = np.abs(values) / scale
    return np.asarray(np.exp(-scaled if sampler is discrete_laplace else -scaled * scaled / 2))


def pmf(sampler: Sampler, scale: float, reach: int) -> NDArray[np.float64]:
    """P(-reach), ..., P(reach) by the definition, normalised over a range whose tail is below float
    precision."""
    support = np.arange(-60 * reach - 60, 60 * reach + 61, dtype=np.float64)
    masses = weights(sampler, support, scale)
    middle = len(support) // 2
    return np.asarray(masses[middle - reach : middle + reach + 1] / masses.sum())


def p_value(values: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Chi-square of counts at -reach..reach, and everything outside, against probabilities."""
    reach = len(expected) // 2
    inside = values[np.abs(values) <= reach]
    observed = np.append(np.bincount(inside + reach, minlength=len(expected)), len(values) - len(inside))
    probabilities = np.append(expected, max(0.0, 1 - expected.sum()))
    return float(stats.chisquare(observed, probabilities * len(values)).pvalue)


def slow_coin(gamma: Fraction, randomness: Randomness) -> bool:
    """Algorithm 1 as printed, one toss at a time, in fractions: heads with probability exp(-gamma)."""
    while gamma > 1:
        if not slow_coin(Fraction(1), randomness):
            return False
        gamma -= 1
    k = 1
    while int(below((gamma / k).denominator, 1, randomness)[0]) < (gamma / k).numerator:
        k += 1
    return k % 2 == 1


def slow_laplace(scale: int, randomness: Randomness) -> int:
    """Algorithm 2 as printed."""
    while True:
        u = int(below(scale, 1, randomness)[0])
        if not slow_coin(Fraction(u, scale), randomness):
            continue
        v = 0
        while slow_coin(Fraction(1), randomness):
            v += 1
        sign = 1 - 2 * int(below(2, 1, randomness)[0])
        if sign == 1 or u + v > 0:
            return sign * (u + scale * v)


def slow_gaussian(sigma: int, randomness: Randomness) -> int:
    """Algorithm 3 as printed, with its t = floor(sigma) + 1."""
    t = sigma + 1
    while True:
        y = slow_laplace(t, randomness)
        if slow_coin((abs(y) - Fraction(sigma * sigma, t)) ** 2 / (2 * sigma * sigma), randomness):
            return y


@pytest.mark.parametrize("scale", [1, 2, 3, 10])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_small_scales_have_the_exact_distribution(sampler: Sampler, scale: int) -> None:
    values = sampler(scale, 400_000, seeded(scale))
    assert p_value(values, pmf(sampler, scale, 3 * scale)) > 0.001


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_chi_square_would_see_a_scale_that_is_two_percent_off(sampler: Sampler) -> None:
    values = sampler(10, 400_000, seeded(10))
    assert p_value(values, pmf(sampler, 10.2, 30)) < 1e-6
    assert p_value(values, pmf(sampler, 9.8, 30)) < 1e-6


@pytest.mark.parametrize("scale", [1, 3])
@pytest.mark.parametrize(
    ("sampler", "slow"), [(discrete_laplace, slow_laplace), (discrete_gaussian, slow_gaussian)]
)
def test_an_independent_sampler_in_fractions_draws_alike(
    sampler: Sampler, slow: Callable[[int, Randomness], int], scale: int
) -> None:
    stream = seeded(1, "slow")
    slowly = np.array([slow(scale, stream) for _ in range(6_000)])
    quickly = sampler(scale, 100_000, seeded(1, "quick"))
    reach = 2 * scale
    table = [
        np.bincount(np.clip(values, -reach, reach) + reach, minlength=2 * reach + 1)
        for values in (slowly, quickly)
    ]
    assert stats.chi2_contingency(table).pvalue > 0.001


@pytest.mark.parametrize("scale", [1 << 20, (1 << 30) + 7, 3 << 40, MAX_SCALE])
@pytest.mark.parametrize(
    ("sampler", "law"), [(discrete_laplace, stats.laplace), (discrete_gaussian, stats.norm)]
)
def test_large_scales_approach_the_continuous_law(
    sampler: Sampler, law: stats.rv_continuous, scale: int
) -> None:
    values = sampler(scale, 200_000, seeded(scale)) / scale
    assert stats.kstest(values, law.cdf).pvalue > 0.001
    assert values.var() == pytest.approx(law.var(), rel=0.015)
    assert (values**4).mean() == pytest.approx(law.moment(4), rel=0.06)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_lowest_bits_of_large_noise_are_uniform(sampler: Sampler) -> None:
    values = sampler(MAX_SCALE, 200_000, seeded(5))
    assert stats.chisquare(np.bincount(values & 255, minlength=256)).pvalue > 0.001


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_coordinates_are_not_correlated(sampler: Sampler) -> None:
    values = sampler(1 << 20, 200_000, seeded(6)).astype(np.float64)
    for lag in (1, 2, 3, 50_000):
        assert abs(np.corrcoef(values[lag:], values[:-lag])[0, 1]) < 0.012


@pytest.mark.parametrize(
    ("sampler", "first", "digest"),
    [
        (discrete_laplace, [-1272168, 1328095, -2447869, 269545], "c872c3703d1fca43c6ab1d8bd89a3096"),
        (discrete_gaussian, [-1272168, 1328095, -2054653, 400617], "1f502f1ad9b969ec84d172661d698c37"),
    ],
)
def test_a_stream_gives_the_same_noise_on_every_machine(
    sampler: Sampler, first: list[int], digest: str
) -> None:
    values = sampler(1_000_003, 100_000, seeded(2026))
    assert values[:4].tolist() == first
    assert sha256(values.astype("<i8").tobytes()).hexdigest()[:32] == digest


@given(
    mechanism=st.sampled_from(Mechanism),
    scale=st.integers(1, MAX_SCALE),
    count=st.integers(0, 200),
    seed=st.integers(0, 2**32),
)
def test_noise_has_the_asked_length_and_stays_under_its_tail_bound(
    mechanism: Mechanism, scale: int, count: int, seed: int
) -> None:
    values = noise_vector(mechanism, scale, count, seeded(seed))
    assert values.shape == (count,)
    assert values.dtype == np.int64
    assert np.abs(values).max(initial=0) <= tail_bound(mechanism, scale, count)


def test_no_mechanism_is_no_noise() -> None:
    assert noise_vector(Mechanism.NONE, 0, 5, seeded(0)).tolist() == [0] * 5
    assert tail_bound(Mechanism.NONE, 0, 5) == 0


@pytest.mark.parametrize("count", [1, 2, 400_000, 1 << 30])
@pytest.mark.parametrize("scale", [1, 2, 50])
@pytest.mark.parametrize(("mechanism", "sampler"), list(zip(NOISY, SAMPLERS, strict=True)))
def test_the_tail_bound_holds_and_is_not_wasteful(
    mechanism: Mechanism, sampler: Sampler, scale: int, count: int
) -> None:
    def tail(bound: int) -> float:
        beyond = np.arange(bound + 1, bound + 40 * scale + 100, dtype=np.float64)
        total = weights(sampler, np.arange(-100.0 * scale, 100 * scale + 1), scale).sum()
        return float(2 * weights(sampler, beyond, scale).sum() / total) * count

    bound = tail_bound(mechanism, scale, count)
    assert tail(bound) <= 2.0**-64
    assert tail(bound * 9 // 10 - 1) > 2.0**-64


@pytest.mark.parametrize(("count", "bits"), [(0, 65), (1, 66), (7, 68), (8, 69)])
def test_both_helpers_find_the_same_tail_in_integers(count: int, bits: int) -> None:
    """The spec gives these two formulas; 7/10 stands for ln 2."""
    for scale in (1, 1_000, 999_983, MAX_SCALE):
        laplace, gaussian = scale * bits * 7 // 10, math.isqrt(scale * scale * bits * 14 // 10)
        assert tail_bound(Mechanism.LAPLACE, scale, count) == laplace + 1
        assert tail_bound(Mechanism.GAUSSIAN, scale, count) == gaussian + 1


@pytest.mark.parametrize("scale", [0, -1, MAX_SCALE + 1])
@pytest.mark.parametrize("mechanism", NOISY)
def test_a_scale_outside_the_range_is_refused(mechanism: Mechanism, scale: int) -> None:
    with pytest.raises(ValueError, match="noise scale"):
        noise_vector(mechanism, scale, 1, seeded(0))
    with pytest.raises(ValueError, match="noise scale"):
        tail_bound(mechanism, scale, 1)


@pytest.mark.parametrize("mechanism", NOISY)
def test_a_negative_count_is_refused(mechanism: Mechanism) -> None:
    with pytest.raises(ValueError, match="count"):
        noise_vector(mechanism, 1, -1, seeded(0))
    with pytest.raises(ValueError, match="count"):
        tail_bound(mechanism, 1, -1)


@given(multiplier=st.floats(0.01, 1000), sensitivity=st.integers(1 << 17, 1 << 38))
def test_a_noise_scale_is_never_below_multiplier_times_sensitivity(
    multiplier: float, sensitivity: int
) -> None:
    scale = noise_scale(Mechanism.GAUSSIAN, multiplier, sensitivity)
    assert scale - 1 < Fraction(multiplier) * sensitivity <= scale
    assert scale == noise_scale(Mechanism.LAPLACE, multiplier, sensitivity)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan, math.inf])
def test_a_noise_multiplier_that_is_not_positive_and_finite_is_refused(multiplier: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        noise_scale(Mechanism.LAPLACE, multiplier, 1 << 20)


def test_a_noise_scale_outside_the_proven_range_is_refused() -> None:
    assert noise_scale(Mechanism.LAPLACE, 1.0, MIN_SCALE) == MIN_SCALE
    with pytest.raises(ValueError, match="frac_bits"):
        noise_scale(Mechanism.LAPLACE, 1.0, MIN_SCALE - 1)
    with pytest.raises(ValueError, match="frac_bits"):
        noise_scale(Mechanism.GAUSSIAN, 1.0, MAX_SCALE + 1)


@pytest.mark.parametrize("sensitivity", [0, -1])
@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_sensitivity_below_one_unit_is_refused(mechanism: Mechanism, sensitivity: int) -> None:
    with pytest.raises(ValueError, match="sensitivity"):
        noise_scale(mechanism, 1.0, sensitivity)


def test_no_mechanism_has_no_scale() -> None:
    assert noise_scale(Mechanism.NONE, 0.0, 1) == 0


@pytest.mark.parametrize(
    ("feature", "epsilon"), [(0, 100.0), (128, 100.0), (250, 40.0), (255, 300.0), (17, 1.0)]
)
def test_noised_bytes_have_the_exact_distribution(feature: int, epsilon: float) -> None:
    scale = math.ceil((255 << 16) / epsilon)
    edges = (np.arange(-feature, 256 - feature + 1) << 16) - (
        1 << 15
    )  # byte j is drawn by noise in [edges[j], edges[j + 1])
    at_least_zero = 1 / (1 + np.exp(-1 / scale))
    under = np.where(
        edges <= 0, at_least_zero * np.exp((edges - 1) / scale), 1 - at_least_zero * np.exp(-edges / scale)
    )
    under[0], under[-1] = 0, 1  # clipped
    expected = np.diff(under) * 200_000
    observed = np.bincount(
        noise_bytes(np.full(200_000, feature, np.uint8), epsilon, seeded(9)), minlength=256
    )
    common = expected > 5
    observed = np.append(observed[common], observed[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    assert stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 0.001


def test_the_extreme_feature_values_are_epsilon_alike() -> None:
    epsilon = 1.5
    low, high = (
        np.bincount(noise_bytes(np.full(400_000, x, np.uint8), epsilon, seeded(x)), minlength=256)
        for x in (0, 255)
    )
    ratios = np.log(high / low)
    assert np.abs(ratios[[0, 255]]).max() <= epsilon + 0.02
    assert np.abs(ratios[[0, 255]]).min() >= epsilon - 0.02


def test_noised_bytes_keep_their_shape_and_leave_the_input() -> None:
    features = np.arange(12, dtype=np.uint8).reshape(3, 4)
    noised = noise_bytes(features, 1.0, seeded(1))
    assert noised.shape == (3, 4)
    assert noised.dtype == np.uint8
    assert features.ravel().tolist() == list(range(12))


def test_an_enormous_epsilon_changes_nothing() -> None:
    features = np.arange(256, dtype=np.uint8)
    assert (noise_bytes(features, 1e9, seeded(1)) == features).all()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e-9])
def test_a_feature_epsilon_outside_its_range_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon|noise scale"):
        noise_bytes(np.zeros(1, np.uint8), epsilon, seeded(0))


def test_browsers_load_no_accountant_with_the_noise() -> None:
    code = (
        "import maskedlark.privacy.noise, sys; "
        "sys.exit(bool({'scipy', 'dp_accounting'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
