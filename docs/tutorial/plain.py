"""Plain training in the clear, to compare with.

The same model, optimizer, steps and expected batch, in float32 PyTorch.

Only a demo or a benchmark may do this: it needs the records that nobody but their browsers has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """SGD with momentum on the sum of per-record gradients over the expected batch.

    Gradients are clipped in L2 unless clip_norm is None.

    Each round draws each record with probability batch_size / records, as the helpers do; a batch_size of
    None takes all.
    """

    rounds: int
    learning_rate: float
    momentum: float
    clip_norm: float | None
    batch_size: float | None = None
    seed: int = 0


def network(layers: Sequence[int], values: Sequence[NDArray[np.float32]]) -> list[torch.nn.Linear]:
    """The dense ReLU network of `adserver model create`, layer by layer.

    It begins with the given weights and biases in turn.
    """
    network_layers = []
    for index, (wide, narrow) in enumerate(pairwise(layers)):
        layer = torch.nn.Linear(wide, narrow)
        weight, bias = (torch.tensor(value) for value in values[2 * index : 2 * index + 2])
        layer.weight.data = weight if weight.shape == layer.weight.shape else weight.T.contiguous()
        layer.bias.data = bias.reshape(-1)
        network_layers.append(layer)
    return network_layers


def train(
    layers: list[torch.nn.Linear],
    features: NDArray[np.uint8],
    labels: NDArray[np.float64],
    training: Training,
) -> None:
    """Train in place. Binary labels for one output, classes for several."""
    inputs, targets = to_inputs(features), torch.tensor(labels)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=training.learning_rate, momentum=training.momentum)
    expected = training.batch_size or len(inputs)
    sampling = torch.Generator().manual_seed(training.seed)
    for _ in range(training.rounds):
        chosen = torch.rand(len(inputs), generator=sampling) < expected / len(inputs)
        for parameter, gradient in zip(
            parameters,
            _gradient_sum(layers, inputs[chosen], targets[chosen], training.clip_norm),
            strict=True,
        ):
            parameter.grad = gradient / expected
        optimizer.step()


def accuracy(
    layers: list[torch.nn.Linear], features: NDArray[np.uint8], labels: NDArray[np.float64]
) -> float:
    """The share of records that the model gets right."""
    with torch.no_grad():
        outputs = _forward(layers, to_inputs(features))[-1]
    predicted = (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)
    return float((predicted == torch.tensor(labels).long()).double().mean())


def to_inputs(features: NDArray[np.uint8]) -> torch.Tensor:
    """Bytes as the model sees them: b / 256."""
    return torch.tensor(features.astype(np.float32) / 256)


def _forward(layers: list[torch.nn.Linear], inputs: torch.Tensor) -> list[torch.Tensor]:
    """Each layer's output before its ReLU; the last has none."""
    outputs = [layers[0](inputs)]
    for layer in layers[1:]:
        outputs.append(layer(torch.relu(outputs[-1])))
    return outputs


def _gradient_sum(
    layers: list[torch.nn.Linear], inputs: torch.Tensor, targets: torch.Tensor, clip_norm: float | None
) -> list[torch.Tensor]:
    """The sum over records of their gradients, each scaled down to the clip norm.

    A dense layer's per-record gradient is delta x activation, so its norm is a product and no per-record
    gradient is stored.
    """
    outputs = _forward(layers, inputs)
    if outputs[-1].shape[1] == 1:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            outputs[-1][:, 0], targets.float(), reduction="sum"
        )
    else:
        loss = torch.nn.functional.cross_entropy(outputs[-1], targets.long(), reduction="sum")
    deltas = torch.autograd.grad(loss, outputs)
    with torch.no_grad():
        activations = [inputs, *(torch.relu(output) for output in outputs[:-1])]
        if clip_norm is not None:
            squares = [
                d.square().sum(1) * (a.square().sum(1) + 1) for d, a in zip(deltas, activations, strict=True)
            ]
            scale = (clip_norm / torch.stack(squares).sum(0).sqrt()).clamp(max=1.0)
            deltas = tuple(delta * scale[:, None] for delta in deltas)
        gradients = [
            (delta.T @ activation, delta.sum(0))
            for delta, activation in zip(deltas, activations, strict=True)
        ]
    return [gradient for of_layer in gradients for gradient in of_layer]
