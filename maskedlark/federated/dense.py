"""A dense network in plain numpy, trained on many devices at once.

    model = DenseModel(widths=(784, 10))                      # softmax regression
    parameters = model.initial(seeded(1))
    differences = model.train(parameters, [examples], TrainingSteps(schedule=schedule, learning_rate=0.1))

With two widths it is multinomial logistic regression; more widths add ReLU layers. Each device's rows go
through separate products, so a device trains to the same bits alone and among a thousand others.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.federated.local_training import IDLE, Differences, Examples, Parameters, TrainingSteps
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, uniform

FEATURE_RANGE: Final = np.float32(255)
"""Features are bytes; the network sees them divided by this."""


@frozen
class DenseModel:
    """A dense network with ReLU between layers and softmax cross-entropy at the end.

    Attributes:
        widths: Features, hidden widths, classes: at least two.
    """

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise InvalidModel(
                ModelReason.WRONG_SHAPE,
                "a dense model has a number of features and a number of classes, each at least 1",
            )

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """The sizes of weight matrix and bias, layer by layer."""
        pairs = zip(self.widths, self.widths[1:], strict=False)
        return tuple(size for wide, narrow in pairs for size in (wide * narrow, narrow))

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(self.layer_sizes)

    def initial(self, randomness: Randomness) -> Parameters:
        """Draw Glorot's uniform weights, within sqrt(6 / (in + out)); zero biases; softmax starts at zero."""
        parameters = np.zeros(self.size, np.float32)
        # Softmax regression is convex: no units are alike that random weights would have to part.
        if len(self.widths) == 2:
            return parameters
        for weights, _ in self._layers(parameters[None]):
            fan_in, fan_out = weights.shape[1:]
            limit = np.sqrt(6.0 / (fan_in + fan_out))
            drawn = uniform(fan_in * fan_out, randomness).reshape(fan_in, fan_out)
            weights[0] = ((2.0 * drawn - 1.0) * limit).astype(np.float32)
        return parameters

    def train(self, parameters: Parameters, stack: Sequence[Examples], steps: TrainingSteps) -> Differences:
        """See `LocalModel.train`. Examples have uint8 features (n, widths[0]) and labels in 0..classes-1."""
        devices, count, _ = steps.schedule.shape
        trained = np.repeat(parameters[None].astype(np.float32), devices, axis=0)
        rate = np.float32(steps.learning_rate)
        for step in range(count):
            places = steps.schedule[:, step]
            features, labels = _batch(stack, places)
            gradient = self.mean_gradient(trained, features, labels)
            if steps.proximal:
                gradient += np.float32(steps.proximal) * (trained - parameters)
            # Devices with fewer steps stand still, multiplied by 0 and not left out: the stack stays whole.
            is_active = (places[:, :1] != IDLE).astype(np.float32)
            trained -= rate * is_active * gradient
            if steps.project is not None:
                # As in the paper's UserUpdate: the way from the round's start is clipped, not the last step.
                trained = parameters + steps.project(trained - parameters)
        return trained - parameters

    def mean_gradient(
        self, weights: NDArray[np.float32], features: NDArray[np.float32], labels: NDArray[np.integer]
    ) -> NDArray[np.float32]:
        """Return the gradient of the mean loss over each device's batch.

        Args:
            weights: (devices, parameters).
            features: (devices, batch, features) in [0, 1].
            labels: (devices, batch); `IDLE` for a place without an example.
        """
        layers = self._layers(weights)
        inputs = [features]
        for matrix, bias in layers[:-1]:
            inputs.append(np.maximum(inputs[-1] @ matrix + bias[:, None], np.float32(0)))
        delta = _softmax(inputs[-1] @ layers[-1][0] + layers[-1][1][:, None])
        is_real = labels != IDLE
        device, place = np.nonzero(is_real)
        delta[device, place, labels[device, place]] -= np.float32(1)
        # At least 1: an idle device has nothing to divide, and its step is multiplied by 0.
        count = np.maximum(is_real.sum(axis=1), 1).astype(np.float32)
        delta *= (is_real / count[:, None])[..., None].astype(np.float32)
        gradient = np.empty_like(weights)
        parts = self._layers(gradient)
        for index in range(len(layers) - 1, -1, -1):
            parts[index][0][:] = inputs[index].transpose(0, 2, 1) @ delta
            parts[index][1][:] = delta.sum(axis=1)
            if index:
                delta = (delta @ layers[index][0].transpose(0, 2, 1)) * (inputs[index] > 0)
        return gradient

    def logits(self, parameters: Parameters, features: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return logits (n, classes) for features (n, widths[0]) in bytes."""
        layers = self._layers(parameters[None].astype(np.float32))
        values = features.astype(np.float32) / FEATURE_RANGE
        for matrix, bias in layers[:-1]:
            values = np.maximum(values @ matrix[0] + bias[0], np.float32(0))
        matrix, bias = layers[-1]
        scores: NDArray[np.float32] = values @ matrix[0] + bias[0]
        return scores

    def accuracy(self, parameters: Parameters, examples: Examples) -> float:
        """Return the share of examples whose largest logit is their label's."""
        features = examples.features.astype(np.uint8, copy=False)
        return float(np.mean(self.logits(parameters, features).argmax(axis=1) == examples.labels))

    def loss(self, parameters: Parameters, examples: Examples) -> float:
        """Return the mean cross-entropy, in nats."""
        logits = self.logits(parameters, examples.features.astype(np.uint8, copy=False)).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        true = logits[np.arange(len(examples)), examples.labels]
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - true))

    def _layers(self, weights: NDArray[np.float32]) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Return views of each layer's matrix (devices, in, out) and bias (devices, out)."""
        layers = []
        start = 0
        for wide, narrow in zip(self.widths, self.widths[1:], strict=False):
            middle, end = start + wide * narrow, start + wide * narrow + narrow
            layers.append((weights[:, start:middle].reshape(-1, wide, narrow), weights[:, middle:end]))
            start = end
        return layers


def _batch(
    stack: Sequence[Examples], places: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return each device's examples at its places: features (devices, batch, d) in [0, 1], and labels."""
    shape = stack[0].features.shape[1:]
    features = np.zeros((*places.shape, *shape), np.float32)
    labels = np.full(places.shape, IDLE, np.int64)
    for device, (examples, row) in enumerate(zip(stack, places, strict=True)):
        real = np.flatnonzero(row != IDLE)
        features[device, real] = examples.features[row[real]]
        labels[device, real] = examples.labels[row[real]]
    # Of the batch alone: a device's examples stay bytes, a quarter of the memory of float32.
    features /= FEATURE_RANGE
    return features, labels


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return probabilities over the last axis."""
    # Less the largest, so that no exponential overflows.
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float32] = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities
