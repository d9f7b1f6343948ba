"""Which engine a job gets.

What either of torch's exporters writes of the exact set is exact, and anything else says why.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helper.gradient.choose import choose_engine
from maskedlark.errors import ModelReason
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.clip import Clip, Norm
from tests.helper.gradient.exact.checks import check_graph
from tests.refusals import refused
from tests.torch_models import EXPORTED, Reshaped, Squeezed, export

ROOT = Path(__file__).resolve().parents[3]
CLIP = Clip(norm=Norm.L2, bound=0.5, frac_bits=32)


class Mixed(nn.Module):
    """Three categorical bytes with one table each for two of them, beside dense features, through a residual
    block."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(256, 3), nn.Embedding(256, 2)])
        self.first, self.second, self.last = nn.Linear(10, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        codes = (x[:, :2] * 256).long()
        parts = [self.tables[0](codes[:, 0]), self.tables[1](codes[:, 1]), x[:, 2:]]
        y = torch.relu(self.first(torch.cat(parts, 1)))
        return torch.sigmoid(self.last(y + torch.tanh(self.second(y))))


class Ids(nn.Module):
    """Columns of ids of two bytes; two of them of one vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40_000, 3), nn.Embedding(66_000, 2)
        self.last = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        codes = (x * 256).long()
        ids = codes[:, 0::2] + 256 * codes[:, 1::2]
        parts = [self.users(ids[:, 0]), self.items(ids[:, 1]), self.items(ids[:, 2])]
        return self.last(torch.cat(parts, 1))  # type: ignore[no-any-return]


class Images(nn.Module):
    """Convolutions with everything that goes with them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.pool = (
            nn.Conv2d(1, 3, 3, padding=1, bias=False),
            nn.BatchNorm2d(3),
            nn.MaxPool2d(2),
        )
        self.narrow, self.mean = nn.Conv2d(3, 4, 2), nn.AvgPool2d(2)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(nn.functional.elu(self.norm(self.conv(x.reshape(-1, 1, 8, 8)))))
        y = nn.functional.adaptive_avg_pool2d(self.mean(nn.functional.leaky_relu(self.narrow(y))), 1)
        return torch.log_softmax(self.last(y.flatten(1)), 1)


def parsed(module: nn.Module, width: int, *, dynamo: bool) -> Model:
    return parse(export(module.eval(), width, 2, dynamo=dynamo), num_features=width)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize(
    ("module", "width", "loss"),
    [
        (Mixed, 7, Loss.BINARY_CROSS_ENTROPY),
        (Images, 64, Loss.CROSS_ENTROPY),
        (Ids, 6, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS),
        (Squeezed, 6, Loss.BINARY_CROSS_ENTROPY),
        (Reshaped, 6, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS),
    ],
)
def test_what_torch_exports_runs_on_the_exact_path(
    module: type[nn.Module], width: int, loss: Loss, dynamo: bool
) -> None:
    torch.manual_seed(0)
    model = parsed(module(), width, dynamo=dynamo)
    assert choose_engine(model, loss, CLIP, 3 if loss is Loss.CROSS_ENTROPY else 2).path == "exact"
    check_graph(model, loss, CLIP, labels=2, records=5)


@pytest.mark.parametrize(("name", "operator"), [("lstm", "LSTM"), ("gru", "GRU"), ("conv", "Gelu|Erf")])
def test_other_models_take_the_general_path_and_say_why(name: str, operator: str) -> None:
    module, width = EXPORTED[name]()
    model = parsed(module, width, dynamo=False)
    engine = choose_engine(model, Loss.CROSS_ENTROPY, CLIP, model.output_width)
    assert engine.path == "general"
    assert any(part in engine.reason for part in operator.split("|"))


def test_a_helper_on_the_exact_path_never_loads_torch() -> None:
    program = (
        "import sys, helper.gradient.choose, helper.gradient.exact.self_check as s; s.self_check(); "
        "print('torch' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert answer.stdout.strip() == "False"


def test_without_torch_a_model_outside_the_exact_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module, width = EXPORTED["lstm"]()
    model = parsed(module, width, dynamo=False)
    monkeypatch.setitem(sys.modules, "helper.gradient.general.engine", None)
    with refused(ModelReason.UNKNOWN_OPERATOR, r"masked-lark\[torch\]"):
        choose_engine(model, Loss.CROSS_ENTROPY, CLIP, 2)
