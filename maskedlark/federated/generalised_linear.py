"""Generalised linear models for draw-and-discard: each device's gradient at the weights that it drew.

A device's features are numbers in [0, 1]. The gradient of the loss is (predicted - true) times the features,
for logistic and for multinomial regression alike.
"""

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen

Reals: TypeAlias = NDArray[np.float64]


@frozen(eq=False)
class Batches:
    """The examples of some devices, alike in number.

    Attributes:
        features: (devices, examples, features), in [0, 1].
        labels: (devices, examples): 0 or 1, or a class.
    """

    features: NDArray[np.floating]
    labels: NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.labels)


class LinearModel(Protocol):
    """What draw-and-discard needs of a model."""

    @property
    def size(self) -> int:
        """The number of weights."""

    def mean_gradient(self, weights: Reals, batches: Batches) -> Reals:
        """Return (devices, weights): each device's mean gradient over its examples, at its own weights."""


@frozen
class Logistic:
    """P(label 1) = sigmoid(weights . features); an intercept is a feature that is always 1."""

    features: int

    @property
    def size(self) -> int:
        """One weight a feature."""
        return self.features

    def mean_gradient(self, weights: Reals, batches: Batches) -> Reals:
        """See `LinearModel.mean_gradient`."""
        scores = np.einsum("def,df->de", batches.features, weights)
        errors = 1.0 / (1.0 + np.exp(-scores)) - batches.labels
        gradient: Reals = np.einsum("de,def->df", errors, batches.features) / batches.labels.shape[1]
        return gradient


@frozen
class Multinomial:
    """Softmax regression with an intercept a class: features x classes weights, then the intercepts."""

    features: int
    classes: int

    @property
    def size(self) -> int:
        """All weights."""
        return (self.features + 1) * self.classes

    def mean_gradient(self, weights: Reals, batches: Batches) -> Reals:
        """See `LinearModel.mean_gradient`."""
        devices, examples = batches.labels.shape
        slopes = weights.astype(np.float32)  # whose rounding is far below a step's noise
        inputs = batches.features.astype(np.float32, copy=False)
        matrix = slopes[:, : -self.classes].reshape(devices, self.features, self.classes)
        scores = inputs @ matrix + slopes[:, None, -self.classes :]
        # Less the largest, so that no exponential overflows.
        shifted = np.exp(scores - scores.max(axis=2, keepdims=True))
        errors = shifted / shifted.sum(axis=2, keepdims=True)
        device, place = np.indices((devices, examples), sparse=True)
        errors[device, place, batches.labels] -= 1
        errors /= examples
        gradient = np.empty((devices, self.size))
        gradient[:, : -self.classes] = (inputs.transpose(0, 2, 1) @ errors).reshape(devices, -1)
        gradient[:, -self.classes :] = errors.sum(axis=1)
        return gradient

    def scores(self, weights: Reals, features: NDArray[np.floating]) -> Reals:
        """Return scores (examples, classes) at one row of weights."""
        matrix = weights[: -self.classes].reshape(self.features, self.classes)
        scores: Reals = features @ matrix + weights[-self.classes :]
        return scores

    def accuracy(self, weights: Reals, features: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
        """Return the share of examples whose largest score is their label's."""
        return float(np.mean(self.scores(weights, features).argmax(axis=1) == labels))

    def loss(self, weights: Reals, features: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
        """Return the mean cross-entropy, in nats."""
        scores = self.scores(weights, features)
        scores = scores - scores.max(axis=1, keepdims=True)
        true = scores[np.arange(len(labels)), labels]
        return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - true))
