"""What training and its reports cost, by part: processor time of both helpers beside plain training in torch,
and dollars for a million events. A part of `make bench-ads`.

    python -m tests.bench.ads_cost [--records 100000] [--dollars-per-vcpu-hour 0.04]

A network of each kind that the field trains, over Criteo's 13 numbers and 26 columns of words, one byte each.
A helper's epoch is its answer to a round of all records: the gradient at both candidate labels of each, the
masks, the blind and its noise. Plain training is the forward and backward pass of torch over the same records
on one thread, in whichever of two batch sizes is faster. All sides take turns, and each one's best counts.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.training_plan import Optimizer
from adserver.training.runner import mean_gradient
from adserver.training.trainer import Trainer
from helper.gradient.choose import choose_engine
from maskedlark.encoding.encoder import CategoryColumn, Column, Encoder, IdColumn, NumberColumn
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.table_network import WIDTH, table_network
from maskedlark.numbers.field import random_vector, subtract
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded, system_randomness
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.round import aggregate
from maskedlark.reports.input_shares import InputShares
from tests.bench import ingest
from tests.bench.harness import bench_parser, fastest, show
from tests.bench.models_ids import logistic_on_ids
from tests.builders import job_spec, of_shares, world
from tests.training_plans import training_plan

NUMBERS: Final = 13
WORDS: Final = 26
FEATURES: Final = NUMBERS + WORDS
_HIDDEN: Final = 32
_BYTES: Final = 256
_BATCHES: Final = (8_192, 1 << 30)
_NOISE: Final = 5.0
_HOUR_S: Final = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A network as an ONNX file, and in torch in one or more ways, of which the fastest counts."""

    name: str
    onnx: bytes
    plain: tuple[nn.Module, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """Processor seconds of one epoch over so many records.

    Attributes:
        records: Of the dataset.
        parameters: Of the network.
        plain_s: Of torch.
        helpers_s: Of each helper, with its noise.
        noise_s: What one helper's noise takes of it.
        adserver_s: Of the ad server: both answers added up, and the optimizer's step.
    """

    records: int
    parameters: int
    plain_s: float
    helpers_s: tuple[float, float]
    noise_s: float
    adserver_s: float

    @property
    def over_plain(self) -> float:
        """Both helpers over plain training."""
        return sum(self.helpers_s) / self.plain_s


class Tables(nn.Module):
    """The network of `table_network` in torch: a row of each word's table, each number, and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(_BYTES, WIDTH) for _ in range(WORDS))
        self.dense = _dense(WORDS * WIDTH + NUMBERS, _HIDDEN, 1)

    def forward(self, numbers: Tensor, rows: Tensor) -> Tensor:
        """Logits of (records, columns) numbers and bytes."""
        looked_up = [table(rows[:, NUMBERS + place]) for place, table in enumerate(self.tables)]
        found: Tensor = self.dense(torch.cat([*looked_up, numbers[:, :NUMBERS] * 2 - 1], 1))
        return found


class Logistic(nn.Module):
    """A logistic regression over ids: the sum of a number for each column's row of one table."""

    def __init__(self, *, is_bag: bool) -> None:
        super().__init__()
        size = _BYTES * FEATURES
        self.is_bag = is_bag
        self.table = nn.EmbeddingBag(size, 1, mode="sum") if is_bag else nn.Embedding(size, 1)
        self.starts = _BYTES * torch.arange(FEATURES)

    def forward(self, _: Tensor, rows: Tensor) -> Tensor:
        """Logits of (records, columns) bytes."""
        found: Tensor = self.table(rows + self.starts)
        return found if self.is_bag else found.sum(1)


class Dense(nn.Module):
    """Dense ReLU layers over all bytes as numbers."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = _dense(*widths)

    def forward(self, numbers: Tensor, _: Tensor) -> Tensor:
        """Logits of (records, columns) numbers."""
        found: Tensor = self.layers(numbers)
        return found


def _dense(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def ids() -> Encoder:
    """All columns as words of one byte, numbers in bins."""
    words = tuple(f"{word:x}" for word in range(254))
    return Encoder(
        columns=tuple(IdColumn(name=f"C{place}", words=words) for place in range(FEATURES)), label=None
    )


def encoder() -> Encoder:
    """Criteo's columns: numbers, then words with a full byte."""
    columns: list[Column] = [
        NumberColumn(name=f"I{place}", edges=tuple(range(1, 256)), first=0, missing=0)
        for place in range(1, NUMBERS + 1)
    ]
    words = tuple(f"{word:x}" for word in range(254))
    columns += [
        CategoryColumn(name=f"C{place}", categories=words, first=1, missing=0)
        for place in range(1, WORDS + 1)
    ]
    return Encoder(columns=tuple(columns), label=None)


def kinds() -> tuple[Kind, ...]:
    """A logistic regression, tables below a hidden layer, and a multilayer perceptron."""
    torch.manual_seed(1)
    mlp = (FEATURES, 128, 64, 1)
    return (
        Kind(
            name="logistic",
            onnx=logistic_on_ids(ids()),
            plain=(Logistic(is_bag=True), Logistic(is_bag=False)),
        ),
        Kind(
            name="tables",
            onnx=table_network(encoder(), hidden=(_HIDDEN,), outputs=1, seed=1, are_numbers_in_tables=False),
            plain=(Tables(),),
        ),
        Kind(name="mlp", onnx=dense_network(list(mlp), "relu", seed=1), plain=(Dense(*mlp),)),
    )


def measure_training(kind: Kind, *, records: int, turns: int) -> TrainingCost:
    """Measure an epoch of both helpers, of the ad server and of plain training."""
    rng = np.random.default_rng(1)
    features = rng.integers(0, 255, (records, FEATURES), dtype=np.uint8)
    labels = rng.permuted(np.tile(np.arange(2, dtype=np.uint32), (records, 1)), axis=1)
    of = world(
        num_features=FEATURES,
        min_batch_size=100,
        mechanism=Mechanism.GAUSSIAN,
        clip_norm=1.0,
        epsilon=1e6,
        collusion_epsilon=1e6,
    )
    model = parse(kind.onnx, num_features=FEATURES)
    job = job_spec(
        of.task.task_id,
        job_id=bytes(16),
        model_digest=model.digest,
        loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        rounds=1,
        noise_multiplier=_NOISE,
    )
    plan = training_plan(
        of.task, job, records=records, optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=0.1)
    )
    trainer = Trainer(model=model, plan=plan)
    sent = trainer.weights()
    masks = random_vector(labels.size, seeded(1, "masks")).reshape(labels.shape)
    real = np.tile(np.array([1, 0], np.uint64), (records, 1))  # the first candidate is each record's label
    shares = tuple(
        InputShares(features=features, labels=labels, mask_shares=one)
        for one in (masks, subtract(real, masks))
    )
    engine = choose_engine(model, job.loss, job.clip(of.task), of.task.labels.size)
    answers: list[AggregateShare] = []

    def answer(role: int) -> AggregateShare:
        tensors = weights.decode(sent, model.parameters)
        return aggregate(
            task=of.task,
            job=job,
            pair=of.pair(role),
            round_index=0,
            round_transcript=job.round_transcript(round_index=0, weights=sent, numerics=bytes(32)),
            records=records,
            masked_sum=of_shares(shares[role], lambda batch: engine.masked_sum(tensors, batch)),
            num_values=job.num_values(model.num_parameters),
            noise=lambda mechanism, scale, count: noise_vector(mechanism, scale, count, system_randomness),
        )

    answers += [answer(0), answer(1)]

    def step() -> None:
        trainer.weights()
        trainer.step(mean_gradient(plan, *answers)[: model.num_parameters])

    units = int(_NOISE * job.clip(of.task).released_sensitivity)
    sides: dict[str, Callable[[], object]] = {
        "helper 0": lambda: answer(0),
        "helper 1": lambda: answer(1),
        "noise": lambda: noise_vector(Mechanism.GAUSSIAN, units, model.num_parameters, system_randomness),
        "ad server": step,
    }
    for place, network in enumerate(kind.plain):
        for batch in _BATCHES:
            sides[f"plain {place} {batch}"] = plain_epoch(
                network, features, labels[:, 0].astype(np.float32), batch
            )
    torch.set_num_threads(1)
    best = fastest(sides, turns)
    return TrainingCost(
        records=records,
        parameters=model.num_parameters,
        plain_s=min(spent for name, spent in best.items() if name.startswith("plain")),
        helpers_s=(best["helper 0"], best["helper 1"]),
        noise_s=best["noise"],
        adserver_s=best["ad server"],
    )


def plain_epoch(
    network: nn.Module, features: NDArray[np.uint8], labels: NDArray[np.float32], batch: int
) -> Callable[[], None]:
    """Forward and backward of all records, some at a time, nothing clipped."""
    numbers, rows = torch.from_numpy(features / np.float32(256)), torch.from_numpy(features.astype(np.int64))
    y = torch.from_numpy(labels)

    def run() -> None:
        network.zero_grad()
        for start in range(0, len(y), batch):
            part = slice(start, start + batch)
            loss = nn.functional.binary_cross_entropy_with_logits(
                network(numbers[part], rows[part])[:, 0], y[part], reduction="sum"
            )
            torch.autograd.backward(loss)

    return run


def measure(
    *, dollars_per_vcpu_hour: float, records: int = 100_000, turns: int = 5, reports: int = 3_000
) -> dict[str, object]:
    """Every key of this module: training over plain, and dollars for a million events by part.

    Args:
        dollars_per_vcpu_hour: The price that is assumed.
        records: Of the dataset that an epoch is over.
        turns: How often each side is measured.
        reports: How many are sealed, stored and opened.
    """
    training = {kind.name: measure_training(kind, records=records, turns=turns) for kind in kinds()}
    found = ingest.measure(reports, 2)
    million = dollars_per_vcpu_hour / _HOUR_S  # of a million microseconds
    parts = {
        "sealing_by_browsers": found.seal_us,
        "storing_at_the_ad_server": 1e6 / found.stored_per_s,
        "opening_at_both_helpers": 2e6 / found.opened_per_s,
    }
    for name, cost in training.items():
        parts[f"epoch_{name}_at_both_helpers"] = 1e6 * sum(cost.helpers_s) / cost.records
        parts[f"epoch_{name}_at_the_ad_server"] = 1e6 * cost.adserver_s / cost.records
        parts[f"epoch_{name}_plain"] = 1e6 * cost.plain_s / cost.records
    return {
        "training_over_plain": {name: cost.over_plain for name, cost in training.items()},
        "training": {name: asdict(cost) for name, cost in training.items()},
        "processor_us_per_event": parts,
        "dollars_per_million": {name: million * spent for name, spent in parts.items()},
        "dollars_per_vcpu_hour": dollars_per_vcpu_hour,
    }


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--dollars-per-vcpu-hour", type=float, default=0.04)
    arguments = parser.parse_args()
    show(
        measure(
            dollars_per_vcpu_hour=arguments.dollars_per_vcpu_hour,
            records=arguments.records,
            turns=arguments.turns,
        ),
        is_json=arguments.json,
    )


if __name__ == "__main__":
    main()
