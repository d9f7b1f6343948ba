"""What quickstart's defaults train on data of the field, with the exact engine and both helpers' noise.

`adult_quickstart_auc`, `_log_loss`: Adult's 32,561 rows, of which a fifth are not reported, tested on its
16,281 others, at epsilon 3 and 8 against a colluding helper, with everything that quickstart chooses.
`rare_positives_mean_over_rate`: the same with one positive in a hundred: the mean prediction over the true
rate.
"""

import gzip
import math
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from adserver.quickstart.defaults import ROUNDS, choose_learning_rate, choose_network
from adserver.quickstart.project import TaskSettings
from adserver.records.defaults import CLIP_QUANTILE
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from maskedlark.encoding.cells import said
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.model.table_network import table_network
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.job import charge
from tests.bench.harness import bench_parser, show
from tests.bench.in_process import train_in_process
from tests.bench.mnist import FOLDER
from tests.builders import fitting_noise, job_spec, world
from tests.training_plans import training_plan

DELTA: Final = 1e-5
COLUMNS: Final = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
    "income",
)  # fmt: skip
_LABEL: Final = "income"
_OTHERS: Final = {
    "models_ids": "ids_figures",
    "models_heads": "heads_figures",
    "models_images": "images_figures",
}
"""Modules with further keys, and their functions: wide ids, several heads, logistic regressions, images."""
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
class Score:
    """A trained model on records that nobody reported, and what its training cost."""

    auc: float
    log_loss: float
    mean_over_rate: float
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
    encoder: Encoder, seen: Examples, test: Examples, *, epsilon: float, seed: int
) -> Score:
    """Train what quickstart would, on four fifths of the records, with both helpers' noise."""
    reported = seen.part(np.random.default_rng(seed).permutation(len(seen.labels))[len(seen.labels) // 5 :])
    panel = seen.labels[np.random.default_rng(seed).permutation(len(seen.labels))[: len(seen.labels) // 5]]
    base_rate = float((panel.sum() + 0.5) / (len(panel) + 1))
    rows, settings = len(reported.labels), TaskSettings()
    network = choose_network(
        rows=rows, epsilon=epsilon, columns=len(encoder.columns), rarest=min(base_rate, 1 - base_rate)
    )
    encoded = table_network(
        encoder,
        hidden=network.hidden,
        outputs=1,
        seed=seed,
        are_numbers_in_tables=network.are_numbers_in_tables,
        base_rate=None if network.clip_norm is None else base_rate,
    )
    model = parse(encoded, num_features=len(encoder.columns))
    of = world(
        num_features=len(encoder.columns),
        min_batch_size=settings.min_batch_size,
        mechanism=Mechanism.GAUSSIAN,
        clip_norm=settings.clip_norm,
        epsilon=epsilon,
        collusion_epsilon=settings.collusion_epsilon,
        delta=DELTA,
    )
    noise = fitting_noise(
        epsilon,
        DELTA,
        mechanism=Mechanism.GAUSSIAN,
        sampling_rate=1.0,
        rounds=ROUNDS,
        already=(),
        collusion_epsilon=settings.collusion_epsilon,
    )
    job = job_spec(
        of.task.task_id,
        job_id=seed.to_bytes(16, "big"),
        model_digest=model.digest,
        loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        rounds=ROUNDS,
        noise_multiplier=noise,
        is_clip_adaptive=network.clip_norm is None,
        clip_norm=network.clip_norm,
    )
    rate = choose_learning_rate(rows=rows, epsilon=epsilon, parameters=model.num_parameters, network=network)
    plan = training_plan(
        of.task,
        job,
        records=rows,
        optimizer=Optimizer(
            kind=OptimizerKind.MOMENTUM,
            learning_rate=rate / (network.clip_norm or 1.0),
        ),
        schedule=Schedule(kind=ScheduleKind.COSINE),
        adaptive_clip=AdaptiveClip(quantile=CLIP_QUANTILE) if network.clip_norm is None else None,
    )
    values = train_in_process(of, plan, model, reported.features, reported.labels)
    chance = _chances(replace_parameters(encoded, model, values), test.features)
    return Score(
        auc=float(roc_auc_score(test.labels, chance)),
        log_loss=float(log_loss(test.labels, chance)),
        mean_over_rate=float(chance.mean() / test.labels.mean()),
        cost=spent([charge(of.task, job, ROUNDS)], DELTA),
    )


def _chances(onnx: bytes, features: NDArray[np.uint8]) -> NDArray[np.float64]:
    session = onnxruntime.InferenceSession(onnx)
    logits = session.run(None, {"features": features.astype(np.float32) / 256})[0][:, 0]
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


def measure(seeds: int, epsilon: float = 3.0) -> dict[str, Any]:
    """Every figure of this bench, each the mean over its seeds; spreads end in `_spread`."""
    encoder, seen, test = adult()
    scores = [
        train_by_defaults(encoder, seen, test, epsilon=epsilon, seed=seed) for seed in range(1, seeds + 1)
    ]
    few = [
        train_by_defaults(encoder, rare(seen, seed), rare(test, seed), epsilon=epsilon, seed=seed)
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
    found = measure(arguments.seeds)
    for name, function in _OTHERS.items():
        if find_spec(f"tests.bench.{name}") is not None:
            figures = getattr(import_module(f"tests.bench.{name}"), function, None)
            found |= {} if figures is None else figures()
    show(found, is_json=arguments.json)


if __name__ == "__main__":
    main()
