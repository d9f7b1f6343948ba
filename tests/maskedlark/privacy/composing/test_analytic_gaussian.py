"""The exact epsilon of Gaussian noise, against dp-accounting and against its own delta."""

import math
import warnings

import mpmath
import pytest
from dp_accounting import get_epsilon_gaussian

from maskedlark.privacy.composing.analytic_gaussian import (
    analytic_sigma,
    gaussian_delta,
    gaussian_epsilon,
)


@pytest.mark.parametrize("sigma", [1e-4, 0.05, 0.3, 1.0, 3.7, 20.0, 1e3, 1e6])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.5])
def test_the_epsilon_is_dp_accountings(sigma: float, delta: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it takes the logarithm of a delta of zero
        expected = float(get_epsilon_gaussian(sigma, delta))
    assert gaussian_epsilon(sigma, delta) == pytest.approx(expected, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0])
def test_at_the_epsilon_the_delta_is_kept_and_just_below_it_is_not(sigma: float) -> None:
    epsilon = gaussian_epsilon(sigma, 1e-6)
    assert gaussian_delta(sigma, epsilon) <= 1e-6 * (1 + 1e-9)
    assert gaussian_delta(sigma, epsilon * (1 - 1e-9)) > 1e-6 * (1 - 1e-12)


def test_a_delta_of_zero_costs_infinity() -> None:
    assert gaussian_epsilon(1.0, 0.0) == math.inf


@pytest.mark.parametrize(
    ("sigma", "delta"), [(0.0, 0.1), (-1.0, 0.1), (1.0, -0.1), (1.0, 1.0), (math.nan, 0.1)]
)
def test_what_is_no_noise_or_no_delta_is_refused(sigma: float, delta: float) -> None:
    with pytest.raises(ValueError, match="sigma must be positive"):
        gaussian_epsilon(sigma, delta)


@pytest.mark.parametrize("sigma", [0.3, 5.0, 300.0, 1e4, 1e6])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9, 1e-30, 1e-150])
def test_delta_at_the_epsilon_is_never_exceeded_in_fifty_digits(sigma: float, delta: float) -> None:
    epsilon = gaussian_epsilon(sigma, delta)
    with mpmath.workdps(50 + int(-math.log10(delta))):
        s, e = mpmath.mpf(sigma), mpmath.mpf(epsilon)
        exact = mpmath.ncdf(1 / (2 * s) - e * s) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)
        assert exact <= delta
        assert epsilon == 0 or exact > delta * (1 - 1e-5)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.0, 0.1),
        (-1.0, 0.1),
        (math.nextafter(1_000, 1_001), 0.1),
        (math.nan, 0.1),
        (1.0, 9e-101),
        (1.0, 1.0),
    ],
)
def test_no_sigma_is_found_for_what_is_no_epsilon_or_no_delta(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be in"):
        analytic_sigma(epsilon, delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(1_000.0, 1e-6), (1e-3, 1e-6), (1.0, 1e-100), (1.0, 0.999)])
def test_the_least_sigma_is_found_up_to_the_ends_of_the_range(epsilon: float, delta: float) -> None:
    sigma = analytic_sigma(epsilon, delta)
    assert gaussian_delta(sigma, epsilon) <= delta
    assert gaussian_delta(sigma * (1 - 1e-6), epsilon) > delta
