"""Models that devices train with torch: dense networks and any ONNX graph that the parser accepts.

    model = torch_model(DenseModel(widths=(784, 32, 10)))     # or a GraphModel
    differences = model.train(parameters, [examples], TrainingSteps(schedule=schedule, learning_rate=0.1))

Strategies see a `LocalModel` and do not know which. Gradients are computed in float64, weights are kept in
float32. Each device trains by itself, on one thread: on one machine, with one version of torch, a device's
row has the same bits alone, among others, and in a simulation. Another processor may give other last bits;
so may numpy, whose rows differ by rounding only.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from maskedlark.autodiff.interpreter import Interpreter
from maskedlark.autodiff.one_thread import one_thread
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.graph_model import GraphModel
from maskedlark.federated.local_training import IDLE, Differences, Examples, Parameters, TrainingSteps
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss, check_loss
from maskedlark.model.onnx_file import parse

Forward: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits (examples, classes), of flat weights and features (examples, width) in bytes, both float64."""

# `DenseModel` divides features by this
_DENSE_RANGE: Final = 255.0
# ONNX graphs take a byte over this
_GRAPH_RANGE: Final = 256.0


@frozen(eq=False)
class _TorchModel:
    """A classifier with softmax cross-entropy, as a `LocalModel`.

    Attributes:
        layer_sizes: The sizes of the vectors of weights.
        forward: Gives the logits.
    """

    layer_sizes: tuple[int, ...]
    forward: Forward

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(self.layer_sizes)

    def train(self, parameters: Parameters, stack: Sequence[Examples], steps: TrainingSteps) -> Differences:
        """See `LocalModel.train`."""
        with one_thread():
            rows = [
                self._train(parameters, examples, places, steps)
                for examples, places in zip(stack, steps.schedule, strict=True)
            ]
        differences: Differences = np.concatenate(rows) - parameters
        return differences

    def logits(self, parameters: Parameters, features: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return logits (n, classes) for features (n, width) in bytes."""
        with one_thread(), torch.no_grad():
            scores: NDArray[np.float64] = self.forward(_float64(parameters), _float64(features)).numpy()
        return scores

    def accuracy(self, parameters: Parameters, examples: Examples) -> float:
        """Return the share of examples whose largest logit is their label's."""
        return float(np.mean(self.logits(parameters, examples.features).argmax(axis=1) == examples.labels))

    def loss(self, parameters: Parameters, examples: Examples) -> float:
        """Return the mean cross-entropy, in nats."""
        logits = torch.from_numpy(self.logits(parameters, examples.features))
        return float(functional.cross_entropy(logits, torch.from_numpy(examples.labels.astype(np.int64))))

    def _train(
        self,
        start: Parameters,
        examples: Examples,
        places: NDArray[np.int64],
        steps: TrainingSteps,
    ) -> Parameters:
        """Return one device's weights (1, parameters) after its steps."""
        trained = start[None].astype(np.float32)
        for row in places:
            real = row[row != IDLE]
            # The stack's padding: the model in numpy multiplies such a step by 0.
            if not len(real):
                continue
            gradient = self._gradient(trained[0], examples, real)
            if steps.proximal:
                gradient += np.float32(steps.proximal) * (trained[0] - start)
            trained = trained - np.float32(steps.learning_rate) * gradient
            if steps.project is not None:
                trained = start + steps.project(trained - start)
        return trained

    def _gradient(
        self, weights: Parameters, examples: Examples, real: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the gradient of the mean loss over some examples."""
        flat = _float64(weights).requires_grad_()
        logits = self.forward(flat, _float64(examples.features[real]))
        labels = torch.from_numpy(examples.labels[real].astype(np.int64))
        (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, labels), flat)
        # Rounded once, at the end: devices step in float32, as `DenseModel` does.
        single: NDArray[np.float32] = gradient.numpy().astype(np.float32)
        return single


def torch_model(model: DenseModel | GraphModel) -> _TorchModel:
    """Build a job's model for torch. Called by a device before it tosses a coin, and by a simulation.

    Raises:
        InvalidModel: the parser does not accept the graph, or it is not the one that the job describes.
    """
    if isinstance(model, DenseModel):
        return _TorchModel(layer_sizes=model.layer_sizes, forward=_dense(model.widths, model.layer_sizes))
    features, classes = model.widths
    graph = parse(model.file(), num_features=features)
    check_loss(graph, Loss.CROSS_ENTROPY, classes)
    # The job names sizes, by which weights are divided before the graph is seen.
    if tuple(parameter.size for parameter in graph.parameters) != model.layer_sizes:
        raise InvalidModel(ModelReason.WRONG_SHAPE, "the graph has not the parameters that the job says")
    interpreter = Interpreter(graph)
    shapes = [parameter.shape for parameter in graph.parameters]

    def forward(flat: Tensor, values: Tensor) -> Tensor:
        parts = torch.split(flat, list(model.layer_sizes))
        weights = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        scored: Tensor = torch.func.vmap(lambda record: interpreter.evaluate(weights, record))(
            values / _GRAPH_RANGE
        )
        return scored

    return _TorchModel(layer_sizes=model.layer_sizes, forward=forward)


def _dense(widths: tuple[int, ...], layer_sizes: tuple[int, ...]) -> Forward:
    """Compute `DenseModel.logits` in torch."""
    shapes = list(pairwise(widths))

    def forward(flat: Tensor, values: Tensor) -> Tensor:
        parts = torch.split(flat, list(layer_sizes))
        values = values / _DENSE_RANGE
        for index, (shape, matrix, bias) in enumerate(zip(shapes, parts[::2], parts[1::2], strict=True)):
            values = (torch.relu(values) if index else values) @ matrix.reshape(shape) + bias
        return values

    return forward


def _float64(values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values.astype(np.float64))
