"""The claims of federated rounds at their worst settings: exact sensitivities, and epsilons from below."""

import math
from itertools import product

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as distributions

from maskedlark.federated.bounding import MAX_UNITS, UpdateBound, bound_updates
from maskedlark.federated.moments2016 import MomentsStep, epsilon_2016
from maskedlark.privacy.accounting import spent
from maskedlark.releases.update import seen_rate
from tests import charge_builders

SIZES = (5, 1, 7, 1)
WIDTH = sum(SIZES)
FLAGS = [
    flags
    for flags in product((False, True), repeat=4)
    if not (flags[1] and flags[2])  # weight-aware clipping goes with no summed weight
]


def differences(clip: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    """Of every magnitude that float32 has, and at the bound itself."""
    drawn = np.random.default_rng(1)
    rows = [
        drawn.normal(size=(20, WIDTH)) * 10.0 ** drawn.uniform(-42, 30, (20, 1)),
        np.full((1, WIDTH), clip / math.sqrt(WIDTH)),
        np.eye(WIDTH)[:3] * clip,
        np.eye(WIDTH)[:2] * 3e38,
        np.full((1, WIDTH), 3e38),
        np.full((1, WIDTH), -3e38),
        np.full((1, WIDTH), 1e-45),
    ]
    return np.concatenate(rows).astype(np.float32)


@pytest.mark.parametrize(
    ("clip", "frac_bits"),
    [(1.0, 24), (8 / 2**24, 24), (9.7 / 2**16, 16), (MAX_UNITS / 2**20, 20), (1.7, 30), (1e-3, 24)],
)
@pytest.mark.parametrize("cap", [None, 3.0])
def test_no_difference_moves_a_sum_by_more_than_is_charged(
    clip: float, frac_bits: int, cap: float | None
) -> None:
    """Weights and clip counts included: the square of each row, in exact integers."""
    given = differences(clip)
    counts = [number % 9 for number in range(len(given))]
    for is_per_layer, is_weight_aware, is_weight_summed, is_counted in FLAGS:
        bound = UpdateBound(
            clip_norm=clip,
            frac_bits=frac_bits,
            is_per_layer=is_per_layer,
            weight_cap=cap,
            is_weight_aware=is_weight_aware,
            is_weight_summed=is_weight_summed,
            is_counted=is_counted,
        )
        with np.errstate(all="ignore"):
            rows = bound_updates(given, counts, bound, SIZES)
        squares = [sum(int(value) ** 2 for value in row) for row in rows]
        assert max(squares) <= bound.sensitivity**2
        assert all(square == 0 for square, count in zip(squares, counts, strict=True) if not count)


def from_below(rate: float, noise: float, rounds: int, delta: float) -> float:
    """An epsilon that such rounds surely cost: losses rounded down to a grid, and composed."""
    one = distributions.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        value_discretization_interval=1e-3,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    return float(one.self_compose(rounds).get_epsilon_for_delta(delta))


WORST = [
    (0.01, 0.5, 100, 1.0, 1e-5),
    (0.5, 0.3, 1, 1.0, 1e-5),
    (0.9, 1.0, 10, 1.0, 1e-3),
    (0.1, 1.0, 50, 0.0, 1e-5),
    (0.1, 2.0, 100, 0.5, 1e-5),
    (0.999, 0.7, 5, 1.0, 1e-8),
    (0.02, 0.25, 3, 1.0, 1e-2),
]
"""Sampling rate, each helper's noise, rounds, cover, delta."""


@pytest.mark.parametrize(("rate", "noise", "rounds", "cover", "delta"), WORST)
def test_self_sampling_devices_are_charged_no_less_than_rounds_surely_cost(
    rate: float, noise: float, rounds: int, cover: float, delta: float
) -> None:
    charged = charge_builders.gaussian(
        noise, rate=seen_rate(rate, cover), rounds=rounds, is_self_sampled=True
    )
    claimed, seen = spent([charged], delta), min(1.0, rate / (rate + (1 - rate) * cover))
    assert claimed.ad_server >= from_below(seen, noise * math.sqrt(2), rounds, delta) * (1 - 1e-9)
    assert claimed.colluding >= from_below(seen, noise, rounds, delta) * (1 - 1e-9)


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta"), [(*one[:3], one[4]) for one in WORST])
def test_the_papers_accountant_is_never_below_what_rounds_surely_cost(
    rate: float, noise: float, rounds: int, delta: float
) -> None:
    step = MomentsStep(sampling_rate=rate, noise_multiplier=noise, rounds=rounds)
    assert epsilon_2016([step], delta) >= from_below(rate, noise, rounds, delta)
