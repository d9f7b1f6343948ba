"""One training at one privacy setting, in this process, by the product's own functions.

What tests/bench/privacy.py repeats.

What runs is what the services run (tests/bench/in_process.py), with the ad server's trainer and 14-bit
weights.
"""

import math
import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.training_plan import Optimizer, TrainingPlan
from adserver.training.runner import mean_gradient
from adserver.training.trainer import Masters, Trainer
from browser_sim.sources.table import TableSettings, load_table
from browser_sim.sources.wbcd import load_wbcd
from maskedlark.encoding.column_kinds import Binning
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_bytes
from maskedlark.randomness import Randomness, seeded
from maskedlark.releases.samples import Samples
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR
from tests.bench import mnist
from tests.bench.in_process import TwoHelpers
from tests.builders import World, fitting_noise, job_spec, world
from tests.training_plans import training_plan

DELTA: Final = 1e-5
PRODUCT_BITS: Final = 14
MOMENTUM: Final = 0.9
_DATA: Final = Path(
    os.environ.get("MASKEDLARK_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")
)
_LEAST_BATCH: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One data set with its network and schedule: the same at every privacy setting.

    Attributes:
        name: For people.
        layers: Of the dense ReLU network.
        rounds: Optimizer steps.
        batch_size: Expected records in a round; None: all.
        learning_rate: Of SGD with momentum at a clip norm of 1; divided by the clip norm, so that the longest
            step is one length.
        is_auc: Whether the area under the ROC curve is reported, and not the accuracy.
        seeds: How often it is repeated: another split (where there is no fixed test set), initial model,
            sample and noise each time.
        epoch_steps: Of random allocation; None for Poisson samples.
        carried: Of correlated noise.
        records: How many of the training records are used; None: all.
    """

    name: str
    layers: tuple[int, ...]
    rounds: int
    batch_size: int | None
    learning_rate: float
    seeds: int
    is_auc: bool = False
    epoch_steps: int | None = None
    carried: int | None = None
    records: int | None = None

    @property
    def loss(self) -> Loss:
        """By the number of outputs."""
        return Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS if self.layers[-1] == 1 else Loss.CROSS_ENTROPY


WBCD: Final = Setup(
    name="wbcd", layers=(30, 50, 50, 1), rounds=30, batch_size=None, learning_rate=0.3, seeds=8
)
SETUPS: Final = (
    WBCD,
    Setup(name="mnist", layers=(784, 32, 10), rounds=100, batch_size=1000, learning_rate=1.0, seeds=2),
    Setup(
        name="online_shoppers",
        layers=(17, 32, 1),
        rounds=150,
        batch_size=1000,
        learning_rate=0.5,
        is_auc=True,
        seeds=4,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Records to train on and to test with, in the clear."""

    features: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    test_features: NDArray[np.uint8] = field(repr=False)
    test_labels: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """One privacy setting.

    Attributes:
        epsilon: What the noise is calibrated to at `DELTA`, all rounds together, with secret sampling;
            infinite: no noise.
        is_split: Whether the two helpers' noises are calibrated together, instead of each alone.
        clip_norm: In L2.
        feature_epsilon: Of the browser's own noise on each feature byte; None for none.
        mechanism: Gaussian clips in L2, Laplace in L1.
        noise_multiplier: Each helper's noise over the sensitivity, instead of `epsilon`.
        weight_bits: Of the weights that helpers get: 14, or 8 as in the paper.
        step: What the learning rate is multiplied with: L1 clipping leaves much shorter gradients.
    """

    epsilon: float = math.inf
    is_split: bool = False
    clip_norm: float = 1.0
    feature_epsilon: float | None = None
    mechanism: Mechanism = Mechanism.GAUSSIAN
    noise_multiplier: float | None = None
    weight_bits: int = PRODUCT_BITS
    step: float = 1.0

    @property
    def is_noisy(self) -> bool:
        """Whether the helpers add noise."""
        return (
            bool(self.noise_multiplier) if self.noise_multiplier is not None else math.isfinite(self.epsilon)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a training.

    Attributes:
        score: Accuracy, or area under the curve, on the test records.
        noise_multiplier: As the job names it; 0 without noise.
        cost: What the product's accountant charges; infinite without noise.
    """

    score: float
    noise_multiplier: float
    cost: Epsilons


@lru_cache(maxsize=4)
def load(setup: Setup, seed: int) -> Data:
    """The records of one repeat: a fifth is kept to test with, where there is no fixed test set."""
    if setup.name.startswith("mnist"):
        features, labels = mnist.load_training_set()
        features, labels = features[: setup.records], labels[: setup.records]
        test_features, test_labels = mnist.load_test_set()
        return Data(features=features, labels=labels, test_features=test_features, test_labels=test_labels)
    if setup.name.startswith("wbcd"):
        records = load_wbcd().records
    else:
        csv = TableSettings(
            path=_DATA / "online_shoppers_intention.csv", label="Revenue", binning=Binning.QUANTILE
        )
        records = load_table(csv).records
    order = np.random.default_rng(seed).permutation(len(records))
    test, train = np.split(order, [len(order) // 5])
    features, labels = records.features, records.labels.astype(np.int64)
    return Data(
        features=features[train], labels=labels[train], test_features=features[test], test_labels=labels[test]
    )


def untrained(setup: Setup, seed: int) -> Model:
    """The initial model of a repeat."""
    return parse(dense_network(list(setup.layers), "relu", seed=seed), num_features=setup.layers[0])


@lru_cache(maxsize=64)
def one_curators_noise(epsilon: float, sampling_rate: float, rounds: int) -> float:
    """The noise multiplier that a single trusted curator needs.

    All the noise that there is, with secret sampling. DP-SGD's.
    """
    of_each = fitting_noise(
        epsilon,
        DELTA,
        mechanism=Mechanism.GAUSSIAN,
        sampling_rate=sampling_rate,
        rounds=rounds,
        already=(),
        collusion_epsilon=math.inf,
    )
    return of_each * math.sqrt(2)  # of two helpers' noises, which are counted together


def train(setup: Setup, privacy: Privacy, seed: int) -> Outcome:
    """Train by the product's functions, and test."""
    data, model = load(setup, seed), untrained(setup, seed)
    site = _Site(setup, privacy, data, model, seed)
    for round_index in range(setup.rounds):
        site.step(round_index)
    job = site.plan.job
    return Outcome(
        score=score(setup, site.trainer.values(), data),
        noise_multiplier=job.noise_multiplier,
        cost=spent([job.charge(site.plan.task, job.rounds)], DELTA),
    )


def score(setup: Setup, values: Masters, data: Data) -> float:
    """Accuracy or area under the curve of a dense ReLU network on the test records, in float32."""
    hidden = data.test_features.astype(np.float32) / 256
    layers = list(zip(values[::2], values[1::2], strict=True))
    for matrix, bias in layers[:-1]:
        hidden = np.maximum(hidden @ matrix.T + bias, 0)
    outputs = hidden @ layers[-1][0].T + layers[-1][1]
    if setup.is_auc:
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(data.test_labels, outputs[:, 0]))
    predicted = (outputs[:, 0] > 0) if outputs.shape[1] == 1 else outputs.argmax(1)
    return float((predicted == data.test_labels).mean())


class _Site:
    """Two helpers and an ad server in this process."""

    def __init__(self, setup: Setup, privacy: Privacy, data: Data, model: Model, seed: int) -> None:
        of = _world(setup, privacy)
        self._weight_bits = privacy.weight_bits
        self._model = model
        features = data.features
        if privacy.feature_epsilon is not None:
            features = _noised(features, privacy.feature_epsilon, seeded(seed, "features"))
        self.plan = _plan(setup, privacy, of, model, records=len(features), job_id=seed.to_bytes(16, "big"))
        self._helpers = TwoHelpers(of, self.plan, model, features, data.labels)
        self.trainer = Trainer(model=model, plan=self.plan)

    def step(self, round_index: int) -> None:
        """One round at both helpers, and the optimizer's step."""
        encoded = self.trainer.weights()
        if self._weight_bits != PRODUCT_BITS:
            rounded = weights.decode(encoded, self._model.parameters)
            encoded = weights.encode([coarser(tensor, self._weight_bits) for tensor in rounded])
        self.trainer.step(mean_gradient(self.plan, *self._helpers.answers(round_index, encoded)))


def _noised(features: NDArray[np.uint8], epsilon: float, randomness: Randomness) -> NDArray[np.uint8]:
    """Every browser's own noise on its features, some thousand records at a time to bound the memory."""
    parts = np.array_split(features, max(1, len(features) // 2_000))
    return np.concatenate([noise_bytes(part, epsilon, randomness) for part in parts])


def coarser(tensor: weights.QuantisedTensor, bits: int) -> weights.QuantisedTensor:
    """The same weights rounded to fewer bits, on a coarser grid within the product's."""
    unit = 1 << (PRODUCT_BITS - bits)
    most = weights.MAX_MAGNITUDE // unit
    values = np.clip(np.rint(tensor.values / unit), -most, most) * unit
    return replace(tensor, values=values.astype(np.int16))


def _world(setup: Setup, privacy: Privacy) -> World:
    """A task and both helpers' keys."""
    is_laplace = privacy.mechanism is Mechanism.LAPLACE
    return world(
        num_features=setup.layers[0],
        labels={"kind": "classes", "size": max(2, setup.layers[-1])},
        min_batch_size=_LEAST_BATCH,
        mechanism=privacy.mechanism if privacy.is_noisy else Mechanism.NONE,
        noise="split" if privacy.is_split and privacy.is_noisy else "full",
        norm=Norm.L1 if is_laplace else Norm.L2,
        clip_norm=privacy.clip_norm,
        delta=DELTA,
    )


def _plan(
    setup: Setup, privacy: Privacy, of: World, model: Model, *, records: int, job_id: bytes
) -> TrainingPlan:
    """The job at both helpers, with its noise."""
    numerator = (
        Samples.numerator(expected_batch_size=setup.batch_size or records, dataset_size=records)
        if setup.epoch_steps is None
        else SAMPLING_DENOMINATOR // setup.epoch_steps
    )
    job = job_spec(
        job_id=job_id,
        task_id=of.task.task_id,
        model_digest=model.digest,
        loss=setup.loss,
        rounds=setup.rounds,
        sampling_numerator=numerator,
        epoch_steps=setup.epoch_steps,
        carried=setup.carried,
    )
    if privacy.noise_multiplier is not None:
        job = replace(job, noise_multiplier=privacy.noise_multiplier)
    elif privacy.is_noisy:
        job = replace(
            job, noise_multiplier=one_curators_noise(privacy.epsilon, job.sampling_rate, setup.rounds)
        )
    optimizer = Optimizer(
        kind=OptimizerKind.MOMENTUM,
        learning_rate=privacy.step * setup.learning_rate / privacy.clip_norm,
        momentum=MOMENTUM,
    )
    return training_plan(of.task, job, records=records, optimizer=optimizer, eval_every=setup.rounds)
