"""The general gradient path against torch's own autograd, and its exactness from the rounding to the sum."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from helper.gradient.choose import choose_engine
from helper.gradient.engine import Batch, MaskedSum
from helper.gradient.general import engine as general
from helper.gradient.general.engine import GeneralEngine
from helper.gradient.general.rounding import clip_to_integers
from maskedlark.autodiff.interpreter import Interpreter
from maskedlark.errors import JobReason, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import QuantisedTensor, quantise
from maskedlark.numbers import field
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.randomness import seeded
from tests.onnx_builders import features
from tests.refusals import refused
from tests.torch_models import EXPORTED, export

WIDE = Clip(norm=Norm.L2, bound=1e3, frac_bits=20)
TIGHT = Clip(norm=Norm.L2, bound=0.25, frac_bits=24)
TIGHT_L1 = Clip(norm=Norm.L1, bound=0.25, frac_bits=24)


def quantised(model: Model) -> tuple[QuantisedTensor, ...]:
    return tuple(quantise(value) for value in model.initial_values)


def batch_of(
    x: NDArray[np.uint8], labels: Sequence[Sequence[int]], shares: field.FieldVector | None = None
) -> Batch:
    y = np.array(labels, np.uint32).reshape(len(x), -1)
    return Batch(features=x, labels=y, mask_shares=np.ones(y.shape, np.uint64) if shares is None else shares)


def summed(engine: GeneralEngine, model: Model, batch: Batch) -> NDArray[np.int64]:
    return field.to_signed(engine.masked_sum(quantised(model), batch).vector)


def torch_loss(loss: Loss, output: Tensor, label: int) -> Tensor:
    """The loss as torch writes it."""
    truth = torch.tensor([float(label)], dtype=torch.float64)
    if loss is Loss.CROSS_ENTROPY:
        return functional.cross_entropy(output, torch.tensor(label))
    if loss is Loss.BINARY_CROSS_ENTROPY:
        return functional.binary_cross_entropy(output, truth)
    if loss is Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
        return functional.binary_cross_entropy_with_logits(output, truth)
    if loss is Loss.MSE:
        return functional.mse_loss(output, truth)
    return functional.poisson_nll_loss(output, truth, log_input=True)


def autograd(
    module: nn.Module, x: NDArray[np.uint8], label: int, loss: Loss
) -> dict[str, NDArray[np.float64]]:
    """One record's gradient of a double-precision module, by parameter name."""
    module.zero_grad()
    output = module(torch.from_numpy(x / 256.0)[None])[0]
    torch_loss(loss, output, label).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.numpy().copy() for name, p in module.named_parameters() if p.grad is not None}


def load(module: nn.Module, model: Model) -> nn.Module:
    """The module in double precision with the quantised weights, matched by name."""
    values = {p.name: w.to_float() for p, w in zip(model.parameters, quantised(model), strict=True)}
    module.double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(values[name]))
    return module


def linear_stack(final: nn.Module | None, outputs: int) -> nn.Sequential:
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs)]
    return nn.Sequential(*layers, *([final] if final else []))


@pytest.mark.parametrize(
    ("loss", "final", "outputs", "classes", "labels"),
    [
        (Loss.BINARY_CROSS_ENTROPY, nn.Sigmoid(), 1, 2, [0, 1]),
        (Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, None, 1, 2, [0, 1]),
        (Loss.CROSS_ENTROPY, None, 4, 4, [0, 3]),
        (Loss.CROSS_ENTROPY, nn.LogSoftmax(1), 4, 4, [2, 1]),
        (Loss.MSE, None, 1, None, [0, 9]),
        (Loss.POISSON, None, 1, None, [0, 4]),
    ],
)
@pytest.mark.parametrize("clip", [WIDE, TIGHT, TIGHT_L1])
def test_every_loss_gives_torchs_gradient_clipped(
    *, loss: Loss, final: nn.Module | None, outputs: int, classes: int | None, labels: list[int], clip: Clip
) -> None:
    torch.manual_seed(7)
    module = linear_stack(final, outputs)
    model = parse(export(module, 6, 2, dynamo=False), num_features=6)
    load(module, model)
    engine = GeneralEngine(model, loss, clip, classes)
    x = features(3, 6)
    for record in x:
        for label in labels:
            by_name = autograd(module, record, label, loss)
            expected = np.concatenate([by_name[p.name].reshape(-1) for p in model.parameters])
            norm = np.abs(expected).sum() if clip.norm is Norm.L1 else np.linalg.norm(expected)
            expected *= min(1.0, clip.bound / norm)
            found = summed(engine, model, batch_of(record[None], [[label]])) * 2.0**-clip.frac_bits
            np.testing.assert_allclose(found, expected, atol=clip.bound * 2.0**-19)


def float_gradient(model: Model, x: NDArray[np.uint8], label: int) -> dict[str, NDArray[np.float64]]:
    """One record's gradient of the cross entropy at the file's own weights, by parameter name."""
    interpreter = Interpreter(model)

    def loss(parameters: tuple[Tensor, ...]) -> Tensor:
        return functional.cross_entropy(
            interpreter.evaluate(parameters, torch.from_numpy(x / 256.0)), torch.tensor(label)
        )

    gradients = torch.func.grad(loss)(
        tuple(torch.from_numpy(value).double() for value in model.initial_values)
    )
    return {p.name: gradient.numpy() for p, gradient in zip(model.parameters, gradients, strict=True)}


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_models_have_torchs_gradient(name: str, dynamo: bool) -> None:
    """ONNX orders the gates otherwise and joins the biases, so the gradient's entries are compared as a
    sorted list."""
    module, width = EXPORTED[name]()
    model = parse(export(module, width, 2, dynamo=dynamo), num_features=width)
    module.double()
    for record in features(2, width, seed=3):
        found, expected = float_gradient(model, record, 1), autograd(module, record, 1, Loss.CROSS_ENTROPY)
        np.testing.assert_allclose(found["head.weight"], expected["head.weight"], atol=1e-12)
        all_found, all_expected = (
            np.sort(np.concatenate([g.ravel() for g in side.values()])) for side in (found, expected)
        )
        np.testing.assert_allclose(all_found, all_expected, atol=1e-12)


@pytest.mark.parametrize("dynamo", [True, False])
def test_convolutional_models_have_torchs_gradient(dynamo: bool) -> None:
    """Beside the first convolution, into which exporters fold the batch normalisation in float32."""
    module, width = EXPORTED["conv"]()
    model = parse(export(module, width, 2, dynamo=dynamo), num_features=width)
    module.double()
    for record in features(2, width, seed=3):
        found, expected = float_gradient(model, record, 1), autograd(module, record, 1, Loss.CROSS_ENTROPY)
        for parameter in ("5.weight", "5.bias", "10.weight", "10.bias"):
            np.testing.assert_allclose(found[parameter], expected[parameter], atol=1e-6)


@st.composite
def label_batches(draw: st.DrawFn) -> tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.int64]]:
    """Features, candidate labels, and the position of the real label (-1: all are decoys)."""
    count, num_labels = draw(st.integers(0, 6)), draw(st.integers(1, 3))
    x = features(count, 5, seed=draw(st.integers(0, 1000)))
    labels = np.array(
        [draw(st.permutations(range(3)))[:num_labels] for _ in range(count)], np.uint32
    ).reshape(count, num_labels)
    real = np.array([draw(st.integers(-1, num_labels - 1)) for _ in range(count)], np.int64)
    return x, labels, real


MODEL = parse(dense_network([5, 4, 3], "relu", seed=3), num_features=5)


@settings(deadline=None, max_examples=30)
@given(case=label_batches(), clip=st.sampled_from([WIDE, TIGHT, TIGHT_L1]), seed=st.integers(0, 2**32))
def test_two_helpers_sums_add_to_the_clipped_sum_of_the_real_labels(
    case: tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.int64]], clip: Clip, seed: int
) -> None:
    x, labels, real = case
    masks = (np.arange(labels.shape[1]) == real[:, None]).astype(np.uint64)
    shares = field.share(masks, seeded(seed))
    helpers = [GeneralEngine(MODEL, Loss.CROSS_ENTROPY, clip, 3) for _ in shares]
    answers = [
        engine.masked_sum(quantised(MODEL), Batch(features=x, labels=labels, mask_shares=share))
        for engine, share in zip(helpers, shares, strict=True)
    ]
    total = field.to_signed(field.reconstruct(answers[0].vector, answers[1].vector))
    plain = GeneralEngine(MODEL, Loss.CROSS_ENTROPY, clip, 3)
    expected = np.zeros(MODEL.num_parameters, np.int64)
    for record, candidates, position in zip(x, labels, real, strict=True):
        if position >= 0:
            expected += summed(plain, MODEL, batch_of(record[None], [[int(candidates[position])]]))
    np.testing.assert_array_equal(total, expected)
    assert answers[0].values_digest == answers[1].values_digest
    assert answers[0].sensitivity == answers[1].sensitivity == clip.sensitivity


def test_chunks_do_not_change_the_masked_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = features(40, 5), np.tile(np.arange(3, dtype=np.uint32), (40, 1))
    shares = field.random_vector(120, seeded(1)).reshape(40, 3)
    engine = GeneralEngine(MODEL, Loss.CROSS_ENTROPY, TIGHT, 3)
    batch = Batch(features=x, labels=labels, mask_shares=shares)
    whole = engine.masked_sum(quantised(MODEL), batch)
    monkeypatch.setattr(general, "_MAX_CHUNK_RECORDS", 7)
    parts = engine.masked_sum(quantised(MODEL), batch)
    np.testing.assert_array_equal(whole.vector, parts.vector)
    assert whole.values_digest == parts.values_digest


def test_more_parameters_than_the_clip_is_proven_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helper.gradient.general.engine.MAX_PARAMETERS", MODEL.num_parameters)
    GeneralEngine(MODEL, Loss.CROSS_ENTROPY, TIGHT, 3)
    monkeypatch.setattr("helper.gradient.general.engine.MAX_PARAMETERS", MODEL.num_parameters - 1)
    with refused(ModelReason.TOO_LARGE):
        GeneralEngine(MODEL, Loss.CROSS_ENTROPY, TIGHT, 3)


def test_an_empty_batch_gives_zeros() -> None:
    engine = GeneralEngine(MODEL, Loss.CROSS_ENTROPY, TIGHT, 3)
    empty = Batch(
        features=np.empty((0, 5), np.uint8),
        labels=np.empty((0, 3), np.uint32),
        mask_shares=np.empty((0, 3), np.uint64),
    )
    answer = engine.masked_sum(quantised(MODEL), empty)
    np.testing.assert_array_equal(answer.vector, np.zeros(MODEL.num_parameters, np.uint64))
    assert len(answer.values_digest) == 32


def answer_to(
    x: NDArray[np.uint8], labels: list[list[int]], weights: tuple[QuantisedTensor, ...] | None = None
) -> MaskedSum:
    engine = GeneralEngine(MODEL, Loss.CROSS_ENTROPY, TIGHT, 3)
    return engine.masked_sum(weights or quantised(MODEL), batch_of(x, labels))


def test_the_digest_changes_with_any_value_and_with_no_mask() -> None:
    x = features(2, 5)
    digest = answer_to(x, [[0, 1], [2, 0]]).values_digest
    masked = Batch(
        features=x,
        labels=np.array([[0, 1], [2, 0]], np.uint32),
        mask_shares=field.random_vector(4, seeded(5)).reshape(2, 2),
    )
    assert (
        GeneralEngine(MODEL, Loss.CROSS_ENTROPY, TIGHT, 3).masked_sum(quantised(MODEL), masked).values_digest
        == digest
    )
    other_features = x.copy()
    other_features[1, 4] ^= 128
    others = [
        answer_to(other_features, [[0, 1], [2, 0]]),
        answer_to(x, [[0, 1], [2, 1]]),
        answer_to(x, [[1, 0], [2, 0]]),
        answer_to(x[::-1], [[2, 0], [0, 1]]),
        answer_to(x[:1], [[0, 1]]),
    ]
    assert len({digest, *(other.values_digest for other in others)}) == len(others) + 1


def test_a_gradient_that_is_not_finite_counts_as_zero() -> None:
    """e^z overflows for weights of a million; the other record's gradient stays."""
    model = parse(dense_network([2, 1], "relu", seed=1), num_features=2)
    huge = (quantise(np.full((1, 2), 2.0**20, np.float32)), quantise(np.zeros(1, np.float32)))
    engine = GeneralEngine(model, Loss.POISSON, TIGHT, None)
    x = np.array([[255, 255], [0, 0]], np.uint8)
    both = engine.masked_sum(huge, batch_of(x, [[3], [3]]))
    finite = engine.masked_sum(huge, batch_of(x[1:], [[3]]))
    np.testing.assert_array_equal(both.vector, finite.vector)
    assert both.vector.any()


def test_torchs_threads_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        answer_to(features(1, 5), [[0]])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_loss_that_does_not_fit_is_refused() -> None:
    with refused(ModelReason.WRONG_LOSS):
        choose_engine(MODEL, Loss.MSE, TIGHT, 3)


def test_a_bound_of_too_many_units_is_refused() -> None:
    with refused(JobReason.OVERFLOW):
        GeneralEngine(MODEL, Loss.CROSS_ENTROPY, Clip(norm=Norm.L2, bound=1.0, frac_bits=41), 3)


def test_the_engine_says_which_path_it_is() -> None:
    engine = GeneralEngine(MODEL, Loss.CROSS_ENTROPY, TIGHT, 3)
    assert engine.path == "general"
    assert engine.reason


def exact_norm_fits(row: NDArray[np.int64], clip: Clip) -> bool:
    values = [int(value) for value in row]
    if clip.norm is Norm.L1:
        return sum(map(abs, values)) <= clip.sensitivity
    return sum(value * value for value in values) <= clip.sensitivity**2


@settings(deadline=None, max_examples=200)
@given(
    norm=st.sampled_from(Norm),
    bound=st.sampled_from([1.0, 0.1, 0.7, 3.0, 1e-3, 100.0]),
    frac_bits=st.sampled_from([0, 8, 16, 24, 30, 33]),
    size=st.integers(1, 300),
    scale=st.sampled_from([0.0, 1e-300, 1e-9, 1e-3, 1.0, 1e6, 1e150, 1e200]),
    seed=st.integers(0, 2**32),
)
def test_no_row_exceeds_the_bound_as_integers(
    *, norm: Norm, bound: float, frac_bits: int, size: int, scale: float, seed: int
) -> None:
    clip = Clip(norm=norm, bound=bound, frac_bits=frac_bits)
    rows = np.random.default_rng(seed).standard_cauchy((5, size)) * scale
    values = clip_to_integers(rows, clip)
    assert all(exact_norm_fits(row, clip) for row in values)


@settings(deadline=None)
@given(norm=st.sampled_from(Norm), size=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_rows_near_the_bound_lose_almost_nothing(norm: Norm, size: int, seed: int) -> None:
    clip = Clip(norm=norm, bound=1.0, frac_bits=30)
    rows = np.random.default_rng(seed).normal(size=(3, size))
    norms = np.abs(rows).sum(1) if norm is Norm.L1 else np.linalg.norm(rows, axis=1)
    expected = rows / norms[:, None]
    np.testing.assert_allclose(clip_to_integers(expected * 50, clip) * 2.0**-30, expected, atol=2.0**-19)
    half = clip_to_integers(expected / 2, clip) * 2.0**-30
    np.testing.assert_allclose(half, expected / 2, atol=2.0**-21)


@given(noise=st.sampled_from([-1e-15, 1e-15]), seed=st.integers(0, 2**32))
def test_noise_of_the_last_bits_does_not_reach_the_integers(noise: float, seed: int) -> None:
    """On a grid point, where truncation alone would flip, and a tenth of a step away from the edge between
    two."""
    generator = np.random.default_rng(seed)
    steps = generator.integers(-1000, 1000, (2, 50)) + generator.choice([-0.4, 0.0, 0.4], (2, 50))
    rows = steps * 2.0**-20
    clip = Clip(norm=Norm.L2, bound=1.0, frac_bits=24)
    np.testing.assert_array_equal(clip_to_integers(rows, clip), clip_to_integers(rows * (1 + noise), clip))


def test_rows_that_are_not_finite_become_zero() -> None:
    rows = np.array([[np.nan, 1.0], [np.inf, 1.0], [1e300, 1e300], [3.0, 4.0], [0.0, 0.0]])
    values = clip_to_integers(rows, Clip(norm=Norm.L2, bound=1.0, frac_bits=10))
    assert not values[[0, 1, 2, 4]].any()
    np.testing.assert_allclose(values[3] / 1024, [0.6, 0.8], atol=2e-3)
