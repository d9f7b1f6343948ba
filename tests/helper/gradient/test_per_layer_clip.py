"""Clipping per layer: each part within its own bound, the whole within the job's, in both engines, against
plain numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from helper.gradient.exact.engine import ExactEngine
from helper.gradient.general.engine import GeneralEngine
from maskedlark.canonical import build
from maskedlark.errors import InvalidTask
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import quantise
from maskedlark.numbers.field import to_signed
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.releases.job import JobSpec
from maskedlark.reports.input_shares import InputShares
from tests.builders import world

FEATURES, HIDDEN, CLASSES = 6, 8, 3
MODEL = parse(dense_network((FEATURES, HIDDEN, CLASSES), "relu", seed=7), num_features=FEATURES)
WEIGHTS = tuple(quantise(values) for values in MODEL.initial_values)
SIZES = [parameter.size for parameter in MODEL.parameters]
RECORDS = np.random.default_rng(8).integers(0, 256, (25, FEATURES)).astype(np.uint8)
LARGE = 8.0


def gradient(path: str, clip: Clip, record: NDArray[np.uint8]) -> NDArray[np.int64]:
    """One record's value: its mask share is 1."""
    engine: Any = (
        ExactEngine(MODEL, Loss.CROSS_ENTROPY, clip)
        if path == "exact"
        else GeneralEngine(MODEL, Loss.CROSS_ENTROPY, clip, CLASSES)
    )
    batch = InputShares(
        features=record[None], labels=np.array([[1]], np.uint32), mask_shares=np.ones((1, 1), np.uint64)
    )
    summed = engine.masked_sum(WEIGHTS, batch)
    assert summed.sensitivity == clip.sensitivity
    return to_signed(summed.vector)


def groups(path: str, value: NDArray[Any]) -> list[NDArray[Any]]:
    """A value's parts as they are clipped.

    Tensors on the general path, weights with their bias on the exact one.
    """
    tensors = np.split(value, np.cumsum(SIZES)[:-1])
    return (
        tensors
        if path == "general"
        else [np.concatenate(tensors[i : i + 2]) for i in range(0, len(tensors), 2)]
    )


def length(part: NDArray[Any], norm: Norm) -> float:
    return float(np.linalg.norm(part.astype(np.float64), 1 if norm is Norm.L1 else 2))


@given(
    bound=st.floats(2.0**-10, 2.0**10),
    layers=st.integers(1, 500),
    norm=st.sampled_from(Norm),
    frac_bits=st.integers(16, 40),
)
def test_the_parts_bounds_add_up_to_no_more_than_the_whole_and_little_less(
    bound: float, layers: int, norm: Norm, frac_bits: int
) -> None:
    whole = Clip(norm=norm, bound=bound, frac_bits=frac_bits, is_per_layer=True)
    each = whole.of_each(layers)
    if norm is Norm.L1:
        assert layers * each.sensitivity <= whole.sensitivity < layers * (each.sensitivity + 1)
    else:
        assert layers * each.sensitivity**2 <= whole.sensitivity**2 < layers * (each.sensitivity + 1) ** 2


@pytest.mark.parametrize("path", ["exact", "general"])
@pytest.mark.parametrize("norm", Norm)
def test_each_part_is_the_gradients_clipped_by_itself(path: str, norm: Norm) -> None:
    per_layer = Clip(norm=norm, bound=0.5, frac_bits=32, is_per_layer=True)
    clipped = 0
    for record in RECORDS:
        bare = groups(path, gradient(path, Clip(norm=norm, bound=LARGE, frac_bits=32), record))
        value = gradient(path, per_layer, record)
        each = per_layer.of_each(len(bare)).sensitivity
        for part, whole in zip(groups(path, value), bare, strict=True):
            expected = whole * min(1.0, each / max(length(whole, norm), 1.0))
            clipped += length(whole, norm) > each
            assert np.abs(part - expected).max() <= 2.0**-12 * each
            assert length(part, norm) <= each
        if norm is Norm.L1:
            assert sum(abs(int(one)) for one in value) <= per_layer.sensitivity
        else:
            assert sum(int(one) ** 2 for one in value) <= per_layer.sensitivity**2
    assert clipped > 10


def test_per_layer_and_whole_clipping_differ() -> None:
    for path in ("exact", "general"):
        whole, parts = (
            gradient(path, Clip(norm=Norm.L2, bound=0.5, frac_bits=32, is_per_layer=per_layer), RECORDS[0])
            for per_layer in (False, True)
        )
        assert whole.tolist() != parts.tolist()


def test_a_job_names_it_and_not_together_with_an_adaptive_bound() -> None:
    of = world(mechanism="gaussian")
    fields: dict[str, Any] = {
        "job_id": bytes(16),
        "task_id": of.task.task_id,
        "dataset_id": bytes(32),
        "model_digest": bytes(32),
        "loss": Loss.MSE,
        "rounds": 5,
        "sampling_numerator": 1 << 32,
        "noise_multiplier": 1.5,
    }
    job = build(JobSpec, {**fields, "is_clip_per_layer": True})
    assert job.clip(of.task).is_per_layer
    assert not build(JobSpec, fields).clip(of.task).is_per_layer
    with pytest.raises(InvalidTask, match="per layer"):
        build(JobSpec, {**fields, "is_clip_per_layer": True, "is_clip_adaptive": True})
