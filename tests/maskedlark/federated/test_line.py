from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.errors import JobReason
from maskedlark.federated.bounding import UpdateBound, bound_updates
from maskedlark.federated.single_use_logs import OneUseLogs
from maskedlark.federated.strategies.line import Line, Sampler
from maskedlark.federated.strategy import device_stream
from maskedlark.privacy.composing.analytic_gaussian import analytic_sigma, gaussian_delta
from maskedlark.randomness import seeded
from tests.maskedlark.federated.federated_world import MODEL, examples
from tests.refusals import refused


def line(**changes: Any) -> Line:
    settings: dict[str, Any] = {
        "devices": 100,
        "sampling_rate": 1.0,
        "rounds": 1,
        "bound": UpdateBound(clip_norm=1.0, frac_bits=20),
    }
    return Line(**settings | changes)


@pytest.mark.parametrize(
    ("epsilon", "delta", "sigma"),
    [(1, 1e-5, 3.73063), (0.5, 1e-6, 8.05762), (8, 1e-5, 0.600229), (0.1, 1e-6, 36.3047)],
)
def test_sigma_is_the_published_one(epsilon: float, delta: float, sigma: float) -> None:
    assert analytic_sigma(epsilon, delta) == pytest.approx(sigma, rel=1e-5)


@given(epsilon=st.floats(1e-3, 100), log_delta=st.floats(-12, -0.01))
def test_sigma_is_the_least_by_another_library(epsilon: float, log_delta: float) -> None:
    delta = 10**log_delta
    sigma = analytic_sigma(epsilon, delta)
    assert gaussian_delta(sigma, epsilon) <= delta
    assert get_epsilon_gaussian(sigma, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (1e4, 1e-5), (1.0, 0.0), (1.0, 1.0), (float("nan"), 0.1)]
)
def test_an_epsilon_or_delta_outside_its_range_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        analytic_sigma(epsilon, delta)


@pytest.mark.parametrize("sampler", list(Sampler))
def test_the_mean_of_many_updates_has_the_laws_noise(sampler: Sampler) -> None:
    strategy = line(sampler=sampler)
    asked = strategy.next_round(strategy.start(MODEL.initial(seeded(1))))
    assert asked is not None
    devices = 400
    stack = [examples(4, device) for device in range(devices)]
    noised = strategy.device_vectors(
        MODEL, asked, stack, [device_stream(1, 0, device) for device in range(devices)]
    )
    clean = bound_updates(
        strategy.local_differences(
            MODEL, asked, stack, [device_stream(1, 0, device) for device in range(devices)]
        ),
        [4] * devices,
        strategy.bound,
        MODEL.layer_sizes,
    )
    noise = (noised - clean) * 2.0**-20
    law = 2 * 1.0 * analytic_sigma(1, 1e-5)
    spread = 1 / np.sqrt(2 * noise.size)
    assert noise.std() == pytest.approx(law, rel=5 * spread)
    assert noise.mean(axis=0).std() == pytest.approx(law / np.sqrt(devices), rel=5 / np.sqrt(2 * MODEL.size))


def test_noise_is_twice_the_bound_times_sigma_rounded_up() -> None:
    units = line().noise_units
    assert (
        2 * 2**20 * analytic_sigma(1, 1e-5) <= units <= 2 * 2**20 * analytic_sigma(1, 1e-5) * (1 + 1e-5) + 1
    )


def test_helpers_are_told_to_add_no_noise() -> None:
    assert line().helper_mechanism == "none"
    with pytest.raises(ValueError, match="noise_multiplier"):
        line(noise_multiplier=1.0)


def test_noise_too_small_for_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="frac_bits"):
        line(bound=UpdateBound(clip_norm=1.0, frac_bits=8), epsilon=100.0)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=30))
def test_no_log_is_ever_in_two_updates(steps: list[tuple[bool, int]]) -> None:
    logs = OneUseLogs()
    used: list[bytes] = []
    for number, (is_take, count) in enumerate(steps):
        if is_take and count <= len(logs.fresh):
            taken = logs.take(count)
            used.extend(taken.logs)
            logs = taken.rest
        else:
            logs = replace(logs, fresh=(*logs.fresh, *(bytes([number, i]) for i in range(count))))
    assert len(used) == len(set(used))
    assert not set(used) & set(logs.fresh)


def test_taking_more_logs_than_are_fresh_is_refused_and_changes_nothing() -> None:
    logs = OneUseLogs(fresh=(b"a",))
    with refused(JobReason.WRONG_STATE):
        logs.take(2)
    assert logs.take(1).logs == (b"a",)


def test_a_users_epsilon_grows_with_updates_as_the_gaussians_compose() -> None:
    logs = OneUseLogs(fresh=tuple(bytes([i]) for i in range(9)))
    sigma = analytic_sigma(1.0, 1e-5)
    assert logs.user_epsilon(sigma, 1e-5) == 0.0
    for _ in range(9):
        logs = logs.take(1).rest
    assert logs.used_events == 9
    assert logs.user_epsilon(sigma, 1e-5) == pytest.approx(get_epsilon_gaussian(sigma / 3, 1e-5), rel=1e-6)


def test_replacing_an_event_moves_an_update_by_at_most_half_the_noises_sensitivity_twice() -> None:
    strategy = line(bound=UpdateBound(clip_norm=0.01, frac_bits=24))
    asked = strategy.next_round(strategy.start(MODEL.initial(seeded(1))))
    assert asked is not None
    worst = 0.0
    for seed in range(50):
        pair = [examples(6, seed), examples(6, seed + 1000)]
        clean = bound_updates(
            strategy.local_differences(MODEL, asked, pair, [device_stream(1, 0, 0), device_stream(1, 0, 0)]),
            [6, 6],
            strategy.bound,
            MODEL.layer_sizes,
        )
        worst = max(worst, float(np.linalg.norm((clean[0] - clean[1]).astype(float))))
    assert worst > strategy.bound.sensitivity, "more than the central model's sensitivity"
    assert worst / strategy.noise_units <= 1 / strategy.sigma
