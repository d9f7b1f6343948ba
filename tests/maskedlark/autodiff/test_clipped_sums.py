"""The clipped sum in the clear is the helpers' sum, to within rounding, whatever a parameter is used for."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from helper.gradient.engine import Batch
from helper.gradient.general.engine import GeneralEngine
from maskedlark.autodiff.clipped_sums import ClippedSums
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import quantise
from maskedlark.numbers import field
from maskedlark.privacy.clip import Clip, Norm
from tests.onnx_builders import features
from tests.torch_models import EXPORTED, export

WIDTH, RECORDS = 6, 40
OWN_ROWS = 240
"""Of a table that bytes look up: the last of them name no row."""
CLIP = Clip(norm=Norm.L2, bound=0.5, frac_bits=30)
CLIPS = {
    "within": replace(CLIP, bound=20.0),
    "clipped": CLIP,
    "l1": replace(CLIP, norm=Norm.L1),
    "each layer": replace(CLIP, is_per_layer=True),
    "each layer, l1": replace(CLIP, norm=Norm.L1, is_per_layer=True),
}


class Tables(nn.Module):
    """Two columns that share a table, one with its own, a scale that two products read, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.own = nn.Embedding(256, 3), nn.Embedding(OWN_ROWS, 2)
        self.twice, self.last = nn.Parameter(torch.randn(8, 8) / 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        index = (x[:, :3] * 256).to(torch.int64)
        rows = [self.shared(index[:, 0]), self.shared(index[:, 1]), self.own(index[:, 2])]
        hidden = torch.cat(rows, 1)
        return self.last(torch.tanh(torch.tanh(hidden @ self.twice) @ self.twice))  # type: ignore[no-any-return]


def compared(encoded: bytes, width: int, clip: Clip) -> tuple[NDArray[np.uint8], int]:
    """Compare the sums; return the features and how many gradients are within the bound."""
    model = parse(encoded, num_features=width)
    classes = model.output_width
    loss, known = (Loss.CROSS_ENTROPY, classes) if classes > 1 else (Loss.MSE, None)
    x = features(RECORDS, width, seed=3)
    x[: RECORDS // 2, 1] = x[: RECORDS // 2, 0]  # a row that one record looks up twice
    labels = np.arange(RECORDS) % max(2, classes)
    weights = tuple(quantise(value) for value in model.initial_values)
    masks = np.ones((RECORDS, 1), np.uint64)
    batch = Batch(features=x, labels=labels[:, None].astype(np.uint32), mask_shares=masks)
    summed = GeneralEngine(model, loss, clip, known).masked_sum(weights, batch)
    expected = np.ldexp(field.to_signed(summed.vector).astype(np.float64), -clip.frac_bits)
    sums = ClippedSums(model, loss)
    found = sums.of([one.to_float() for one in weights], x, labels, clip)
    # an entry of each record's gradient is rounded down to a unit, and the norm with it
    np.testing.assert_allclose(found.vector, expected, atol=RECORDS * 2.0**-16)
    return x, found.within


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_tables_products_and_shared_parameters(clip: Clip) -> None:
    torch.manual_seed(5)
    x, within = compared(export(Tables(), WIDTH, 2, dynamo=False), WIDTH, clip)
    beyond = int((x[:, 2] >= OWN_ROWS).sum())
    assert beyond > 0
    assert within == RECORDS - beyond or clip.bound < 1


@pytest.mark.parametrize("name", EXPORTED)
def test_every_kind_of_network(name: str) -> None:
    torch.manual_seed(5)
    module, width = EXPORTED[name]()
    compared(export(module, width, 2, dynamo=False), width, CLIP)


def test_a_gradient_that_is_not_finite_counts_as_zero() -> None:
    torch.manual_seed(5)
    model = parse(export(nn.Sequential(nn.Linear(WIDTH, 1)), WIDTH, 2, dynamo=False), num_features=WIDTH)
    weights = [np.full(value.shape, np.inf) for value in model.initial_values]
    x, labels = features(RECORDS, WIDTH), np.zeros(RECORDS, np.int64)
    found = ClippedSums(model, Loss.MSE).of(weights, x, labels, CLIP)
    assert found.within == 0
    assert not found.vector.any()
