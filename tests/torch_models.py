"""Small torch modules of each family that the product trains, and both of torch's ways to export them."""

import io
import logging
import warnings
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """Eight steps of four features through an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cell(x.reshape(-1, 8, 4))
        return cast("Tensor", self.head(states[:, -1]))


class Tokens(nn.Module):
    """Each byte is a token: embedding, GRU, layer normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 5)
        self.cell = nn.GRU(5, 6, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cell(self.table((x * 256).long()))
        return cast("Tensor", self.head(self.norm(states.mean(1))))


def recurrent() -> tuple[nn.Module, int]:
    torch.manual_seed(1)
    return Recurrent().eval(), 32


def tokens() -> tuple[nn.Module, int]:
    torch.manual_seed(2)
    return Tokens().eval(), 10


def convolutional() -> tuple[nn.Module, int]:
    torch.manual_seed(3)
    module = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(4, 3),
        nn.LogSoftmax(1),
    )
    return module.eval(), 64


def dense() -> tuple[nn.Module, int]:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.Softplus(), nn.Linear(3, 1), nn.Sigmoid()
    ).eval(), 6


class Squeezed(nn.Module):
    """One output without an axis of its own, as `binary_cross_entropy` wants it, and computed in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.head(torch.relu(self.hidden(x))).double().float().squeeze(-1))


class Reshaped(Squeezed):
    """The same by `reshape`, and without a last activation."""

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.head(torch.relu(self.hidden(x))).reshape(-1))


def squeezed() -> tuple[nn.Module, int]:
    torch.manual_seed(5)
    return Squeezed().eval(), 6


def reshaped() -> tuple[nn.Module, int]:
    torch.manual_seed(6)
    return Reshaped().eval(), 6


EXPORTED: dict[str, Callable[[], tuple[nn.Module, int]]] = {
    "lstm": recurrent,
    "gru": tokens,
    "conv": convolutional,
    "dense": dense,
    "squeezed": squeezed,
    "reshaped": reshaped,
}


def export(module: nn.Module, width: int, records: int, *, dynamo: bool) -> bytes:
    """The module as ONNX, by either exporter; with more than one record the batch axis is left open."""
    logging.disable(logging.WARNING)  # both exporters log and warn about themselves
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _dynamo(module, width, records) if dynamo else _legacy(module, width, records)
    finally:
        logging.disable(logging.NOTSET)


def _dynamo(module: nn.Module, width: int, records: int) -> bytes:
    shapes = ({0: torch.export.Dim("records")},) if records > 1 else None
    example = (torch.zeros(records, width),)
    program = torch.onnx.export(
        module, example, dynamo=True, external_data=False, verbose=False, dynamic_shapes=shapes
    )
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def _legacy(module: nn.Module, width: int, records: int) -> bytes:
    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        (torch.zeros(records, width),),
        buffer,  # type: ignore[arg-type]  # a file object will do, though the type does not say so
        dynamo=False,
        verbose=False,
        input_names=["x"],
        dynamic_axes={"x": {0: "records"}} if records > 1 else None,
    )
    return buffer.getvalue()
