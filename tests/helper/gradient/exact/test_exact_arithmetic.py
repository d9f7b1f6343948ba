"""The parts below the engine: field arithmetic in compiled loops, tables, rows, windows, the clip bound."""

from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit

from helper.gradient.exact.kernels import field as field_kernels
from helper.gradient.exact.kernels import tables
from helper.gradient.exact.kernels.clipping import MAX_SENSITIVITY, _safe_bound
from helper.gradient.exact.kernels.rows import quantise
from helper.gradient.exact.kernels.windows import slide
from maskedlark.numbers.field import MODULUS
from maskedlark.privacy.clip import Clip, Norm

EDGES = [
    0,
    1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 2**31 - 1,
    2**63 - 2**31,
    2**63,
    MODULUS - 2**32,
    MODULUS - 1,
]
elements = st.sampled_from(EDGES) | st.integers(0, MODULUS - 1)


@njit(cache=False)
def _field(a: np.uint64, b: np.uint64, value: np.int64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    return (
        field_kernels.add(a, b),
        field_kernels.multiply(a, b),
        field_kernels.from_signed(value),
        field_kernels.shift(a, 32),
    )


@njit(cache=False)
def _limbs(a: np.uint64) -> tuple[np.int32, np.int32]:
    return field_kernels.split_limbs(a)


@settings(deadline=None)  # the first call compiles
@given(a=elements, b=elements, value=st.integers(-(2**62) + 1, 2**62 - 1))
def test_compiled_field_operations_are_those_of_integers(a: int, b: int, value: int) -> None:
    got = [int(result) for result in _field(np.uint64(a), np.uint64(b), np.int64(value))]
    assert got == [(a + b) % MODULUS, a * b % MODULUS, value % MODULUS, a * 2**32 % MODULUS]


@pytest.mark.parametrize("value", [-(2**62) + 1, -1, 0, 1, 2**62 - 1])
def test_a_signed_integers_element_is_the_same_uncompiled(value: int) -> None:
    plain: Any = field_kernels.from_signed
    with np.errstate(over="ignore"):
        assert int(plain.py_func(np.int64(value))) == value % MODULUS


@settings(deadline=None)
@given(a=elements)
@example(a=2**63 - 2**31 - 1)
@example(a=2**63 - 2**31)
@example(a=MODULUS - 1)
def test_two_signed_limbs_stand_for_the_element(a: int) -> None:
    low, high = (int(limb) for limb in _limbs(np.uint64(a)))
    assert -(2**31) <= low < 2**31
    assert -(2**31) <= high < 2**31
    assert (low + 2**32 * high - a) % MODULUS == 0


def test_tables_are_the_functions_rounded() -> None:
    with mpmath.workprec(200):
        for k in range(tables.CELLS + 1):
            t = mpmath.mpf(k) / 256
            assert tables.exponential()[k] == int(mpmath.nint(mpmath.exp(-t) * tables.ONE))
            assert tables.softplus_tail()[k] == int(mpmath.nint(mpmath.log1p(mpmath.exp(-t)) * tables.ONE))


@settings(deadline=None)
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6))
def test_rows_round_to_the_nearest_integer_of_fifteen_bits(values: list[float]) -> None:
    row = quantise(np.array([values]), Norm.L2)
    exponent = int(row.exponent[0])
    exact = [Fraction(value) * Fraction(2) ** exponent for value in values]
    assert row.q[0].tolist() == [max(-32767, min(32767, round(value))) for value in exact]
    assert int(row.norm[0]) == sum(q * q for q in row.q[0].tolist())
    if exponent not in (-48, 0, 78):
        assert max(abs(int(q)) for q in row.q[0]) >= 2**14


@given(bound=st.floats(2.0**-20, 2.0**20), frac_bits=st.integers(8, 40), norm=st.sampled_from(list(Norm)))
def test_the_safe_bound_is_just_below_the_sensitivity(bound: float, frac_bits: int, norm: Norm) -> None:
    clip = Clip(norm=norm, bound=bound, frac_bits=frac_bits)
    exact = Fraction(clip.sensitivity, 2**frac_bits)
    lowered = Fraction(_safe_bound(clip))
    assert lowered <= exact * (1 - Fraction(1, 2**40))
    assert clip.sensitivity >= MAX_SENSITIVITY or lowered >= exact * (1 - Fraction(1, 2**39)) - Fraction(
        1, 2**frac_bits
    )


@pytest.mark.parametrize(("pads", "first"), [((0, 0), [0, 2, 4]), ((2, 1), [-1, 0, 2])])
def test_windows_look_where_onnx_says(pads: tuple[int, int], first: list[int]) -> None:
    windows = slide((7,), (3,), strides=(2,), pads=pads, dilations=(2,))
    assert windows.places[0].tolist() == first
    assert windows.result == ((7 + sum(pads) - 5) // 2 + 1,)
