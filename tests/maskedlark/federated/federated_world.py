"""Small devices, models and strategies for the tests of federated training."""

from typing import Any

import numpy as np

from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_training import Examples, LocalTraining
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg

MODEL = DenseModel(widths=(6, 5, 3))


def examples(count: int, seed: int = 0, *, features: int = 6, classes: int = 3) -> Examples:
    """A device's examples: uniform bytes and labels."""
    numbers = np.random.default_rng(seed)
    return Examples(
        features=numbers.integers(0, 256, (count, features)).astype(np.uint8),
        labels=numbers.integers(0, classes, count),
    )


def dp_fedavg(**changes: Any) -> DpFedAvg:
    """Ten devices, half of them drawn, no noise."""
    settings: dict[str, Any] = {
        "devices": 10,
        "sampling_rate": 0.5,
        "rounds": 3,
        "noise_multiplier": 0.0,
        "bound": UpdateBound(clip_norm=0.5),
        "local": LocalTraining(epochs=2, batch_size=4, learning_rate=0.5),
    }
    return DpFedAvg(**settings | changes)
