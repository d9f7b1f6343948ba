"""What is to be written in place of a refused operator is said, and is taken."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from maskedlark.errors import ModelReason
from maskedlark.model.onnx_file import parse
from maskedlark.model.operators.table import INSTEAD_OF_REFUSED, OPERATORS
from tests.refusals import refused
from tests.torch_models import export


class Applied(nn.Module):
    """A linear layer on what a function makes of four features."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.last = function, nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.function(x))
        return found


class Recurrent(nn.Module):
    """The last of four numbers' states, each of four."""

    def __init__(self, kind: type[nn.RNN] | type[nn.GRU]) -> None:
        super().__init__()
        self.cell = kind(1, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.cell(x[:, :, None])[0]
        return states[:, -1]


def encoded(function: Callable[[Tensor], Tensor]) -> bytes:
    return export(Applied(function).eval(), 4, 1, dynamo=False)


@pytest.mark.parametrize(
    ("operator", "function", "instead"),
    [
        ("Abs", torch.abs, lambda x: torch.relu(x) + torch.relu(-1 * x)),
        ("Neg", lambda x: -x, lambda x: -1 * x),
        ("Max", lambda x: torch.maximum(x, 1 - x), lambda x: x + torch.relu(1 - x - x)),
        ("Min", lambda x: torch.minimum(x, 1 - x), lambda x: x - torch.relu(x - (1 - x))),
        ("Selu", torch.selu, torch.nn.functional.elu),
        (
            "ReduceMax",
            lambda x: x * x.amax(1, keepdim=True),
            lambda x: x * torch.max_pool1d(x[:, None], 4)[:, 0],
        ),
        ("RNN", Recurrent(nn.RNN), Recurrent(nn.GRU)),
    ],
)
def test_a_refused_operator_is_named_with_what_is_taken_in_its_place(
    operator: str, function: Callable[[Tensor], Tensor], instead: Callable[[Tensor], Tensor]
) -> None:
    with refused(ModelReason.UNKNOWN_OPERATOR, f"'{operator}' is not supported: write "):
        parse(encoded(function), num_features=4)
    parse(encoded(instead), num_features=4)


def test_no_operator_that_is_taken_is_called_refused() -> None:
    assert INSTEAD_OF_REFUSED.keys().isdisjoint(OPERATORS)


class Bounded(nn.Module):
    """A row of a table by a feature's byte, which is bounded before or after it becomes a whole number."""

    def __init__(self, *, is_before: bool) -> None:
        super().__init__()
        self.table, self.is_before = nn.Embedding(3, 4), is_before

    def forward(self, x: Tensor) -> Tensor:
        byte = x[:, 0] * 256
        code = byte.clamp(0, 2).long() if self.is_before else byte.long().clamp(0, 2)
        found: Tensor = self.table(code)
        return found


def test_a_bound_on_whole_numbers_is_answered_with_one_before_the_cast() -> None:
    told = r"clamp before the cast, as in \(x \* 256\).clamp\(0, rows - 1\).long"
    with refused(ModelReason.WRONG_SHAPE, told):
        parse(encoded(Bounded(is_before=False)), num_features=4)
    parse(encoded(Bounded(is_before=True)), num_features=4)
