"""The bound of an adaptive clip.

Its sensitivity, how it moves, how it travels, and that a round's sum carries an exact count.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.errors import JobReason
from maskedlark.privacy import adaptive_clip
from maskedlark.privacy.adaptive_clip import LEAST_BOUND, AdaptiveClip, RoundInput, on_grid
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.releases.job import JobSpec
from tests.builders import World, helper_share, job_spec, world, zeros
from tests.refusals import refused

CLIP = Clip(norm=Norm.L2, bound=2.0, frac_bits=32)


def job(of: World, **changes: Any) -> JobSpec:
    usual = {"rounds": 5, "noise_multiplier": 1.5, "is_clip_adaptive": True}
    return job_spec(of.task.task_id, **{**usual, **changes})


# --- the sensitivity of a value with its count


@given(bound=st.floats(2.0**-10, 2.0**10), norm=st.sampled_from(Norm), frac_bits=st.integers(16, 40))
def test_the_sensitivity_covers_a_value_at_the_bound_with_its_count(
    bound: float, norm: Norm, frac_bits: int
) -> None:
    clip = Clip(norm=norm, bound=bound, frac_bits=frac_bits, is_counted=True)
    length, count, released = clip.sensitivity, clip.count_units, clip.released_sensitivity
    if norm is Norm.L1:
        assert released == length + count
    else:
        assert (released - 1) ** 2 < length**2 + count**2 <= released**2
        assert released <= length * 1.008 + 1
    assert replace(clip, is_counted=False).released_sensitivity == length


def test_the_count_is_paid_for_by_the_noise_and_the_charge_stays_the_multiplier() -> None:
    of = world(mechanism="gaussian", clip_norm=0.5)
    plain, adaptive = job(of, is_clip_adaptive=False), job(of)
    ratio = adaptive.noise_units(of.task) / plain.noise_units(of.task)
    assert ratio == pytest.approx(math.hypot(1, 1 / 8), rel=1e-6)
    assert adaptive.charge(of.task, 5) == plain.charge(
        of.task, 5
    )  # a noise multiplier is relative to the whole value


def test_a_round_is_noised_by_its_own_bound_and_never_by_more_than_the_tasks() -> None:
    of = world(mechanism="gaussian", clip_norm=0.5)
    small = job(of).clip(of.task, 0.125)
    assert job(of).noise_units(of.task, small) == pytest.approx(job(of).noise_units(of.task) / 4, rel=1e-6)
    assert job(of).num_values(7) == 8
    assert job(of, is_clip_adaptive=False).num_values(7) == 7


def run_round(of: World, clip: Clip | None, claimed: int) -> None:
    nothing = zeros(of.task, 3, sensitivity=claimed)
    helper_share(of, job(of), 0, lambda _: nothing, records=0, num_values=3, clip=clip)


def test_a_sum_function_that_bounds_its_values_by_more_than_the_round_is_a_bug() -> None:
    of = world(mechanism="gaussian", clip_norm=0.5)
    clip = job(of).clip(of.task, 0.125)
    run_round(of, clip, clip.released_sensitivity)
    with pytest.raises(AssertionError):
        run_round(of, clip, clip.released_sensitivity + 1)
    with pytest.raises(AssertionError):
        run_round(of, replace(clip, bound=1.0), 1)


def test_a_bound_too_small_for_the_accountants_noise_is_refused() -> None:
    of = world(mechanism="gaussian", clip_norm=1.0, frac_bits=16)
    job(of).check_sums_fit(of.task, records=10, num_parameters=5)
    with refused(JobReason.NOISE_OUT_OF_RANGE):
        job(of).noise_units(of.task, job(of).clip(of.task, 2.0**-10))


# --- how it moves


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("initial", [0.001, 0.1, 1.0])
def test_the_bound_finds_the_quantile_of_the_norms_under_noise(quantile: float, initial: float) -> None:
    rng = np.random.default_rng(5)
    settings = AdaptiveClip(quantile=quantile, initial=initial)
    bound = settings.initial
    settled = []
    for index in range(400):
        norms = rng.lognormal(-3.0, 0.7, 500)
        excess = float(np.where(norms <= on_grid(bound), 1.0, -1.0).mean()) + rng.normal(0, 0.1)
        bound = settings.next(bound, excess)
        if index >= 300:
            settled.append(bound)
    target = float(np.quantile(rng.lognormal(-3.0, 0.7, 100_000), quantile))
    assert np.median(settled) == pytest.approx(target, rel=0.15)


@given(
    share=st.floats(LEAST_BOUND, 1.0),
    excess=st.floats(allow_nan=False, allow_infinity=False),
    rate=st.floats(0.01, 2.0),
)
def test_a_step_stays_in_the_range_and_moves_by_a_bounded_factor(
    share: float, excess: float, rate: float
) -> None:
    after = AdaptiveClip(learning_rate=rate).next(share, excess)
    assert LEAST_BOUND <= after <= 1.0
    assert abs(math.log(after / share)) <= rate / 2 + 1e-9


@given(st.floats(LEAST_BOUND, 1.0))
def test_bounds_are_sent_rounded_down_a_little(share: float) -> None:
    sent = on_grid(share)
    assert share * 2 ** (-1 / adaptive_clip.STEPS_PER_OCTAVE) * 0.999 <= sent <= share * (1 + 1e-12)
    assert on_grid(1.0) == 1.0
    assert (
        RoundInput.decode(RoundInput(weights=b"w", bound=CLIP.bound * min(1.0, sent)).encode(), CLIP).weights
        == b"w"
    )


# --- how it travels


def test_a_rounds_input_survives_its_bytes() -> None:
    sent = RoundInput(weights=b"some weights", bound=1.25)
    assert RoundInput.decode(sent.encode(), CLIP) == sent
    assert RoundInput.decode(sent._replace(bound=2.0).encode(), CLIP).bound == 2.0


@pytest.mark.parametrize("bound", [2.0000001, 1e300, math.inf, -1.0, 0.0, 2.0**-20, math.nan])
def test_a_bound_beyond_the_tasks_or_next_to_nothing_is_refused(bound: float) -> None:
    with refused(JobReason.MALFORMED):
        RoundInput.decode(RoundInput(weights=b"w", bound=bound).encode(), CLIP)


def test_the_least_bound_is_accepted_and_the_next_double_below_is_refused() -> None:
    least = CLIP.bound * LEAST_BOUND / 2
    assert RoundInput.decode(RoundInput(weights=b"w", bound=least).encode(), CLIP).bound == least
    with refused(JobReason.MALFORMED):
        RoundInput.decode(RoundInput(weights=b"w", bound=math.nextafter(least, 0.0)).encode(), CLIP)


def test_a_rounds_input_without_a_bound_is_refused() -> None:
    with refused(JobReason.MALFORMED):
        RoundInput.decode(bytes(7), CLIP)
