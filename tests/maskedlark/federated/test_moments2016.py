import math

import pytest

from maskedlark.federated.moments2016 import MomentsStep, _log_moment, epsilon_2016
from maskedlark.privacy.accounting import compose_epsilon
from tests import charge_builders

TABLE_1: dict[tuple[float, float, float], str] = {
    # (users, sample, noise): the seven printed cells, McMahan et al. 2018, table 1
    (1e5, 1e2, 1.0): "0.97 0.98 1.00 1.07 1.18 2.21 7.50",
    (1e6, 1e1, 1.0): "0.68 0.69 0.69 0.69 0.69 0.72 0.73",
    (1e6, 1e3, 1.0): "1.17 1.17 1.20 1.28 1.39 2.44 8.13",
    (1e6, 1e4, 1.0): "1.73 1.92 2.08 3.06 8.49 32.38 187.01",
    (1e6, 1e3, 3.0): "0.47 0.47 0.48 0.48 0.49 0.67 1.95",
    (1e9, 1e3, 1.0): "0.84 0.84 0.84 0.85 0.88 0.88 0.88",
}
TABLE_2: dict[tuple[float, float], str] = {
    (763430.0, 5000.0): "4.634",
    (763430.0, 1667.0): "2.314",
    (763430.0, 1250.0): "2.038",
    (1e8, 5000.0): "1.152",
    (1e8, 1667.0): "0.991",
    (1e8, 1250.0): "0.987",
}


@pytest.mark.parametrize(("users", "sample", "noise"), list(TABLE_1))
def test_the_papers_first_table_comes_out_to_the_digit(users: float, sample: float, noise: float) -> None:
    ours = [
        epsilon_2016(
            [MomentsStep(sampling_rate=sample / users, noise_multiplier=noise, rounds=10**power)], users**-1.1
        )
        for power in range(7)
    ]
    assert " ".join(f"{epsilon:.2f}" for epsilon in ours) == TABLE_1[users, sample, noise]


@pytest.mark.parametrize(("users", "sample"), list(TABLE_2))
def test_the_papers_second_table_comes_out_and_less_is_charged(users: float, sample: float) -> None:
    step = MomentsStep(sampling_rate=sample / users, noise_multiplier=1.0, rounds=5000)
    theirs = epsilon_2016([step], 1e-9)
    charge = charge_builders.gaussian(1.0, rate=step.sampling_rate, rounds=step.rounds)
    assert f"{theirs:.3f}" == TABLE_2[users, sample]
    assert compose_epsilon([charge], 1e-9) < 0.9 * theirs


@pytest.mark.parametrize(
    ("rate", "noise", "moment"), [(0.1, 1.0, 1), (0.1, 1.0, 7), (0.5, 3.0, 32), (0.01, 2.0, 12)]
)
def test_a_log_moment_is_its_integral(rate: float, noise: float, moment: int) -> None:
    from scipy.integrate import quad

    def integrand(x: float) -> float:
        base = math.exp(-x * x / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
        ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * noise**2))
        return float(base * ratio ** (moment + 1))

    expected, _ = quad(integrand, -40 * noise, moment + 1 + 40 * noise, points=[0.0, moment + 1.0], limit=500)
    assert _log_moment(rate, noise, moment) == pytest.approx(math.log(expected), rel=1e-6)


def test_without_sampling_the_moment_is_the_gaussians() -> None:
    assert _log_moment(1.0, 2.0, 5) == pytest.approx(5 * 6 / (2 * 4))


@pytest.mark.parametrize(
    ("rate", "noise", "delta"), [(0.0, 1.0, 1e-5), (1.1, 1.0, 1e-5), (0.1, 0.0, 1e-5), (0.1, 1.0, 0.0)]
)
def test_a_parameter_outside_its_range_is_refused(rate: float, noise: float, delta: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        epsilon_2016([MomentsStep(sampling_rate=rate, noise_multiplier=noise, rounds=1)], delta)
