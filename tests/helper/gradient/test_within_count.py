"""The count of values within an adaptive bound.

Both engines against the norms in plain numpy, masked, exact, and part of the digest.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helper.gradient.exact import engine
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.general.engine import GeneralEngine
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import QuantisedTensor, quantise
from maskedlark.numbers.field import reconstruct, share, to_signed
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.randomness import seeded
from maskedlark.reports.input_shares import InputShares
from tests.helper.parties import make_model

RECORDS, FEATURES = 700, 6
MODELS = {
    Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS: make_model(FEATURES, 1),
    Loss.CROSS_ENTROPY: make_model(FEATURES, 3),
}
NUM_CLASSES = {Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS: 2, Loss.CROSS_ENTROPY: 3}


def model_of(loss: Loss) -> Model:
    return parse(MODELS[loss], num_features=FEATURES)


def weights(model: Model) -> tuple[QuantisedTensor, ...]:
    return tuple(quantise(values) for values in model.initial_values)


def engine_of(path: str, loss: Loss, clip: Clip, threads: int = 1) -> Any:
    model = model_of(loss)
    if path == "exact":
        return ExactEngine(model, loss, clip, threads=threads)
    return GeneralEngine(model, loss, clip, NUM_CLASSES[loss])


def batches(loss: Loss) -> tuple[InputShares, InputShares, NDArray[np.int64]]:
    """Both helpers' shares of records with a real label (some with none), and which label is real (-1 for
    none)."""
    rng = np.random.default_rng(4)
    features = rng.integers(0, 256, (RECORDS, FEATURES)).astype(np.uint8)
    labels = np.tile(np.arange(2, dtype=np.uint32), (RECORDS, 1))
    real = rng.integers(-1, 2, RECORDS)
    masks = share((labels == real[:, None]).astype(np.uint64).ravel(), seeded(1))
    first, second = (
        InputShares(features=features, labels=labels, mask_shares=one.reshape(RECORDS, 2)) for one in masks
    )
    return first, second, real


def plain_norms(loss: Loss, features: NDArray[np.uint8], norm: Norm) -> NDArray[np.float64]:
    """(records, labels): the norm of each gradient, by the formulas of a dense layer."""
    weight, bias = (tensor.to_float() for tensor in weights(model_of(loss)))
    x = np.hstack([features / 256.0, np.ones((RECORDS, 1))])
    logits = x @ np.vstack([weight.reshape(FEATURES, -1), bias.reshape(1, -1)])
    if loss is Loss.CROSS_ENTROPY:
        softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        deltas = softmax[:, None, :] - np.eye(3)[:2][None]
    else:
        deltas = (1 / (1 + np.exp(-logits)) - np.arange(2))[:, :, None]
    order = 1 if norm is Norm.L1 else 2
    return np.asarray(np.linalg.norm(deltas, order, axis=2) * np.linalg.norm(x, order, axis=1)[:, None])


@pytest.mark.parametrize("path", ["exact", "general"])
@pytest.mark.parametrize("loss", list(MODELS))
@pytest.mark.parametrize("norm", Norm)
def test_the_last_element_counts_the_real_values_within_the_bound(path: str, loss: Loss, norm: Norm) -> None:
    first, second, real = batches(loss)
    norms = plain_norms(loss, first.features, norm)
    bound = float(np.quantile(norms, 0.3)) * (1 + 1e-6)
    clip = Clip(norm=norm, bound=bound, frac_bits=32, is_counted=True)
    engine = engine_of(path, loss, clip)
    got = [engine.masked_sum(weights(model_of(loss)), batch) for batch in (first, second)]
    total = to_signed(reconstruct(got[0].vector, got[1].vector))
    assert len(total) == model_of(loss).num_parameters + 1
    is_real = np.arange(2)[None] == real[:, None]
    far = (
        np.abs(norms / bound - 1) > 1e-3
    )  # the engines round a little: whoever is this near the bound may count either way
    expected = int(np.where(norms <= bound, 1, -1)[is_real].sum())
    assert abs(total[-1] / clip.count_units - expected) <= 2 * int((is_real & ~far).sum())
    assert total[-1] % clip.count_units == 0
    assert {one.sensitivity for one in got} == {clip.released_sensitivity}
    assert got[0].values_digest == got[1].values_digest


@pytest.mark.parametrize("path", ["exact", "general"])
def test_the_gradient_itself_is_that_of_a_fixed_clip_at_the_same_bound(path: str) -> None:
    loss = Loss.CROSS_ENTROPY
    first, _, _ = batches(loss)
    fixed = Clip(norm=Norm.L2, bound=0.4, frac_bits=32)
    counted = Clip(norm=Norm.L2, bound=0.4, frac_bits=32, is_counted=True)
    largest = Clip(norm=Norm.L2, bound=2.0, frac_bits=32, is_counted=True)
    plain = engine_of(path, loss, fixed).masked_sum(weights(model_of(loss)), first)
    adaptive = engine_of(path, loss, largest).with_clip(counted).masked_sum(weights(model_of(loss)), first)
    assert adaptive.vector[:-1].tolist() == plain.vector.tolist()
    assert adaptive.values_digest != plain.values_digest


def test_the_count_does_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MIN_PART_NS", 1.0)  # else so short a round stays on one thread
    loss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
    first, _, _ = batches(loss)
    clip = Clip(norm=Norm.L2, bound=0.4, frac_bits=32, is_counted=True)
    one, many = (
        engine_of("exact", loss, clip, threads).masked_sum(weights(model_of(loss)), first)
        for threads in (1, 4)
    )
    assert one.vector.tolist() == many.vector.tolist()
    assert one.values_digest == many.values_digest
    # Frozen: helpers of two versions must agree on it.
    assert one.values_digest.hex()[:16] == "78a2adf8126d9823"


def test_another_bound_gives_another_digest_even_where_no_gradient_changes() -> None:
    """Values alone would not show it if one helper counted a record as clipped and the other as within."""
    loss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
    first, _, _ = batches(loss)
    none = InputShares(
        features=np.zeros_like(first.features), labels=first.labels, mask_shares=first.mask_shares
    )
    digests = set()
    for bound in (0.05, 0.5, 5.0):
        clip = Clip(norm=Norm.L2, bound=bound, frac_bits=32, is_counted=True)
        digests.add(engine_of("exact", loss, clip).masked_sum(weights(model_of(loss)), none).values_digest)
    assert len(digests) == 3
