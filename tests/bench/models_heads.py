"""Two heads on one model against each alone, and whether models as people export them are exact.

python -m tests.bench.models_heads [--seeds N]          prints JSON; a part of `make bench-models`

Adult: who earns more than 50,000 dollars, and who works more than 40 hours a week (the column of hours is
left out). A report's label is a code of the two bits. Together, both are trained on one gradient, one clip,
one noise; alone, each has the same epsilon by itself, so that the two jobs cost twice as much. The noise is
what both helpers add together, as epsilon against the ad server counts it.
"""

import argparse
import gzip
import io
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import nn

from adserver.records.defaults import CLIP_QUANTILE
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.as_onnx import as_onnx
from adserver.training.inference import predict
from adserver.training.merged_parameters import separate_parameters
from helper.gradient.choose import choose_engine
from maskedlark.model.heads import Heads, heads_of
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.samples import sampling_numerator
from tests.bench.in_process import train_in_process
from tests.bench.private_training import _DATA, one_curators_noise
from tests.builders import job_spec, world
from tests.training_plans import training_plan

EPSILON: Final = 3.0
ROUNDS: Final = 120
BATCH: Final = 4_096
RATE: Final = 4.0
HOURS: Final = 12
CODES: Final = 4
EARNS: Final[dict[str, Any]] = {"name": "earns", "output": "earns", "targets": [0, 1, 0, 1]}
WORKS: Final[dict[str, Any]] = {"name": "works", "output": "works", "targets": [0, 0, 1, 1]}


class Table:
    """Adult as bytes: words by rank, numbers by quantiles of the training rows; labels are codes."""

    def __init__(self) -> None:
        train, test = (
            _rows(gzip.decompress((_DATA / "ads" / f"adult.{part}.gz").read_bytes()))
            for part in ("data", "test")
        )
        columns = [place for place in range(14) if place != HOURS]
        are_words = [not train[0][place].lstrip("-").isdigit() for place in columns]
        parts = [
            _column([row[place] for row in train], [row[place] for row in test], is_word=is_word)
            for place, is_word in zip(columns, are_words, strict=True)
        ]
        self.train, self.test = (np.column_stack([part[side] for part in parts]) for side in (0, 1))
        self.train_codes, self.test_codes = _codes(train), _codes(test)


class Network(nn.Module):
    """A table for each column, a hidden layer on their rows, and an output for each head."""

    def __init__(self, columns: int, outputs: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tables = nn.ModuleList([nn.Embedding(256, 4) for _ in range(columns)])
        for table in self.tables:
            nn.init.normal_(table.weight, 0.0, 0.3)  # type: ignore[arg-type]
        self.trunk = nn.Linear(4 * columns, 32)
        self.heads = nn.ModuleList([nn.Linear(32, 1) for _ in range(outputs)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        indices = (x * 256).long()
        rows = [table(indices[:, place]) for place, table in enumerate(self.tables)]
        hidden = torch.relu(self.trunk(torch.cat(rows, 1)))
        return tuple(head(hidden) for head in self.heads)


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


def _rows(text: bytes) -> list[list[str]]:
    cut = ([cell.strip() for cell in line.split(",")] for line in text.decode().splitlines())
    return [row for row in cut if len(row) == 15]


def _codes(rows: list[list[str]]) -> NDArray[np.uint32]:
    return np.array([row[14].startswith(">50K") + 2 * (int(row[HOURS]) > 40) for row in rows], np.uint32)


def _column(
    train: list[str], test: list[str], *, is_word: bool
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if is_word:
        ranks = {word: rank for rank, word in enumerate(sorted(set(train)), 1)}
        first, second = (
            np.array([ranks.get(word, 0) for word in words], np.uint8) for words in (train, test)
        )
        return first, second
    edges = np.unique(np.quantile(np.array(train, float), np.linspace(0, 1, 256)[1:-1]))
    first, second = (
        np.searchsorted(edges, np.array(cells, float)).astype(np.uint8) for cells in (train, test)
    )
    return first, second


@lru_cache(maxsize=1)
def table() -> Table:
    """The table, read once."""
    return Table()


def network(names: Sequence[str], seed: int) -> bytes:
    """The untrained network with outputs of these names."""
    data, buffer = table(), io.BytesIO()
    module = Network(data.train.shape[1], len(names), seed).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, data.train.shape[1]),),
            buffer,  # type: ignore[arg-type]  # a file object will do
            dynamo=False,
            output_names=list(names),
            input_names=["x"],
            dynamic_axes={"x": {0: "records"}},
        )
    return buffer.getvalue()


def train(heads: Heads, epsilon: float, seed: int, *, rate: float = RATE) -> dict[str, float]:
    """Train by the product's functions, and return each head's area under the curve on the test rows."""
    data = table()
    encoded = network([head.output for head in heads.heads], seed)
    model = parse(encoded, num_features=data.train.shape[1])
    records = len(data.train)
    of = world(
        num_features=data.train.shape[1],
        labels={"kind": "classes", "size": CODES},
        min_batch_size=20,
        mechanism=Mechanism.GAUSSIAN,
        norm=Norm.L2,
        clip_norm=10.0,
        delta=1e-5,
    )
    job = job_spec(
        job_id=seed.to_bytes(16, "big"),
        task_id=of.task.task_id,
        model_digest=model.digest,
        loss=heads,
        rounds=ROUNDS,
        sampling_numerator=sampling_numerator(expected_batch_size=BATCH, dataset_size=records),
        is_clip_adaptive=True,
    )
    # Against the ad server both helpers' noises count: each adds its part of one curator's.
    both = one_curators_noise(epsilon, job.sampling_rate, ROUNDS)
    job = replace(job, noise_multiplier=both / math.sqrt(2))
    plan = training_plan(
        of.task,
        job,
        records=records,
        optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=rate, momentum=0.9),
        schedule=Schedule(kind=ScheduleKind.COSINE),
        adaptive_clip=AdaptiveClip(quantile=CLIP_QUANTILE),
        eval_every=ROUNDS,
    )
    values = train_in_process(of, plan, model, data.train, data.train_codes.astype(np.int64))
    outputs = predict(replace_parameters(encoded, model, values), data.test)
    return {
        head.name: float(
            roc_auc_score([head.targets[code] != 0 for code in data.test_codes], outputs[:, place])
        )
        for place, head in enumerate(heads.heads)
    }


def is_exact(*, is_zero: bool) -> bool:
    """Whether a logistic regression with a bias of its own, exported by torch, is exact and whole."""
    module = Logistic(is_zero=is_zero)
    model = parse(separate_parameters(as_onnx(module, 13)), num_features=13)
    engine = choose_engine(
        model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, Clip(norm=Norm.L2, bound=1.0, frac_bits=20), 2
    )
    return engine.path == "exact" and model.num_parameters == 13 * 256 + 1


def heads_figures(seeds: int = 2, epsilon: float = EPSILON) -> dict[str, Any]:
    """Return the keys of `make bench-models` that this module measures."""
    found: dict[str, list[float]] = {"together": [], "alone": [], "alone_at_half": []}
    by_head: dict[str, list[dict[str, float]]] = {"together": [], "alone": [], "alone_at_half": []}
    for seed in range(1, seeds + 1):
        alone, half = (
            {name: auc for one in (EARNS, WORKS) for name, auc in train(heads_of([one]), share, seed).items()}
            for share in (epsilon, epsilon / 2)
        )
        for kind, aucs in (
            ("together", train(heads_of([EARNS, WORKS]), epsilon, seed)),
            ("alone", alone),
            ("alone_at_half", half),
        ):
            by_head[kind].append(aucs)
            found[kind].append(float(np.mean(list(aucs.values()))))
    losses = np.array(found["alone"]) - np.array(found["together"])
    return {
        "heads_auc_loss": round(float(losses.mean()), 4),
        "heads_auc_loss_spread": round(float(losses.std(ddof=1)), 4) if seeds > 1 else None,
        "heads_auc_loss_of_one_budget": round(
            float(np.mean(found["alone_at_half"]) - np.mean(found["together"])), 4
        ),
        "heads_auc": {
            kind: {name: round(float(np.mean([one[name] for one in runs])), 4) for name in ("earns", "works")}
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
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epsilon", type=float, default=EPSILON)
    asked = parser.parse_args()
    print(json.dumps(heads_figures(asked.seeds, asked.epsilon), indent=2))


if __name__ == "__main__":
    main()
