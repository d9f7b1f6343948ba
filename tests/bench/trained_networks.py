"""What the rule's rate and shares of it make of weights trained in the clear: a table of defaults.md.

    python -m tests.bench.trained_networks [--only adult] [--reports 3000] [--public 15000]

Some twelve minutes of one core. Networks are trained plainly on 2,000 public records, of all columns or of
every second one, and then at epsilon 3 against the ad server, with the exact engine and both helpers' noise,
on the other records, or on the first so many of them; AUC on the panel. One row for each data set, network
and pretraining: as given, then trained at the rule's rate and at shares of it; means over seeds from 101 on,
with their standard deviation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from adserver.training.defaults import choose_learning_rate
from adserver.training.eval_set import EvalSet
from adserver.training.inference import evaluate
from adserver.training.plain_training import RATES, train_plainly
from adserver.training.standardising import standardise
from maskedlark.model.onnx_file import parse, replace_parameters
from tests.bench.examples import Examples, Split, split
from tests.bench.harness import bench_parser, show
from tests.bench.own_networks import DATA, EPSILON, LOSS, NETWORKS, SEEDS, auc_of, begin

_SHARES: Final = (1.0, 0.3, 0.1, 0.03)
_TRAINED: Final = ("32", "64, 32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One network on one data set, trained on some of its columns before; AUCs."""

    data: str
    network: str
    public: int
    reports: int
    columns: str
    learning_rate: float
    given: float
    given_deviation: float
    by_share: dict[float, float]
    deviation_by_share: dict[float, float]


def _pretrain(encoded: bytes, public: Examples, seed: int) -> bytes:
    """Return the file with weights that were trained plainly, at the rate whose last weights rank best."""
    model = parse(encoded, num_features=public.features.shape[1])
    records = EvalSet(features=public.features, labels=public.labels)
    made = list[bytes]()
    for rate in RATES:
        *_, (_, weights) = train_plainly(model, LOSS, rate, records, np.random.default_rng(seed))
        made.append(replace_parameters(encoded, model, weights))
    return max(made, key=lambda one: evaluate(one, records.features, records.labels, LOSS).auc or 0.0)


def _without(records: Examples, columns: slice) -> Examples:
    """Return records that have one byte in some columns."""
    features = records.features.copy()
    features[:, columns] = 128
    return replace(records, features=features)


def rows(only: str, most: int | None, num_public: int) -> Iterator[Row]:
    """Measure data sets whose names start so, on so many reports at most, after so many public records."""
    hidden = {"all": slice(0, 0), "every second one": slice(0, None, 2)}
    for name, read in DATA.items():
        if not name.startswith(only):
            continue
        encoder, seen = read()
        for called in _TRAINED:
            for columns, left_out in hidden.items():
                given, found = list[float](), {share: list[float]() for share in _SHARES}
                for seed in SEEDS:
                    parts = split(seen, seed)
                    public, reported = np.split(np.arange(len(parts.reported.labels)), [num_public])
                    reported = reported[:most]
                    records = Split(reported=parts.reported.part(reported), panel=parts.panel)
                    panel = EvalSet(features=parts.panel.features, labels=parts.panel.labels)
                    begun = standardise(begin(NETWORKS[called], encoder, seed), LOSS, panel).model
                    known = _without(parts.reported.part(public), left_out)
                    trained = standardise(_pretrain(begun, known, seed), LOSS, panel).model
                    rule = choose_learning_rate(
                        rows=len(reported),
                        epsilon=EPSILON,
                        parameters=parse(trained, num_features=encoder.num_features).num_parameters,
                        network=None,
                    )
                    given.append(evaluate(trained, panel.features, panel.labels, LOSS).auc or 0.0)
                    for share, aucs in found.items():
                        aucs.append(auc_of(trained, records, seed, share * rule))
                yield Row(
                    data=name,
                    network=called,
                    public=num_public,
                    reports=len(reported),
                    columns=columns,
                    learning_rate=rule,
                    given=round(float(np.mean(given)), 4),
                    given_deviation=round(float(np.std(given, ddof=1)), 4),
                    by_share={share: round(float(np.mean(aucs)), 4) for share, aucs in found.items()},
                    deviation_by_share={
                        share: round(float(np.std(aucs, ddof=1)), 4) for share, aucs in found.items()
                    },
                )


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--only", default="", help="data sets whose names start so")
    parser.add_argument("--reports", type=int, help="train on so many reports at most")
    parser.add_argument("--public", type=int, default=2_000, help="records to train on in the clear")
    arguments = parser.parse_args()
    for row in rows(arguments.only, arguments.reports, arguments.public):
        show(row, is_json=arguments.json)


if __name__ == "__main__":
    main()
