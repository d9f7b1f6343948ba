"""Arrays that are kept from round to round: no bit depends on them, and they go with their job."""

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from helper.gradient.engine import MaskedSum
from helper.gradient.exact import engine as engine_module
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.kernels.buffers import Buffers, BufferShelf, Owner
from helper.gradient.exact.products import int8
from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.products.int8 import Int8Backend
from helper.gradient.exact.products.product import Backend
from maskedlark.model.dense import dense_network
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import random_vector
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.randomness import seeded
from tests.helper.gradient.exact.graphs import GraphBuilder, example, mlp, quantised
from tests.patience import HANGS_S

CLIP = Clip(norm=Norm.L2, bound=0.8, frac_bits=32)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> BufferShelf:
    """One that no other engine of this process uses."""
    own = BufferShelf()
    monkeypatch.setattr(engine_module, "_SHELF", own)
    return own


def residual() -> Model:
    """A value with two readers, and every kind of curve's buffers."""
    graph = GraphBuilder(6, seed=3)
    first = graph.node("Tanh", graph.gemm("x", 6, 4))
    second = graph.node("Relu", graph.gemm(first, 4, 4))
    return graph.model(graph.gemm(graph.node("Add", first, second), 4, 3), 3)


def convolutional() -> Model:
    graph = GraphBuilder(12, seed=4)
    image = graph.node("Reshape", "x", graph.tensor(np.array([-1, 1, 12], np.int64)))
    seen = graph.node("Relu", graph.node("Conv", image, graph.weight(2, 1, 3)))
    return graph.model(graph.gemm(graph.node("Flatten", seen, axis=1), 20, 3), 3)


def untransposed() -> Model:
    return parse(dense_network([9, 60, 3], "relu", seed=2), num_features=9)


def same(first: MaskedSum, second: MaskedSum) -> bool:
    return np.array_equal(first.vector, second.vector) and first.values_digest == second.values_digest


@pytest.mark.parametrize("backend", [Int8Backend(), Int8Backend(base_bits=7), Float64Backend()])
@pytest.mark.parametrize(
    "model",
    [mlp([5, 60, 3], "Relu", 1), residual(), convolutional(), untransposed()],
    ids=["transposed", "residual", "convolution", "untransposed"],
)
def test_no_bit_of_a_round_depends_on_the_rounds_before_it(model: Model, backend: Backend) -> None:
    weights = quantised(model)
    kept = ExactEngine(model, Loss.CROSS_ENTROPY, CLIP, backend=backend)
    for seed, records in enumerate((40, 700, 3, 0, 600)):  # blocks have at most 512 records
        batch = example(records, model, Loss.CROSS_ENTROPY, 2, seed=seed).batch(0)
        fresh = ExactEngine(model, Loss.CROSS_ENTROPY, CLIP, backend=backend)
        assert same(kept.masked_sum(weights, batch), fresh.masked_sum(weights, batch))


def test_an_answer_is_not_overwritten_by_the_next_round(shelf: BufferShelf) -> None:
    model = untransposed()
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, CLIP)
    batches = [example(50, model, Loss.CROSS_ENTROPY, 2, seed=seed).batch(0) for seed in (1, 2)]
    first = engine.masked_sum(quantised(model), batches[0])
    before = first.vector.copy()
    engine.masked_sum(quantised(model), batches[1])
    assert shelf.num_bytes > 0
    assert np.array_equal(first.vector, before)


def test_rounds_at_the_same_time_have_buffers_of_their_own(shelf: BufferShelf) -> None:
    model, meet = untransposed(), Barrier(2)
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, CLIP)
    weights = quantised(model)
    batches = [example(600, model, Loss.CROSS_ENTROPY, 2, seed=seed).batch(0) for seed in (1, 2)]
    alone = [engine.masked_sum(weights, batch) for batch in batches]

    def beside(index: int) -> MaskedSum:
        has_met = False

        def interrupt() -> None:  # called at each block: each round has its buffers in hand
            nonlocal has_met
            if not has_met:
                has_met = True
                meet.wait(HANGS_S)

        return engine.masked_sum(weights, batches[index], interrupt)

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(beside, (0, 1)))
    assert all(same(one, other) for one, other in zip(alone, together, strict=True))


def test_an_engine_that_is_gone_leaves_no_buffers(shelf: BufferShelf) -> None:
    model = untransposed()
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, CLIP)
    reclipped = engine.with_clip(CLIP)  # of the same job
    reclipped.masked_sum(quantised(model), example(20, model, Loss.CROSS_ENTROPY, 2, seed=1).batch(0))
    del reclipped
    assert shelf.num_bytes > 0
    del engine
    gc.collect()
    assert shelf.num_bytes == 0


def test_two_names_and_two_parts_never_share_memory() -> None:
    buffers = Buffers()
    made = [
        buffers.empty("a", (4, 5)),
        buffers.empty("b", (4, 5)),
        buffers.part("p").empty("a", (4, 5)),
        buffers.part("q").empty("a", (4, 5)),
    ]
    assert not any(np.shares_memory(one, other) for one in made for other in made if one is not other)
    assert np.shares_memory(buffers.part("q").empty("a", (4, 5)), made[3])
    assert buffers.num_bytes == buffers.part("p").num_bytes == 4 * 160


def test_a_smaller_array_of_a_name_lies_where_the_larger_one_was() -> None:
    buffers = Buffers()
    large = buffers.empty("a", (4, 5), np.uint8)
    small = buffers.zeros("a", (3, 2), np.uint8)
    assert np.shares_memory(large, small)
    assert small.flags.c_contiguous
    assert not small.any()
    assert buffers.num_bytes == 20
    buffers.empty("a", (7, 7), np.uint8)
    assert buffers.num_bytes == 49


def test_past_the_capacity_those_go_whose_owners_waited_longest() -> None:
    shelf, owners = BufferShelf(capacity_bytes=100), [Owner(), Owner(), Owner()]
    for owner in owners[:2]:
        with shelf.lent(owner) as buffers:
            buffers.zeros("a", (40,), np.uint8)
    with shelf.lent(owners[0]) as buffers:  # used again: the other one waits longer
        assert buffers.num_bytes == 40
    with shelf.lent(owners[2]) as buffers:
        buffers.zeros("a", (60,), np.uint8)
    assert shelf.num_bytes == 100
    with shelf.lent(owners[1]) as buffers:
        assert buffers.num_bytes == 0
    with shelf.lent(owners[0]) as buffers:
        assert buffers.num_bytes == 40


def test_buffers_over_the_capacity_are_not_kept() -> None:
    shelf, owner = BufferShelf(capacity_bytes=100), Owner()
    with shelf.lent(owner) as buffers:
        buffers.zeros("a", (101,), np.uint8)
    assert shelf.num_bytes == 0


@pytest.mark.parametrize("base_bits", [7, 8])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_the_bytes_that_a_blocks_sums_are_said_to_take_are_those_that_they_take(
    base_bits: int, dtype: type[np.generic], monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply, taken = int8.multiply_digits, list[int]()

    def seen(*given: Any, **how: Any) -> Any:
        sums = multiply(*given, **how)
        taken.append(sums.nbytes)
        return sums

    monkeypatch.setattr(int8, "multiply_digits", seen)
    records, inputs, outputs, is_bytes = 2, 3, 5, dtype is np.uint8
    backend = Int8Backend(base_bits=base_bits)
    total = np.zeros((inputs, outputs), np.uint64)
    accumulator = backend.accumulator(total, is_bytes=is_bytes, records=records)
    accumulator.begin(records)
    masked = random_vector(records * outputs, seeded(1)).reshape(records, outputs)
    accumulator.put(0, np.ones((records, inputs), dtype), masked)
    accumulator.flush()
    assert taken == [backend.bytes_taken(inputs, is_bytes=is_bytes).sum * inputs * outputs]
