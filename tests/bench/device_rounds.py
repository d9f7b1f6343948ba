"""Rounds and learning rates of people's devices on made tables: a table of defaults.md.

    python -m tests.bench.device_rounds                    some twenty minutes on one core
    python -m tests.bench.device_rounds --only purchases --people 200

Each person's device holds some eight rows of a made table and trains quickstart's network for devices. The
AUC is that of 8,000 further rows, at epsilon 3 of a person for all rounds together, whatever their number;
the simulator adds the noise of both helpers. Means over seeds, which draw the tables too, with their standard
deviation.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from sklearn.metrics import roc_auc_score

from adserver.quickstart.budget_check import strategy_settings
from adserver.quickstart.settings import FederatedSettings
from adserver.simulating.simulator import Simulated, simulate
from adserver.training.defaults import CLIP_ON_DEVICES
from adserver.training.eval_set import EvalSet
from maskedlark.autodiff.torch_models import torch_model
from maskedlark.canonical import build
from maskedlark.federated.graph_model import GraphModel
from maskedlark.federated.local_training import Parameters
from maskedlark.federated.populations import Population
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.model.table_network import table_network
from maskedlark.privacy.composing.analytic_gaussian import analytic_sigma
from tests.bench.harness import bench_parser, show
from tests.bench.made_tables import TABLES, encoded
from tests.bench.own_networks import EPSILON, SEEDS

_TEST: Final = 8_000
_PANEL: Final = 1_000
_ROWS_EACH: Final = 8
_MOST_EACH: Final = 30
_DELTA: Final = 1e-5
_FRAC_BITS: Final = 24
# Rounds, and the learning rate on a device
_SETTINGS: Final = ((10, 1.0), (20, 1.0), (20, 2.0), (40, 2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting on one table."""

    table: str
    people: int
    rounds: int
    learning_rate: float
    auc: float
    deviation: float


class _Devices:
    """The people of one made table, and the rows that test."""

    def __init__(self, table: str, people: int, seed: int) -> None:
        count = people * _ROWS_EACH
        encoder, seen = encoded(TABLES[table](count + _TEST + _PANEL, seed), count)
        sizes = np.minimum(_MOST_EACH, np.random.default_rng(seed).geometric(1 / _ROWS_EACH, people))
        ends = np.cumsum(sizes)
        ends = ends[ends <= count]
        members = np.split(np.arange(ends[-1]), ends[:-1])
        self.population = Population(members=tuple(members))
        self.features, self.labels = seen.features, seen.labels
        self.test = slice(count, count + _TEST)
        self._seed = seed
        panel = EvalSet(features=seen.features[self.test.stop :], labels=seen.labels[self.test.stop :])
        file = table_network(
            encoder,
            hidden=(),
            outputs=2,
            seed=1,
            are_numbers_in_tables=False,
            centres=panel.mean_bytes(),
        )
        graph = parse(file, num_features=encoder.num_features)
        zeros = tuple(np.zeros_like(value) for value in graph.initial_values)
        self._model = torch_model(
            GraphModel.of_file(
                replace_parameters(file, graph, zeros),
                widths=(encoder.num_features, 2),
                layer_sizes=tuple(one.size for one in graph.parameters),
            )
        )
        self._begun = np.concatenate([value.ravel() for value in graph.initial_values])

    def auc(self, rounds: int, learning_rate: float) -> float:
        """Return the AUC after all rounds."""
        devices = len(self.population)
        settings = strategy_settings(FederatedSettings(learning_rate=learning_rate), devices=devices)
        # Every device takes part in every round: together the rounds are one Gaussian release
        noise = analytic_sigma(EPSILON, _DELTA) * math.sqrt(rounds)
        bound = {"clip_norm": CLIP_ON_DEVICES, "frac_bits": _FRAC_BITS}
        strategy = build(DpFedAvg, {**settings, "rounds": rounds, "noise_multiplier": noise, "bound": bound})
        simulated = Simulated(
            strategy=strategy,
            model=self._model,
            population=self.population,
            features=self.features,
            labels=self.labels,
        )
        *_, last = simulate(simulated, self._begun, seed=self._seed, evaluate=self._score, eval_every=rounds)
        return last.scores["auc"]

    def _score(self, parameters: Parameters) -> dict[str, float]:
        outputs = self._model.logits(parameters, self.features[self.test])
        return {"auc": float(roc_auc_score(self.labels[self.test], outputs[:, 1] - outputs[:, 0]))}


def rows(only: str, people: int) -> Iterator[Row]:
    """Measure the tables whose names start so, with so many people, of whom the last few are left out."""
    for table in TABLES:
        if not table.startswith(only):
            continue
        devices = [_Devices(table, people, seed) for seed in SEEDS]
        for rounds, learning_rate in _SETTINGS:
            found = [one.auc(rounds, learning_rate) for one in devices]
            yield Row(
                table=table,
                people=round(float(np.mean([len(one.population) for one in devices]))),
                rounds=rounds,
                learning_rate=learning_rate,
                auc=round(float(np.mean(found)), 4),
                deviation=round(float(np.std(found, ddof=1)), 4),
            )


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="tables whose names start so")
    parser.add_argument("--people", type=int, default=600, help="on whose devices the rows are")
    arguments = parser.parse_args()
    for row in rows(arguments.only, arguments.people):
        show(row, is_json=arguments.json)


if __name__ == "__main__":
    main()
