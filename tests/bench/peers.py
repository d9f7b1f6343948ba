"""What the exact engine is measured against.

Plain training, Opacus, torch.func and book-keeping, all float32 and unmasked.
"""

import io
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

Features = NDArray[np.uint8]
Labels = NDArray[np.uint32]
CHUNK = 16


def dense(widths: Sequence[int], seed: int = 0) -> nn.Sequential:
    """A ReLU network."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.ReLU()] * bool(layers) + [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


def convolutional() -> nn.Sequential:
    """Two convolutions and two dense layers, as in Opacus's MNIST example."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def export(net: nn.Module, inputs: int) -> bytes:
    """The ONNX file of a network."""
    file = io.BytesIO()
    axes = {"x": {0: "n"}}
    torch.onnx.export(
        net.eval(),
        (torch.zeros(1, inputs),),
        cast("str", file),
        dynamo=False,
        input_names=["x"],
        dynamic_axes=axes,
    )
    return file.getvalue()


def wbcd(records: int) -> tuple[Features, NDArray[np.int64]]:
    """The Wisconsin breast cancer data, each column binned to bytes."""
    from sklearn.datasets import load_breast_cancer

    table, labels = load_breast_cancer(return_X_y=True)
    low, high = table.min(0), table.max(0)
    return np.rint((table - low) / (high - low) * 255).astype(np.uint8)[:records], labels[:records].astype(
        np.int64
    )


def tensors(features: Features, labels: Labels) -> tuple[Tensor, list[Tensor]]:
    """Float features, and one vector of labels a candidate."""
    return torch.from_numpy(features).float() / 256, [
        torch.from_numpy(column.astype(np.int64)) for column in labels.T
    ]


def plain(net: nn.Module, features: Features, labels: Labels) -> Callable[[], None]:
    """Forward and backward of the first label, nothing clipped."""
    x, (y, *_) = tensors(features, labels)

    def run() -> None:
        net.zero_grad()
        functional.cross_entropy(net(x), y, reduction="sum").backward()  # type: ignore[no-untyped-call]  # torch ships it untyped

    return run


def opacus_ghost(net: nn.Module, features: Features, labels: Labels, clip_norm: float) -> Callable[[], None]:
    """Opacus's fast gradient clipping with ghost norms, once a label."""
    from copy import deepcopy

    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    module = GradSampleModuleFastGradientClipping(
        deepcopy(net).train(),
        batch_first=True,
        max_grad_norm=clip_norm,
        use_ghost_clipping=True,
        loss_reduction="sum",
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(module.parameters(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=clip_norm,
        expected_batch_size=len(features),
        loss_reduction="sum",
    )
    loss = DPLossFastGradientClipping(
        module, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum"
    )
    x, columns = tensors(features, labels)

    def run() -> None:
        for y in columns:
            module.zero_grad()
            loss(module(x), y).backward()

    return run


def vmap_chunks(net: nn.Module, features: Features, labels: Labels, clip_norm: float) -> Callable[[], None]:
    """Per-record gradients by torch.func in chunks, clipped and summed, once a label."""
    parameters = {name: value.detach() for name, value in net.named_parameters()}
    x, columns = tensors(features, labels)

    def loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(net, values, (record[None],)), label[None])

    gradients = vmap(grad(loss), (None, 0, 0))

    def run() -> None:
        total = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for y in columns:
            for part_x, part_y in zip(torch.split(x, CHUNK), torch.split(y, CHUNK), strict=True):
                found = gradients(parameters, part_x, part_y)
                norm = torch.sqrt(sum(value.flatten(1).square().sum(1) for value in found.values()))
                factor = torch.clamp(clip_norm / norm, max=1.0)
                for name, value in found.items():
                    total[name] += torch.einsum("n,n...->...", factor, value)

    return run


def bookkeeping(
    net: nn.Sequential, features: Features, labels: Labels, clip_norm: float
) -> Callable[[], None]:
    """One forward pass, deltas of every label by hand, analytic norms, and one reweighted product a layer for
    all labels.
    """
    x, columns = tensors(features, labels)
    first, second = cast("nn.Linear", net[0]), cast("nn.Linear", net[2])

    @torch.no_grad()
    def run() -> None:
        hidden = torch.relu(first(x))
        p = torch.softmax(second(hidden), 1)
        x_norm, hidden_norm = x.square().sum(1) + 1, hidden.square().sum(1) + 1
        gate = hidden > 0
        sums = [torch.zeros_like(p), torch.zeros_like(hidden)]
        for y in columns:
            top = p.clone()
            top[torch.arange(len(y)), y] -= 1
            below = (top @ second.weight) * gate
            norm = torch.sqrt(top.square().sum(1) * hidden_norm + below.square().sum(1) * x_norm)
            factor = torch.clamp(clip_norm / norm, max=1.0)[:, None]
            sums[0] += top * factor
            sums[1] += below * factor
        _ = sums[0].T @ hidden, sums[0].sum(0), sums[1].T @ x, sums[1].sum(0)

    return run
