"""Parameters that an exporter merged are separate again where the file says what was meant, else refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from adserver.training.federated.model import read_submitted_model
from adserver.training.merged_parameters import separate_parameters
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.federated.graph_model import GraphModel
from maskedlark.model.limits import Limits
from maskedlark.model.onnx_file import parse
from tests.federated_site import Site
from tests.refusals import refused
from tests.torch_models import export


class Zeros(nn.Module):
    """Tables, a linear layer and a bias that all begin at zero; `tied` uses its first table twice."""

    def __init__(self, *, is_tied: bool = False) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(256, 1) for _ in range(13)])
        self.bias = nn.Parameter(torch.zeros(1))
        self.is_tied = is_tied
        for table in self.tables:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x * 256).long()
        z = self.bias
        for column, table in enumerate(self.tables):
            z = z + table(words[:, column])
        return z + self.tables[0](words[:, 13]) if self.is_tied else z


class Normal(nn.Module):
    """A scale and a running variance, and two normalisations, that all begin at one or at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 4)
        self.batch, self.layer = nn.BatchNorm1d(4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.second(self.batch(torch.relu(self.first(x)))))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def merged() -> bytes:
    """Tables of zeros as torch's present exporter merges them."""
    return export(Zeros().eval(), 14, 2, dynamo=True)


def sizes(encoded: bytes, width: int) -> dict[str, int]:
    return {one.name: one.size for one in parse(encoded, num_features=width).parameters}


def test_zeros_of_torchs_present_exporter_are_separate_again(merged: bytes) -> None:
    assert sum(sizes(merged, 14).values()) == 257  # what the exporter leaves of 3,329
    found = sizes(separate_parameters(merged), 14)
    assert found == {"bias": 1, **{f"tables.{i}.weight": 256 for i in range(13)}}
    assert separate_parameters(separate_parameters(merged)) == separate_parameters(merged)


def test_a_table_that_is_used_twice_stays_one() -> None:
    found = sizes(separate_parameters(export(Zeros(is_tied=True).eval(), 14, 2, dynamo=True)), 14)
    assert sum(found.values()) == 13 * 256 + 1


def test_a_scale_is_not_the_variance_that_began_equal() -> None:
    module = Normal().eval()
    encoded = separate_parameters(export(module, 6, 2, dynamo=True))
    found = sizes(encoded, 6)
    assert found == {name: value.numel() for name, value in module.named_parameters()}


@pytest.mark.parametrize("records", [1, 2])
def test_where_the_file_does_not_say_it_is_refused(records: int) -> None:
    legacy = export(Zeros().eval(), 14, records, dynamo=False)
    stripped = onnx.ModelProto.FromString(export(Zeros().eval(), 14, records, dynamo=True))
    for node in stripped.graph.node:
        del node.metadata_props[:]
    for encoded in (legacy, stripped.SerializeToString()):
        if len(sizes(encoded, 14)) == 14:
            assert separate_parameters(encoded) == encoded
            continue
        with pytest.raises(InvalidModel, match="would tie them") as refusal:
            separate_parameters(encoded)
        assert refusal.value.reason is ModelReason.MERGED_PARAMETERS


def test_devices_are_told_of_separate_parameters_too(tmp_path: Path) -> None:
    task = Site(tmp_path).scene.task
    width, classes = task.num_features, task.labels.size
    first, second = nn.Linear(width, classes), nn.Linear(classes, classes)
    nn.init.ones_(first.bias)
    nn.init.ones_(second.bias)
    module = nn.Sequential(first, nn.ReLU(), second).eval()
    encoded = export(module, width, 2, dynamo=True)
    told, file = read_submitted_model(encoded, (), task, seed=0)
    assert isinstance(told, GraphModel)
    assert sizes(file, width) == {name: value.numel() for name, value in module.named_parameters()}
    assert sum(told.layer_sizes) == sum(sizes(encoded, width).values()) + classes


def test_a_tensor_of_different_numbers_is_tied_on_purpose(tmp_path: Path) -> None:
    module = Zeros(is_tied=True).eval()
    for table in module.tables:
        nn.init.normal_(table.weight)  # type: ignore[arg-type]
    encoded = export(module, 14, 2, dynamo=False)
    assert separate_parameters(encoded) == encoded
    with refused(ModelReason.NOT_ONNX):
        separate_parameters(b"no model")


@pytest.mark.parametrize(
    ("limit", "why"), [("max_bytes", "on its own"), ("max_nodes", "operators"), ("max_fields", "fields")]
)
def test_a_file_that_would_grow_beyond_a_limit_is_refused(limit: str, why: str, merged: bytes) -> None:
    most = {"max_bytes": len(merged) + 11 * 1_024, "max_nodes": 13, "max_fields": 100}[limit]
    with refused(ModelReason.TOO_LARGE, why):
        separate_parameters(merged, limits=replace(Limits(), **{limit: most}))


def test_a_damaged_tensor_is_left_to_the_parser(merged: bytes) -> None:
    proto = onnx.ModelProto.FromString(merged)
    for tensor in proto.graph.initializer:
        if np.prod(tensor.dims) == 256:
            tensor.raw_data = b"abc"
    encoded = proto.SerializeToString()
    assert separate_parameters(encoded) == encoded


class Attention(nn.Module):
    """Attention over two rows that are made of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.Linear(4, 16), nn.Linear(16, 1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.rows(x).reshape(-1, 2, 8)
        mixed, _ = self.attention(rows, rows, rows, need_weights=False)
        outputs: torch.Tensor = self.last(mixed.flatten(1))
        return outputs


def test_the_scale_of_attention_that_two_operators_read_is_a_constant() -> None:
    torch.manual_seed(4)
    module = Attention().eval()
    # The exporter leaves out a bias of zeros
    nn.init.normal_(module.attention.out_proj.bias)
    given = export(module, 4, 2, dynamo=True)
    found = separate_parameters(given)
    assert sum(sizes(found, 4).values()) == sum(one.numel() for one in module.parameters())
    assert separate_parameters(found) == found
    x = np.random.default_rng(1).random((3, 4), np.float32)
    (outputs,) = onnxruntime.InferenceSession(found).run(None, {"x": x})
    with torch.no_grad():
        assert np.abs(outputs - module(torch.from_numpy(x)).numpy()).max() < 1e-6
