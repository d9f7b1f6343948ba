"""What a network of one's own gains from standardised features: a table of defaults.md.

    python -m tests.bench.own_networks [--only adult] [--rounds 300]    some ten minutes on two idle cores

Networks as torch begins them, at epsilon 3 against the ad server, with the exact engine, both helpers' noise
and all else that quickstart chooses for an own network; AUC on the panel. One row for each data set and
network: as it is, then standardised, at the rule's rate and at others; means over seeds from 101 on, with
their standard deviation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import nn

from adserver.training.as_onnx import as_onnx
from adserver.training.defaults import ROUNDS, Network, choose_learning_rate
from adserver.training.eval_set import EvalSet
from adserver.training.inference import evaluate
from adserver.training.standardising import standardise
from maskedlark.encoding.encoder import CategoryColumn, Encoder
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from tests.bench.defaults import read_online_shoppers
from tests.bench.examples import Examples, Split, adult, rare, split
from tests.bench.harness import bench_parser, show
from tests.bench.quickstart_job import train_as_quickstart

EPSILON: Final = 3.0
SEEDS: Final = (101, 102, 103)
_RARE: Final = 0.1
_OTHER_RATES: Final = (0.25, 1.0, 4.0)
LOSS: Final = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One network on one data set; AUCs."""

    data: str
    network: str
    learning_rate: float
    as_it_is: float
    as_it_is_deviation: float
    standardised: float
    standardised_deviation: float
    at_other_rates: dict[float, float]


class _Embedded(nn.Module):
    """A table for each column of words, the numbers as they are, and a hidden layer above both."""

    def __init__(self, words: list[int], numbers: list[int]) -> None:
        super().__init__()
        self._words, self._numbers = words, numbers
        self.tables = nn.ModuleList([nn.Embedding(256, 8) for _ in words])
        self.last = _dense(8 * len(words) + len(numbers), 32, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        codes = (features[:, self._words] * 256).long()
        looked_up = [table(codes[:, place]) for place, table in enumerate(self.tables)]
        found: torch.Tensor = self.last(torch.cat([*looked_up, features[:, self._numbers]], 1))
        return found


def _dense(*widths: int) -> nn.Sequential:
    layers = [layer for fans in pairwise(widths) for layer in (nn.Linear(*fans), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _embedded(encoder: Encoder) -> nn.Module:
    places = range(encoder.num_features)
    words = [at for at in places if isinstance(encoder.columns[at], CategoryColumn)]
    return _Embedded(words, [at for at in places if at not in words])


NETWORKS: Final[dict[str, Callable[[Encoder], nn.Module]]] = {
    "linear": lambda encoder: _dense(encoder.num_features, 1),
    "32": lambda encoder: _dense(encoder.num_features, 32, 1),
    "64, 32": lambda encoder: _dense(encoder.num_features, 64, 32, 1),
    "embeddings of 8, 32": _embedded,
}


def begin(network: Callable[[Encoder], nn.Module], encoder: Encoder, seed: int) -> bytes:
    """Return a network as torch begins it."""
    torch.manual_seed(seed)
    return as_onnx(network(encoder).eval(), encoder.num_features)


def auc_of(onnx: bytes, records: Split, seed: int, rate: float, rounds: int = ROUNDS) -> float:
    """Train a network privately at a rate, and return its AUC on the panel."""
    trained = train_as_quickstart(
        onnx,
        records.reported.features,
        records.reported.labels,
        network=Network(hidden=(), are_numbers_in_tables=False),
        epsilon=EPSILON,
        seed=seed,
        learning_rate=rate,
        rounds=rounds,
    )
    return evaluate(trained.onnx, records.panel.features, records.panel.labels, LOSS).auc or 0.0


def rows(only: str, rounds: int) -> Iterator[Row]:
    """Measure the data sets whose names start so, with jobs of so many rounds."""
    for name, read in DATA.items():
        if not name.startswith(only):
            continue
        encoder, seen = read()
        for called, network in NETWORKS.items():
            before, after = list[float](), list[float]()
            others: dict[float, list[float]] = {rate: [] for rate in _OTHER_RATES}
            for seed in SEEDS:
                records, begun = split(seen, seed), begin(network, encoder, seed)
                panel = EvalSet(features=records.panel.features, labels=records.panel.labels)
                made = standardise(begun, LOSS, panel).model
                rule = choose_learning_rate(
                    rows=len(records.reported.labels),
                    epsilon=EPSILON,
                    parameters=parse(made, num_features=encoder.num_features).num_parameters,
                    network=None,
                )
                before.append(auc_of(begun, records, seed, rule, rounds))
                after.append(auc_of(made, records, seed, rule, rounds))
                for rate, found in others.items():
                    found.append(auc_of(made, records, seed, rate, rounds))
            yield Row(
                data=name,
                network=called,
                learning_rate=rule,
                as_it_is=round(float(np.mean(before)), 4),
                as_it_is_deviation=round(float(np.std(before, ddof=1)), 4),
                standardised=round(float(np.mean(after)), 4),
                standardised_deviation=round(float(np.std(after, ddof=1)), 4),
                at_other_rates={rate: round(float(np.mean(found)), 4) for rate, found in others.items()},
            )


def _adult() -> tuple[Encoder, Examples]:
    encoder, seen, _ = adult()
    return encoder, rare(seen, SEEDS[0], _RARE)


DATA: Final[dict[str, Callable[[], tuple[Encoder, Examples]]]] = {
    "online_shoppers": read_online_shoppers,
    "adult, one in ten positive": _adult,
}


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="data sets whose names start so")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each job")
    arguments = parser.parse_args()
    for row in rows(arguments.only, arguments.rounds):
        show(row, is_json=arguments.json)


if __name__ == "__main__":
    main()
