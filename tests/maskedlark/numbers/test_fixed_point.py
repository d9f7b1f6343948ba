import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.errors import JobReason
from maskedlark.numbers import fixed_point
from maskedlark.numbers.field import MAX_SIGNED, MODULUS, from_signed, to_signed, total
from maskedlark.privacy.clip import Clip, Norm
from tests.refusals import refused


def test_the_sensitivity_is_the_bound_in_units_rounded_down() -> None:
    assert Clip(norm=Norm.L2, bound=1.0, frac_bits=32).sensitivity == 1 << 32
    assert Clip(norm=Norm.L1, bound=0.1, frac_bits=4).sensitivity == 1
    assert Clip(norm=Norm.L1, bound=0.3, frac_bits=20).sensitivity == 314572


@given(st.integers(1, 1 << 24), st.integers(1, 1 << 50), st.integers(0, 1 << 60))
def test_a_job_is_refused_exactly_when_its_worst_sum_would_wrap(
    records: int, sensitivity: int, noise_bound: int
) -> None:
    worst = records * sensitivity + noise_bound
    if worst <= MAX_SIGNED:
        fixed_point.check_no_overflow(records=records, sensitivity=sensitivity, noise_bound=noise_bound)
    else:
        with refused(JobReason.OVERFLOW):
            fixed_point.check_no_overflow(records=records, sensitivity=sensitivity, noise_bound=noise_bound)


def test_the_bound_is_tight() -> None:
    """The largest sum that passes decodes right; one unit more wraps to a negative number."""
    fixed_point.check_no_overflow(records=1, sensitivity=MAX_SIGNED, noise_bound=0)
    with refused(JobReason.OVERFLOW):
        fixed_point.check_no_overflow(records=1, sensitivity=MAX_SIGNED, noise_bound=1)
    at_bound = total(from_signed(np.array([MAX_SIGNED - 5, 5], np.int64)))
    past_bound = total(from_signed(np.array([MAX_SIGNED, 1], np.int64)))
    assert int(to_signed(at_bound)) == MAX_SIGNED
    assert int(to_signed(past_bound)) < 0


def test_the_largest_signed_element_is_half_of_the_modulus_rounded_down() -> None:
    half = (MODULUS - 1) // 2
    elements = np.array([half, half + 1], np.uint64)
    assert to_signed(elements).tolist() == [half, -half]
    assert from_signed(np.array([half, -half], np.int64)).tolist() == elements.tolist()
