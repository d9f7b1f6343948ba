"""Data with a known truth: a logistic model with weights drawn from the seed decides the conversions."""

import json
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from browser_sim.draws import Draws
from browser_sim.source import Source, SourceRecords
from maskedlark.frozen import frozen
from maskedlark.randomness import uniform

# The standard deviation of the logits, so that labels are uncertain but not noise, at any width.
_LOGIT_SPREAD: Final = 2.0
# About a third of the impressions convert at this bias and spread.
_BASE_LOGIT: Final = -1.0


@frozen
class LogisticTruth:
    """P(label 1) = 1 / (1 + exp(-(weights . features/256 + bias))).

    Shapes: weights float64 (d,).
    """

    weights: NDArray[np.float64]
    bias: float

    @classmethod
    def draw(cls, num_features: int, draws: Draws) -> "LogisticTruth":
        """Draw weights in random directions, scaled to one spread of logits, and a centring bias."""
        directions = 2.0 * uniform(num_features, draws.stream("synthetic weights")) - 1.0
        # Uniform bytes over 256 have variance 1/12 and mean 255/512.
        weights = directions * (_LOGIT_SPREAD * np.sqrt(12.0) / max(float(np.linalg.norm(directions)), 1e-9))
        return cls(weights=weights, bias=_BASE_LOGIT - float(weights.sum()) * 255.0 / 512.0)

    def probabilities(self, features: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return probabilities, float64 (n,), for features u8 (n, d)."""
        logits = features / 256.0 @ self.weights + self.bias
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))

    def synthesise(self, rows: int, draws: Draws) -> Source:
        """Draw independent uniform feature bytes, and labels with the true probabilities."""
        width = len(self.weights)
        features = np.frombuffer(draws.stream("synthetic features")(rows * width), np.uint8).reshape(
            rows, width
        )
        labels = uniform(rows, draws.stream("synthetic labels")) < self.probabilities(features)
        return Source(
            name="synthetic",
            records=SourceRecords(features=features, labels=labels.astype(np.float64)),
            feature_names=tuple(f"x{column}" for column in range(width)),
            label_names=("no conversion", "conversion"),
            default_label=0,
            scaling="features are drawn as uniform bytes; the true model reads byte/256",
        )

    def save(self, path: Path) -> None:
        """Write the true model as JSON: weights and bias of a logistic model on byte/256."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"input": "byte/256", "weights": self.weights.tolist(), "bias": self.bias}, indent=1)
            + "\n"
        )
