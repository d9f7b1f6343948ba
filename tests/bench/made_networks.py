"""Networks on made tables whose best AUC is known: a table of defaults.md.

    python -m tests.bench.made_networks [--only clicks] [--rows 2000]        some ten minutes on one core
    python -m tests.bench.made_networks --own --rounds 300        networks of one's own, with more rounds

Of each table four fifths of the rows are reported; the AUC is that of 10,000 further rows. Quickstart's
network and others are trained with the exact engine at epsilon 3, with both helpers' noise, and then without
noise at the same rate. Means over seeds, which draw the tables too, with their standard deviation.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from adserver.training.as_onnx import as_onnx
from adserver.training.defaults import ROUNDS, Network, choose_learning_rate, choose_network
from adserver.training.eval_set import EvalSet
from adserver.training.inference import evaluate
from adserver.training.standardising import standardise
from maskedlark.encoding.encoder import CategoryColumn, Encoder
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from tests.bench.examples import Examples, Split, split
from tests.bench.harness import bench_parser, show
from tests.bench.made_tables import TABLES, encoded
from tests.bench.own_networks import EPSILON, NETWORKS, SEEDS
from tests.bench.quickstart_job import Trained, train_as_quickstart, train_by_defaults

_TEST: Final = 10_000
_LOSS: Final = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
# Quickstart's, by what differs from its choice.
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "without tables of numbers": {"are_numbers_in_tables": False},
    "hidden = [32]": {"hidden": (32,)},
}
# Names in `NETWORKS`.
_OWN: Final = {"own: 32": "32", "own: embeddings, 32": "embeddings of 8, 32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One network on one table; AUCs. References have no noise, and no rate."""

    table: str
    network: str
    learning_rate: float | None = None
    private: float | None = None
    private_deviation: float | None = None
    without_noise: float
    without_noise_deviation: float


def rows(only: str, count: int, *, rounds: int = ROUNDS, is_own_only: bool = False) -> Iterator[Row]:
    """Measure the tables whose names start so, with so many rows; rounds are of networks of one's own."""
    for name, make in TABLES.items():
        if not name.startswith(only):
            continue
        private, plain = dict[str, list[float]](), dict[str, list[float]]()
        rates = dict[str, float]()
        for seed in SEEDS:
            made = make(count + _TEST, seed)
            encoder, seen = encoded(made, count)
            places = np.arange(count + _TEST)
            records, test = split(seen.part(places[:count]), seed), seen.part(places[count:])
            plain.setdefault("the odds", []).append(roc_auc_score(test.labels, made.logits[count:]))
            for called, auc in _references(encoder, records.reported, test).items():
                plain.setdefault(called, []).append(auc)
            for called in _OWN if is_own_only else (*_DEFAULTS, *_OWN):
                train = partial(_train, called, encoder, records, seed=seed, rounds=rounds)
                noisy = train(epsilon=EPSILON, rate=None)
                quiet = train(epsilon=math.inf, rate=noisy.learning_rate)
                rates[called] = noisy.learning_rate
                private.setdefault(called, []).append(_auc(noisy, test))
                plain.setdefault(called, []).append(_auc(quiet, test))
        for called, found in plain.items():
            is_network = called in private
            yield Row(
                table=name,
                network=called,
                learning_rate=rates.get(called),
                private=_mean(private[called]) if is_network else None,
                private_deviation=_deviation(private[called]) if is_network else None,
                without_noise=_mean(found),
                without_noise_deviation=_deviation(found),
            )


def _references(encoder: Encoder, records: Examples, test: Examples) -> dict[str, float]:
    """Return the AUCs of models that see all labels."""
    models = {
        "boosted trees": HistGradientBoostingClassifier(
            categorical_features=[isinstance(column, CategoryColumn) for column in encoder.columns],
            max_leaf_nodes=8,
            learning_rate=0.05,
            max_iter=200,
            random_state=1,
        ),
        "logistic, each byte a word": make_pipeline(
            OneHotEncoder(handle_unknown="ignore"), LogisticRegression(C=0.1, max_iter=500)
        ),
    }
    return {
        name: roc_auc_score(
            test.labels, model.fit(records.features, records.labels).predict_proba(test.features)[:, 1]
        )
        for name, model in models.items()
    }


def _train(
    called: str,
    encoder: Encoder,
    records: Split,
    *,
    seed: int,
    rounds: int,
    epsilon: float,
    rate: float | None,
) -> Trained:
    """Train a network that is chosen as for `EPSILON`, at a rate or the rule's; rounds are of own ones."""
    reported = records.reported
    if called not in _OWN:
        chosen = choose_network(rows=len(reported.labels), epsilon=EPSILON, columns=encoder.num_features)
        network = replace(chosen, **_DEFAULTS[called])
        return train_by_defaults(
            encoder, records, epsilon=epsilon, seed=seed, learning_rate=rate, network=network
        )
    onnx = _begin_own(called, encoder, records.panel, seed)
    parameters = parse(onnx, num_features=encoder.num_features).num_parameters
    return train_as_quickstart(
        onnx,
        reported.features,
        reported.labels,
        network=Network(hidden=(), are_numbers_in_tables=False),
        epsilon=epsilon,
        seed=seed,
        learning_rate=rate
        or choose_learning_rate(
            rows=len(reported.labels), epsilon=EPSILON, parameters=parameters, network=None
        ),
        rounds=rounds,
    )


def _begin_own(called: str, encoder: Encoder, panel: Examples, seed: int) -> bytes:
    """Return a network as a person would bring it, standardised by the panel."""
    torch.manual_seed(seed)
    begun = as_onnx(NETWORKS[_OWN[called]](encoder).eval(), encoder.num_features)
    return standardise(begun, _LOSS, EvalSet(features=panel.features, labels=panel.labels)).model


def _auc(trained: Trained, test: Examples) -> float:
    return evaluate(trained.onnx, test.features, test.labels, trained.loss).auc or 0.0


def _mean(found: list[float]) -> float:
    return round(float(np.mean(found)), 4)


def _deviation(found: list[float]) -> float:
    return round(float(np.std(found, ddof=1)), 4)


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="tables whose names start so")
    parser.add_argument("--rows", type=int, default=8_000, help="of a table, without the test's")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of networks of one's own")
    parser.add_argument("--own", action="store_true", help="train no default network")
    arguments = parser.parse_args()
    found = rows(arguments.only, arguments.rows, rounds=arguments.rounds, is_own_only=arguments.own)
    for row in found:
        show(row, is_json=arguments.json)


if __name__ == "__main__":
    main()
