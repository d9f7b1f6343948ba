"""Each kind of product by the faster way: whatever is chosen, the bits are the same."""

from itertools import product

import numpy as np
import pytest

from helper.gradient.exact.products.fastest import BackendChoice, FastestBackend, measure
from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.self_check import NUMERICS_DIGEST, check_backends, golden_digest

WAYS = ("int8", "float64")


def choice(first: str, second: str, third: str, fourth: str) -> BackendChoice:
    return BackendChoice(
        bytes_by_weights=first, rows_by_weights=second, sum_of_bytes=third, sum_of_rows=fourth
    )


@pytest.mark.parametrize("ways", list(product(WAYS, repeat=4)), ids="-".join)
def test_every_choice_gives_the_same_integers(ways: tuple[str, str, str, str]) -> None:
    check_backends(FastestBackend(choice(*ways)), Float64Backend())


@pytest.mark.parametrize(
    "ways", [("int8", "int8", "float64", "float64"), ("float64", "int8", "int8", "float64")]
)
def test_mixed_choices_give_the_golden_digest(ways: tuple[str, str, str, str]) -> None:
    assert golden_digest(FastestBackend(choice(*ways))) == NUMERICS_DIGEST


def test_the_choice_is_made_once_and_names_a_way_for_each_kind() -> None:
    found = measure()
    assert measure() is found
    assert {
        found.bytes_by_weights,
        found.rows_by_weights,
        found.sum_of_bytes,
        found.sum_of_rows,
    } <= set(WAYS)
    assert str(found).count("by") == 4


def test_a_kind_of_operand_goes_the_way_that_was_chosen_for_it() -> None:
    backend = FastestBackend(choice("float64", "int8", "int8", "float64"))
    factor = backend.factor(np.ones((64, 3), np.int16))
    factor.product(np.ones((2, 64), np.uint8))
    assert list(factor._made) == ["float64"]  # type: ignore[attr-defined]  # how it was computed shows nowhere else
    factor.product(np.ones((2, 64), np.int16))
    assert list(factor._made) == ["float64", "int8"]  # type: ignore[attr-defined]
