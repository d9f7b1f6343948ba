"""What the general path owes to its processor: subnormal numbers are zero, and its bits have a name."""

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from helper.gradient.general import processor
from helper.gradient.general.engine import GeneralEngine
from helper.gradient.general.processor import golden_digest
from maskedlark.autodiff.one_thread import _is_flushed, one_thread
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import quantise
from maskedlark.numbers import field
from maskedlark.privacy.clip import Clip, Norm
from tests.helper.gradient.general.test_general_engine import batch_of
from tests.onnx_builders import encoded, features, node, tensor, weights

PRINT = "from helper.gradient.general.processor import golden_digest; print(golden_digest().hex())"


@pytest.fixture(autouse=True)
def flags() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


def test_subnormal_numbers_are_zero_while_a_round_runs_and_only_then() -> None:
    threads = torch.get_num_threads()
    assert not _is_flushed()
    with one_thread():
        assert _is_flushed()
        assert torch.get_num_threads() == 1
        with one_thread():
            pass
        assert _is_flushed()
    assert not _is_flushed()
    assert torch.get_num_threads() == threads


def test_what_was_flushed_before_a_round_stays_so_also_if_it_fails() -> None:
    torch.set_flush_denormal(True)
    with pytest.raises(ValueError, match="it fails"), one_thread():
        raise ValueError("it fails")
    assert _is_flushed()
    torch.set_flush_denormal(False)
    with pytest.raises(ValueError, match="it fails"), one_thread():
        raise ValueError("it fails")
    assert not _is_flushed()


def steps(times: int) -> bytes:
    """y = sigmoid(1e-8 x w) by way of 1e(38 times): on the way back, a gradient passes 1e-(38 times + 8)."""
    factors = [*["large"] * times, "less", *["small"] * times]
    nodes = [node("MatMul", ["x", "w"], ["v0"])]
    nodes += [node("Mul", [f"v{i}", factor], [f"v{i + 1}"]) for i, factor in enumerate(factors)]
    nodes.append(node("Sigmoid", [f"v{len(factors)}"], ["y"]))
    constants = [tensor("large", 1e38), tensor("less", 1e-8), tensor("small", 1e-38)]
    return encoded(nodes, [weights("w", 4, 1), *constants])


def summed(times: int) -> list[int]:
    model = parse(steps(times), num_features=4)
    engine = GeneralEngine(model, Loss.MSE, Clip(norm=Norm.L2, bound=1e-6, frac_bits=45), None)
    given = tuple(quantise(value) for value in model.initial_values)
    batch = batch_of(features(3), [[1], [1], [1]])
    total: list[int] = field.to_signed(engine.masked_sum(given, batch).vector).tolist()
    return total


def test_an_engine_computes_with_zeros_in_place_of_subnormal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a graph that is made of them takes no longer on records that reach them."""
    assert all(summed(7))  # 1e-274
    assert not any(summed(8))  # 1e-312
    monkeypatch.setattr(torch, "set_flush_denormal", lambda _: True)
    assert all(summed(8))


def test_the_golden_vectors_are_the_same_each_time() -> None:
    first = golden_digest()
    golden_digest.cache_clear()
    assert golden_digest() == first


def test_the_golden_vectors_show_one_bit_of_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    before = golden_digest()
    results = [result.detach().clone() for result in processor._results()]
    results[0][0] = np.nextafter(results[0][0].item(), 2)
    monkeypatch.setattr(processor, "_results", lambda: iter(results))
    golden_digest.cache_clear()
    assert golden_digest() != before
    golden_digest.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this processor has one kind of loops"
)
def test_loops_of_another_width_have_other_golden_vectors() -> None:
    """Torch's plain loops on this processor stand for another one."""

    def of(**changes: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", PRINT],
            env={**os.environ, **changes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert of() == golden_digest().hex()
    assert of(ATEN_CPU_CAPABILITY="default") != golden_digest().hex()
