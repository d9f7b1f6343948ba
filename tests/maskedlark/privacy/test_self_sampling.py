"""What devices that sample themselves are charged: against known figures, and attacked numerically at bad
settings."""

import math
from dataclasses import replace

import numpy as np
import pytest

from maskedlark.privacy.accounting import compose_epsilon, spent
from maskedlark.releases.update import seen_rate
from tests import charge_builders

T_1000 = charge_builders.gaussian(1.0, rate=0.01, rounds=1_000, is_self_sampled=True)


def density(x: np.ndarray, shift: float, sigma: float) -> np.ndarray:
    return np.exp(-((x - shift) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float, step: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * step)


def worst_delta(shares: list[tuple[float, float]], sigma: float, epsilon: float) -> float:
    """The exact delta of one round, over both directions, of mixtures of (probability, shift) against no
    shift."""
    x = np.linspace(-30, 60, 400_001)
    step = float(x[1] - x[0])
    mixture = np.sum([probability * density(x, shift, sigma) for probability, shift in shares], axis=0)
    alone = density(x, 0.0, sigma)
    return max(hockey_stick(mixture, alone, epsilon, step), hockey_stick(alone, mixture, epsilon, step))


def test_sampling_by_devices_counts_against_both_adversaries() -> None:
    own = spent([T_1000], 1e-5)
    assert own.colluding == pytest.approx(1.83, abs=0.02)
    assert own.ad_server < own.colluding
    leaked = spent([replace(T_1000, is_self_sampled=False)], 1e-5)
    assert leaked.ad_server == own.ad_server
    assert leaked.colluding > 100 * own.colluding


def test_three_flips_of_a_coin_would_cost_three_times_the_rate() -> None:
    tripled = replace(T_1000, sampling_rate=1 - (1 - 0.01) ** 3)
    assert compose_epsilon([tripled], 1e-5) == pytest.approx(6.06, abs=0.15)


@pytest.mark.parametrize("cover", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("rate", [2.0**-20, 0.01, 0.5, 1.0])
def test_the_charged_rate_is_the_chance_that_an_upload_is_an_update(rate: float, cover: float) -> None:
    drawn = np.random.default_rng(5).random((2, 200_000))
    is_update, is_cover = drawn[0] < rate, (drawn[0] >= rate) & (drawn[1] < cover)
    uploads = int((is_update | is_cover).sum())
    charged = seen_rate(rate, cover)
    assert charged >= rate
    if uploads > 1_000:
        found = is_update.sum() / uploads
        assert abs(found - charged) <= 5 * math.sqrt(charged * (1 - charged) / uploads) + 1e-9
    assert charged == 1.0 if cover == 0 or rate == 1 else charged < 1.0


@pytest.mark.parametrize("sigma", [0.7, 1.0, 3.0])
@pytest.mark.parametrize(("rate", "cover"), [(0.1, 1.0), (0.1, 0.3), (0.5, 0.1), (0.1, 0.0)])
def test_no_test_of_one_round_beats_what_is_charged(rate: float, cover: float, sigma: float) -> None:
    """The adversary sees who uploads and the sum; the exact delta of each event stays within the charge."""
    charged = seen_rate(rate, cover)
    one = charge_builders.gaussian(sigma, rate=charged, is_self_sampled=True)
    uploads = rate + (1 - rate) * cover
    for delta in (1e-2, 1e-4, 1e-6):
        epsilon = compose_epsilon([one], delta)
        true_rate = rate / uploads
        found = uploads * worst_delta([(1 - true_rate, 0.0), (true_rate, 1.0)], sigma, epsilon)
        assert found <= delta * (1 + 1e-6)


@pytest.mark.parametrize("sigma", [1.0, 4.0])
@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("reports", [2, 5])
def test_a_person_with_several_reports_is_charged_the_binomial_mixture(
    reports: int, rate: float, sigma: float
) -> None:
    charge = charge_builders.gaussian(sigma, rate=rate, reports=reports)
    odds = [
        (math.comb(reports, k) * rate**k * (1 - rate) ** (reports - k), float(k)) for k in range(reports + 1)
    ]
    for delta in (1e-2, 1e-5):
        epsilon = compose_epsilon([charge], delta)
        found = worst_delta(odds, sigma, epsilon)
        assert found <= delta * (1 + 1e-6)
        assert found >= delta * 0.5 or epsilon < 1e-2  # and it is no more than a rounding above what is true


def test_m_times_the_clip_at_the_rate_of_one_report_would_charge_too_little() -> None:
    sigma, rate, delta = 0.3, 0.1, 0.2
    odds = [(math.comb(5, k) * rate**k * (1 - rate) ** (5 - k), float(k)) for k in range(6)]
    together = [(1 - rate, 0.0), (rate, 5.0)]
    assert worst_delta(odds, sigma, 5.0) > 1.5 * worst_delta(together, sigma, 5.0)
    right = charge_builders.gaussian(sigma, rate=rate, reports=5)
    assert worst_delta(odds, sigma, compose_epsilon([right], delta)) <= delta * (1 + 1e-6)


def test_without_sampling_m_reports_are_m_times_the_sensitivity() -> None:
    several = charge_builders.gaussian(6.0, rounds=10, reports=3)
    assert spent([several], 1e-5) == spent([replace(several, noise_multiplier=2.0, reports=1)], 1e-5)
    laplace = charge_builders.laplace(6.0, rate=0.1, rounds=10, reports=3)
    assert spent([laplace], 0.0).ad_server == pytest.approx(10 * 3 / 6)
