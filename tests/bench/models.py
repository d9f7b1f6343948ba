"""What quickstart's defaults train on data of the field, with the exact engine and both helpers' noise.

`adult_quickstart_auc`, `_log_loss`: Adult's 32,561 rows, of which a fifth are not reported, tested on its
16,281 others, at epsilon 3 and 8 against a colluding helper, with everything that quickstart chooses.
`rare_positives_mean_over_rate`: the same with one positive in a hundred: the mean prediction over the true
rate.
"""

import gzip
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from adserver.quickstart.defaults import choose_network
from adserver.training.inference import predict
from maskedlark.encoding.cells import said
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.model.table_network import table_network
from maskedlark.privacy.accounting import Epsilons
from tests.bench.harness import bench_parser, show
from tests.bench.mnist import FOLDER
from tests.bench.models_heads import heads_figures
from tests.bench.models_ids import ids_figures
from tests.bench.models_images import images_figures
from tests.bench.quickstart_job import train_as_quickstart

COLUMNS: Final = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
    "income",
)  # fmt: skip
_LABEL: Final = "income"
_RARE: Final = 100
"""One positive in so many records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Records in the clear."""

    features: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def part(self, chosen: NDArray[Any]) -> "Examples":
        """The chosen records."""
        return Examples(features=self.features[chosen], labels=self.labels[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Four fifths that are reported, and the panel."""

    reported: Examples
    panel: Examples


def split(seen: Examples, seed: int) -> Split:
    """Draw the panel by a seed."""
    order = np.random.default_rng(seed).permutation(len(seen.labels))
    panel = len(order) // 5
    return Split(reported=seen.part(order[panel:]), panel=seen.part(order[:panel]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A trained model on records that nobody reported, and what its training cost."""

    auc: float
    accuracy: float
    log_loss: float
    mean_over_rate: float
    learning_rate: float
    cost: Epsilons


def adult() -> tuple[Encoder, Examples, Examples]:
    """The encoder that `browser-sim encode --fit` makes of Adult, its training and its test records."""
    tables = [_columns(name) for name in ("adult.data.gz", "adult.test.gz")]
    encoder = fit(tables[0], FitSettings(label=_LABEL))
    seen, test = (
        Examples(features=encoder.features(table), labels=encoder.labels(table).astype(np.int64))
        for table in tables
    )
    return encoder, seen, test


def _columns(name: str) -> dict[str, list[str | None]]:
    with gzip.open(FOLDER.parent / "ads" / name, "rt") as file:
        rows = [line.strip().rstrip(".").split(", ") for line in file]
    kept = [row for row in rows if len(row) == len(COLUMNS)]
    return {column: [said(row[at]) for row in kept] for at, column in enumerate(COLUMNS)}


def rare(examples: Examples, seed: int) -> Examples:
    """All negatives, and as many positives that they are one record in `_RARE`."""
    positives = np.random.default_rng(seed).permutation(np.flatnonzero(examples.labels == 1))
    negatives = np.flatnonzero(examples.labels == 0)
    return examples.part(np.sort(np.append(negatives, positives[: len(negatives) // (_RARE - 1)])))


def train_by_defaults(
    encoder: Encoder,
    split: Split,
    test: Examples,
    *,
    epsilon: float,
    seed: int,
    learning_rate: float | None = None,
) -> Score:
    """Train what quickstart would, with both helpers' noise; a rate that is given replaces the rule's."""
    panel = split.panel.labels
    base_rate = float((panel.sum() + 0.5) / (len(panel) + 1))
    network = choose_network(
        rows=len(split.reported.labels),
        epsilon=epsilon,
        columns=len(encoder.columns),
        rarest=min(base_rate, 1 - base_rate),
    )
    untrained = table_network(
        encoder,
        hidden=network.hidden,
        outputs=1,
        seed=seed,
        are_numbers_in_tables=network.are_numbers_in_tables,
        base_rate=None if network.clip_norm is None else base_rate,
    )
    trained = train_as_quickstart(
        untrained,
        split.reported.features,
        split.reported.labels,
        network=network,
        epsilon=epsilon,
        seed=seed,
        learning_rate=learning_rate,
    )
    logits = predict(trained.onnx, test.features)[:, 0]
    chance = 1 / (1 + np.exp(-logits.astype(np.float64)))
    return Score(
        auc=float(roc_auc_score(test.labels, chance)),
        accuracy=float(((chance > 0.5) == test.labels).mean()),
        log_loss=float(log_loss(test.labels, chance)),
        mean_over_rate=float(chance.mean() / test.labels.mean()),
        learning_rate=trained.learning_rate,
        cost=trained.cost,
    )


def measure(seeds: int, epsilon: float = 3.0) -> dict[str, Any]:
    """Every figure of this bench, each the mean over its seeds; spreads end in `_spread`."""
    encoder, seen, test = adult()
    scores = [
        train_by_defaults(encoder, split(seen, seed), test, epsilon=epsilon, seed=seed)
        for seed in range(1, seeds + 1)
    ]
    few = [
        train_by_defaults(
            encoder, split(rare(seen, seed), seed), rare(test, seed), epsilon=epsilon, seed=seed
        )
        for seed in range(1, seeds + 1)
    ]
    return {
        **_mean_and_spread("adult_quickstart_auc", [one.auc for one in scores]),
        **_mean_and_spread("adult_quickstart_log_loss", [one.log_loss for one in scores]),
        **_mean_and_spread("adult_quickstart_mean_over_rate", [one.mean_over_rate for one in scores]),
        "adult_quickstart_epsilon": scores[0].cost.ad_server,
        "adult_quickstart_collusion_epsilon": scores[0].cost.colluding,
        **_mean_and_spread("rare_positives_mean_over_rate", [one.mean_over_rate for one in few]),
        **_mean_and_spread("rare_positives_auc", [one.auc for one in few]),
    }


def _mean_and_spread(name: str, values: list[float]) -> dict[str, float]:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return {name: float(np.mean(values))} | ({} if math.isnan(spread) else {f"{name}_spread": spread})


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    found = {**measure(arguments.seeds), **ids_figures(), **heads_figures(), **images_figures()}
    show(found, is_json=arguments.json)


if __name__ == "__main__":
    main()
