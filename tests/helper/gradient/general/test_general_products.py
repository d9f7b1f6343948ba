"""Exact masked products: the float64 matrix products against Python's integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helper.gradient.general import masked_products
from helper.gradient.general.masked_products import MAX_ROWS, MaskedProducts
from maskedlark.numbers import field
from maskedlark.numbers.field import MODULUS

EXTREME_SHARES = [0, 1, 2**16 - 1, 2**32, 2**63, MODULUS - 1]


def by_python(values: list[list[int]], shares: list[int]) -> list[int]:
    columns = len(values[0]) if values else 0
    return [
        sum(share * row[column] for share, row in zip(shares, values, strict=True)) % MODULUS
        for column in range(columns)
    ]


@settings(deadline=None)
@given(st.data())
def test_products_are_those_of_pythons_integers(data: st.DataObject) -> None:
    largest = data.draw(st.sampled_from([0, 1, 2**24, 2**24 + 1, 2**40]))
    rows, columns, calls = (
        data.draw(st.integers(1, 5)),
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(0, 3)),
    )
    products = MaskedProducts(columns, largest)
    entry = st.integers(-largest, largest) | st.sampled_from([largest, -largest])
    share = st.integers(0, MODULUS - 1) | st.sampled_from(EXTREME_SHARES)
    expected = [0] * columns
    for _ in range(calls):
        values = data.draw(
            st.lists(st.lists(entry, min_size=columns, max_size=columns), min_size=rows, max_size=rows)
        )
        shares = data.draw(st.lists(share, min_size=rows, max_size=rows))
        products.add(np.array(values, np.int64), np.array(shares, np.uint64))
        expected = [
            (old + new) % MODULUS for old, new in zip(expected, by_python(values, shares), strict=True)
        ]
    assert products.total().tolist() == expected


@pytest.mark.parametrize("largest", [2**24, 2**40])
def test_the_largest_sums_are_exact(largest: int) -> None:
    """Every bit of every limb is set, so that a partial sum past 2^53 would lose some."""
    value, share = largest - 1, 0xFFFFFFFEFFFFFFFF
    values = np.full((MAX_ROWS, 2), value, np.int64)
    values[:, 1] = -value
    values[0] = largest
    products = MaskedProducts(2, largest)
    for _ in range(3):
        products.add(values, np.full(MAX_ROWS, share, np.uint64))
    rows = (MAX_ROWS - 1) * value
    assert products.total().tolist() == [
        3 * share * (largest + rows) % MODULUS,
        3 * share * (largest - rows) % MODULUS,
    ]


def test_pending_sums_move_into_the_field_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_products, "_MAX_PENDING", 2)
    products = MaskedProducts(1, 2**40)
    for _ in range(5):
        products.add(np.array([[2**40]]), np.array([MODULUS - 1], np.uint64))
    assert field.to_signed(products.total()).tolist() == [-5 * 2**40]
