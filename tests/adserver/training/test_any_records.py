"""A file exported for one record is freed where its layers take any number of records, and else stays."""

import io
import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from adserver.training.any_records import take_any_records, takes_one_record
from adserver.training.as_onnx import as_onnx
from adserver.training.pipeline import from_bytes
from maskedlark.model.onnx_file import parse

WIDTH = 6


class Words(nn.Module):
    """A table of two rows for the first feature, next to a hidden layer above the others."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(2, 3), nn.Linear(WIDTH - 1 + 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.cat([self.table((x[:, 0] * 256).long()), x[:, 1:]], 1))
        return found


class Reshaped(nn.Module):
    """Reshapes that name one record, as exporters write them for an example of one."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self._shape, self.filters, self.last = shape, nn.Conv1d(1, 2, 3), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.filters(x.reshape(*self._shape)).reshape(1, 8))
        return found


class Joined(nn.Module):
    """One row of numbers of its own is put next to the one record."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.last = nn.Parameter(torch.rand(1, 2)), nn.Linear(WIDTH + 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.cat([x, self.own], 1))
        return found


def export_fixed(module: nn.Module, *, is_present: bool) -> bytes:
    """Export as its page does: an example of one record, and no dynamic axes."""
    example = (torch.zeros(1, WIDTH),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_present:
            program = torch.onnx.export(module.eval(), example, dynamo=True, verbose=False)
            assert program is not None
            return bytes(program.model_proto.SerializeToString())
        buffer = io.BytesIO()
        torch.onnx.export(module.eval(), example, buffer, dynamo=False)  # type: ignore[arg-type]
        return buffer.getvalue()


def run(encoded: bytes, features: NDArray[np.float32]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(encoded)
    (found,) = session.run(None, {session.get_inputs()[0].name: features})
    return np.asarray(found)


def records(most: int) -> NDArray[np.float32]:
    found = np.random.default_rng(3).integers(0, most, (3, WIDTH)).astype(np.float32)
    return found / np.float32(256)


@pytest.mark.parametrize("is_present", [True, False])
@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, 1)),
        Words(),
        Reshaped(1, 1, -1),
        Reshaped(1, 1, WIDTH),
    ],
    ids=["dense", "words", "inferred", "named"],
)
def test_a_file_for_one_record_takes_three_with_the_same_rows_and_bits_for_one(
    module: nn.Module, *, is_present: bool
) -> None:
    torch.manual_seed(1)
    fixed = export_fixed(module, is_present=is_present)
    assert takes_one_record(fixed)
    freed, features = take_any_records(fixed), records(2 if isinstance(module, Words) else 256)
    assert not takes_one_record(freed)
    single = np.concatenate([run(fixed, features[at : at + 1]) for at in range(3)])
    assert len(np.unique(single)) > 1
    np.testing.assert_array_equal(
        single, np.concatenate([run(freed, features[at : at + 1]) for at in range(3)])
    )
    np.testing.assert_allclose(run(freed, features), single, rtol=1e-5, atol=1e-6)
    assert parse(freed, num_features=WIDTH).digest == parse(fixed, num_features=WIDTH).digest
    served = from_bytes(freed, WIDTH)
    session = onnxruntime.InferenceSession(served)
    (found,) = session.run(None, {"features": (features * 256).astype(np.uint8)})
    np.testing.assert_allclose(found, single, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_present", [True, False])
def test_layers_that_hold_one_record_keep_the_file_as_it_is(*, is_present: bool) -> None:
    fixed = export_fixed(Joined(), is_present=is_present)
    assert take_any_records(fixed) == fixed


class Turned(nn.Module):
    """Numbers in another order, which with the first axis open is one across records, and a lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden, self.last = nn.Embedding(4, 4), nn.Linear(4, 4), nn.Linear(8, 1)
        with torch.no_grad():
            self.table.weight.mul_(0.1)
            self.hidden.weight.mul_(0.1)
            self.last.weight.mul_(0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = x[:, 1:5].reshape(1, 2, 2).permute(1, 0, 2).reshape(1, 4)
        looked_up = self.table((x[:, :1] * 256).long()).reshape(1, 4)
        found: torch.Tensor = self.last(torch.cat([self.hidden(turned), looked_up], 1))
        return found


def test_small_weights_do_not_hide_that_records_would_be_mixed() -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        fixed = export_fixed(Turned(), is_present=False)
        assert take_any_records(fixed) == fixed


def test_a_file_for_any_number_stays() -> None:
    encoded = as_onnx(nn.Linear(WIDTH, 1), WIDTH)
    assert take_any_records(encoded) is encoded
