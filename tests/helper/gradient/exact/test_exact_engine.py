"""The exact engine against the oracle, bit for bit, and against float64 autograd, within one per cent."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helper.gradient.engine import Batch
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.products.int8 import Int8Backend
from maskedlark.errors import JobReason
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.numbers.field import add, reconstruct
from maskedlark.privacy.clip import Clip, Norm
from tests.helper.gradient.exact.checks import check_graph, expected
from tests.helper.gradient.exact.graphs import example, mlp, quantised
from tests.refusals import refused

ONE_OUTPUT = (Loss.BINARY_CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, Loss.MSE, Loss.POISSON)
ACTIVATIONS = ("Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "Softplus")


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dense_networks_equal_the_oracle_bit_for_bit_and_autograd_within_a_percent(
    activation: str, norm: Norm
) -> None:
    clip = Clip(norm=norm, bound=0.7, frac_bits=32)
    check_graph(mlp((9, 7, 6, 4), activation, seed=1), Loss.CROSS_ENTROPY, clip, labels=3)


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("loss", ONE_OUTPUT)
def test_losses_of_one_output_equal_the_oracle(loss: Loss, norm: Norm) -> None:
    head = "Sigmoid" if loss is Loss.BINARY_CROSS_ENTROPY else None
    clip = Clip(norm=norm, bound=1.5, frac_bits=32)
    check_graph(mlp((6, 8, 1), "Relu", seed=2, head=head), loss, clip, labels=2)


@pytest.mark.parametrize("head", ["LogSoftmax", "Softmax"])
def test_a_model_that_ends_in_a_softmax_equals_the_oracle(head: str) -> None:
    check_graph(
        mlp((5, 6, 4), "Tanh", seed=3, head=head),
        Loss.CROSS_ENTROPY,
        Clip(norm=Norm.L2, bound=0.4, frac_bits=32),
        labels=4,
    )


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_tiny_and_huge_weights_equal_the_oracle(scale: float) -> None:
    check_graph(
        mlp((6, 8, 5, 3), "Relu", seed=4, scale=scale),
        Loss.CROSS_ENTROPY,
        Clip(norm=Norm.L2, bound=1.0, frac_bits=32),
        labels=2,
    )


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    activation=st.sampled_from(ACTIVATIONS),
    norm=st.sampled_from(list(Norm)),
    bound=st.sampled_from([2.0**-6, 0.3, 1.0, 17.0, 4096.0]),
    frac_bits=st.sampled_from([24, 32, 40]),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_random_dense_networks_equal_the_oracle_and_keep_the_bound(
    *, widths: list[int], activation: str, norm: Norm, bound: float, frac_bits: int, bias: bool, seed: int
) -> None:
    model = mlp((*widths, 3), activation, seed, bias=bias)
    clip = Clip(norm=norm, bound=bound, frac_bits=frac_bits)
    made = example(5, model, Loss.CROSS_ENTROPY, 2, seed=seed, density=0.5)
    got = [
        ExactEngine(model, Loss.CROSS_ENTROPY, clip).masked_sum(quantised(model), made.batch(helper)).vector
        for helper in (0, 1)
    ]
    assert reconstruct(*got).tolist() == expected(model, clip, Loss.CROSS_ENTROPY, made).total


def test_wide_layers_agree_between_backends_threads_and_orders() -> None:
    model = mlp((300, 120, 70, 10), "Relu", seed=5)
    clip = Clip(norm=Norm.L2, bound=1.0, frac_bits=32)
    made = example(5000, model, Loss.CROSS_ENTROPY, 3, seed=6, density=0.3)
    weights = quantised(model)
    engines = (
        ExactEngine(model, Loss.CROSS_ENTROPY, clip),
        ExactEngine(model, Loss.CROSS_ENTROPY, clip, threads=3, backend=Int8Backend(base_bits=7)),
        ExactEngine(model, Loss.CROSS_ENTROPY, clip, threads=2, backend=Float64Backend()),
    )
    results = [engine.masked_sum(weights, made.shuffled(0, seed)) for seed, engine in enumerate(engines)]
    assert (results[0].vector == results[1].vector).all()
    assert (results[0].vector == results[2].vector).all()
    assert len({result.values_digest for result in results}) == 1


def test_adding_up_partial_sums_leaves_them_as_they_were() -> None:
    model = mlp((20, 16, 3), "Relu", seed=12)
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, Clip(norm=Norm.L2, bound=1.0, frac_bits=32))
    made = example(40, model, Loss.CROSS_ENTROPY, 2, seed=13)
    parts = [engine.partial_sum(quantised(model), [made.batch(helper)]) for helper in (0, 1)]
    before = [part.vector.copy() for part in parts]
    assert (engine.whole_sum(parts).vector == add(*before)).all()
    assert (engine.whole_sum(parts[:1]).vector == before[0]).all()
    assert all((part.vector == one).all() for part, one in zip(parts, before, strict=True))


def test_an_empty_batch_gives_zeros() -> None:
    model = mlp((4, 3, 2), "Relu", seed=7)
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, Clip(norm=Norm.L2, bound=1.0, frac_bits=32), threads=2)
    result = engine.masked_sum(quantised(model), example(0, model, Loss.CROSS_ENTROPY, 2, seed=0).batch(0))
    assert not result.vector.any()
    assert result.sensitivity == 2**32


def test_records_of_zeros_reach_only_the_biases() -> None:
    check_graph(
        mlp((4, 3, 2), "Relu", seed=8),
        Loss.CROSS_ENTROPY,
        Clip(norm=Norm.L2, bound=1.0, frac_bits=32),
        labels=2,
        density=0.0,
    )


def test_the_digest_changes_with_one_bit_of_one_feature_and_not_with_the_masks() -> None:
    model = mlp((20, 16, 3), "Relu", seed=9)
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, Clip(norm=Norm.L2, bound=1.0, frac_bits=32))
    made = example(40, model, Loss.CROSS_ENTROPY, 2, seed=10)
    features = made.features.copy()
    features[17, 5] ^= 1
    digests = [
        engine.masked_sum(quantised(model), batch).values_digest
        for batch in (made.batch(0), made.batch(1), replace(made, features=features).batch(0))
    ]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("hashed", [0, 1, 600, 1300, 2000])
def test_hashes_of_the_first_records_are_those_of_a_sum_of_them_alone(hashed: int, threads: int) -> None:
    model = mlp((20, 16, 3), "Relu", seed=9)
    clip = Clip(norm=Norm.L2, bound=1.0, frac_bits=32)
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, clip, threads=threads)
    whole = example(2000, model, Loss.CROSS_ENTROPY, 2, seed=10).batch(0)
    masks = np.where(np.arange(2000)[:, None] < hashed, whole.mask_shares, np.uint64(0))
    padded = Batch(features=whole.features, labels=whole.labels, mask_shares=masks)
    cuts = [slice(0, 500), slice(500, 1250), slice(1250, None)]
    weights, rows = quantised(model), np.arange(2000)
    found = engine.partial_sum(weights, [padded.rows(rows[one]) for one in cuts], hashed=hashed)
    alone = engine.partial_sum(weights, [whole.rows(rows[:hashed])])
    assert found.vector.tobytes() == alone.vector.tobytes()
    assert (found.hashes, found.records) == (alone.hashes, alone.records)
    assert found.records == hashed


def test_a_label_that_is_no_class_is_refused() -> None:
    model = mlp((4, 3), "Relu", seed=11)
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, Clip(norm=Norm.L2, bound=1.0, frac_bits=32))
    batch = Batch(
        features=np.zeros((1, 4), np.uint8),
        labels=np.array([[3]], np.uint32),
        mask_shares=np.ones((1, 1), np.uint64),
    )
    with refused(JobReason.MALFORMED):
        engine.masked_sum(quantised(model), batch)


@pytest.mark.parametrize(
    ("model", "loss", "why"),
    [
        (mlp((4, 3, 1), "Relu", seed=12), Loss.BINARY_CROSS_ENTROPY, "ends in Sigmoid"),
        (mlp((4, 3, 2), "Erf", seed=12), Loss.CROSS_ENTROPY, "uses Erf"),
    ],
)
def test_what_has_no_exact_form_is_named(model: Model, loss: Loss, why: str) -> None:
    with pytest.raises(NotExact, match=why):
        ExactEngine(model, loss, Clip(norm=Norm.L2, bound=1.0, frac_bits=32))


def test_a_bound_beyond_the_field_is_not_exact() -> None:
    model, largest = mlp((4, 2), "Relu", seed=13), 2.0**30
    with pytest.raises(NotExact, match="less than"):
        ExactEngine(model, Loss.CROSS_ENTROPY, Clip(norm=Norm.L2, bound=largest, frac_bits=32))
    below = np.nextafter(largest, 0.0)
    ExactEngine(model, Loss.CROSS_ENTROPY, Clip(norm=Norm.L2, bound=float(below), frac_bits=32))
