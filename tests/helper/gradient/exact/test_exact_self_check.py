"""The golden vectors, and the check that a helper makes before it serves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helper.gradient.exact import self_check
from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.products import int8 as product_int8
from helper.gradient.exact.products import product
from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.products.int8 import Int8Backend
from helper.gradient.exact.products.product import Factor, Weights
from maskedlark.model.weights import MAX_MAGNITUDE
from maskedlark.numbers.field import random_vector
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.randomness import seeded
from tests.helper.gradient.exact.oracle import norm_at_most
from tests.vectors.numerics import generate

FULL = json.loads(generate.FULL.read_text())
SHIPPED = json.loads(generate.SHIPPED.read_text())


def test_this_machine_passes() -> None:
    assert self_check.self_check() == self_check.NUMERICS_DIGEST


def test_seven_bit_digits_give_the_golden_vectors_too() -> None:
    assert self_check.golden_digest(Int8Backend(base_bits=7)) == self_check.NUMERICS_DIGEST


@pytest.mark.parametrize("inputs", [1, 7, 40])
def test_sums_of_inputs_in_blocks_are_those_of_all_at_once(
    inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    operand, masked = rng.integers(0, 256, (30, 41)).astype(np.uint8), random_vector(150, seeded(1))
    given = operand, masked.reshape(30, 5)
    whole = self_check._masked_sum(Float64Backend(), *given, is_transposed=False)
    monkeypatch.setattr(product, "_PRODUCTS_BYTES", 0)
    monkeypatch.setattr(product, "_LEAST_INPUTS", inputs)
    for is_transposed in (False, True):
        for backend in (Int8Backend(), Float64Backend()):
            found = self_check._masked_sum(backend, *given, is_transposed=is_transposed)
            assert np.array_equal(found, whole)


@pytest.mark.parametrize("case", FULL, ids=lambda case: case["name"])
def test_the_oracle_still_gives_the_golden_vectors(case: dict[str, Any]) -> None:
    assert generate.outputs(case) == {
        key: case[key] for key in ("integers", "aggregate_sha256", "values_digest")
    }


@pytest.mark.parametrize("case", FULL, ids=lambda case: case["name"])
def test_every_golden_vector_keeps_its_bound_and_is_not_all_zero(case: dict[str, Any]) -> None:
    clip = Clip(norm=Norm(case["norm"]), bound=case["bound"], frac_bits=case["frac_bits"])
    vectors = [vector for record in case["integers"] for vector in record]
    assert all(norm_at_most(vector, clip) for vector in vectors)
    assert any(any(vector) for vector in vectors)


def test_what_is_shipped_is_the_vectors_without_their_integers() -> None:
    assert [{key: value for key, value in case.items() if key != "integers"} for case in FULL] == SHIPPED


class SaturatingBackend(Float64Backend):
    """A kernel whose sums stop at 32 bits."""

    def factor(self, weights: Weights, buffers: Buffers | None = None) -> Factor:
        factor = super().factor(weights, buffers)

        class Saturating:
            def product(self, operand: NDArray[Any]) -> NDArray[np.float64]:
                return np.clip(factor.product(operand), -(2.0**31), 2.0**31)

        return Saturating()


def test_a_backend_that_saturates_is_found() -> None:
    with pytest.raises(self_check.SelfCheckFailed, match="extreme values"):
        self_check.check_backends(SaturatingBackend(), Int8Backend())


class Faulty(Float64Backend):
    """Wrong by one, at some weights and operands only."""

    def __init__(self, is_wrong: Callable[[NDArray[Any], NDArray[Any]], bool]) -> None:
        super().__init__()
        self._is_wrong = is_wrong

    def factor(self, weights: Weights, buffers: Buffers | None = None) -> Factor:
        factor, is_wrong = super().factor(weights, buffers), self._is_wrong

        class Wrong:
            def product(self, operand: NDArray[Any]) -> NDArray[np.float64]:
                found = factor.product(operand)
                return found + 1 if is_wrong(weights, operand) else found

        return Wrong()


@pytest.mark.parametrize(
    "is_wrong",
    [
        lambda weights, operand: bool((weights == MAX_MAGNITUDE).all()),
        lambda weights, operand: bool((weights == -MAX_MAGNITUDE).all()),
        lambda weights, operand: bool(((weights == MAX_MAGNITUDE) & (operand.min() == 255)).all()),
        lambda weights, operand: bool(((weights == -MAX_MAGNITUDE) & (operand.max() == -32767)).all()),
        lambda weights, operand: bool((operand == -32767).all()),
        lambda weights, operand: operand.dtype == np.uint8 and weights.size == 1,
        lambda weights, operand: weights.shape == (65, 17) and len(operand) == 3,
        lambda weights, operand: weights.shape == (300, 33) and len(operand) == 70,
        lambda weights, operand: len(operand) == product.CHUNK_RECORDS,
        lambda weights, operand: set(np.unique(operand)) == {-32767, 0, 32767},
    ],
)
def test_a_backend_that_is_wrong_at_one_extreme_or_size_is_found(
    is_wrong: Callable[[NDArray[Any], NDArray[Any]], bool],
) -> None:
    with pytest.raises(self_check.SelfCheckFailed, match="extreme values"):
        self_check.check_backends(Faulty(is_wrong), Float64Backend())


@pytest.mark.parametrize("shape", [(1, 64, 16), (64, 256, 64), (127, 2048, 129)])
@pytest.mark.parametrize("digit", [-128, 127])
def test_digits_are_tried_at_both_ends_and_several_sizes(
    shape: tuple[int, int, int], digit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_at(is_wrong: bool) -> bool:
        def multiply(left: NDArray[np.uint8], right: NDArray[np.int8]) -> NDArray[np.int64]:
            assert left.min() == 255
            sums = np.full((len(left), right.shape[1]), 255 * int(right[0, 0]) * len(right))
            if is_wrong and (*left.shape, right.shape[1]) == shape and right.max() == digit:
                sums[0, 0] += 1
            return sums

        monkeypatch.setattr(product_int8, "multiply_digits", multiply)
        product_int8._is_saturating.cache_clear()
        return product_int8._is_saturating()

    try:
        assert wrong_at(True)
        assert not wrong_at(False)
    finally:
        product_int8._is_saturating.cache_clear()


def test_digits_that_saturate_choose_the_narrow_base(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(left: NDArray[np.uint8], right: NDArray[np.int8]) -> NDArray[np.int32]:
        pairs = left[:, None, :].astype(np.int32) * right.T[None].astype(np.int32)
        sums: NDArray[np.int32] = (
            np.clip(pairs.reshape(*pairs.shape[:2], -1, 2).sum(3), -32768, 32767).sum(2).astype(np.int32)
        )
        return sums

    product_int8._is_saturating.cache_clear()
    monkeypatch.setattr(product_int8, "multiply_digits", saturating)
    assert product_int8._is_saturating()
    monkeypatch.undo()
    product_int8._is_saturating.cache_clear()


def test_a_changed_golden_vector_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = [dict(case) for case in SHIPPED]
    changed[0]["features"] = [[feature ^ 1 for feature in row] for row in changed[0]["features"]]
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(changed))
    monkeypatch.setattr(self_check, "_GOLDEN", path)
    with pytest.raises(self_check.SelfCheckFailed, match="'relu' comes out wrong"):
        self_check.self_check()


@pytest.mark.parametrize("wrong", [(Float64Backend, False), (Int8Backend, False), (Int8Backend, True)])
def test_each_backend_gives_the_golden_vectors_of_arrays_of_each_kind(
    wrong: tuple[type, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(backend: Any, *, is_read_only: bool, **_: Any) -> bytes:
        return bytes(32) if (type(backend), is_read_only) == wrong else self_check.NUMERICS_DIGEST

    monkeypatch.setattr(self_check, "golden_digest", digest)
    with pytest.raises(self_check.SelfCheckFailed, match=f"{wrong[0].__name__}, not"):
        self_check.self_check()


def test_other_golden_vectors_are_another_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(SHIPPED[:-1]))
    monkeypatch.setattr(self_check, "_GOLDEN", path)
    with pytest.raises(self_check.SelfCheckFailed, match="not " + self_check.NUMERICS_DIGEST.hex()):
        self_check.self_check()
