"""Noise split between the helpers: half of the variance each, charged as what each adversary really faces."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.errors import InvalidTask, JobReason
from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import MIN_SCALE, split_scale
from maskedlark.privacy.sample_size import EXPOSURE
from maskedlark.privacy.samplers import MAX_SCALE
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import (
    AggregateShare,
    combine,
    multiplier_for_each_helper,
    units_of_each_helper,
)
from tests.builders import World, fitting_noise, helper_share, job_spec, world, zeros
from tests.refusals import refused

COUNT = 20_000


def job(of: World, **changes: Any) -> JobSpec:
    usual = {"rounds": 50, "sampling_numerator": 1 << 30, "noise_multiplier": 2.0}
    return job_spec(of.task.task_id, **{**usual, **changes})


def noise_of_sum(of: World) -> np.ndarray[Any, Any]:
    """A released sum of no values at all."""
    answers: list[AggregateShare] = [
        helper_share(of, job(of), role, lambda _: zeros(of.task, COUNT), records=0, num_values=COUNT)
        for role in (0, 1)
    ]
    return combine(answers[0], answers[1]).astype(np.float64)


SPLIT = world(mechanism="gaussian", noise="split", clip_norm=0.5)
FULL = world(mechanism="gaussian", noise="full", clip_norm=0.5)


@given(st.integers(1, MAX_SCALE))
def test_the_split_scale_is_the_least_whose_two_variances_are_enough(scale: int) -> None:
    half = split_scale(scale)
    assert 2 * half**2 >= scale**2 > 2 * (half - 1) ** 2


def test_each_half_of_the_noise_has_the_least_scale_or_more() -> None:
    assert units_of_each_helper(SPLIT.task, 1446.5, 1) == MIN_SCALE
    with refused(JobReason.NOISE_OUT_OF_RANGE):
        units_of_each_helper(SPLIT.task, 1445.5, 1)


def test_split_noise_adds_up_to_once_the_variance_and_full_noise_to_twice() -> None:
    once = (2.0 * SPLIT.task.clip.sensitivity) ** 2
    assert noise_of_sum(SPLIT).var() / once == pytest.approx(1, abs=0.06)
    assert noise_of_sum(FULL).var() / once == pytest.approx(2, abs=0.12)


def test_split_noise_is_charged_as_what_each_adversary_faces() -> None:
    """Nobody else's noise is counted twice.

    The charge is that of a job with full noise of the helper's real scale.
    """
    split = job(SPLIT).charge(SPLIT.task, 50)
    real = job(SPLIT).noise_units(SPLIT.task) / SPLIT.task.clip.sensitivity
    assert split.noise_multiplier == pytest.approx(real, rel=1e-8)
    assert split.noise_multiplier <= real
    at_rate_1 = job(SPLIT, sampling_numerator=1 << 32)
    costs = spent([at_rate_1.charge(SPLIT.task, 50)], 1e-6)
    full = spent([at_rate_1.charge(FULL.task, 50)], 1e-6)
    assert costs.ad_server == pytest.approx(full.colluding)  # all the noise in the sum is one full noise
    assert costs.colluding > full.colluding > full.ad_server


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_fitted_multiplier_keeps_its_budgets_when_the_noise_is_split(epsilon: float) -> None:
    needed = fitting_noise(
        epsilon,
        1e-6,
        mechanism=Mechanism.GAUSSIAN,
        sampling_rate=0.25,
        rounds=50,
        already=(),
        collusion_epsilon=math.inf,
    )
    multiplier = multiplier_for_each_helper(SPLIT.task, needed)
    charged = job(SPLIT, noise_multiplier=multiplier).charge(SPLIT.task, 50)
    assert needed <= charged.noise_multiplier < needed * 1.0001
    assert spent([charged], 1e-6).ad_server <= epsilon
    assert multiplier_for_each_helper(FULL.task, needed) == needed


def test_a_task_without_noise_is_charged_as_such() -> None:
    nothing = world(mechanism="none")
    assert job(nothing, noise_multiplier=0.0).charge(nothing.task, 3) == Charge(
        mechanism=Mechanism.NONE, noise_multiplier=0.0, sampling_rate=0.25, rounds=3, exposure=EXPOSURE
    )


@pytest.mark.parametrize(("mechanism", "norm"), [("laplace", "l1"), ("none", "l2")])
def test_only_gaussian_noise_can_be_split(mechanism: str, norm: str) -> None:
    with pytest.raises(InvalidTask, match="split"):
        world(mechanism=mechanism, norm=norm, noise="split")


def test_a_half_that_is_too_small_for_the_accountant_is_refused() -> None:
    coarse = world(mechanism="gaussian", noise="split", clip_norm=1.0, frac_bits=16)
    least = 1024 / 65536
    with refused(JobReason.NOISE_OUT_OF_RANGE):
        job(coarse, noise_multiplier=1.3 * least).noise_units(coarse.task)
    assert job(coarse, noise_multiplier=1.5 * least).noise_units(coarse.task) >= 1024
