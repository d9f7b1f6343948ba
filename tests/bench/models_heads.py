"""Two heads on one model against each alone, and whether models as people export them are exact.

python -m tests.bench.models_heads [--seeds N]          prints JSON; a part of `make bench-models`

Adult: who earns more than 50,000 dollars, and who works more than 40 hours a week (the column of hours is
left out). A report's label is a code of the two bits. Together, both are trained on one gradient, one clip,
one noise; alone, each has the same epsilon by itself, so that the two jobs cost twice as much. Network, rate
and the rest are quickstart's; four fifths of the training rows report, and the test rows test.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from adserver.training.as_onnx import as_onnx
from adserver.training.inference import evaluate_heads
from adserver.training.merged_parameters import separate_parameters
from helper.gradient.choose import choose_engine
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.model.heads import Heads
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.clip import Clip, Norm
from tests.bench.examples import LABEL, Examples, split, table_of_adult
from tests.bench.quickstart_job import train_by_defaults

EPSILON: Final = 3.0
HOURS: Final = "hours-per-week"
EARNS: Final[Mapping[str, Any]] = {"name": "earns", "targets": [0, 1, 0, 1]}
WORKS: Final[Mapping[str, Any]] = {"name": "works", "targets": [0, 0, 1, 1]}


class Logistic(nn.Module):
    """Zeros everywhere and a bias of its own, or values that differ."""

    def __init__(self, *, is_zero: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(256, 1) for _ in range(13)])
        self.bias = nn.Parameter(torch.zeros(1))
        for table in self.tables if is_zero else ():
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x * 256).long()
        total = self.bias
        for place, table in enumerate(self.tables):
            total = total + table(words[:, place])
        return total


def table_of_codes(part: str) -> tuple[dict[str, list[str | None]], NDArray[np.int64]]:
    """Adult's cells without what the heads tell, and codes: 1 for earning much, plus 2 for working much."""
    table = table_of_adult(part)
    earns, hours = table.pop(LABEL), table.pop(HOURS)
    works = [int(cell or 0) > 40 for cell in hours]
    return table, np.array([cell == ">50K" for cell in earns], np.int64) + 2 * np.array(works, np.int64)


@lru_cache(maxsize=1)
def adult_of_codes() -> tuple[Encoder, Examples, Examples]:
    """The encoder, the training and the test records, whose labels are codes."""
    (seen, codes), (test, test_codes) = (table_of_codes(part) for part in ("data", "test"))
    encoder = fit(seen, FitSettings())
    return (
        encoder,
        Examples(features=encoder.features(seen), labels=codes),
        Examples(features=encoder.features(test), labels=test_codes),
    )


def train(heads: Sequence[Mapping[str, Any]], epsilon: float, seed: int) -> dict[str, float]:
    """Train by quickstart's rules, and return each head's area under the curve on the test rows."""
    encoder, seen, test = adult_of_codes()
    trained = train_by_defaults(encoder, split(seen, seed), epsilon=epsilon, seed=seed, heads=heads)
    assert isinstance(trained.loss, Heads)
    found = evaluate_heads(trained.onnx, test.features, test.labels, trained.loss)
    return {name: one.auc or 0.0 for name, one in found.items()}


def is_exact(*, is_zero: bool) -> bool:
    """Whether a logistic regression with a bias of its own, exported by torch, is exact and whole."""
    module = Logistic(is_zero=is_zero)
    model = parse(separate_parameters(as_onnx(module, 13)), num_features=13)
    engine = choose_engine(
        model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, Clip(norm=Norm.L2, bound=1.0, frac_bits=20), 2
    )
    return engine.path == "exact" and model.num_parameters == 13 * 256 + 1


def heads_figures(seeds: int = 12, *, is_halved: bool = True, epsilon: float = EPSILON) -> dict[str, Any]:
    """Return the keys of `make bench-models` that this module measures.

    With `is_halved` also what two jobs of half the epsilon each do, which cost what the two heads cost.
    """
    kinds = {"together": epsilon, "alone": epsilon, **({"alone_at_half": epsilon / 2} if is_halved else {})}
    by_head = {
        kind: [
            train([EARNS, WORKS], share, seed)
            if kind == "together"
            else train([EARNS], share, seed) | train([WORKS], share, seed)
            for seed in range(1, seeds + 1)
        ]
        for kind, share in kinds.items()
    }
    means = {kind: np.array([np.mean(list(one.values())) for one in runs]) for kind, runs in by_head.items()}
    losses = means["alone"] - means["together"]
    halved = (
        {"heads_auc_loss_of_one_budget": float((means["alone_at_half"] - means["together"]).mean())}
        if is_halved
        else {}
    )
    return {
        "heads_auc_loss": float(losses.mean()),
        "heads_auc_loss_spread": float(losses.std(ddof=1)),
        "heads_seeds": seeds,
        **halved,
        "heads_auc": {
            kind: {name: float(np.mean([one[name] for one in runs])) for name in ("earns", "works")}
            for kind, runs in by_head.items()
        },
        "logistic_biased_is_exact": is_exact(is_zero=False),
        "logistic_zero_is_exact": is_exact(is_zero=True),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=12, help="two or more")
    parser.add_argument("--epsilon", type=float, default=EPSILON)
    asked = parser.parse_args()
    print(json.dumps(heads_figures(asked.seeds, epsilon=asked.epsilon), indent=2))


if __name__ == "__main__":
    main()
